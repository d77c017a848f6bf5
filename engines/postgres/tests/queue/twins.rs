//! Calls that meet an open push: of a twin, of the same id, or of a job that others wait for.

use crate::calls::{claim, client, push};
use postgres::{Client, Config, NoTls};

const PUSH: &str = "SELECT id, outcome FROM waterline.push('q', 'k', $1, $2::text::jsonb)";

/// Returns a client whose clock has the same time as that of [`client`].
fn another(config: &Config) -> Client {
    let mut other = config.connect(NoTls).unwrap();
    other.batch_execute("SET waterline.now = '1000000'").unwrap();
    other
}

fn outcome(client: &mut Client, payload: &str, settings: &str) -> (String, String) {
    let row = client.query_one(PUSH, &[&payload, &settings]).unwrap();
    (row.get(0), row.get(1))
}

/// Makes the second call while the transaction of a push is open: it commits once that call waits.
fn beside<R: Send>(config: &Config, open: [&str; 2], call: impl FnOnce(&mut Client) -> R + Send) -> R {
    let [mut first, mut second, mut watch] = [(); 3].map(|()| another(config));
    let mut transaction = first.transaction().unwrap();
    transaction.query_one(PUSH, &open.each_ref().map(|text| text as &(dyn postgres::types::ToSql + Sync))).unwrap();
    let own: i32 = second.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    std::thread::scope(|scope| {
        let called = scope.spawn(|| call(&mut second));
        let waits = "SELECT coalesce(wait_event_type = 'Lock', false) FROM pg_stat_activity WHERE pid = $1";
        common::eventually("the call to wait", || watch.query_one(waits, &[&own]).unwrap().get(0));
        transaction.commit().unwrap();
        called.join().unwrap()
    })
}

fn jobs(client: &mut Client) -> Vec<(String, String)> {
    let rows = client.query("SELECT id, payload FROM waterline.jobs ORDER BY number", &[]).unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[test]
fn only_one_of_two_concurrent_twins_is_added() {
    for until in [r#""done""#, r#""claimed""#, r#""within", "within_ms": 600000"#] {
        let (config, mut client) = client("{}");
        let twin = format!(r#"{{"unique": {{"fingerprint": "f", "until": {until}}}}}"#);
        let pushed = beside(&config, ["1", &twin], |second| outcome(second, "2", &twin));
        let all = jobs(&mut client);
        assert_eq!((all.len(), &*all[0].1, &pushed), (1, "1", &(all[0].0.clone(), "duplicate".to_owned())), "{until}");
    }
}

#[test]
fn a_move_that_meets_a_twin_leaves_the_job_as_it_is() {
    for until in [r#""done""#, r#""within", "within_ms": 600000"#] {
        let (config, mut client) = client("{}");
        let unique = format!(r#""unique": {{"fingerprint": "f", "until": {until}}}"#);
        push(&mut client, r#"{"id": "before"}"#);
        outcome(&mut client, "\"precious\"", r#"{"id": "x", "after": ["before"]}"#);
        let moves = format!(r#"{{"id": "x", "delay_ms": 5, {unique}}}"#);
        let (_, told) = beside(&config, ["1", &format!("{{{unique}}}")], |second| outcome(second, "2", &moves));
        assert_eq!(told, "duplicate", "{until}");
        let kept = jobs(&mut client).into_iter().find(|(id, _)| id == "x");
        assert_eq!(kept.map(|(_, payload)| payload).as_deref(), Some("\"precious\""), "{until}");
        let edges: i64 = client.query_one("SELECT count(*) FROM waterline.edge", &[]).unwrap().get(0);
        assert_eq!(edges, 1, "{until}: it waits for the other one");
    }
}

#[test]
fn the_last_concurrent_replacement_counts() {
    for until in [r#""done""#, r#""within", "within_ms": 600000"#] {
        let (config, mut client) = client("{}");
        let replaces = format!(r#"{{"unique": {{"fingerprint": "f", "until": {until}, "clash": "replace"}}}}"#);
        let (id, _) = outcome(&mut client, "0", &replaces);
        let pushed = beside(&config, ["1", &replaces], |second| outcome(second, "2", &replaces));
        assert_eq!(pushed, (id.clone(), "rescheduled".to_owned()));
        assert_eq!(jobs(&mut client), [(id, "2".to_owned())]);
    }
}

#[test]
fn a_job_being_moved_can_be_changed_run_and_removed() {
    let (config, mut client) = client("{}");
    for call in [
        "SELECT count(*) FROM waterline.edit('q', 'x', p_what => 'data', p_value => '7') WHERE what = 'job'",
        "SELECT number FROM waterline.steer('q', 'run_now', 'x') WHERE what = 'steered'",
        "SELECT number FROM waterline.steer('q', 'remove', 'x') WHERE what = 'steered'",
    ] {
        push(&mut client, r#"{"id": "x", "delay_ms": 60000}"#);
        let moves = r#"{"id": "x", "delay_ms": 70000}"#;
        let changed = beside(&config, ["1", moves], |second| second.query_one(call, &[]).unwrap().get::<_, i64>(0));
        assert_eq!(changed, 1, "{call}");
    }
    assert_eq!(jobs(&mut client), []);
}

#[test]
fn a_job_awaits_the_concurrent_rerun_of_a_dead_one() {
    let (config, mut client) = client("{}");
    push(&mut client, r#"{"id": "dies"}"#);
    let (numbers, tokens) = claim(&mut client, 1);
    client.query_one("SELECT waterline.fail($1, $2, p_bury => '{true}')", &[&numbers, &tokens]).unwrap();
    let holds = r#"{"id": "waits", "after": ["dies"], "on_dead": "hold"}"#;
    let again = r#"{"id": "dies", "delay_ms": 5000}"#;
    assert_eq!(beside(&config, ["1", holds], |second| outcome(second, "2", again)).1, "added");
    client.batch_execute("SET waterline.now = '1002000'").unwrap();
    assert_eq!(claim(&mut client, 5).0, [0; 0], "it waits for the job that is due later");
    client.batch_execute("SET waterline.now = '1006000'").unwrap();
    let (numbers, tokens) = claim(&mut client, 5);
    assert_eq!(numbers.len(), 1);
    client.query_one("SELECT waterline.finish($1, $2)", &[&numbers, &tokens]).unwrap();
    assert_eq!(claim(&mut client, 5).0.len(), 1);
}

#[test]
fn a_claim_waits_for_no_open_push_of_an_awaited_job_or_twin() {
    let (config, mut client) = client("{}");
    let twin = r#"{"unique": {"fingerprint": "f", "until": "done"}}"#;
    let ends = [("die", "fail($1, $2, p_bury => '{true}')"), ("run", "finish($1, $2)")];
    for (on_dead, _) in ends {
        let settings = format!(r#"{{"id": "waits {on_dead}", "after": ["{on_dead}"], "on_dead": "{on_dead}"}}"#);
        push(&mut client, &format!(r#"{{"id": "{on_dead}"}}"#));
        push(&mut client, &settings);
    }
    let (numbers, tokens) = claim(&mut client, 2);
    for (at, (_, end)) in ends.into_iter().enumerate() {
        let (number, token) = (vec![numbers[at]], vec![tokens[at]]);
        client.query_one(&format!("SELECT waterline.{end}"), &[&number, &token]).unwrap();
    }
    let schedule = "SELECT FROM waterline.register_periodic('q', 'p', NULL, 10, 'k', '1', $1, true)";
    client.query(schedule, &[&twin]).unwrap();
    push(&mut client, r#"{"id": "free"}"#);
    let mut other = another(&config);
    let mut open = other.transaction().unwrap();
    for settings in [r#"{"id": "die"}"#, r#"{"id": "run"}"#, twin] {
        open.query_one(PUSH, &[&"2", &settings]).unwrap();
    }
    client.batch_execute("SET statement_timeout = '30s'; SET waterline.now = '1002000'").unwrap();
    assert_eq!(claim(&mut client, 5).0.len(), 1, "the one that waits for nobody");
    open.commit().unwrap();
    client.batch_execute("SET waterline.now = '1004000'").unwrap();
    // Both forerunners were pushed again, and so was the twin: those run, and then the others.
    let (numbers, tokens) = claim(&mut client, 9);
    assert_eq!(numbers.len(), 3);
    client.query_one("SELECT waterline.finish($1, $2)", &[&numbers, &tokens]).unwrap();
    client.batch_execute("SET waterline.now = '1006000'").unwrap();
    assert_eq!(claim(&mut client, 9).0.len(), 3, "the two, and the job of the schedule");
}

#[test]
fn calls_that_need_read_committed_say_so_and_ends_do_without() {
    let (config, mut client) = client(r#"{"limits": [{"of": "each_key", "at_once": 1}]}"#);
    push(&mut client, r#"{"id": "before"}"#);
    let (numbers, tokens) = claim(&mut client, 1);
    let mut other = another(&config);
    let mut open = other.build_transaction().isolation_level(postgres::IsolationLevel::RepeatableRead).start().unwrap();
    // From here on, it sees nothing new.
    open.query("SELECT FROM waterline.queue", &[]).unwrap();
    push(&mut client, r#"{"id": "waits", "after": ["before"]}"#);
    let calls = ["claim('q')", r#"push('q', 'k', '1', '{"after": ["before"]}')"#];
    for call in calls {
        let mut within = open.transaction().unwrap();
        let refused = within.query(&format!("SELECT * FROM waterline.{call}"), &[]).unwrap_err();
        let refused = refused.as_db_error().unwrap();
        assert_eq!(refused.code().code(), "WQ010", "{call}");
        assert!(refused.message().contains("READ COMMITTED, and this one is REPEATABLE READ"), "{refused}");
    }
    open.query_one("SELECT waterline.finish($1, $2)", &[&numbers, &tokens]).unwrap();
    open.commit().unwrap();
    client.batch_execute("SET waterline.now = '1002000'").unwrap();
    assert_eq!(claim(&mut client, 1).0.len(), 1, "the one that waited");
}

#[test]
fn new_limits_hold_for_a_held_job_with_an_open_push() {
    let options = r#"{"limits": [{"of": "each_key", "at_once": 1}]}"#;
    for commits in [true, false] {
        let (config, mut client) = client(options);
        push(&mut client, r#"{"key": "a"}"#);
        push(&mut client, r#"{"id": "held", "key": "a"}"#);
        assert_eq!(claim(&mut client, 2).0.len(), 1);
        let mut other = another(&config);
        let mut open = other.transaction().unwrap();
        open.query_one(PUSH, &[&"2", &r#"{"id": "held", "key": "a", "delay_ms": 1}"#]).unwrap();
        client.batch_execute("SET lock_timeout = '10s'").unwrap();
        let set = r#"SELECT waterline.set_options('q', '{"limits": [{"of": "each_key", "at_once": 2}]}')"#;
        client.batch_execute(set).unwrap();
        if commits { open.commit() } else { open.rollback() }.unwrap();
        client.batch_execute("SET waterline.now = '1002000'").unwrap();
        assert_eq!(claim(&mut client, 2).0.len(), 1, "{commits}");
    }
}

#[test]
fn a_lease_begins_after_waiting_for_other_claims() {
    let (config, mut client) = client(r#"{"limits": [{"of": "queue", "at_once": 5}]}"#);
    (0..2).for_each(|_| drop(push(&mut client, "{}")));
    let [mut first, mut second] = [(); 2].map(|()| config.connect(NoTls).unwrap());
    let mut open = first.transaction().unwrap();
    open.query("SELECT FROM waterline.claim('q')", &[]).unwrap();
    let (job, committed) = std::thread::scope(|scope| {
        let claims = scope.spawn(|| claim(&mut second, 1).0[0]);
        let waits =
            "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()";
        common::eventually("the claim to wait", || client.query_one(waits, &[]).unwrap().get(0));
        let later = "SELECT pg_sleep(0.005), floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
        let committed: i64 = client.query_one(later, &[]).unwrap().get(1);
        open.commit().unwrap();
        (claims.join().unwrap(), committed)
    });
    let begun = "SELECT since, at - since FROM waterline.job WHERE number = $1";
    let row = client.query_one(begun, &[&job]).unwrap();
    assert!(row.get::<_, i64>(0) >= committed && row.get::<_, i64>(1) == 60_000);
}

#[test]
fn a_set_back_clock_delays_nothing_even_after_a_rollback() {
    let (config, mut client) = client("{}");
    let schedule = "SELECT FROM waterline.register_periodic('q', 'p', NULL, 1000, 'k', '1', NULL, true)";
    client.query(schedule, &[]).unwrap();
    (0..3).for_each(|_| drop(push(&mut client, "{}")));
    assert_eq!(claim(&mut client, 1).0.len(), 1);
    let mut other = another(&config);
    client.batch_execute("SET waterline.now = '500000'").unwrap();
    let locks = "SELECT number FROM waterline.job WHERE state = 'ready' ORDER BY number LIMIT 1 FOR UPDATE";
    let mut open = other.transaction().unwrap();
    open.query_one(locks, &[]).unwrap();
    client.batch_execute("BEGIN; SELECT FROM waterline.claim('q'); ROLLBACK").unwrap();
    assert_eq!(claim(&mut client, 5).0.len(), 1, "the one that nobody has locked");
    open.rollback().unwrap();
    assert_eq!(claim(&mut client, 5).0.len(), 1, "the other one");
    assert_eq!(claim(&mut client, 5).0.len(), 0);
    let mut ticked = || -> i64 {
        client.query_one("SELECT pg_sequence_last_value(ticked) FROM waterline.queue", &[]).unwrap().get(0)
    };
    assert_eq!(ticked(), 500_000, "nothing is left to do");
    client.batch_execute("SET waterline.now = '501000'").unwrap();
    assert_eq!(claim(&mut client, 5).0.len(), 1, "that of the schedule");
}

#[test]
fn no_addition_to_a_concurrently_removed_note_is_lost() {
    let (config, mut client) = client("{}");
    let note = |what: &str| format!("SELECT old_value FROM waterline.change_note('q', '01kx', '{what}', '1')");
    let removed: i64 = std::thread::scope(|scope| {
        let adds: Vec<_> = (0..2).map(|_| (another(&config), note("add"))).collect();
        let removes: Vec<_> = (0..2).map(|_| (another(&config), note("remove"))).collect();
        for (mut client, add) in adds {
            scope.spawn(move || (0..100).for_each(|_| drop(client.query_one(&add, &[]).unwrap())));
        }
        let removes = removes.into_iter().map(|(mut client, remove)| {
            scope.spawn(move || {
                let old = |_| client.query_one(&remove, &[]).unwrap().get::<_, Option<String>>(0);
                (0..100).filter_map(old).map(|old| old.parse::<i64>().unwrap()).sum::<i64>()
            })
        });
        let removes: Vec<_> = removes.collect();
        removes.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let left = client.query_one(&note("remove"), &[]).unwrap().get::<_, Option<String>>(0);
    assert_eq!(removed + left.map_or(0, |left| left.parse::<i64>().unwrap()), 200);
}
