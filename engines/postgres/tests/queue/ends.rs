//! The short ways of ends and claims, by the calls of the protocol: what they leave to the long
//! ones.

use crate::bench::bench;
use crate::calls::claim;
use postgres::{Client, Config, NoTls};

/// The calls of a worker on one queue, in a database of its own.
struct Worker(Client);

impl Worker {
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
        claim(&mut self.0, most)
    }

    fn finish(&mut self, (jobs, tokens): (Vec<i64>, Vec<i64>)) -> Vec<i64> {
        let mut ended: Vec<i64> =
            self.0.query_one("SELECT waterline.finish($1, $2)", &[&jobs, &tokens]).unwrap().get(0);
        ended.sort_unstable();
        ended
    }

    /// Ends jobs and claims others in one call, and claims again as long as the answer says so.
    /// Returns the claimed jobs.
    fn turn(&mut self, (jobs, tokens): (Vec<i64>, Vec<i64>), most: i32) -> (Vec<i64>, Vec<i64>) {
        let turn =
            "SELECT what, number, token FROM waterline.turn($1, $2, $3, '{}', '{}', '{}', 'q', $4, NULL, NULL, NULL,
            'w', false, NULL, NULL, p_room => 8388608) WHERE what IN ('claimed', 'again') ORDER BY priority & 3, priority";
        let rows = self.0.query(turn, &[&jobs, &tokens, &vec!["finished"; jobs.len()], &most]).unwrap();
        let (claimed, again): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.get::<_, &str>(0) == "claimed");
        let mut claimed: (Vec<i64>, Vec<i64>) =
            claimed.iter().map(|row| (row.get::<_, i64>(1), row.get::<_, i64>(2))).unzip();
        if !again.is_empty() {
            let more = self.turn((vec![], vec![]), most - i32::try_from(claimed.0.len()).unwrap());
            claimed.0.extend(more.0);
            claimed.1.extend(more.1);
        }
        claimed
    }

    fn set_clock(&mut self, now: i64) {
        self.0.batch_execute(&format!("SET waterline.now = {now}")).unwrap();
    }

    fn state(&mut self, id: &str) -> Option<String> {
        self.0.query_opt("SELECT state FROM waterline.get('q', $1)", &[&id]).unwrap().map(|row| row.get(0))
    }

    fn count(&mut self, of: &str) -> i64 {
        self.0.query_one(&format!("SELECT count(*) FROM waterline.{of}"), &[]).unwrap().get(0)
    }
}

#[test]
fn a_queue_without_retention_keeps_what_a_job_asks_for() {
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
fn a_running_job_pushed_again_is_ready_after_its_end() {
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
fn an_end_hands_its_key_to_the_next_job_at_once() {
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
fn places_freed_while_a_job_runs_alone_are_kept() {
    let mut worker = Worker::new(r#"{"retention_ms": 0, "limits": [{"of": "each_key", "at_once": 1}]}"#);
    let [first, second] = [0, 1].map(|_| worker.push(r#"{"key": "a"}"#)[1..].parse::<i64>().unwrap());
    let held = worker.turn((vec![], vec![]), 4);
    assert_eq!(held.0, [first]);
    // Another job has begun to run alone.
    let alone = worker.push("{}")[1..].parse::<i64>().unwrap();
    let begin = "UPDATE waterline.job SET state = 'running', suspect = true, token = 7, at = waterline.clock() + 60000,
        worker = 'w' WHERE number = $1";
    worker.0.execute(begin, &[&alone]).unwrap();
    assert!(worker.turn(held, 4).0.is_empty(), "nobody begins meanwhile");
    let next = worker.turn((vec![alone], vec![7]), 4);
    assert_eq!(next.0, [second]);
}

#[test]
fn each_eighth_claim_takes_the_lowest_priority() {
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
fn a_batch_keeps_the_queue_order_not_the_numbers() {
    let mut worker = Worker::new("{}");
    for id in ["a", "b", "c"] {
        worker.push(&format!(r#"{{"id": "{id}"}}"#));
    }
    // Another due time moves the job behind the others.
    worker.push(r#"{"id": "a", "run_at": 1}"#);
    let claimed = worker.0.query("SELECT id FROM waterline.claim('q', 3)", &[]).unwrap();
    assert_eq!(claimed.iter().map(|row| row.get(0)).collect::<Vec<&str>>(), ["b", "c", "a"]);
}

// As many jobs are locked as a claim of one job reads.
#[test]
fn locked_jobs_do_not_hide_the_next_under_limits() {
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

/// A clock that waits for a lock in the ends of a turn, which has already read the options.
const WAITS: &str = "CREATE SEQUENCE public.calls;
    CREATE OR REPLACE FUNCTION waterline.clock() RETURNS bigint LANGUAGE plpgsql AS $$
    BEGIN
        IF coalesce(current_setting('test.waits', true), '') = 'on' AND nextval('public.calls') = 2 THEN
            PERFORM pg_advisory_xact_lock(7);
        END IF;
        RETURN floor(extract(epoch FROM clock_timestamp()) * 1000);
    END $$";

#[test]
fn limits_set_during_a_turn_hold_for_its_claim() {
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

#[test]
fn a_lone_job_waits_for_slow_claim_commits() {
    let bench = bench();
    let options = r#"{"lease_ms": 1000, "retry": {"first_ms": 0, "growth": "fixed"}}"#;
    let mut slow = Worker::on(&bench.config, options);
    let mut other = Worker(bench.config.connect(NoTls).unwrap());
    let at = |worker: &mut Worker, now: u32| {
        worker.0.batch_execute(&format!("SET waterline.now = '{now}'")).unwrap();
    };
    at(&mut slow, 0);
    let bad = slow.push("{}");
    for now in [1_000, 5_000] {
        at(&mut slow, now);
        assert_eq!(slow.claim(1).0.len(), 1, "its worker crashes");
    }
    let good = slow.push("{}");
    at(&mut slow, 5_500);
    slow.0.batch_execute("BEGIN").unwrap();
    let claim = "SELECT job, token FROM waterline.claim('q', p_lease => 100000)";
    let claimed = slow.0.query_one(claim, &[]).unwrap();
    // The second crash is found now, and its back-off ends later.
    for now in [9_000, 30_000] {
        at(&mut other, now);
        assert_eq!(other.claim(9).0.len(), 0, "another job may be about to run");
    }
    assert_eq!(other.state(&bad).as_deref(), Some("ready"));
    slow.0.batch_execute("COMMIT").unwrap();
    assert_eq!((other.claim(9).0.len(), other.state(&good).as_deref()), (0, Some("running")));
    other.finish((vec![claimed.get(0)], vec![claimed.get(1)]));
    assert_eq!((other.claim(9).0.len(), other.state(&bad).as_deref()), (1, Some("running")));
}

#[test]
fn repeated_and_foreign_ends_count_alike_at_any_size() {
    for jobs in [4, 80] {
        let mut worker = Worker::new(r#"{"retention_ms": 0}"#);
        (0..jobs).for_each(|_| drop(worker.push("{}")));
        let (all, right) = worker.claim(jobs);
        let (mut numbers, mut tokens) = (all.clone(), right.clone());
        // The last one is another worker's by now, and no job has the number 0.
        *tokens.last_mut().unwrap() += 1;
        // One comes with another token before it, one after it, and one comes twice.
        for (place, number, token) in
            [(0, all[0], right[0] + 1), (3, all[1], right[1] + 1), (3, all[2], right[2]), (1, 0, 1)]
        {
            numbers.insert(place, number);
            tokens.insert(place, token);
        }
        let mut counted = all[..all.len() - 1].to_vec();
        counted.sort_unstable();
        assert_eq!(worker.finish((numbers, tokens)), counted, "{jobs} jobs");
        assert_eq!(worker.count("job"), 1, "{jobs} jobs");
    }
}

/// A call that ends jobs and claims others passes the places of keys on in its own way. A claim
/// after the ends of another call goes by their bells, and reads each job.
#[test]
fn ends_and_a_claim_in_one_call_claim_as_in_two() {
    const LIMITS: &str = r#"{"retention_ms": 0, "limits": [{"of": "each_key", "at_once": 1},
        {"of": "key", "name": "b", "at_once": 2}]}"#;
    let mut handed_on = 0;
    for seed in common::seeds(2, 100) {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut in_one, mut in_two) = (Worker::new(LIMITS), Worker::new(LIMITS));
        let mut held: Vec<[(i64, i64); 2]> = Vec::new();
        let mut now = 1_000_000;
        for step in 0..120 {
            now += random.i64(0..20);
            // Often nothing is ready except what limits hold.
            let pushes = if random.u8(0..4) == 0 { random.u8(4..10) } else { 0 };
            let jobs: Vec<_> = (0..pushes).map(|_| keyed(&mut random)).collect();
            for worker in [&mut in_one, &mut in_two] {
                worker.set_clock(now);
                jobs.iter().for_each(|job| _ = worker.push(job));
            }
            let (most, ends) = (random.i32(0..5), random.usize(0..=held.len()));
            let ends = held.split_off(ends);
            let of = |at: usize| ends.iter().map(|leases| leases[at]).unzip();
            let is_held = in_one.count("job WHERE state = 'held'") > 0;
            let one = in_one.turn(of(0), most);
            in_two.finish(of(1));
            let two = in_two.claim(most);
            assert_eq!(one.0, two.0, "SEED={seed}, step {step}");
            handed_on += u64::from(is_held && !ends.is_empty() && !one.0.is_empty());
            held.extend((0..one.0.len()).map(|at| [(one.0[at], one.1[at]), (two.0[at], two.1[at])]));
        }
        assert_eq!(in_one.count("job"), in_two.count("job"), "SEED={seed}");
    }
    assert!(handed_on > 30, "{handed_on} claims behind ends that left jobs held");
}

/// The settings of a job, which mostly has a key.
fn keyed(random: &mut fastrand::Rng) -> String {
    let key = if random.u8(0..8) == 0 {
        ""
    } else {
        random.choice([r#", "key": "a""#, r#", "key": "b""#, r#", "key": "c""#]).unwrap()
    };
    let other = match random.u8(0..20) {
        0 => r#", "expires_ms": 50"#,
        1 => r#", "root": {"signature": "r", "at": 1}"#,
        2 => r#", "delay_ms": 30"#,
        3 => r#", "skip": "twin""#,
        _ => "",
    };
    format!(r#"{{"priority": {}{key}{other}}}"#, random.u8(0..4))
}
