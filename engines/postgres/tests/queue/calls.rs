//! Calls as another language makes them.

use crate::bench::bench;
use postgres::{Client, NoTls};

/// Returns a client whose clock is frozen, so that nothing becomes due, and a queue `q`.
pub fn client(options: &str) -> (postgres::Config, Client) {
    let config = bench().config;
    let mut client = config.connect(NoTls).unwrap();
    client.batch_execute("SET waterline.now = '1000000'").unwrap();
    client.execute("SELECT waterline.create_queue('q', $1::text::jsonb)", &[&options]).unwrap();
    (config, client)
}

/// Claims jobs, up to 32 a call, and returns their numbers and tokens.
pub fn claim(client: &mut Client, most: i32) -> (Vec<i64>, Vec<i64>) {
    let rows = client.query("SELECT job, token FROM waterline.claim('q', $1)", &[&most]).unwrap();
    let mut claimed: (Vec<_>, Vec<_>) = rows.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1))).unzip();
    if rows.len() == 32 && most > 32 {
        let more = claim(client, most - 32);
        claimed.0.extend(more.0);
        claimed.1.extend(more.1);
    }
    claimed
}

pub fn push(client: &mut Client, settings: &str) -> String {
    let push = "SELECT id FROM waterline.push('q', 'k', '1', $1::text::jsonb)";
    client.query_one(push, &[&settings]).unwrap().get(0)
}

#[test]
fn a_passed_job_is_found_by_a_tick_or_a_short_claim() {
    for most in [1, 40] {
        let (config, mut client) = client("{}");
        let many = "SELECT count(*) FROM waterline.push_many('q', array_fill('k'::text, ARRAY[40]), array_fill('1'::text, ARRAY[40]))";
        client.query_one(many, &[]).unwrap();
        let mut other = config.connect(NoTls).unwrap();
        let mut open = other.transaction().unwrap();
        let first = "SELECT number FROM waterline.job ORDER BY number LIMIT 1 FOR UPDATE";
        let first: i64 = open.query_one(first, &[]).unwrap().get(0);
        assert_eq!(claim(&mut client, 16).0, (first + 1..first + 17).collect::<Vec<_>>());
        open.rollback().unwrap();
        assert_eq!(
            claim(&mut client, 8).0,
            (first + 17..first + 25).collect::<Vec<_>>(),
            "they begin where others were"
        );
        if most == 1 {
            let read = "SELECT pg_sequence_last_value(floors[6]) FROM waterline.queue";
            let read: i64 = client.query_one(read, &[]).unwrap().get(0);
            client.batch_execute("SET waterline.now = '1001001'; SET search_path = waterline, pg_temp").unwrap();
            client.query("SELECT FROM turn('{}', '{}', '{}', '{}', '{}', '{}', 'q', 0, NULL, NULL, NULL, '', true, NULL, NULL)", &[]).unwrap();
            // A claim that read the head before the tick, and moves it past its own jobs.
            let late = "SELECT move_head(q.floors, $1, j.ctid) FROM queue q, job j WHERE j.number = $2";
            client.query(late, &[&read, &(first + 30)]).unwrap();
        }
        assert_eq!(*claim(&mut client, most).0.last().unwrap(), first, "{most}");
    }
}

#[test]
fn one_claim_finds_a_job_behind_any_number_of_held_ones() {
    let (_, mut client) = client(r#"{"limits": [{"of": "each_key", "at_once": 1}]}"#);
    let many = "SELECT count(*) FROM waterline.push_many('q', array_fill('k'::text, ARRAY[700]), \
        array_fill('1'::text, ARRAY[700]), array_fill('{\"key\": \"a\"}'::jsonb, ARRAY[700]))";
    client.query_one(many, &[]).unwrap();
    let free = push(&mut client, "{}");
    assert_eq!(claim(&mut client, 1).0.len(), 1);
    assert_eq!(claim(&mut client, 1).0, [free[1..].parse::<i64>().unwrap()]);
    assert_eq!(claim(&mut client, 1).0, [0; 0]);
}

/// The end leaves a doorbell; otherwise only a later tick would find it.
#[test]
fn a_claim_finds_a_job_whose_wait_has_just_ended() {
    let (_, mut client) = client("{}");
    push(&mut client, r#"{"id": "a"}"#);
    push(&mut client, r#"{"id": "b", "after": ["a"]}"#);
    for _ in 0..2 {
        let (jobs, tokens) = claim(&mut client, 5);
        assert_eq!(jobs.len(), 1);
        let finished = client.query_one("SELECT waterline.finish($1, $2)", &[&jobs, &tokens]).unwrap();
        assert_eq!(finished.get::<_, Vec<i64>>(0), jobs);
    }
}

#[test]
fn jobs_of_one_call_fail_or_snooze_independently() {
    let (_, mut client) = client(r#"{"retry": {"first_ms": 500, "growth": "fixed", "attempts": 9}}"#);
    for id in ["retry", "delay", "bury", "later", "now"] {
        push(&mut client, &format!(r#"{{"id": "{id}"}}"#));
    }
    let (jobs, tokens) = claim(&mut client, 5);
    for call in ["finish", "fail", "snooze", "renew"] {
        let others: Vec<_> = tokens.iter().map(|token| token ^ 1).collect();
        let call = format!("SELECT waterline.{call}($1, $2)");
        let counted = client.query_one(&call, &[&jobs, &others]).unwrap();
        assert_eq!(counted.get::<_, Vec<i64>>(0), [0; 0], "{call} with tokens of others");
    }
    let fail = "SELECT waterline.fail($1, $2, ARRAY['x', NULL], ARRAY[NULL, 20, NULL], ARRAY[NULL, false, true])";
    client.query_one(fail, &[&&jobs[..3], &&tokens[..3]]).unwrap();
    client.query_one("SELECT waterline.snooze($1, $2, '{3000}')", &[&&jobs[3..], &&tokens[3..]]).unwrap();
    let rows = client
        .query("SELECT id, state, due - 1000000, error, failures FROM waterline.jobs ORDER BY number", &[])
        .unwrap();
    type Row = (String, String, i64, Option<String>, i32);
    let rows: Vec<Row> = rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4))).collect();
    let row = |id: &str, state: &str, due, error: Option<&str>, failures| {
        (id.to_owned(), state.to_owned(), due, error.map(str::to_owned), failures)
    };
    let wanted = [
        row("retry", "scheduled", 500, Some("x"), 1),
        row("delay", "scheduled", 20, Some("no reason was given"), 1),
        row("bury", "dead", -1_000_000, Some("no reason was given"), 1),
        row("later", "scheduled", 3000, None, 0),
        row("now", "ready", 0, None, 0),
    ];
    assert_eq!(rows, wanted);
}

#[test]
fn unknown_words_and_bad_values_are_refused() {
    let (_config, mut client) = client("{}");
    push(&mut client, "null");
    for settings in [
        r#"{"delay": 1}"#,
        "[]",
        r#"{"id": ""}"#,
        r#"{"id": "~7"}"#,
        r#"{"delay_ms": -1}"#,
        r#"{"expires_ms": -1}"#,
        r#"{"retention_ms": -2}"#,
        r#"{"retry": {"attemts": 1}}"#,
        r#"{"retry": {"growth": "linear"}}"#,
        r#"{"retry": {"attempts": 0}}"#,
        r#"{"retry": {"jitter": 1e307}}"#,
        r#"{"unique": {"fingerprint": "f"}}"#,
        r#"{"unique": {"fingerprint": "f", "until": "ever"}}"#,
        r#"{"unique": {"fingerprint": "f", "until": "within"}}"#,
        r#"{"unique": {"fingerprint": "f", "until": "done", "clash": "explode"}}"#,
        r#"{"unique": {"fingerprint": "f", "until": "done"}, "skip": "g"}"#,
        r#"{"root": {"signature": "s"}}"#,
        r#"{"root": {"sig": "s", "at": 1}}"#,
        r#"{"meta": "[]"}"#,
    ] {
        refused(&mut client, &format!("push('q', 'k', '1', '{settings}')"));
        refused(&mut client, &format!("register_periodic('q', 'p', NULL, 10, 'k', '1', '{settings}', true)"));
    }
    let long = "x".repeat(256);
    for member in ["id", "key", "skip"] {
        refused(&mut client, &format!(r#"push('q', 'k', '1', '{{"{member}": "{long}"}}')"#));
    }
    for options in [
        r#"{"lease": 1}"#,
        r#"{"limits": "none"}"#,
        r#"{"limits": [{"of": "kinds", "at_once": 1}]}"#,
        r#"{"limits": [{"of": "kind", "at_once": 1}]}"#,
        r#"{"limits": [{"of": "queue", "name": "q", "at_once": 1}]}"#,
        r#"{"limits": [{"of": "queue", "at_onse": 1}]}"#,
        r#"{"limits": [{"of": "queue"}]}"#,
        r#"{"limits": [{"of": "queue", "rate": {"count": 1}}]}"#,
        r#"{"limits": [{"of": "queue", "rate": {"count": 1, "per_ms": 9}}]}"#,
        r#"{"limits": [{"of": "queue", "at_once": 1}, {"of": "queue", "at_once": 2}]}"#,
        r#"{"retry": 5}"#,
    ] {
        refused(&mut client, &format!("set_options('q', '{options}')"));
    }
    for call in [
        "push('q', '', '1')",
        "push('q', NULL, '1')",
        "push('q', 'k', NULL)",
        "push_many('q', '{a,b}', '{1}')",
        "push_many('q', '{a,b}', '{1,2,3}')",
        "push_many('q', '{a,NULL}', '{1,2}')",
        "push_many('q', '{a,b}', '{1,2}', ARRAY['{\"cost\": 2}'::jsonb])",
        &format!("push_many('q', '{{a,{long}}}', '{{1,2}}')"),
        "claim('q', p_lease => 0)",
        "work('q', 'w', '{k}', p_lease => -1)",
        "steer('q', 'remove')",
        "steer('q', 'purge', 'finished')",
        "steer('q', 'purge')",
        "steer('q', 'pause', NULL, -1)",
        "steer('q', 'explode')",
        "edit('q', '~1', p_what => 'payload')",
        "change_note('q', 'x', 'grow')",
    ] {
        refused(&mut client, call);
    }
    assert_eq!(claim(&mut client, 9).0.len(), 1, "nothing else was pushed");
}

#[track_caller]
fn refused(client: &mut Client, call: &str) {
    let error = client.batch_execute(&format!("SELECT waterline.{call}")).unwrap_err();
    let told = error.as_db_error().unwrap();
    assert_eq!(told.code().code(), "WQ002", "{call}: {error:?}");
    assert!(told.message().starts_with("waterline: "), "{call}: {error:?}");
}

/// Each of them once made a call fail for ever: a claim, an end or a tick.
#[test]
fn huge_numbers_stop_no_queue_and_empty_limits_are_refused() {
    let (_config, mut client) = client("{}");
    let set = r#"SELECT waterline.set_options('q', '{"lease_ms": 9223372036854775807, "ids_for_ms": 9223372036854775807,
        "limits": [{"of": "kind", "name": "k", "rate": {"count": 1, "per_ns": 8640000000000000}}]}')"#;
    client.batch_execute(set).unwrap();
    let periodic =
        "SELECT FROM waterline.register_periodic('q', 'p', NULL, 9223372036854775807, 'other', '1', NULL, true)";
    client.batch_execute(periodic).unwrap();
    for settings in [
        r#"{"id": "a", "cost": 2147483647, "retry": {"first_ms": 1e308, "jitter": 1}, "skip": null, "after": null}"#,
        r#"{"cost": 2147483647, "delay_ms": 9223372036854775807, "unique": null}"#,
        r#"{"unique": {"fingerprint": "f", "until": "within", "within_ms": 9223372036854775807}, "retry": null}"#,
    ] {
        push(&mut client, settings);
    }
    let all = "SELECT job, token FROM waterline.claim('q', 2147483647, p_lease => 9223372036854775807)";
    for (now, end) in [(1_000_000, "fail($1, $2, p_delays => '{9223372036854775807}')"), (3_000_000, "finish($1, $2)")]
    {
        client.batch_execute(&format!("SET waterline.now = '{now}'")).unwrap();
        let rows = client.query(all, &[]).unwrap();
        let (jobs, tokens): (Vec<i64>, Vec<i64>) =
            rows.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1))).unzip();
        client.query_one(&format!("SELECT waterline.{end}"), &[&jobs, &tokens]).unwrap();
    }
    client.query("SELECT FROM waterline.status_inputs('q')", &[]).unwrap();
    for limit in [
        r#""at_once": 0"#,
        r#""rate": {"count": -1, "per_ns": 9}"#,
        r#""rate": {"count": 1, "per_ns": 0}"#,
        r#""rate": {"count": 1, "per_ns": "NaN"}"#,
    ] {
        let set = format!(r#"SELECT waterline.set_options('q', '{{"limits": [{{"of": "queue", {limit}}}]}}')"#);
        let error = client.batch_execute(&set).unwrap_err();
        assert_eq!(error.code().map(|code| code.code()), Some("23514"), "{limit}: {error:?}");
    }
}

#[test]
fn a_job_that_awaits_two_is_released_once_both_have_ended() {
    let (config, mut client) = client("{}");
    assert_eq!(claim(&mut client, 1).0, [0_i64; 0]);
    for settings in [
        r#"{"id":"a"}"#,
        r#"{"id":"b","delay_ms":100000}"#,
        r#"{"id":"one","after":["a"]}"#,
        r#"{"id":"two","after":["a","b"]}"#,
    ] {
        push(&mut client, settings);
    }
    let (jobs, tokens) = claim(&mut client, 1);
    client.execute("SELECT waterline.finish($1, $2)", &[&jobs, &tokens]).unwrap();
    // The end and both pushes have rung, so two calls may read the waiters of this job. The first
    // one is stopped in the middle.
    let slow = "ALTER FUNCTION waterline.shown RENAME TO quick;
        CREATE FUNCTION waterline.shown(p_state waterline.job_state, p_at bigint, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_advisory_xact_lock_shared(1);
            RETURN waterline.quick(p_state, p_at, p_now);
        END $$;
        SELECT pg_advisory_lock(1)";
    client.batch_execute(slow).unwrap();
    let look = "SET waterline.now = '1000000'; SELECT * FROM waterline.claim('q', 1, p_kinds => '{none}')";
    std::thread::scope(|scope| {
        let first = scope.spawn(|| config.connect(NoTls).unwrap().batch_execute(look).unwrap());
        let waits = "SELECT FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()";
        common::eventually("the first one to wait", || client.query(waits, &[]).unwrap().len() == 1);
        client.batch_execute(look).unwrap();
        client.batch_execute("SELECT pg_advisory_unlock(1)").unwrap();
        first.join().unwrap();
    });
    let states = client.query("SELECT state, pending FROM waterline.jobs WHERE id IN ('one', 'two') ORDER BY id", &[]);
    let states: Vec<(String, i32)> = states.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(states, [("ready".to_owned(), 0), ("waiting".to_owned(), 1)]);
}

#[test]
fn ended_by_answers_in_the_order_asked() {
    let (_config, mut client) = client("{}");
    (0..300).for_each(|_| drop(push(&mut client, "{}")));
    // With these the planner may join by sorted numbers.
    client.batch_execute("ANALYZE waterline.job, waterline.ended").unwrap();
    let numbers = client.query("SELECT number FROM waterline.job ORDER BY md5(number::text) LIMIT 64", &[]).unwrap();
    let numbers: Vec<i64> = numbers.iter().map(|row| row.get(0)).collect();
    // Every second job has this token.
    client.execute("UPDATE waterline.job SET token = number WHERE number % 2 = 0", &[]).unwrap();
    let told = client.query_one("SELECT outcomes FROM waterline.ended_by($1, $1)", &[&numbers]).unwrap();
    let held = numbers.iter().map(|number| if number % 2 == 0 { "held" } else { "gone" });
    assert_eq!(told.get::<_, Vec<String>>(0), held.collect::<Vec<_>>());
    client.execute("UPDATE waterline.job SET token = NULL", &[]).unwrap();
    // A job that is gone has no state, so the caller knows that its end may have counted.
    let (job, token) = (claim(&mut client, 1).0[0], 7_i64);
    let mut told = |job: i64| {
        let ask = "SELECT outcomes[1], states[1] FROM waterline.ended_by(ARRAY[$1::bigint], ARRAY[$2::bigint])";
        let row = client.query_one(ask, &[&job, &token]).unwrap();
        (row.get::<_, String>(0), row.get::<_, Option<String>>(1))
    };
    assert_eq!(told(job), ("gone".to_owned(), Some("running".to_owned())));
    assert_eq!(told(job + 1_000_000), ("gone".to_owned(), None));
}

#[test]
fn unusable_retries_are_refused_and_long_times_capped() {
    let (_config, mut client) = client("{}");
    for settings in [r#"{"retry":{"first_ms":"soon"}}"#, r#"{"retry":{"attempts":"many"}}"#, r#"{"bogus":1}"#] {
        for call in [
            "SELECT waterline.push('q', 'k', '1', $1::text::jsonb)",
            "SELECT waterline.register_periodic('q', 'p', NULL, 10, 'k', '1', $1, true)",
        ] {
            let refused = client.query(call, &[&settings]).unwrap_err();
            assert_eq!(refused.code().map(|code| code.code()), Some("WQ002"), "{settings}");
        }
    }
    let refused = client.query(r#"SELECT waterline.set_options('q', '{"retry":{"cap_ms":"far"}}')"#, &[]).unwrap_err();
    assert_eq!(refused.code().map(|code| code.code()), Some("WQ002"));
    for settings in [
        r#"{"retry":{"attempts":3.0}}"#,
        r#"{"retry":{"growth":"factor","factor":0}}"#,
        r#"{"retry":{"growth":"fixed","first_ms":1e30}}"#,
        r#"{"retention_ms":9223372036854775807}"#,
    ] {
        for end in ["fail", "finish"] {
            push(&mut client, settings);
            let (jobs, tokens) = claim(&mut client, 1);
            let ended = client.query_one(&format!("SELECT waterline.{end}($1, $2)"), &[&jobs, &tokens]).unwrap();
            assert_eq!(ended.get::<_, Vec<i64>>(0), jobs, "{settings}");
            client.batch_execute("DELETE FROM waterline.job").unwrap();
        }
    }
}

#[test]
fn a_refused_scheduled_push_stops_nothing_else() {
    let (_config, mut client) = client("{}");
    let register = "SELECT FROM waterline.register_periodic('q', $1, NULL, 5000, $1, '1', '{}', true)";
    for name in ["a", "b", "c"] {
        client.query(register, &[&name]).unwrap();
    }
    // Settings that no call accepts.
    let spoil = "UPDATE waterline.periodic SET settings = $2::text::jsonb WHERE name = $1";
    for (name, settings) in [("a", r#"{"priority": 9}"#), ("c", r#"{"delay_ms": "soon"}"#)] {
        client.execute(spoil, &[&name, &settings]).unwrap();
    }
    push(&mut client, "{}");
    // The second tick is at another time: refused ticks do not come again with each call.
    for (now, made) in [(1_005_000, vec!["k", "b"]), (1_006_000, vec![]), (1_010_000, vec!["b"])] {
        client.batch_execute(&format!("SET waterline.now = '{now}'")).unwrap();
        let told =
            "SELECT what, outcome, id, kind, error FROM waterline.turn('{}', '{}', '{}', '{}', '{}', '{}', 'q', 9,
            NULL, NULL, NULL, 'w', true, NULL, NULL)";
        let (mut claimed, mut unmade) = (Vec::new(), Vec::new());
        for row in client.query(told, &[]).unwrap() {
            match (row.get(0), row.get(1)) {
                ("claimed", _) => claimed.push(row.get::<_, String>(3)),
                ("line", Some("unmade")) => unmade.push((row.get::<_, String>(2), row.get::<_, String>(4))),
                _ => {}
            }
        }
        assert_eq!(claimed, made, "at {now}");
        unmade.sort();
        if made.is_empty() {
            assert!(unmade.is_empty(), "at {now}: {unmade:?}");
        } else {
            let [(a, check), (c, number)] = unmade.try_into().unwrap();
            assert!(a == "a" && check.contains("a priority is 0"), "{check}");
            assert!(c == "c" && number.contains("\"soon\""), "{number}");
        }
        client.batch_execute("DELETE FROM waterline.job").unwrap();
    }
}

#[test]
fn no_limits_ring_no_bells() {
    let (_, mut client) = client("{}");
    push(&mut client, r#"{"key": "a"}"#);
    claim(&mut client, 1);
    client.batch_execute(r#"SELECT waterline.set_options('q', '{"limits": [], "lease_ms": 5000}')"#).unwrap();
    let bells: i64 = client.query_one("SELECT count(*) FROM waterline.freed", &[]).unwrap().get(0);
    assert_eq!(bells, 0, "nobody would take them");
}

#[test]
fn only_async_claims_commit_without_the_disk() {
    let (_, mut client) = client("{}");
    push(&mut client, "{}");
    let turn = |jobs: &str| {
        let ends = format!("ARRAY(SELECT number {jobs}), ARRAY(SELECT token {jobs}), ARRAY(SELECT 'finished' {jobs})");
        format!("turn({ends}, '{{}}', '{{}}', '{{}}', 'q', 1, NULL, NULL, NULL, 'w', false, NULL, NULL)")
    };
    let (alone, beside) = (turn("FROM waterline.job WHERE false"), turn("FROM waterline.job WHERE state = 'running'"));
    // A crash of the server may lose a claim that is a transaction by itself, and nothing else.
    for (claims, call, waits) in [
        (false, "claim('q')", "on"),
        (false, "claim('q', p_async => true)", "off"),
        (false, "work('q', 'w', '{k}')", "on"),
        (false, "work('q', 'w', '{k}', p_async => true)", "off"),
        (
            true,
            "work('q', 'w', '{k}', p_jobs => (SELECT json_agg(json_build_object('job', number, 'token', token, \
            'end', 'finish')) FROM waterline.job WHERE state = 'running'), p_async => true)",
            "on",
        ),
        (false, alone.as_str(), "off"),
        (true, beside.as_str(), "on"),
        (true, "finish(ARRAY[(SELECT number FROM waterline.job)], ARRAY[(SELECT token FROM waterline.job)])", "on"),
        (false, "push('q', 'k', '2')", "on"),
    ] {
        if claims {
            claim(&mut client, 1);
        }
        let mut transaction = client.transaction().unwrap();
        transaction.batch_execute(&format!("SELECT * FROM waterline.{call}")).unwrap();
        let setting = transaction.query_one("SHOW synchronous_commit", &[]).unwrap();
        assert_eq!(setting.get::<_, &str>(0), waits, "{call}");
        transaction.rollback().unwrap();
    }
}

#[test]
fn claims_check_leases_once_a_second_and_note_the_worker() {
    let (_, mut client) = client(r#"{"lease_ms": 100}"#);
    push(&mut client, r#"{"id": "a"}"#);
    let mut claim_at = |now: u32, worker: &str| {
        client.batch_execute(&format!("SET waterline.now = '{now}'")).unwrap();
        let claimed = client.query("SELECT FROM waterline.claim('q', p_worker => $1)", &[&worker]).unwrap();
        let got = client.query_one("SELECT state, worker, crashes FROM waterline.get('q', 'a')", &[]).unwrap();
        (claimed.len(), got.get::<_, String>(0), got.get::<_, Option<String>>(1), got.get::<_, i32>(2))
    };
    let runs = |count: usize, worker: &str, crashes| (count, "running".to_owned(), Some(worker.to_owned()), crashes);
    assert_eq!(claim_at(1_000_000, "first"), runs(1, "first", 0));
    assert_eq!(claim_at(1_000_998, "second"), runs(0, "first", 0), "its lease is over");
    assert_eq!(claim_at(1_001_000, "second"), runs(1, "second", 1));
}
