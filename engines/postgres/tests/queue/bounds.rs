//! How much one call does at most, however much there is: other callers may wait for it.

use crate::calls::{claim, client, push};
use postgres::{Client, NoTls};
use waterline_queue::{Accept, NewJob, QueueOptions};

/// Does all that is due.
pub const TICK: &str =
    "SELECT FROM waterline.turn('{}', '{}', '{}', '{}', '{}', '{}', 'q', 0, NULL, NULL, NULL, '', true, NULL, NULL)";

/// Pushes jobs with these settings.
pub fn push_many(client: &mut Client, count: i32, settings: &str) {
    let many = "SELECT count(*) FROM waterline.push_many('q', array_fill('k'::text, ARRAY[$1::int]), \
        array_fill('1'::text, ARRAY[$1::int]), array_fill($2::text::jsonb, ARRAY[$1::int]))";
    client.query_one(many, &[&count, &settings]).unwrap();
}

pub fn finish(client: &mut Client, (jobs, tokens): (Vec<i64>, Vec<i64>)) {
    for (jobs, tokens) in jobs.chunks(256).zip(tokens.chunks(256)) {
        client.query_one("SELECT waterline.finish($1, $2)", &[&jobs, &tokens]).unwrap();
    }
}

pub fn bury(client: &mut Client, (jobs, tokens): (Vec<i64>, Vec<i64>)) {
    for (jobs, tokens) in jobs.chunks(256).zip(tokens.chunks(256)) {
        let dead = vec![true; jobs.len()];
        client.query_one("SELECT waterline.fail($1, $2, p_bury => $3)", &[&jobs, &tokens, &dead]).unwrap();
    }
}

pub fn count(client: &mut Client, of: &str) -> i64 {
    client.query_one(&format!("SELECT count(*) FROM waterline.{of}"), &[]).unwrap().get(0)
}

pub fn run(client: &mut Client, sql: &str) {
    client.batch_execute(sql).unwrap();
}

/// A call, and the part of it that is bounded.
struct Bound {
    what: &'static str,
    options: &'static str,
    /// Makes this many things to do.
    prepare: fn(&mut Client, i32),
    call: &'static str,
    /// Counts those that are left.
    left: &'static str,
    most: i64,
}

/// Each row is one of the table of docs/operating.md.
const BOUNDS: [Bound; 10] = [
    Bound {
        what: "jobs that wait for one that has finished",
        options: r#"{"retention_ms": 0}"#,
        prepare: |client, many| {
            push(client, r#"{"id": "first"}"#);
            push_many(client, many, r#"{"after": ["first"]}"#);
            let first = claim(client, 1);
            finish(client, first);
        },
        call: TICK,
        left: "edge",
        most: 1_024,
    },
    Bound {
        what: "jobs that wait for one that has died, and die with it",
        options: "{}",
        prepare: |client, many| {
            push(client, r#"{"id": "first"}"#);
            push_many(client, many, r#"{"after": ["first"]}"#);
            let first = claim(client, 1);
            bury(client, first);
        },
        call: TICK,
        left: "job",
        most: 1_024,
    },
    Bound {
        what: "leases that are over",
        options: "{}",
        prepare: |client, many| {
            push_many(client, many, "{}");
            claim(client, many);
            run(client, "SET waterline.now = '1060001'");
        },
        call: TICK,
        left: "job WHERE state = 'running'",
        most: 1_024,
    },
    Bound {
        what: "jobs that have expired",
        options: "{}",
        prepare: |client, many| {
            push_many(client, many, r#"{"expires_ms": 1}"#);
            run(client, "SET waterline.now = '1000001'");
        },
        call: TICK,
        left: "job",
        most: 1_024,
    },
    Bound {
        what: "schedules that are due",
        options: "{}",
        prepare: |client, many| {
            let many = format!(
                "SELECT FROM generate_series(1, {many}) n, waterline.register_periodic('q', 's' || n, 'often', 1000, 'k', '1', NULL, true)"
            );
            client.query(&many, &[]).unwrap();
            run(client, "SET waterline.now = '1001000'");
        },
        call: TICK,
        left: "periodic WHERE last = 1000000",
        most: 256,
    },
    Bound {
        what: "marks that a clock which was set back has left ahead",
        options: "{}",
        prepare: |client, many| {
            let many = format!(
                "SELECT waterline.push('q', 'k', '1', '{{}}'); INSERT INTO waterline.mark (queue, fingerprint, until, job, since)
                 SELECT id, n, 99000000, n, 90000000 FROM waterline.queue, generate_series(1, 4 * {many}) n;
                 SELECT setval(seen, 90000000) FROM waterline.queue"
            );
            run(client, &many);
        },
        call: TICK,
        left: "mark WHERE since > 1000000",
        most: 5_000,
    },
    Bound {
        what: "jobs that a limit holds which is no longer there",
        options: r#"{"limits": [{"of": "each_key", "at_once": 1}]}"#,
        prepare: |client, many| {
            push_many(client, many, r#"{"key": "a"}"#);
            // All but one are held.
            while count(client, "job WHERE state = 'ready'") > 0 {
                claim(client, 100);
            }
            run(client, r#"SELECT waterline.set_options('q', '{"limits": [{"of": "queue", "at_once": 9}]}')"#);
            assert_eq!(count(client, "job WHERE state = 'ready'"), 1_024, "the first piece");
        },
        call: "SELECT waterline.claim('q', 32), setval(ticked, 1000000) FROM waterline.queue;
            UPDATE waterline.limits SET at_once = at_once + 32",
        left: "job WHERE state = 'held'",
        most: 1_024,
    },
    Bound {
        what: "doorbells of those who wait",
        options: "{}",
        prepare: |client, many| {
            push(client, r#"{"id": "first"}"#);
            push_many(client, 9, r#"{"after": ["first"]}"#);
            assert_eq!(count(client, "edge_bell"), 1, "one for all that a call pushes");
            let rings = "INSERT INTO waterline.edge_bell (queue, awaited)
                SELECT b.queue, b.awaited FROM waterline.edge_bell b, generate_series(1, 8 * $1::int)";
            client.execute(rings, &[&many]).unwrap();
        },
        call: TICK,
        left: "edge_bell",
        most: 8_200,
    },
    Bound {
        what: "the jobs of a purge",
        options: "{}",
        prepare: |client, many| push_many(client, many, "{}"),
        call: "SELECT waterline.steer('q', 'purge', 'ready')",
        left: "job",
        most: 1_024,
    },
    Bound {
        what: "dead jobs that run again",
        options: "{}",
        prepare: |client, many| {
            push_many(client, many, "{}");
            let all = claim(client, many);
            bury(client, all);
        },
        call: "SELECT waterline.steer('q', 'requeue_dead')",
        left: "ended",
        most: 1_024,
    },
];

#[test]
fn each_call_does_a_part_and_later_ones_the_rest() {
    for Bound { what, options, prepare, call, left, most } in BOUNDS {
        let (_, mut client) = client(options);
        prepare(&mut client, 2_500);
        let begun = count(&mut client, left);
        assert!(begun > most, "{what}: {begun}");
        let mut before = begun;
        for calls in 1.. {
            run(&mut client, call);
            let after = count(&mut client, left);
            assert!(before - after <= most, "{what}: one call did {}", before - after);
            if after == 0 {
                break;
            }
            // The time of a call may end before it has done this many. It always does something.
            assert!(
                after < before || what.contains("no longer there") && calls < 200,
                "{what}: {after} of {begun} are left for ever"
            );
            before = after;
        }
    }
}

#[test]
fn pushes_and_ticks_expire_the_jobs_of_a_full_queue() {
    let (_, mut client) = client(r#"{"max_waiting": 2500}"#);
    push_many(&mut client, 2_500, r#"{"expires_ms": 1}"#);
    run(&mut client, "SET waterline.now = '1000001'; SELECT setval(ticked, 1000001) FROM waterline.queue");
    push(&mut client, "{}");
    let left = count(&mut client, "job WHERE expires IS NOT NULL");
    assert!((1_476..2_500).contains(&left), "{left} are left");
    // More than one call ends: it is refused until ticks have made room.
    run(&mut client, r#"SELECT waterline.set_options('q', '{"max_waiting": 2}')"#);
    let error = client.query("SELECT FROM waterline.push('q', 'k', '1')", &[]).unwrap_err();
    assert_eq!(error.as_db_error().unwrap().code().code(), "WQ005");
    while count(&mut client, "job") > 1 {
        run(&mut client, TICK);
    }
    push(&mut client, "{}");
}

#[test]
fn a_queue_whose_limits_are_removed_releases_held_jobs() {
    let (_, mut client) = client(r#"{"limits": [{"of": "each_key", "at_once": 1}]}"#);
    push_many(&mut client, 3_000, r#"{"key": "a"}"#);
    while count(&mut client, "job WHERE state = 'ready'") > 0 {
        claim(&mut client, 100);
    }
    run(&mut client, r#"SELECT waterline.set_options('q', '{"limits": []}')"#);
    while count(&mut client, "queue WHERE limited") > 0 {
        run(&mut client, TICK);
    }
    assert_eq!((count(&mut client, "job WHERE state = 'ready'"), count(&mut client, "freed")), (2_999, 0));
    let first: i64 =
        client.query_one("SELECT min(number) FROM waterline.job WHERE state = 'ready'", &[]).unwrap().get(0);
    assert_eq!(claim(&mut client, 100).0, (first..first + 100).collect::<Vec<_>>(), "in their old order");
}

#[test]
fn a_push_rings_again_once_its_bell_is_gone() {
    let (_, mut client) = client("{}");
    push(&mut client, r#"{"id": "first"}"#);
    let waits = r#"SELECT waterline.push('q', 'k', '1', '{"after": ["first"]}');"#;
    for lost in [TICK, "ROLLBACK TO SAVEPOINT s"] {
        run(&mut client, &format!("BEGIN; SAVEPOINT s; {waits} {waits} {lost}; {waits} {waits} COMMIT"));
        assert_eq!(count(&mut client, "edge_bell"), 1, "{lost}");
        run(&mut client, TICK);
    }
}

#[test]
fn waiting_jobs_are_passed_by_and_locked_ones_told_later() {
    let (config, mut client) = client("{}");
    push(&mut client, r#"{"id": "first"}"#);
    push_many(&mut client, 1_500, r#"{"after": ["first"], "on_dead": "hold"}"#);
    let last = push(&mut client, r#"{"after": ["first"], "on_dead": "run"}"#);
    let locked = push(&mut client, r#"{"after": ["first"], "on_dead": "run"}"#);
    let first = claim(&mut client, 1);
    let mut other = config.connect(NoTls).unwrap();
    let mut open = other.transaction().unwrap();
    open.batch_execute(&format!("SELECT FROM waterline.job WHERE number = {} FOR UPDATE", &locked[1..])).unwrap();
    bury(&mut client, first);
    let state = |client: &mut Client, id: &str| -> String {
        client.query_one("SELECT state FROM waterline.get('q', $1)", &[&id]).unwrap().get(0)
    };
    for _ in 0..200 {
        run(&mut client, TICK);
        if state(&mut client, &last) == "ready" {
            break;
        }
    }
    assert_eq!([&last, &locked].map(|id| state(&mut client, id)), ["ready", "waiting"]);
    open.rollback().unwrap();
    for _ in 0..200 {
        run(&mut client, TICK);
    }
    assert_eq!(state(&mut client, &locked), "ready");
    assert_eq!(
        (count(&mut client, "edge"), count(&mut client, "edge_bell")),
        (1_500, 0),
        "the others wait for it to live"
    );
    // It lives again, with all its waiters.
    push(&mut client, r#"{"id": "first", "priority": 0}"#);
    let first = claim(&mut client, 1);
    finish(&mut client, first);
    while count(&mut client, "edge_bell") > 0 {
        run(&mut client, TICK);
    }
    assert_eq!((count(&mut client, "job WHERE state = 'ready'"), count(&mut client, "edge")), (1_502, 0));
}

#[test]
fn too_many_awaited_jobs_or_too_long_chains_are_refused() {
    let (_, mut client) = client("{}");
    let code = |client: &mut Client, settings: &str| {
        let error =
            client.query("SELECT FROM waterline.push('q', 'k', '1', $1::text::jsonb)", &[&settings]).unwrap_err();
        error.as_db_error().unwrap().code().code().to_owned()
    };
    let ids: Vec<_> = (0..10_001).map(|n| format!("\"a{n}\"")).collect();
    assert_eq!(code(&mut client, &format!(r#"{{"after": [{}]}}"#, ids.join(","))), "WQ002");
    // A chain, made in the way pushes make it.
    push(&mut client, r#"{"id": "last"}"#);
    run(
        &mut client,
        "INSERT INTO waterline.job (number, queue, state, at, place, kind, payload, name, pushed, since, pending)
         SELECT 100000 + n, q.id, 'waiting', 1000000, 100000 + n, 'k', '1', 'c' || n, 1000000, 1000000, 1
         FROM waterline.queue q, generate_series(0, 10000) n;
         INSERT INTO waterline.edge SELECT 100000 + n - 1, 100000 + n FROM generate_series(1, 10000) n",
    );
    push(&mut client, r#"{"id": "last", "delay_ms": 1, "after": ["c9000"]}"#);
    assert_eq!(code(&mut client, r#"{"id": "last", "delay_ms": 2, "after": ["c10000"]}"#), "WQ003");
    assert_eq!(code(&mut client, r#"{"id": "c1", "delay_ms": 1, "after": ["c100"]}"#), "WQ003");
}

#[test]
fn ticks_forget_expired_records_in_pieces() {
    let (_, mut client) = client("{}");
    let many = "generate_series(1, 5000) n, waterline.queue q";
    run(
        &mut client,
        &format!(
            "INSERT INTO waterline.mark (queue, fingerprint, until, job, since) SELECT q.id, n, 1, n, 0 FROM {many};
             INSERT INTO waterline.executed (queue, fingerprint, until, place) SELECT q.id, n, 1, 0 FROM {many};
             INSERT INTO waterline.root (queue, signature, until, at) SELECT q.id, n, 1, 0 FROM {many};
             INSERT INTO waterline.gone (queue, name, until, since) SELECT q.id, n, 1, 0 FROM {many};
             INSERT INTO waterline.note (queue, place, value, until) SELECT q.id, n, '1', 1 FROM {many};
             INSERT INTO waterline.ended (died, gone_at, number, queue, place, kind, payload, name, pushed, since)
             SELECT false, 1, n, q.id, n, 'k', '1', 'e' || n, 0, 0 FROM {many}"
        ),
    );
    let tables = ["mark", "executed", "root", "gone WHERE until = 1", "note", "ended"];
    run(&mut client, TICK);
    let left = tables.map(|table| count(&mut client, table));
    assert!(left.iter().all(|left| *left <= 5_000 - 1_024), "{left:?}: a piece is more than 1,024 of each");
    for second in 1_001..1_010 {
        run(&mut client, &format!("SET waterline.now = '{second}000'; {TICK}"));
    }
    assert_eq!((tables.map(|table| count(&mut client, table)), count(&mut client, "gone")), ([0; 6], 5_000));
}

#[test]
fn a_turn_with_free_slots_looks_past_held_jobs() {
    let (_, mut client) = client(r#"{"limits": [{"of": "each_key", "at_once": 1}]}"#);
    push_many(&mut client, 3_000, r#"{"key": "a"}"#);
    let free = push(&mut client, r#"{"key": "b"}"#);
    let turn = "SELECT what, '~' || number FROM waterline.turn('{}', '{}', '{}', '{}', '{}', '{}', 'q', $1, NULL, NULL, NULL, 'w', false, NULL, NULL)";
    let mut got = Vec::new();
    for calls in 1.. {
        let slots = 8 - i32::try_from(got.len()).unwrap();
        let rows = client.query(turn, &[&slots]).unwrap();
        got.extend(rows.iter().filter(|row| row.get::<_, &str>(0) == "claimed").map(|row| row.get::<_, String>(1)));
        if got.contains(&free) {
            break;
        }
        assert!(rows.iter().any(|row| row.get::<_, &str>(0) == "again"), "nobody looks further: {got:?}");
        assert!(calls < 3_000 / 100, "each call is to pass many by: {calls}");
    }
    assert_eq!(got.len(), 2);
    // Jobs of a call in SQL come in their order, however many reads it takes.
    let (_, mut client) = client_of_one_key();
    let claimed = claim(&mut client, 8).0;
    assert!(claimed.is_sorted() && !claimed.is_empty(), "{claimed:?}");
}

fn client_of_one_key() -> (postgres::Config, Client) {
    let (config, mut client) = client(r#"{"limits": [{"of": "each_key", "at_once": 1}]}"#);
    push_many(&mut client, 300, r#"{"key": "a"}"#);
    for key in ["b", "c", "d"] {
        push(&mut client, &format!(r#"{{"key": "{key}"}}"#));
    }
    (config, client)
}

#[test]
fn a_queue_without_workers_is_removed_in_pieces() {
    let bench = crate::bench::bench();
    let [queue, other] = ["mail", "other"].map(|name| bench.store.queue(name, QueueOptions::default()).unwrap());
    let mut client = bench.config.connect(NoTls).unwrap();
    let many = "SELECT count(*) FROM waterline.push_many('mail', array_fill('k'::text, ARRAY[10100]), array_fill('1'::text, ARRAY[10100]))";
    client.query_one(many, &[]).unwrap();
    let first = queue.push(NewJob::new("k", &1).unwrap().id("first")).unwrap().id;
    queue.push(NewJob::new("k", &1).unwrap().after([first])).unwrap();
    other.push(NewJob::new("k", &1).unwrap()).unwrap();
    queue.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
    let refused = bench.store.remove_queue("mail").unwrap_err();
    assert!(describe(&refused).contains("has workers"), "{refused:?}");
    assert!(bench.store.remove_queue("nosuch").is_err());
    run(&mut client, "UPDATE waterline.queue SET lease = 1");
    let dry = client.query_one("SELECT jobs FROM waterline.remove_queue('mail', true)", &[]).unwrap();
    assert_eq!(dry.get::<_, i64>(0), 10_102);
    // The first piece: callers that have the queue open are told, and its name is free.
    let piece = client.query_one("SELECT jobs, more FROM waterline.remove_queue('mail')", &[]).unwrap();
    assert_eq!((piece.get::<_, i64>(0), piece.get::<_, bool>(1)), (9_999, true), "and an edge");
    assert!(describe(&queue.push(NewJob::new("k", &1).unwrap()).unwrap_err()).contains("there is no queue \"mail\""));
    assert_eq!(bench.store.remove_queue("mail").unwrap(), 103);
    assert_eq!(bench.store.queue_names().unwrap(), ["other"]);
    let left = ["job", "ended", "edge", "edge_bell"].map(|table| count(&mut client, table));
    let registers = "SELECT count(*) FROM pg_sequences WHERE schemaname = 'waterline' AND sequencename LIKE 'q%\\_%'";
    let registers: i64 = client.query_one(registers, &[]).unwrap().get(0);
    assert_eq!((left, registers), ([1, 0, 0, 0], 16 + 1), "those of the other queue, and that of the numbers");
    drop(queue);
    bench.store.queue("mail", QueueOptions::default()).unwrap().push(NewJob::new("k", &1).unwrap()).unwrap();
}

fn describe(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {}", describe(source)))
}

#[test]
fn a_bounded_push_counts_near_its_bound_and_counts_returns() {
    let (_, mut client) =
        client(r#"{"max_waiting": 5000, "retry": {"first_ms": 0, "growth": "fixed", "attempts": 9}}"#);
    push_many(&mut client, 2_000, "{}");
    let read = |client: &mut Client| -> i64 {
        let mut transaction = client.transaction().unwrap();
        transaction.query("SELECT waterline.push('q', 'k', '1')", &[]).unwrap();
        transaction.batch_execute("SET LOCAL search_path = waterline, pg_temp").unwrap();
        transaction.query_one("SELECT passed_ready()", &[]).unwrap().get(0)
    };
    assert_eq!(read(&mut client), 0, "no job is counted");
    // The jobs that wait when the bound is set are counted once.
    run(&mut client, r#"SELECT waterline.set_options('q', '{"max_waiting": 2003}')"#);
    assert!(read(&mut client) >= 2_000);
    let push = |client: &mut Client| client.query("SELECT waterline.push('q', 'k', '1')", &[]).is_ok();
    let claimed = claim(&mut client, 2);
    let pushed: Vec<bool> = (0..6).map(|_| push(&mut client)).collect();
    assert_eq!(pushed, [true, true, true, true, true, false], "1,998 waited");
    let (jobs, tokens) = claimed;
    client.query("SELECT waterline.fail($1, $2)", &[&jobs, &tokens]).unwrap();
    let third = claim(&mut client, 3);
    assert!(third.0.len() == 3 && push(&mut client) && !push(&mut client), "two came back, and three begin");
    finish(&mut client, third);
    assert!(!push(&mut client));
}
