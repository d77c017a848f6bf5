//! A queue that several processes share by kinds; a job that runs alone reserves one of them.

use crate::bench::bench;
use crate::calls::client;
use postgres::{Client, NoTls};
use waterline_queue::{JobState, NewJob, Outcome, QueueOptions, Runner};

type Claimed = (Vec<i64>, Vec<i64>);

/// Claims as this process, of these kinds; none: all. Returns the numbers and the tokens.
fn claim(client: &mut Client, process: &str, most: i32, kinds: &[&str]) -> Claimed {
    let kinds = (!kinds.is_empty()).then_some(kinds);
    let claim = "SELECT job, token FROM waterline.claim('q', $1, $2, $3)";
    let rows = client.query(claim, &[&most, &process, &kinds]).unwrap();
    rows.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1))).unzip()
}

fn finish(client: &mut Client, (jobs, tokens): &Claimed) {
    let ended: Vec<i64> = client.query_one("SELECT waterline.finish($1, $2)", &[jobs, tokens]).unwrap().get(0);
    assert_eq!(ended.len(), jobs.len());
}

/// Pushes jobs of a kind, and returns their numbers.
fn push(client: &mut Client, kind: &str, count: i32) -> Vec<i64> {
    let push = "SELECT id FROM waterline.push_many('q', array_fill($1::text, ARRAY[$2::int]), array_fill('1'::text, ARRAY[$2::int]))";
    let rows = client.query(push, &[&kind, &count]).unwrap();
    rows.iter().map(|row| row.get::<_, String>(0)[1..].parse().unwrap()).collect()
}

/// Makes these jobs run alone, like those whose processes died twice.
fn suspect(client: &mut Client, jobs: &[i64]) {
    client.execute("UPDATE waterline.job SET suspect = true, crashes = 2 WHERE number = ANY ($1)", &[&jobs]).unwrap();
    client.execute("SELECT setval(floors[11], 1) FROM waterline.queue", &[]).unwrap();
}

pub(crate) fn set_clock(client: &mut Client, now: i64) {
    client.batch_execute(&format!("SET waterline.now = '{now}'")).unwrap();
}

/// The jobs in the line of the kind b, and the transactions that have written them.
const LINE: &str =
    "SELECT count(*), coalesce(sum(xmin::text::bigint), 0)::bigint FROM waterline.job WHERE held_by = 'ob'";

#[test]
fn jobs_of_other_kinds_go_once_into_their_line() {
    for options in ["{}", r#"{"limits": [{"of": "each_key", "at_once": 9}]}"#] {
        let (_, mut client) = client(options);
        let (others, own) = (push(&mut client, "b", 40), push(&mut client, "a", 3));
        let moved = |client: &mut Client| -> (i64, i64) {
            let row = client.query_one(LINE, &[]);
            let row = row.unwrap();
            (row.get(0), row.get(1))
        };
        assert_eq!(claim(&mut client, "one", 2, &["a"]).0, own[..2]);
        let first = moved(&mut client);
        assert_eq!(first.0, 40, "{options}");
        // No later claim of such kinds writes them.
        assert_eq!(claim(&mut client, "one", 2, &["a"]).0, own[2..]);
        assert!(claim(&mut client, "one", 2, &["a", "c"]).0.is_empty());
        assert_eq!(moved(&mut client), first);
        assert_eq!(claim(&mut client, "two", 10, &["b"]).0, others[..10]);
        // A claim of all kinds takes them before those that came later.
        let later = push(&mut client, "a", 1);
        assert_eq!(claim(&mut client, "three", 31, &[]).0, [&others[10..], &later].concat());
    }
}

#[test]
fn a_job_that_runs_alone_stops_only_its_process() {
    for options in ["{}", r#"{"limits": [{"of": "each_key", "at_once": 9}]}"#] {
        let (_, mut client) = client(options);
        let alone = push(&mut client, "a", 2);
        suspect(&mut client, &alone);
        let jobs = push(&mut client, "b", 9);
        // Another process is busy with the kind b.
        let busy = claim(&mut client, "one", 1, &["b"]);
        assert_eq!(busy.0, jobs[..1]);
        // As many at once as there are processes, each of them alone there.
        let second = claim(&mut client, "two", 4, &[]);
        assert_eq!(second.0, alone[..1], "{options}");
        assert!(claim(&mut client, "two", 4, &["b"]).0.is_empty(), "of whatever kind");
        // This one reserves the other, and gets nothing else until its own jobs have ended.
        assert!(claim(&mut client, "one", 4, &[]).0.is_empty());
        assert!(claim(&mut client, "one", 4, &["b"]).0.is_empty());
        assert_eq!(claim(&mut client, "three", 1, &[]).0, jobs[1..2], "others go on");
        finish(&mut client, &busy);
        let first = claim(&mut client, "one", 4, &[]);
        assert_eq!(first.0, alone[1..]);
        finish(&mut client, &first);
        finish(&mut client, &second);
        assert_eq!(claim(&mut client, "one", 2, &[]).0, jobs[2..4]);
        assert_eq!(claim(&mut client, "two", 2, &["b"]).0, jobs[4..6]);
    }
}

#[test]
fn a_busy_process_leaves_a_lone_job_to_others_after_a_lease() {
    let (_, mut client) = client(r#"{"lease_ms": 60000}"#);
    let long = push(&mut client, "b", 1);
    assert_eq!(claim(&mut client, "one", 1, &[]).0, long);
    let alone = push(&mut client, "a", 1);
    suspect(&mut client, &alone);
    let jobs = push(&mut client, "b", 9);
    assert!(claim(&mut client, "one", 1, &[]).0.is_empty(), "it takes it up");
    assert_eq!(claim(&mut client, "two", 1, &[]).0, jobs[..1], "it is the other one's");
    client.execute("UPDATE waterline.job SET at = at + 600000 WHERE state = 'running'", &[]).unwrap();
    set_clock(&mut client, 1_000_000 + 60_001);
    assert_eq!(claim(&mut client, "one", 1, &[]).0, jobs[1..2], "it goes on with others");
    assert!(claim(&mut client, "two", 1, &["a"]).0.is_empty(), "this one has a job, too, and takes it up");
    assert_eq!(claim(&mut client, "three", 1, &["b"]).0, jobs[2..3]);
    assert_eq!(claim(&mut client, "one", 1, &["b"]).0, jobs[3..4]);
}

fn push_with(client: &mut Client, kind: &str, settings: &str) -> i64 {
    let push = "SELECT id FROM waterline.push('q', $1, '1', $2::text::jsonb)";
    client.query_one(push, &[&kind, &settings]).unwrap().get::<_, String>(0)[1..].parse().unwrap()
}

#[test]
fn a_possibly_needless_job_stops_no_other_kind() {
    let (_, mut client) = client("{}");
    let (waits, needless) =
        (push(&mut client, "b", 3), push_with(&mut client, "c", r#"{"root": {"signature": "r", "at": 1}}"#));
    assert!(claim(&mut client, "one", 1, &["a"]).0.is_empty(), "they go into their lines");
    assert_eq!(claim(&mut client, "one", 1, &["b"]).0, waits[..1]);
    // One that is still ready, and of a kind of this claim, which reads closely, and takes all.
    let ready = push_with(&mut client, "b", r#"{"root": {"signature": "s", "at": 1}}"#);
    assert_eq!(claim(&mut client, "one", 9, &["b"]).0, [&waits[1..], &[ready]].concat());
    assert_eq!(claim(&mut client, "two", 9, &[]).0, [needless]);
}

#[test]
fn held_or_urgent_jobs_hide_no_others_in_a_line() {
    let (_, mut client) = client(r#"{"limits": [{"of": "each_key", "at_once": 1}]}"#);
    let many = (0..40).map(|_| push_with(&mut client, "b", r#"{"key": "full"}"#)).collect::<Vec<_>>();
    let free = push_with(&mut client, "b", r#"{"key": "free"}"#);
    assert!(claim(&mut client, "one", 32, &["a"]).0.is_empty());
    assert!(claim(&mut client, "one", 32, &["a"]).0.is_empty());
    assert_eq!(claim(&mut client, "one", 1, &["b"]).0, many[..1]);
    assert_eq!(claim(&mut client, "one", 1, &["b"]).0, [free]);

    let (_, mut client) = self::client("{}");
    let low = push_with(&mut client, "b", r#"{"priority": 3}"#);
    assert!(claim(&mut client, "one", 2, &["a"]).0.is_empty());
    let took_it = (0..5).any(|_| {
        push(&mut client, "b", 4);
        claim(&mut client, "one", 2, &["b"]).0.contains(&low)
    });
    assert!(took_it, "one of eight jobs is of the lowest priority");
}

#[test]
fn any_process_takes_a_lone_job_put_back() {
    let (_, mut client) = client(r#"{"lease_ms": 60000}"#);
    let long = claim_of(&mut client, "b");
    let alone = push(&mut client, "a", 1);
    suspect(&mut client, &alone);
    assert!(claim(&mut client, "one", 1, &[]).0.is_empty(), "it takes it up");
    finish(&mut client, &long);
    let (jobs, tokens) = claim(&mut client, "one", 1, &[]);
    assert_eq!(jobs, alone);
    client.query_one("SELECT waterline.snooze($1, $2)", &[&jobs, &tokens]).unwrap();
    assert_eq!(claim(&mut client, "two", 1, &["a"]).0, alone);
}

fn claim_of(client: &mut Client, kind: &str) -> Claimed {
    push(client, kind, 1);
    claim(client, "one", 1, &[kind])
}

#[test]
fn jobs_in_a_line_are_seen_without_any_claim() {
    let (_, mut client) = client("{}");
    let others = push(&mut client, "b", 2);
    assert!(claim(&mut client, "one", 1, &["a"]).0.is_empty());
    set_clock(&mut client, 1_000_000 + 3_600_000);
    let mut seen = |kinds: &[&str]| {
        let peek = "SELECT more FROM waterline.peek_now('q', 'one', $1)";
        client.query_one(peek, &[&kinds]).unwrap().get::<_, String>(0)
    };
    assert_eq!([seen(&["b"]), seen(&["a"])], ["room kinds", "room others"]);
    let ready: i64 =
        client.query_one("SELECT (waterline.status_inputs('q')->'counts'->>'ready')::bigint", &[]).unwrap().get(0);
    assert_eq!(ready, 2);
    assert_eq!(claim(&mut client, "one", 9, &["b"]).0, others);
}

#[test]
fn repeated_and_null_kinds_are_accepted() {
    let (_, mut client) = client("{}");
    let (a, b) = (push(&mut client, "a", 2), push(&mut client, "b", 2));
    let mut jobs = |kinds: &str| -> Vec<i64> {
        let rows = client.query(&format!("SELECT job FROM waterline.claim('q', 9, 'one', {kinds})"), &[]).unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    assert_eq!(jobs("ARRAY['b', NULL, 'b']"), b);
    assert_eq!(jobs("ARRAY[NULL]::text[]"), [0; 0]);
    assert_eq!(jobs("ARRAY['a', 'a']"), a);
}

/// One limit has a place, and the job that it holds is of a kind that no worker takes.
#[test]
fn a_place_for_another_kind_triggers_no_claim() {
    let (_, mut client) = client(r#"{"limits": [{"of": "each_key", "at_once": 1}]}"#);
    let first = push_with(&mut client, "c", r#"{"key": "x"}"#);
    push_with(&mut client, "c", r#"{"key": "x"}"#);
    let runs = claim(&mut client, "one", 2, &["c"]);
    assert_eq!(runs.0, [first]);
    finish(&mut client, &runs);
    for (kinds, expected) in [("a", "others"), ("c", "kinds")] {
        let peek = "SELECT more FROM waterline.peek_now('q', 'one', ARRAY[$1])";
        let seen: String = client.query_one(peek, &[&kinds]).unwrap().get(0);
        assert_eq!(seen, format!("limited room {expected}"), "{kinds}");
    }
}

/// Two services with default settings.
#[test]
fn two_services_on_a_queue_take_their_own_kinds() {
    let bench = bench();
    let other = waterline_postgres::PgStore::connect(
        bench.config.clone(),
        NoTls,
        waterline_postgres::PgOptions::new().holder("the other one"),
    );
    let [one, two] = [&bench.store, &other.unwrap()].map(|store| store.queue("q", QueueOptions::default()).unwrap());
    let runner = |queue, kind: &str| Runner::builder(queue).on(kind, |_, _: u32| Ok(Outcome::Done)).start().unwrap();
    let first = runner(&one, "a");
    let jobs = (0..200).map(|n| NewJob::new(if n % 2 == 0 { "a" } else { "b" }, &n).unwrap());
    one.push_all(jobs).unwrap();
    let finished = |count| {
        common::eventually("the ends of all jobs of a kind", || {
            let mut client = bench.config.connect(NoTls).unwrap();
            let row = client.query_one("SELECT count(*) FROM waterline.ended WHERE NOT died", &[]).unwrap();
            row.get::<_, i64>(0) == count
        });
    };
    finished(100);
    let second = runner(&two, "b");
    finished(200);
    assert_eq!(one.list(JobState::Dead, None, 9).unwrap(), []);
    first.stop().unwrap();
    second.stop().unwrap();
}

#[test]
fn the_log_names_a_kind_without_live_workers() {
    let (_, mut client) = client(r#"{"lease_ms": 30000}"#);
    let named = |client: &mut Client, now: i64| -> Vec<String> {
        set_clock(client, now);
        push(client, "a", 1);
        let turn = "SELECT kind FROM waterline.turn('{}', '{}', '{}', '{}', '{}', '{}', 'q', 1, '{b}', NULL, NULL, 'b', false, NULL, NULL)
            WHERE what = 'lined' AND kind IS NOT NULL";
        client.query(turn, &[]).unwrap().iter().map(|row| row.get(0)).collect()
    };
    let says = |client: &mut Client, stops: bool| {
        let work = "SELECT FROM waterline.work('q', 'a', '{a}', 0, p_stops => $1, p_about => '{\"number\": 1}')";
        client.query(work, &[&stops]).unwrap();
    };
    says(&mut client, false);
    assert_eq!(named(&mut client, 1_029_999), [""; 0]);
    assert_eq!(named(&mut client, 1_030_000), ["a"], "for a lease nothing was heard of it");
    says(&mut client, false);
    assert_eq!(named(&mut client, 1_030_001), [""; 0]);
    says(&mut client, true);
    assert_eq!(named(&mut client, 1_030_002), ["a"]);
}

#[test]
fn the_status_names_kinds_that_no_process_takes() {
    let bench = bench();
    let queue = bench.store.queue("q", QueueOptions::default()).unwrap();
    let mut client = bench.config.connect(NoTls).unwrap();
    client.query("SELECT FROM waterline.work('q', 'a', '{a}', 0, p_about => '{\"number\": 1}')", &[]).unwrap();
    for (kind, count) in [("a", 4), ("x", 1), ("y", 3)] {
        push(&mut client, kind, count);
    }
    assert_eq!(claim(&mut client, "b", 1, &["b"]).0.len(), 0);
    let status = queue.status().unwrap();
    let untaken: Vec<_> = status.untaken.iter().map(|untaken| (&*untaken.kind, untaken.jobs)).collect();
    assert_eq!(untaken, [("x", 1), ("y", 3)]);
    let sentence = "3 jobs of kind \"y\" are due, and no worker that is here has it; 1 more kinds wait as it does";
    assert!(status.sentence().contains(sentence), "{status}");
}
