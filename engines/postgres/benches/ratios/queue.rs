//! The job queue, beside the simplest statements that it could be and beside those of another
//! queue, which is graphile-worker: written again here, for jobs in none of its named queues.

use crate::cpu::{Measured, measured, rate, row};
use crate::row::{PAYLOAD, ROUNDS, line};
use crate::server::{Database, Server};
use postgres::types::ToSql;
use postgres::{Client, NoTls, Statement};
use std::time::Duration;
use waterline_postgres::PgOptions;
use waterline_queue::{DrainLimits, Limit, NewJob, Outcome, Queue, QueueOptions, Retention, Runner};

const CLIENTS: u64 = 8;
/// The jobs of a round: of single calls, of pushes by a thousand, of claims, and of one key.
const SINGLE: u64 = 2_000;
const MANY: u64 = 20_000;
const CLAIMED: u64 = 4_000;
const OF_KEY: u64 = 300;

/// The simplest table of a queue, and that of another queue: a job is ready while it is not locked,
/// and a push notifies.
const TABLES: &str = "
    CREATE TABLE bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue int NOT NULL,
        state text NOT NULL, priority smallint NOT NULL, at bigint NOT NULL, kind text NOT NULL, payload text NOT NULL);
    CREATE INDEX ON bare (queue, priority, at, id) WHERE state = 'ready';
    CREATE TABLE task (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL UNIQUE);
    CREATE TABLE other (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, task int NOT NULL, payload json NOT NULL,
        priority smallint NOT NULL DEFAULT 0, run_at timestamptz NOT NULL DEFAULT now(),
        attempts smallint NOT NULL DEFAULT 0, max_attempts smallint NOT NULL DEFAULT 25, last_error text,
        created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz NOT NULL DEFAULT now(), key text UNIQUE,
        locked_at timestamptz, locked_by text, revision int NOT NULL DEFAULT 0, flags jsonb, named int,
        is_available boolean NOT NULL GENERATED ALWAYS AS (locked_at IS NULL AND attempts < max_attempts) STORED);
    CREATE INDEX ON other (priority, run_at) INCLUDE (id, task, named) WHERE is_available;
    CREATE INDEX ON other (priority, run_at) INCLUDE (id, task) WHERE is_available AND named IS NULL;
    CREATE TABLE named (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL UNIQUE,
        locked_at timestamptz, locked_by text,
        is_available boolean NOT NULL GENERATED ALWAYS AS (locked_at IS NULL) STORED);
    CREATE FUNCTION told() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_notify('other', '{\"count\": 1}'); RETURN NULL; END $$;
    CREATE TRIGGER told AFTER INSERT ON other FOR EACH STATEMENT EXECUTE FUNCTION told();
    CREATE FUNCTION other_push(p_task text, p_payload json) RETURNS bigint LANGUAGE plpgsql AS $$
    DECLARE v_task int; v_id bigint;
    BEGIN
        INSERT INTO task (name) SELECT p_task WHERE NOT EXISTS (SELECT FROM task WHERE name = p_task)
        ON CONFLICT DO NOTHING;
        SELECT id INTO v_task FROM task WHERE name = p_task;
        INSERT INTO other (task, payload) VALUES (v_task, p_payload) RETURNING id INTO v_id;
        RETURN v_id;
    END $$;
    INSERT INTO task (name) VALUES ('k')";
const BARE: &str = "INSERT INTO bare (queue, state, priority, at, kind, payload) VALUES (1, 'ready', 2, 5, 'k', $1)";
const BARE_MANY: &str = "INSERT INTO bare (queue, state, priority, at, kind, payload) SELECT 1, 'ready', 2, 5, k, p
    FROM unnest($1::text[], $2::text[]) u(k, p) RETURNING id";
/// A named queue has one job at a time. So each claim asks which of them are free, and locks those
/// of which it takes a job; a claim of several jobs (`MANY`) leaves all but the first of each.
const OTHER_CLAIM: &str = "WITH found AS (
        SELECT id, named, priority, run_at FROM other WHERE is_available AND run_at <= now() AND task = ANY ($2::int[])
            AND (named IS NULL OR named IN (SELECT id FROM named WHERE is_available FOR UPDATE SKIP LOCKED))
        ORDER BY priority, run_at LIMIT $1 FOR UPDATE SKIP LOCKED), MANY
    locks AS (UPDATE named SET locked_by = 'w', locked_at = now() FROM j WHERE named.id = j.named)
    UPDATE other o SET attempts = attempts + 1, locked_by = 'w', locked_at = now() FROM j WHERE o.id = j.id
    RETURNING o.*";
const OTHER_FIRST: &str = "j AS (SELECT DISTINCT ON (named, CASE WHEN named IS NULL THEN id END) id, named FROM found
    ORDER BY named, CASE WHEN named IS NULL THEN id END, priority, run_at),";
const OTHER_END: &str = "DELETE FROM other WHERE id = ANY ($1)";
const TURN: &str = "SELECT * FROM waterline.turn($1, $2, $3, '{}', '{}', '{}', 'q', $4, NULL, NULL, NULL, 'w', false,
    NULL, NULL)";

/// Prints the rows. Returns whether all are within their limits.
pub fn measure(server: &Server, wanted: &dyn Fn(&str) -> bool) -> bool {
    let mut is_within = true;
    for (sync, least_push, least_turn) in [("on", 0.9, 1.3), ("off", 0.7, 1.0)] {
        let database = server.database();
        database.client().batch_execute(TABLES).expect("it is new");
        let set = format!("ALTER DATABASE {} SET synchronous_commit = {sync}", database.name);
        database.client().batch_execute(&set).expect("the server runs");
        let store = database.store(PgOptions::new());
        let queue = store.queue("q", QueueOptions::default().retention(Retention::Drop)).expect("it is new");
        let in_turn = |jobs: u64, floor: &dyn Fn(), ours: &dyn Fn()| in_turn(server, jobs, floor, ours);
        let mut row = |what: &str, least: f64, floor: &dyn Fn(), ours: &dyn Fn(), jobs: u64| {
            if wanted(what) {
                let (floor, ours) = in_turn(jobs, floor, ours);
                // What may take longer may cost so much more.
                is_within &= row(&format!("sync {sync}: {what}"), (least, (1.0 / least).max(1.0)), &floor, &ours);
            }
        };
        row("push, 8 threads, jobs/s: an INSERT", least_push, &|| bare(&database), &|| push(&queue), SINGLE);
        let of_other = "push, 8 threads, jobs/s: another queue's";
        if wanted(of_other) {
            // It loses most by NOTIFY, for whose lock each commit waits with its flush. On a disk
            // that flushes in 3.3 ms, 5 times as many pushes were possible; on one of 0.15 ms, a
            // bare INSERT itself is 2.6 to 2.9 times as fast. So the limit is 5, or the share of
            // that INSERT that a push has to reach.
            let (other, most) = in_turn(SINGLE, &|| other_push(&database), &|| bare(&database));
            let [other, most] = [other, most].map(|all| rate(&all));
            println!("sync {sync}: (a bare INSERT is {:.2} x another queue's push)", most / other);
            let least = 5.0_f64.min((least_push * most / other * 100.0).round() / 100.0);
            row(of_other, least, &|| other_push(&database), &|| push(&queue), SINGLE);
        }
        // A job has more columns than the simplest table: 458 bytes of log for each, where that one
        // writes 346. That is 0.76 of it where a push waits for the log. Runs on one machine had
        // 0.66 to 0.93.
        let many = || bare_many(&database);
        row("push by 1,000, jobs/s: INSERT .. SELECT unnest", 0.9, &many, &|| push_many(&queue), MANY);
        let fill = "INSERT INTO other (task, payload) SELECT 1, to_json($1::text) FROM generate_series(1, $2::bigint)";
        database.client().execute(fill, &[&PAYLOAD, &(5 * MANY).cast_signed()]).expect("it is right");
        // Its plans depend on statistics.
        database.client().batch_execute("ANALYZE other, named, task").expect("it is right");
        if wanted("claim + end") && !wanted("push by 1,000") {
            (0..ROUNDS).for_each(|_| push_many(&queue));
        }
        let (of_1, of_16) = (
            "claim + end by 1, 8 clients, jobs/s: another queue's",
            "claim + end by 16, 8 clients, jobs/s: another queue's",
        );
        row(of_1, least_turn, &|| other_work(&database, 1), &|| work(&database, 1), CLAIMED);
        row(of_16, 1.0, &|| other_work(&database, 16), &|| work(&database, 16), CLAIMED);
        // One at a time of a key: the next job waits for the end of the previous one.
        let keyed =
            store.queue("keyed", QueueOptions::default().limit(Limit::each_key().at_once(1))).expect("it is new");
        if !wanted("one key alone") {
            continue;
        }
        let (flush, ours) = in_turn(OF_KEY, &|| one_by_one(&database), &|| of_one_key(&keyed));
        let [flush, ours] = [flush, ours].map(|all| rate(&all));
        line(&format!("sync {sync}: one key alone, limit 1, jobs/s: an INSERT after the other"), flush, ours);
        is_within &= if sync == "on" { ours >= 0.7 * flush } else { ours >= 1_000.0 };
    }
    is_within
}

/// Measures two things in turn.
fn in_turn(server: &Server, jobs: u64, floor: &dyn Fn(), ours: &dyn Fn()) -> (Vec<Measured>, Vec<Measured>) {
    (0..ROUNDS).map(|_| (measured(server, jobs, floor), measured(server, jobs, ours))).unzip()
}

/// Runs this on a connection of each client, `times` times in all.
fn clients(database: &Database, sql: &str, times: u64, run: impl Fn(&mut Client, &Statement) + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = database.config.connect(NoTls).expect("the server runs");
                let statement = client.prepare(sql).expect("it is right");
                (0..times / CLIENTS).for_each(|_| run(&mut client, &statement));
            });
        }
    });
}

fn bare(database: &Database) {
    clients(database, BARE, SINGLE, |client, insert| _ = client.execute(insert, &[&PAYLOAD]).expect("it is right"));
}

fn one_by_one(database: &Database) {
    let mut client = database.client();
    let insert = client.prepare(BARE).expect("it is right");
    (0..OF_KEY).for_each(|_| _ = client.execute(&insert, &[&PAYLOAD]).expect("it is right"));
}

fn other_push(database: &Database) {
    let payload = serde_json::json!(PAYLOAD);
    let push = "SELECT other_push('k', $1)";
    clients(database, push, SINGLE, |client, push| _ = client.query_one(push, &[&payload]).expect("it is right"));
}

fn push(queue: &Queue) {
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| (0..SINGLE / CLIENTS).for_each(|_| _ = queue.push(job()).expect("the server runs")));
        }
    });
}

fn job() -> NewJob {
    NewJob::new("k", PAYLOAD).expect("it is JSON")
}

fn bare_many(database: &Database) {
    let mut client = database.client();
    let insert = client.prepare(BARE_MANY).expect("it is right");
    for _ in 0..MANY / 1_000 {
        let jobs: Vec<_> = (0..1_000).map(|_| ("k", serde_json::to_string(PAYLOAD).expect("it is text"))).collect();
        let (kinds, payloads): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
        let values: [&(dyn ToSql + Sync); 2] = [&kinds, &payloads];
        assert_eq!(client.query(&insert, &values).expect("it is right").len(), 1_000);
    }
}

fn push_many(queue: &Queue) {
    for _ in 0..MANY / 1_000 {
        queue.push_all((0..1_000).map(|_| job())).expect("the server runs");
    }
}

fn other_work(database: &Database, most: u64) {
    let end = |client: &mut Client| client.prepare(OTHER_END).expect("it is right");
    let claim = match most {
        1 => OTHER_CLAIM.replace("MANY", "").replace("found", "j"),
        _ => OTHER_CLAIM.replace("MANY", OTHER_FIRST),
    };
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = database.client();
                let claim = client.prepare(&claim).expect("it is right");
                let end = end(&mut client);
                for _ in 0..CLAIMED / CLIENTS / most {
                    let jobs = client.query(&claim, &[&most.cast_signed(), &vec![1_i32]]).expect("it is right");
                    let ids: Vec<i64> = jobs.iter().map(|job| job.get(0)).collect();
                    assert_eq!(ids.len() as u64, most, "there are enough jobs");
                    client.execute(&end, &[&ids]).expect("it is right");
                }
            });
        }
    });
}

/// Ends the previous jobs and claims the next ones in one call, as a runner does.
fn work(database: &Database, most: u64) {
    let asks = i32::try_from(most).expect("it is small");
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = database.client();
                let turn = client.prepare(TURN).expect("it is right");
                let mut held: (Vec<i64>, Vec<i64>) = Default::default();
                for round in 0..=CLAIMED / CLIENTS / most {
                    let ends = vec!["finished"; held.0.len()];
                    let asks = if round == CLAIMED / CLIENTS / most { 0 } else { asks };
                    let rows = client.query(&turn, &[&held.0, &held.1, &ends, &asks]).expect("it is right");
                    let claimed = rows.iter().filter(|row| row.get::<_, &str>(0) == "claimed");
                    held = claimed.map(|row| (row.get::<_, i64>(1), row.get::<_, i64>(5))).unzip();
                    assert_eq!(held.0.len(), usize::try_from(asks).expect("it is small"), "there are enough jobs");
                }
            });
        }
    });
}

fn of_one_key(queue: &Queue) {
    queue.push_all((0..OF_KEY).map(|_| job().key("k"))).expect("the server runs");
    let runner = Runner::builder(queue).max_processing(4).on("k", |_, _: String| Ok(Outcome::Done));
    let limits = DrainLimits::default().time(Duration::from_secs(60));
    assert_eq!(runner.drain(limits).expect("the server runs").finished, OF_KEY);
}
