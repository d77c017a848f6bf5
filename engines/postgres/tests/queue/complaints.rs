//! What users of other queues in a database complain about. Costs are the pages that a call
//! touches, which are the same on each machine, however loaded.

use crate::bench::{Bench, bench, wait_for_all_ends};
use crate::server::Server;
use crate::server::pooler::Pooler;
use crate::size;
use postgres::fallible_iterator::FallibleIterator;
use postgres::{Client, Config, NoTls, SimpleQueryMessage, Transaction};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use waterline::{BoxError, Failure, Retry};
use waterline_postgres::{PgOptions, PgStore, QueueExt, RunnerExt};
use waterline_queue::{JobState, NewJob, Outcome, QueueOptions, Retention, Runner, Running};

/// A queue `q` with these options, and a client whose clock is frozen.
pub(crate) fn opened(options: &str) -> (Config, Client) {
    let config = bench().config;
    let client = opened_in(&config, options);
    (config, client)
}

/// The same in this database.
pub(crate) fn opened_in(config: &Config, options: &str) -> Client {
    let mut client = config.connect(NoTls).unwrap();
    client.execute("SELECT waterline.create_queue('q', $1::text::jsonb)", &[&options]).unwrap();
    set_clock(&mut client, 1_000_000);
    client
}

pub(crate) fn set_clock(client: &mut Client, now: i64) {
    client.batch_execute(&format!("SET waterline.now = '{now}'")).unwrap();
}

pub(crate) fn push(client: &mut Client, jobs: i32) {
    let push = "SELECT FROM waterline.push_many('q', array_fill('k'::text, ARRAY[$1::int]), array_fill('1'::text, ARRAY[$1::int]))";
    client.query(push, &[&jobs]).unwrap();
}

/// The pages that a call touches.
pub(crate) fn pages(client: &mut Client, call: &str) -> u64 {
    let explained = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) SELECT * FROM waterline.{call}");
    let answers = client.simple_query(&explained).unwrap();
    let text = answers.iter().find_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let plan: serde_json::Value = serde_json::from_str(text.unwrap()).unwrap();
    ["Shared Hit Blocks", "Shared Read Blocks"].iter().map(|name| plan[0]["Plan"][*name].as_u64().unwrap()).sum()
}

/// The call that ends all running jobs: up to 256.
fn end_all(client: &mut Client) -> String {
    let running =
        "SELECT format('finish(''%s'', ''%s'')', coalesce(array_agg(number), '{}'), coalesce(array_agg(token), '{}'))
        FROM (SELECT number, token FROM waterline.job WHERE state = 'running' AND kind = 'k' LIMIT 256) j";
    client.query_one(running, &[]).unwrap().get(0)
}

/// Ends all running jobs, and returns how many.
pub(crate) fn finish(client: &mut Client) -> usize {
    let mut ended = 0;
    loop {
        let end = end_all(client);
        let piece = client.query_one(&format!("SELECT waterline.{end}"), &[]).unwrap().get::<_, Vec<i64>>(0).len();
        ended += piece;
        if piece < 256 {
            return ended;
        }
    }
}

/// The costs of a push, a claim of 16 jobs and their ends: the lowest of some rounds.
fn costs(client: &mut Client) -> [u64; 3] {
    let mut least = [u64::MAX; 3];
    for _ in 0..4 {
        push(client, 16);
        let push = pages(client, "push('q', 'k', '1')");
        let claim = pages(client, "claim('q', 16, p_kinds => '{k}')");
        let end = end_all(client);
        let costs = [push, claim, pages(client, &end)];
        least = [0, 1, 2].map(|at| least[at].min(costs[at]));
    }
    least
}

/// Ways to fill a queue with `n` jobs.
const FILLS: [(&str, &str); 5] = [
    ("a million that wait", "'ready', 2, 1, 'k', NULL, NULL"),
    ("500,000 of a higher rank for tomorrow", "'ready', 0, 87400000, 'k', NULL, NULL"),
    ("many keys, each with one job that waits", "'ready', 2, 1, 'k', 'key ' || n, NULL"),
    ("one key, whose jobs wait for the one that runs", "'held', 2, 1, 'k', 'a', 'ka'"),
    ("100,000 that have ended", ""),
];

#[test]
fn calls_cost_the_same_whatever_waits_or_has_ended() {
    let jobs = size(20_000, 500_000);
    for (what, fill) in FILLS {
        let (_config, mut client) = opened(r#"{"retention_ms": -1}"#);
        if fill.contains("key") || fill.contains("'ka'") {
            client
                .query(r#"SELECT waterline.set_options('q', '{"limits": [{"of": "each_key", "at_once": 1}]}')"#, &[])
                .unwrap();
            client.query(r#"SELECT FROM waterline.push('q', 'one', '1', '{"key": "a"}')"#, &[]).unwrap();
            client.query("SELECT FROM waterline.claim('q', 1)", &[]).unwrap();
        }
        let mut fill = |from: u64, to: u64| {
            let filled = if fill.is_empty() {
                "INSERT INTO waterline.ended (number, queue, kind, payload, pushed, since, place, priority, died)
                 SELECT -n, 1, 'k', '1', 0, 0, 0, 2, false"
                    .to_owned()
            } else {
                format!(
                    "INSERT INTO waterline.job
                        (number, queue, pushed, since, place, payload, state, priority, at, kind, key, held_by)
                     SELECT -n, 1, 0, 0, n, '1', {fill}"
                )
            };
            client.batch_execute(&format!("{filled} FROM generate_series({from}, {to}) n")).unwrap();
            // The first call includes the tick of a second.
            set_clock(&mut client, i64::try_from(1_000_000 + 10 * from).unwrap());
            costs(&mut client)
        };
        // A claim reads 256 jobs at most.
        let (before, after) = (fill(1, 1_000), fill(1_001, jobs));
        println!(
            "{what} ({jobs}): a push, a claim of 16 and their ends touch {before:?} pages before, {after:?} after"
        );
        for (before, after) in before.into_iter().zip(after) {
            // The indexes are deeper by one or two pages.
            assert!(after <= 2 * before + 32, "{what}: {before} pages are {after} by now");
        }
    }
}

// As after a first `VACUUM`: the server knows how many rows there are, and nothing else about them.
#[test]
fn a_claim_is_cheap_without_statistics() {
    let (_config, mut client) = opened("{}");
    push(&mut client, 5000);
    client.batch_execute("VACUUM waterline.job").unwrap();
    let pages = (0..4).map(|_| pages(&mut client, "claim('q', 1)")).min();
    assert!(pages < Some(100), "it touches {pages:?} pages");
}

#[test]
fn pushes_notify_only_listeners_and_at_most_every_20_ms() {
    let (config, mut client) = opened("{}");
    let mut listener = config.connect(NoTls).unwrap();
    let channel: String = listener.query_one("SELECT waterline.listen_to('q')", &[]).unwrap().get(0);
    listener.batch_execute(&format!("LISTEN \"{channel}\"")).unwrap();
    // On the server, each in a transaction of its own, so that a slow client makes no pauses.
    let many = "DO $$ BEGIN FOR n IN 1 .. 500 LOOP PERFORM waterline.push('q', 'k', '1'); COMMIT; END LOOP; END $$";
    let mut push = || {
        // The clock of the server, which may be set, and not that of this process.
        let clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
        let begun: i64 = client.query_one(clock, &[]).unwrap().get(0);
        client.batch_execute(many).unwrap();
        let ended: i64 = client.query_one(clock, &[]).unwrap().get(0);
        let took = u64::try_from(ended - begun).unwrap();
        // All that was sent before this has come with its answer.
        listener.batch_execute("SELECT 1").unwrap();
        (listener.notifications().iter().count().unwrap() as u64, took)
    };
    assert_eq!(push().0, 0, "nobody has asked for them");
    let listens = "SELECT FROM waterline.claim('q', 1, p_kinds => '{none}', p_listen => 600000)";
    config.connect(NoTls).unwrap().query(listens, &[]).unwrap();
    let (rung, took) = push();
    println!("500 pushes in {took} ms rang {rung} times");
    // In whole milliseconds.
    assert!(rung >= 1 && rung <= (took + 1) / 19 + 1, "{rung} notifications in {took} ms");
}

/// A handler that runs until its lease was renewed, and the number of its runs.
#[derive(Clone, Default)]
struct Long(Arc<(AtomicU64, AtomicBool)>);

impl Long {
    const LEASE: Duration = Duration::from_secs(10);

    fn handler(&self) -> impl Fn(&Running, ()) -> Result<Outcome, BoxError> + Send + Sync + 'static {
        let long = self.clone();
        move |_, ()| {
            long.0.0.fetch_add(1, Ordering::SeqCst);
            while !long.0.1.load(Ordering::SeqCst) {
                std::thread::park_timeout(Duration::from_millis(5));
            }
            Ok(Outcome::Done)
        }
    }

    /// Waits until its lease is longer than it was at first, and then ends it.
    fn end(&self, client: &mut Client) {
        let until = "SELECT at - since FROM waterline.job WHERE state = 'running' AND kind = 'long'";
        common::eventually("a renewal of its lease", || {
            let lease = client.query_opt(until, &[]).unwrap().map(|row| row.get::<_, i64>(0));
            lease.is_some_and(|lease| lease > i64::try_from(Self::LEASE.as_millis()).unwrap())
        });
        self.0.1.store(true, Ordering::SeqCst);
    }

    #[track_caller]
    fn has_run_once(&self) {
        assert_eq!(self.0.0.load(Ordering::SeqCst), 1, "a job that runs is not run twice");
    }
}

fn options() -> QueueOptions {
    QueueOptions::default().retry(Retry::fixed(Duration::ZERO).max_attempts(3)).retention(Retention::Keep)
}

#[test]
fn a_queue_behind_a_transaction_pooler_loses_nothing() {
    let server = Server::shared();
    let database = server.database();
    drop(database.store(PgOptions::new()));
    database.client().batch_execute("CREATE TABLE effects (job bigint NOT NULL)").unwrap();
    let pooler = Pooler::start(server, 3);
    let store = PgStore::connect(pooler.config(&database.name), NoTls, PgOptions::new()).unwrap();
    let queue = store.queue("q", options().lease(Duration::from_secs(2))).unwrap();
    let write = |transaction: &mut Transaction<'_>, results: &[(Running, i64)]| -> Result<(), BoxError> {
        for (_, number) in results {
            transaction.execute("INSERT INTO effects VALUES ($1)", &[number])?;
        }
        Ok(())
    };
    let runner = Runner::builder(&queue)
        .max_processing(8)
        .on_writing("write", |_, number: i64| Ok(number), write)
        .on("plain", |job, number: u64| {
            if number.is_multiple_of(7) && job.attempt() == 1 { Err("not yet".into()) } else { Ok(Outcome::Done) }
        })
        .start()
        .unwrap();
    // Its lease is renewed through the pooler, too.
    let (long, other) = (Long::default(), store.queue("long", options().lease(Long::LEASE).max_crashes(1)).unwrap());
    let slow = Runner::builder(&other).on("long", long.handler()).start().unwrap();
    let id = other.push(NewJob::new("long", &()).unwrap()).unwrap().id;
    let mut client = database.client();
    for n in 0..60_i64 {
        // Pushed through the pooler, in a user's transaction, and by another language.
        match n % 3 {
            0 => drop(queue.push(NewJob::new("plain", &n).unwrap()).unwrap()),
            1 => {
                let mut transaction = client.transaction().unwrap();
                queue.push_in(&mut transaction, NewJob::new("write", &n).unwrap()).unwrap();
                transaction.commit().unwrap();
            }
            _ => drop(client.query("SELECT waterline.push('q', 'write', $1)", &[&n.to_string()]).unwrap()),
        }
    }
    long.end(&mut client);
    wait_for_all_ends(&mut client);
    assert_eq!(other.get(&id).unwrap().unwrap().state, JobState::Finished);
    long.has_run_once();
    runner.stop().unwrap();
    slow.stop().unwrap();
    let row = client.query_one("SELECT count(*), count(DISTINCT job) FROM effects", &[]).unwrap();
    assert_eq!([row.get::<_, i64>(0), row.get(1)], [40, 40]);
    let dead: i64 = client.query_one("SELECT count(*) FROM waterline.ended WHERE died", &[]).unwrap().get(0);
    assert_eq!(dead, 0);
}

#[test]
fn a_client_clock_an_hour_off_does_no_harm() {
    for hours in [-1_i64, 1] {
        let Bench { store, config } = bench();
        let queue = store.queue("q", options().lease(Long::LEASE).max_crashes(1)).unwrap();
        let mut client = config.connect(NoTls).unwrap();
        // Whose clock that is does not matter.
        let clock = format!(
            "CREATE OR REPLACE FUNCTION waterline.clock() RETURNS bigint LANGUAGE sql AS
             $$ SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + {} $$",
            3_600_000 * hours
        );
        client.batch_execute(&clock).unwrap();
        let (long, snoozes) = (Long::default(), AtomicU64::new(0));
        let soon = || SystemTime::now() + Duration::from_millis(100);
        let runner = Runner::builder(&queue)
            .max_processing(1)
            .on("long", long.handler())
            .on("retry", move |job, ()| Ok(if job.attempt() == 1 { Outcome::RetryAt(soon()) } else { Outcome::Done }))
            .on("snooze", move |_, ()| {
                if snoozes.fetch_add(1, Ordering::SeqCst) == 0 {
                    Err(Failure::defer(Duration::from_millis(100)).into())
                } else {
                    Ok(Outcome::Done)
                }
            })
            .on("plain", |_, ()| Ok(Outcome::Done));
        let job = |kind: &str| NewJob::new(kind, &()).unwrap();
        let late = queue.push(job("plain").delay(Duration::from_secs(1_800))).unwrap().id;
        for job in [
            job("snooze"),
            job("retry"),
            job("plain"),
            job("long"),
            job("plain").delay(Duration::from_millis(100)),
            job("plain").expires(Duration::from_secs(600)),
        ] {
            queue.push(job).unwrap();
        }
        let runner = runner.start().unwrap();
        long.end(&mut client);
        let left = "SELECT count(*) FROM waterline.job WHERE '~' || number <> $1";
        common::eventually("all jobs to end", || client.query_one(left, &[&late]).unwrap().get::<_, i64>(0) == 0);
        runner.stop().unwrap();
        long.has_run_once();
        let dead: i64 = client.query_one("SELECT count(*) FROM waterline.ended WHERE died", &[]).unwrap().get(0);
        assert_eq!((dead, queue.get(&late).unwrap().unwrap().state), (0, JobState::Scheduled), "{hours} hours");
    }
}

fn waits(client: &mut Client, most: i64) -> bool {
    let waits =
        "SELECT count(*) = $1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    client.query_one(waits, &[&most]).unwrap().get(0)
}

/// Pushes of ids in two orders, in transactions that overlap.
#[test]
fn a_call_that_deadlocks_is_retried() {
    let Bench { store, config } = bench();
    let queue = store.queue("q", options()).unwrap();
    let job = |id: &str| NewJob::new("k", &1).unwrap().id(id);
    let [mut client, mut user, mut third] = [0, 1, 2].map(|_| config.connect(NoTls).unwrap());
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    // Only the library's call detects deadlocks.
    user.batch_execute("SET deadlock_timeout = '1h'").unwrap();
    let mut holds_b = third.transaction().unwrap();
    queue.push_in(&mut holds_b, job("b")).unwrap();
    let mut holds_c = user.transaction().unwrap();
    queue.push_in(&mut holds_c, job("c")).unwrap();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| queue.push_all([job("a"), job("b"), job("c")]));
        common::eventually("the call to have a, and to wait for b", || waits(&mut client, 1));
        let users = scope.spawn(move || {
            queue_push(&mut holds_c, "a");
            holds_c.commit().unwrap();
        });
        common::eventually("the user to wait for a", || waits(&mut client, 2));
        // Now the call gets to c, and the cycle is closed.
        holds_b.rollback().unwrap();
        users.join().unwrap();
        assert_eq!(call.join().unwrap().unwrap().len(), 3, "the call was made again");
    });
    common::eventually("the deadlock in the statistics", || {
        client.batch_execute("SELECT pg_stat_clear_snapshot()").unwrap();
        client.query_one(deadlocks, &[]).unwrap().get::<_, i64>(0) >= 1
    });
    let jobs: i64 = client.query_one("SELECT count(*) FROM waterline.job", &[]).unwrap().get(0);
    assert_eq!(jobs, 3);
}

fn queue_push(transaction: &mut Transaction<'_>, id: &str) {
    let settings = format!(r#"{{"id": "{id}"}}"#);
    transaction.query("SELECT FROM waterline.push('q', 'k', '1', $1::text::jsonb)", &[&settings]).unwrap();
}

#[test]
fn a_twin_in_an_open_transaction_blocks_only_its_twins() {
    let (config, mut client) = opened("{}");
    let twin =
        r#"SELECT outcome FROM waterline.push('q', 'k', '1', '{"unique": {"fingerprint": "f", "until": "done"}}')"#;
    let mut user = config.connect(NoTls).unwrap();
    let mut open = user.transaction().unwrap();
    assert_eq!(open.query_one(twin, &[]).unwrap().get::<_, &str>(0), "added");
    std::thread::scope(|scope| {
        let other = config.connect(NoTls);
        let held_up = scope.spawn(move || other.unwrap().query_one(twin, &[]).unwrap().get::<_, String>(0));
        common::eventually("the push of the twin to wait", || waits(&mut client, 1));
        client.batch_execute("SET lock_timeout = 1").unwrap();
        for settings in ["{}", r#"{"id": "a"}"#, r#"{"unique": {"fingerprint": "g", "until": "done"}}"#] {
            let pushed =
                client.query_one("SELECT outcome FROM waterline.push('q', 'k', '1', $1::text::jsonb)", &[&settings]);
            assert_eq!(pushed.unwrap().get::<_, &str>(0), "added", "{settings}");
        }
        assert_eq!(client.query("SELECT job FROM waterline.claim('q', 9)", &[]).unwrap().len(), 3);
        assert_eq!(finish(&mut client), 3);
        assert!(waits(&mut client, 1), "it waits still");
        open.commit().unwrap();
        assert_eq!(held_up.join().unwrap(), "duplicate");
    });
}
