//! Calls that overlap: while one is under way, or in an open transaction, another one is made.

use crate::calls::{claim, client, push};
use postgres::NoTls;

#[test]
fn a_renewal_waits_for_no_open_end_of_its_worker() {
    let (config, mut client) = client("{}");
    push(&mut client, "{}");
    push(&mut client, "{}");
    let (jobs, tokens) = claim(&mut client, 2);
    let mut other = config.connect(NoTls).unwrap();
    let mut open = other.transaction().unwrap();
    open.execute("SELECT waterline.finish(ARRAY[$1::bigint], ARRAY[$2::bigint])", &[&jobs[0], &tokens[0]]).unwrap();
    client.batch_execute("SET lock_timeout = 1").unwrap();
    let mut renew = |jobs: &[i64], tokens: &[i64]| {
        let row = client.query_one("SELECT waterline.renew($1, $2, 7777777)", &[&jobs, &tokens]).unwrap();
        let mut held: Vec<i64> = row.get(0);
        held.sort_unstable();
        let until = client.query("SELECT at = 1000000 + 7777777 FROM waterline.job ORDER BY number", &[]).unwrap();
        (held, until.iter().map(|row| row.get(0)).collect::<Vec<bool>>())
    };
    assert_eq!(renew(&jobs, &tokens), (jobs.clone(), vec![false, true]));
    open.rollback().unwrap();
    assert_eq!(renew(&jobs, &tokens), (jobs.clone(), vec![true, true]));
    assert_eq!(renew(&jobs, &[tokens[1], tokens[1]]).0, jobs[1..], "another token");
}

#[test]
fn a_passed_job_is_found_while_a_tick_stays_open() {
    let (config, mut client) = client("{}");
    let many = "SELECT count(*) FROM waterline.push_many('q', array_fill('k'::text, ARRAY[40]), array_fill('1'::text, ARRAY[40]))";
    client.query_one(many, &[]).unwrap();
    let [mut ticks, mut other] = [(); 2].map(|()| config.connect(NoTls).unwrap());
    ticks.batch_execute("SET waterline.now = '1000000'; BEGIN").unwrap();
    assert_eq!(claim(&mut ticks, 1).0.len(), 1);
    let mut open = other.transaction().unwrap();
    let first = "SELECT number FROM waterline.job ORDER BY number LIMIT 1 FOR UPDATE SKIP LOCKED";
    let first: i64 = open.query_one(first, &[]).unwrap().get(0);
    assert_eq!(claim(&mut client, 16).0.len(), 16);
    open.rollback().unwrap();
    client.batch_execute("SET waterline.now = '1001000'").unwrap();
    assert_eq!(claim(&mut client, 1).0, [first]);
}

#[test]
fn a_push_that_finds_a_twin_locks_nothing() {
    let (config, mut client) = client("{}");
    let twin = r#"{"unique":{"fingerprint":"f","until":"done"}}"#;
    let id = push(&mut client, twin);
    let (jobs, tokens) = claim(&mut client, 1);
    let mut other = config.connect(NoTls).unwrap();
    let mut open = other.transaction().unwrap();
    let pushed = open.query_one("SELECT id, outcome FROM waterline.push('q', 'k', '1', $1::text::jsonb)", &[&twin]);
    assert_eq!(pushed.map(|row| (row.get(0), row.get(1))).unwrap(), (id, "duplicate".to_owned()));
    client.batch_execute("SET lock_timeout = 1").unwrap();
    let ended = client.query_one("SELECT waterline.finish($1, $2)", &[&jobs, &tokens]).unwrap();
    assert_eq!(ended.get::<_, Vec<i64>>(0), jobs);
    open.rollback().unwrap();
}

#[test]
fn ends_of_one_fingerprint_do_not_wait_for_each_other() {
    let (config, mut client) = client(r#"{"retention_ms": -1}"#);
    let skips = r#"{"skip": "f"}"#;
    push(&mut client, skips);
    push(&mut client, skips);
    let (jobs, tokens) = claim(&mut client, 2);
    let skipped = push(&mut client, skips);
    let mut other = config.connect(NoTls).unwrap();
    let mut open = other.transaction().unwrap();
    let end = "SELECT waterline.finish(ARRAY[$1::bigint], ARRAY[$2::bigint])";
    open.execute("SELECT set_config('waterline.now', '1000000', true)", &[]).unwrap();
    open.execute(end, &[&jobs[0], &tokens[0]]).unwrap();
    client.batch_execute("SET lock_timeout = 1").unwrap();
    client.execute(end, &[&jobs[1], &tokens[1]]).unwrap();
    open.commit().unwrap();
    // Both runs began before this push, so it runs, and a later one is needless after its end.
    let (third, tokens) = claim(&mut client, 1);
    assert_eq!(third, [skipped.trim_start_matches('~').parse::<i64>().unwrap()]);
    client.execute(end, &[&third[0], &tokens[0]]).unwrap();
    let rows = client.query("SELECT place FROM waterline.executed", &[]).unwrap();
    assert_eq!(rows.len(), 1, "an end takes away what it makes needless");
}

#[test]
fn a_push_that_waits_for_a_lock_blocks_no_bounded_queue() {
    let calls = [
        r#"push_many('q', '{k,k}', '{1,1}', ARRAY[NULL, '{"id": "x"}']::jsonb[])"#,
        r#"push_many('q', '{k,k}', '{1,1}', ARRAY[NULL, '{"unique": {"fingerprint": "f", "until": "done", "clash": "replace"}}']::jsonb[])"#,
        r#"push_across('{q,r}', '{1,1}', '{k,k}', '{1,1}', ARRAY[NULL, '{"id": "y"}'], '{f,f}')"#,
    ];
    for call in calls {
        let (config, mut client) = client(r#"{"max_waiting": 100}"#);
        client.batch_execute("SELECT waterline.create_queue('r')").unwrap();
        client.batch_execute(r#"SELECT waterline.push('r', 'k', '1', '{"id": "y"}')"#).unwrap();
        push(&mut client, r#"{"id": "x", "unique": {"fingerprint": "f", "until": "done"}}"#);
        let [mut ends, mut pushes] = [(); 2].map(|()| config.connect(NoTls).unwrap());
        // As an end in an open transaction does.
        let mut open = ends.transaction().unwrap();
        open.execute("SELECT FROM waterline.job FOR UPDATE", &[]).unwrap();
        let waits = std::thread::spawn(move || pushes.batch_execute(&format!("SELECT count(*) FROM waterline.{call}")));
        common::eventually("a push that waits", || {
            let locks = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
            !client.query(locks, &[]).unwrap().is_empty()
        });
        client.batch_execute("SET lock_timeout = 1").unwrap();
        push(&mut client, "{}");
        open.rollback().unwrap();
        waits.join().unwrap().unwrap();
    }
}

#[test]
fn a_job_held_by_limits_set_during_an_end_is_claimed() {
    let (config, mut client) = client("{}");
    for _ in 0..2 {
        push(&mut client, r#"{"key": "k"}"#);
    }
    let (jobs, tokens) = claim(&mut client, 1);
    let [mut operator, mut worker] = [(); 2].map(|()| config.connect(NoTls).unwrap());
    for other in [&mut operator, &mut worker] {
        other.batch_execute("SET waterline.now = '1000000'; BEGIN").unwrap();
    }
    let limits = r#"SELECT waterline.set_options('q', '{"limits": [{"of": "each_key", "at_once": 1}]}')"#;
    operator.batch_execute(limits).unwrap();
    // It knows no limit, and rings for none.
    let ended = worker.query_one("SELECT waterline.finish($1, $2)", &[&jobs, &tokens]).unwrap();
    assert_eq!(ended.get::<_, Vec<i64>>(0), jobs);
    operator.batch_execute("COMMIT").unwrap();
    assert!(claim(&mut client, 1).0.is_empty(), "the end is not committed, so the other job is held");
    worker.batch_execute("COMMIT").unwrap();
    client.batch_execute("SET waterline.now = '1002000'").unwrap();
    assert_eq!(claim(&mut client, 1).0.len(), 1);
}

// The claim waits for a user's transaction at the id of an expired job, after it has read that job.
#[test]
fn a_job_postponed_during_a_claim_is_neither_held_nor_run() {
    let options = r#"{"dead_for_ms": 0, "limits": [{"of": "each_key", "at_once": 1}]}"#;
    let (config, mut client) = client(options);
    push(&mut client, r#"{"key": "a"}"#);
    let running = claim(&mut client, 1);
    for (id, settings) in [
        ("first", r#""key": "a""#),
        ("dies", r#""expires_ms": 1"#),
        ("held", r#""key": "a""#),
        ("free", r#""key": "b""#),
    ] {
        push(&mut client, &format!(r#"{{"id": "{id}", {settings}}}"#));
    }
    // A queue that has just ticked does not do what is due, so the claim finds the expired job.
    client.batch_execute("SELECT setval(ticked, 1000001) FROM waterline.queue").unwrap();
    let [mut user, mut worker] = [(); 2].map(|()| config.connect(NoTls).unwrap());
    user.batch_execute("BEGIN; INSERT INTO waterline.gone VALUES (1, 'dies', 9000000, 1000000)").unwrap();
    worker.batch_execute("SET waterline.now = '1000001'").unwrap();
    std::thread::scope(|scope| {
        let claims = scope.spawn(|| claim(&mut worker, 4).0);
        let waits = "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%claim%'
            AND datname = current_database()";
        common::eventually("the claim to wait", || client.query_one(waits, &[]).unwrap().get(0));
        for (id, key) in [("held", "a"), ("free", "b")] {
            push(&mut client, &format!(r#"{{"id": "{id}", "key": "{key}", "delay_ms": 3600000}}"#));
        }
        user.batch_execute("ROLLBACK").unwrap();
        assert_eq!(claims.join().unwrap(), [0; 0], "both are due in an hour");
    });
    let mut state = |id: &str| -> Option<String> {
        let get = "SELECT state FROM waterline.get('q', $1)";
        client.query_opt(get, &[&id]).unwrap().map(|row| row.get(0))
    };
    assert_eq!(["held", "free", "dies"].map(&mut state), [Some("scheduled".into()), Some("scheduled".into()), None]);
    client.query_one("SELECT waterline.finish($1, $2)", &[&running.0, &running.1]).unwrap();
    assert_eq!(claim(&mut client, 4).0.len(), 1, "the first one");
}

#[test]
fn jobs_claimed_while_limits_are_set_count_soon() {
    let (config, mut client) = client("{}");
    (0..3).for_each(|_| drop(push(&mut client, "{}")));
    let mut worker = config.connect(NoTls).unwrap();
    worker.batch_execute("SET waterline.now = '1000000'; BEGIN").unwrap();
    let (jobs, tokens) = claim(&mut worker, 1);
    let limits = r#"SELECT waterline.set_options('q', '{"limits": [{"of": "kind", "name": "k", "at_once": 1}]}')"#;
    client.batch_execute(limits).unwrap();
    worker.batch_execute("COMMIT").unwrap();
    client.batch_execute("SET waterline.now = '1001000'").unwrap();
    assert_eq!(claim(&mut client, 1).0, [0; 0], "one runs");
    client.query_one("SELECT waterline.finish($1, $2)", &[&jobs, &tokens]).unwrap();
    assert_eq!(claim(&mut client, 2).0.len(), 1, "its place is free");
}

// It would also wait for the turn that has ended the job, while that waits for it: a deadlock.
#[test]
fn changed_limits_wait_for_no_open_end() {
    let limit = |most| format!(r#"{{"limits": [{{"of": "kind", "name": "k", "at_once": {most}}}]}}"#);
    let (config, mut client) = client(&limit(2));
    (0..3).for_each(|_| drop(push(&mut client, "{}")));
    let (jobs, tokens) = claim(&mut client, 2);
    let mut worker = config.connect(NoTls).unwrap();
    worker.batch_execute("SET waterline.now = '1000000'; BEGIN").unwrap();
    let end = "SELECT waterline.finish(ARRAY[$1::bigint], ARRAY[$2::bigint])";
    worker.query_one(end, &[&jobs[0], &tokens[0]]).unwrap();
    client.batch_execute("SET lock_timeout = '10s'").unwrap();
    for limits in [r#"{"limits": []}"#, &limit(1)] {
        client.execute("SELECT waterline.set_options('q', $1::text::jsonb)", &[&limits]).unwrap();
    }
    assert_eq!(claim(&mut worker, 1).0, [0; 0], "the other one runs");
    worker.batch_execute("COMMIT").unwrap();
}

#[test]
fn first_limits_of_kinds_wait_for_no_open_turn() {
    let (config, mut client) = client(r#"{"limits": [{"of": "each_key", "at_once": 5}]}"#);
    (0..4).for_each(|_| drop(push(&mut client, "{}")));
    let (jobs, tokens) = claim(&mut client, 3);
    let mut worker = config.connect(NoTls).unwrap();
    worker.batch_execute("SET waterline.now = '1000000'; BEGIN").unwrap();
    let end = "SELECT waterline.finish(ARRAY[$1::bigint], ARRAY[$2::bigint])";
    worker.query_one(end, &[&jobs[0], &tokens[0]]).unwrap();
    client.batch_execute("SET lock_timeout = '10s'").unwrap();
    let limits = r#"SELECT waterline.set_options('q', '{"limits": [{"of": "kind", "name": "k", "at_once": 2}]}')"#;
    client.batch_execute(limits).unwrap();
    worker.batch_execute("ROLLBACK; SET waterline.now = '1001000'").unwrap();
    assert_eq!(claim(&mut worker, 1).0, [0; 0], "three run: it takes its place, too");
    for at in 0..2 {
        worker.query_one(end, &[&jobs[at], &tokens[at]]).unwrap();
    }
    assert_eq!(claim(&mut worker, 9).0.len(), 1);
}

// A peek reads jobs that are due later, then `bounds_of`, then jobs that run.
#[test]
fn a_job_taken_back_during_a_peek_still_shows_as_due() {
    let (config, mut client) = client(r#"{"lease_ms": 1000, "limits": [{"of": "queue", "at_once": 5}]}"#);
    push(&mut client, "{}");
    assert_eq!(claim(&mut client, 1).0.len(), 1);
    let slow = "ALTER FUNCTION waterline.bounds_of RENAME TO quick;
        CREATE FUNCTION waterline.bounds_of(p_queue int, p_name text) RETURNS waterline.limits LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_advisory_xact_lock_shared(1);
            RETURN waterline.quick(p_queue, p_name);
        END $$;
        SELECT pg_advisory_lock(1); SET waterline.now = '1001000'";
    client.batch_execute(slow).unwrap();
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut looker = config.connect(NoTls).unwrap();
            looker.batch_execute("SET waterline.now = '1001000'").unwrap();
            let next = "SELECT number FROM waterline.peek_now('q')";
            looker.query_one(next, &[]).unwrap().get::<_, Option<i64>>(0)
        });
        let waits =
            "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()";
        common::eventually("the look to wait", || client.query_one(waits, &[]).unwrap().get(0));
        let other = "SELECT count(*) FROM waterline.claim('q', p_kinds => '{other}')";
        let claimed: i64 = client.query_one(other, &[]).unwrap().get(0);
        let runs_no_more = "SELECT state <> 'running' FROM waterline.job";
        let is_taken_back: bool = client.query_one(runs_no_more, &[]).unwrap().get(0);
        client.batch_execute("SELECT pg_advisory_unlock(1)").unwrap();
        assert_eq!((claimed, is_taken_back), (0, true));
        assert_eq!(looks.join().unwrap(), Some(1_001_000), "the lease is over");
    });
}

#[test]
fn a_purge_skips_locked_jobs_without_waiting() {
    let (config, mut client) = client("{}");
    for id in ["locked", "free"] {
        push(&mut client, &format!(r#"{{"id": "{id}"}}"#));
    }
    let mut other = config.connect(NoTls).unwrap();
    let mut open = other.transaction().unwrap();
    open.execute("SELECT FROM waterline.job WHERE name = 'locked' FOR UPDATE", &[]).unwrap();
    client.batch_execute("SET lock_timeout = 1").unwrap();
    let mut purge = || -> i64 {
        let purge = "SELECT number FROM waterline.steer('q', 'purge', 'ready') WHERE what = 'steered'";
        client.query_one(purge, &[]).unwrap().get(0)
    };
    assert_eq!(purge(), 1);
    open.rollback().unwrap();
    assert_eq!((purge(), purge()), (1, 0));
}
