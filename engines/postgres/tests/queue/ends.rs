//! The short ways of ends and claims, by the calls of the protocol: what they leave to the long
//! ones.

use crate::bench::bench;
use postgres::{Client, Config, NoTls};

/// The calls of a worker on one queue, in a database of its own.
struct Worker(Client);

impl Worker {
    /// Makes a queue with these options.
    fn new(options: &str) -> Self {
        Self::on(&bench().config, options)
    }

    /// The same in this database.
    fn on(config: &Config, options: &str) -> Self {
        let mut client = config.connect(NoTls).unwrap();
        client.query("SELECT waterline.create_queue('q', $1::text::jsonb)", &[&options]).unwrap();
        Self(client)
    }

    fn push(&mut self, settings: &str) -> String {
        let push = "SELECT id FROM waterline.push('q', 'k', '1', $1::text::jsonb)";
        self.0.query_one(push, &[&settings]).unwrap().get(0)
    }

    /// Returns the numbers and the tokens.
    fn claim(&mut self, most: i32) -> (Vec<i64>, Vec<i64>) {
        let rows = self.0.query("SELECT job, token FROM waterline.claim('q', $1)", &[&most]).unwrap();
        rows.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1))).unzip()
    }

    fn finish(&mut self, (jobs, tokens): (Vec<i64>, Vec<i64>)) -> Vec<i64> {
        let mut ended: Vec<i64> =
            self.0.query_one("SELECT waterline.finish($1, $2)", &[&jobs, &tokens]).unwrap().get(0);
        ended.sort_unstable();
        ended
    }

    /// Ends jobs and claims others in one call. Returns those that it claimed.
    fn turn(&mut self, (jobs, tokens): (Vec<i64>, Vec<i64>), most: i32) -> (Vec<i64>, Vec<i64>) {
        let turn = "SELECT number, token FROM waterline.turn($1, $2, $3, '{}', '{}', '{}', 'q', $4, NULL, NULL, NULL,
            'w', false, NULL, NULL) WHERE what = 'claimed'";
        let rows = self.0.query(turn, &[&jobs, &tokens, &vec!["finished"; jobs.len()], &most]).unwrap();
        rows.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1))).unzip()
    }

    fn state(&mut self, id: &str) -> Option<String> {
        self.0.query_opt("SELECT state FROM waterline.get('q', $1)", &[&id]).unwrap().map(|row| row.get(0))
    }

    fn count(&mut self, of: &str) -> i64 {
        self.0.query_one(&format!("SELECT count(*) FROM waterline.{of}"), &[]).unwrap().get(0)
    }
}

#[test]
fn a_queue_that_keeps_nothing_keeps_what_a_job_asks_for_and_remembers_its_id() {
    let mut worker = Worker::new(r#"{"retention_ms": 0}"#);
    let plain = worker.push("{}");
    let kept = worker.push(r#"{"retention_ms": 60000}"#);
    worker.push(r#"{"id": "named"}"#);
    worker.push(r#"{"skip": "twin"}"#);
    let claimed = worker.claim(4);
    let mut all = claimed.0.clone();
    all.sort_unstable();
    let wrong = (claimed.0.clone(), claimed.1.iter().map(|token| token ^ 1).collect());
    assert!(worker.finish(wrong).is_empty());
    assert_eq!((worker.count("job"), worker.state(&plain).as_deref()), (4, Some("running")));
    assert_eq!(worker.finish(claimed.clone()), all);
    assert_eq!((worker.state(&plain).as_deref(), worker.state(&kept).as_deref()), (None, Some("finished")));
    assert_eq!((worker.count("job"), worker.count("ended"), worker.count("executed")), (0, 1, 1));
    // A job may still wait for an id that was there.
    let waits = worker.push(r#"{"after": ["named"]}"#);
    assert_eq!(worker.state(&waits).as_deref(), Some("ready"));
    assert!(worker.finish(claimed).is_empty(), "each end counts once");
}

#[test]
fn a_job_that_was_pushed_anew_while_it_runs_is_ready_after_its_end_also_where_nothing_is_kept() {
    let mut worker = Worker::new(r#"{"retention_ms": 0}"#);
    worker.push(r#"{"id": "a"}"#);
    let anonymous = worker.push("{}");
    let claimed = worker.claim(2);
    worker.push(r#"{"id": "a"}"#);
    let number = anonymous[1..].parse::<i64>().unwrap();
    worker.0.execute("SELECT waterline.edit('q', $1, NULL, NULL, 'resubmit', NULL, NULL, 0)", &[&anonymous]).unwrap();
    assert!(worker.turn(claimed, 0).0.is_empty());
    assert_eq!(worker.count("job WHERE state = 'ready'"), 2, "the job {number} and the one with an id");
}

#[test]
fn the_end_of_a_job_hands_on_the_next_one_of_its_key_in_the_same_call_and_one_alone_runs() {
    for retention in [0, 60_000] {
        let limits = r#""limits": [{"of": "each_key", "at_once": 1}]"#;
        let mut worker = Worker::new(&format!(r#"{{"retention_ms": {retention}, {limits}}}"#));
        let jobs: Vec<i64> = (0..30).map(|_| worker.push(r#"{"key": "a"}"#)[1..].parse().unwrap()).collect();
        let mut held = worker.turn((vec![], vec![]), 4);
        for (at, job) in jobs.iter().enumerate() {
            assert_eq!(held.0, [*job], "in their order");
            assert_eq!(worker.count("job WHERE state = 'running'"), 1);
            assert_eq!(worker.count("freed"), 0, "no bell is needed at the job {at}");
            held = worker.turn(held, 4);
        }
        assert_eq!((held.0.len(), worker.count("job")), (0, 0));
        // An end that claims nothing leaves a bell for others.
        let [first, second] = [0, 1].map(|_| worker.push(r#"{"key": "a"}"#)[1..].parse::<i64>().unwrap());
        let claimed = worker.turn((vec![], vec![]), 4);
        assert_eq!(claimed.0, [first]);
        assert!(worker.turn(claimed, 0).0.is_empty());
        assert_eq!(worker.claim(1).0, [second]);
    }
}

#[test]
fn places_that_ends_free_while_a_job_runs_alone_are_not_forgotten() {
    let mut worker = Worker::new(r#"{"retention_ms": 0, "limits": [{"of": "each_key", "at_once": 1}]}"#);
    let [first, second] = [0, 1].map(|_| worker.push(r#"{"key": "a"}"#)[1..].parse::<i64>().unwrap());
    let held = worker.turn((vec![], vec![]), 4);
    assert_eq!(held.0, [first]);
    // Another job has begun to run alone.
    let alone = worker.push("{}")[1..].parse::<i64>().unwrap();
    let begin = "UPDATE waterline.job SET state = 'running', suspect = true, token = 7, at = waterline.clock() + 60000
        WHERE number = $1";
    worker.0.execute(begin, &[&alone]).unwrap();
    assert!(worker.turn(held, 4).0.is_empty(), "nobody begins meanwhile");
    let next = worker.turn((vec![alone], vec![7]), 4);
    assert_eq!(next.0, [second]);
}

#[test]
fn each_eighth_claim_takes_the_lowest_priority_one_by_one_and_in_batches() {
    for most in [1, 16] {
        let mut worker = Worker::new(r#"{"retention_ms": 0}"#);
        for priority in [0, 3].into_iter().flat_map(|priority| [priority; 32]) {
            worker.push(&format!(r#"{{"priority": {priority}}}"#));
        }
        (0..32 / most).for_each(|_| assert_eq!(worker.claim(most).0.len(), usize::try_from(most).unwrap()));
        assert_eq!(worker.count("job WHERE state = 'running' AND priority = 3"), 4);
    }
}

#[test]
fn a_batch_has_the_order_of_the_queue_and_not_that_of_the_numbers() {
    let mut worker = Worker::new("{}");
    for id in ["a", "b", "c"] {
        worker.push(&format!(r#"{{"id": "{id}"}}"#));
    }
    // Another due time moves the job behind the others.
    worker.push(r#"{"id": "a", "run_at": 1}"#);
    let claimed = worker.0.query("SELECT id FROM waterline.claim('q', 3)", &[]).unwrap();
    assert_eq!(claimed.iter().map(|row| row.get(0)).collect::<Vec<&str>>(), ["b", "c", "a"]);
}

// As many are locked as a claim of one job looks at.
#[test]
fn jobs_that_somebody_has_locked_do_not_hide_the_next_one_of_a_queue_with_limits() {
    let config = bench().config;
    let mut worker = Worker::on(&config, r#"{"limits": [{"of": "each_key", "at_once": 1}]}"#);
    let jobs: Vec<i64> = (0..42).map(|_| worker.push("{}")[1..].parse().unwrap()).collect();
    let mut user = config.connect(NoTls).unwrap();
    let mut open = user.transaction().unwrap();
    open.execute("SELECT FROM waterline.job WHERE number <= $1 FOR UPDATE", &[&jobs[39]]).unwrap();
    let none = || (vec![], vec![]);
    assert_eq!(worker.turn(none(), 1).0, [jobs[40]]);
    assert_eq!(worker.turn(none(), 2).0, [jobs[41]]);
    open.rollback().unwrap();
    assert_eq!(worker.turn(none(), 1).0, [jobs[0]]);
}

/// A clock that waits for a lock in the ends of a turn, which has read the options before.
const WAITS: &str = "CREATE SEQUENCE public.calls;
    CREATE OR REPLACE FUNCTION waterline.clock() RETURNS bigint LANGUAGE plpgsql AS $$
    BEGIN
        IF coalesce(current_setting('test.waits', true), '') = 'on' AND nextval('public.calls') = 2 THEN
            PERFORM pg_advisory_xact_lock(7);
        END IF;
        RETURN floor(extract(epoch FROM clock_timestamp()) * 1000);
    END $$";

#[test]
fn limits_that_are_set_while_the_ends_of_a_turn_wait_hold_for_its_claim() {
    let config = bench().config;
    let mut worker = Worker::on(&config, "{}");
    worker.0.batch_execute(WAITS).unwrap();
    let jobs: Vec<i64> = (0..3).map(|_| worker.push("{}")[1..].parse().unwrap()).collect();
    let held = worker.claim(2);
    assert_eq!(held.0, jobs[..2]);
    let mut other = config.connect(NoTls).unwrap();
    other.batch_execute("SELECT pg_advisory_lock(7)").unwrap();
    worker.0.batch_execute("SET test.waits = 'on'").unwrap();
    let claimed = std::thread::scope(|scope| {
        let turn = scope.spawn(|| worker.turn((vec![held.0[0]], vec![held.1[0]]), 1).0);
        let waits = "SELECT count(*) = 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database
            WHERE d.datname = current_database() AND locktype = 'advisory' AND NOT granted";
        common::eventually("the turn to wait", || other.query_one(waits, &[]).unwrap().get(0));
        let limit = r#"SELECT waterline.set_options('q', '{"limits": [{"of": "kind", "name": "k", "at_once": 1}]}')"#;
        other.batch_execute(limit).unwrap();
        other.batch_execute("SELECT pg_advisory_unlock(7)").unwrap();
        turn.join().unwrap()
    });
    assert!(claimed.is_empty(), "the other job of this kind runs: {claimed:?}");
    worker.0.batch_execute("SET test.waits = 'off'").unwrap();
    assert_eq!(worker.turn((vec![held.0[1]], vec![held.1[1]]), 1).0, [jobs[2]]);
}
