//! The call that is a whole worker: what it does with what it is told, and how long to sleep.

use crate::calls::{client, push};
use postgres::Client;
use serde_json::{Value, json};

const NOW: i64 = 1_000_000;
const OPTIONS: &str = r#"{"retry": {"first_ms": 500, "growth": "fixed", "attempts": 9}, "retention_ms": -1}"#;

/// A worker with a lease of 3 s, which asks every 700 ms, as it is between two calls.
struct Worker {
    client: Client,
    jobs: Vec<Value>,
}

impl Worker {
    fn new(options: &str) -> (postgres::Config, Self) {
        let (config, client) = client(options);
        (config, Self { client, jobs: Vec::new() })
    }

    fn at(&mut self, time: i64) {
        self.client.batch_execute(&format!("SET waterline.now = '{}'", NOW + time)).unwrap();
    }

    /// Calls. Returns how many it is to begin, how many are gone, and how long it may sleep.
    fn call(&mut self, slots: i32, stops: bool) -> (usize, usize, i32) {
        let call = "SELECT * FROM waterline.work('q', 'w', '{k}', $1, 3000, 700, $2, $3)";
        let row = self.client.query_one(call, &[&slots, &Value::from(self.jobs.clone()), &stops]).unwrap();
        let [more, gone] = [0, 1].map(|at| row.get::<_, Value>(at).as_array().unwrap().clone());
        self.jobs.retain(|job| !gone.contains(&job["token"]));
        self.jobs.extend(more.iter().map(|job| json!({"job": job["job"], "token": job["token"]})));
        (more.len(), gone.len(), row.get(2))
    }

    fn end(&mut self, at: usize, end: &str, said: &str) {
        (self.jobs[at]["end"], self.jobs[at]["said"]) = (end.into(), said.into());
    }

    fn ask<T: for<'a> postgres::types::FromSql<'a>>(&mut self, what: &str) -> T {
        self.client.query_one(&format!("SELECT {what} FROM waterline.jobs ORDER BY id LIMIT 1"), &[]).unwrap().get(0)
    }

    /// How long the leases last, from the beginning on.
    fn leases(&mut self) -> Vec<i64> {
        let leases = "SELECT at - $1 FROM waterline.job WHERE state = 'running' ORDER BY number";
        self.client.query(leases, &[&NOW]).unwrap().iter().map(|row| row.get(0)).collect()
    }
}

#[test]
fn one_call_renews_ends_and_begins_jobs() {
    let (_, mut worker) = Worker::new(OPTIONS);
    for id in ["a", "b", "c"] {
        push(&mut worker.client, &format!(r#"{{"id": "{id}"}}"#));
    }
    // (time, more, gone, sleep, leases): with two slots, and nothing ends.
    for (time, more, sleep, leases) in [
        (0, 2, 1000, [3000, 3000]),
        (400, 0, 600, [3000, 3000]),
        (999, 0, 1, [3000, 3000]),
        // A renewal is a transaction of its own.
        (1000, 0, 0, [4000, 4000]),
        (1000, 0, 1000, [4000, 4000]),
    ] {
        worker.at(time);
        assert_eq!(worker.call(2, false), (more, 0, sleep), "at {time}");
        assert_eq!(worker.leases(), leases, "at {time}");
    }
    worker.end(0, "finish", "[1e400]");
    worker.end(1, "fail", "no");
    assert_eq!(worker.call(2, false), (1, 2, 0), "it has room for another one, and looks at once");
    assert_eq!(worker.leases(), [4000]);
    assert_eq!(worker.ask::<String>("data || state"), "[1e400]finished");
    let failed = worker.client.query_one("SELECT error, failures FROM waterline.get('q', 'b')", &[]).unwrap();
    assert_eq!((failed.get(0), failed.get(1)), ("no", 1));
    assert_eq!(worker.call(2, false), (0, 0, 500), "the one that has failed is due then");
    // Ends come again if the answer was lost: they count once.
    worker.end(0, "finish", "1");
    let sent = worker.jobs.clone();
    assert_eq!(worker.call(1, false), (0, 1, 500));
    worker.jobs = sent;
    assert_eq!(worker.call(1, false), (0, 1, 500));
    assert_eq!(worker.ask::<i64>("count(*) OVER ()"), 3);
    worker.at(1500);
    assert_eq!(worker.call(2, false), (1, 0, 0));
    worker.end(0, "finish", "1");
    assert_eq!(worker.call(2, false), (0, 1, 700), "there is nothing, so it looks again after its poll");
}

#[test]
fn lost_jobs_are_told_and_a_locked_job_blocks_no_other() {
    let (config, mut worker) = Worker::new(OPTIONS);
    for id in ["a", "b"] {
        push(&mut worker.client, &format!(r#"{{"id": "{id}"}}"#));
    }
    assert_eq!(worker.call(2, false), (2, 0, 1000));
    worker.client.batch_execute("UPDATE waterline.job SET token = 7 WHERE name = 'b'").unwrap();
    assert_eq!(worker.call(2, false), (0, 1, 700));
    let mut other = config.connect(postgres::NoTls).unwrap();
    let mut open = other.transaction().unwrap();
    open.batch_execute("SELECT FROM waterline.job WHERE name = 'a' FOR UPDATE").unwrap();
    push(&mut worker.client, r#"{"id": "c"}"#);
    worker.at(1000);
    assert_eq!(worker.call(2, false), (1, 0, 125), "a renewal waits for nobody, and comes again soon");
    assert_eq!(worker.leases(), [3000, 3000, 4000]);
    open.rollback().unwrap();
    // A job that has come to another life of the same worker is ended by its token alone.
    worker.end(0, "finish", "1");
    worker.jobs[0]["token"] = json!(8);
    assert_eq!(worker.call(2, false).1, 1);
    assert_eq!(worker.leases(), [3000, 3000, 4000]);
    let wrong = r#"[{"job": 1, "token": 2, "end": "vanish"}]"#;
    let job = "UPDATE waterline.job SET token = 2, at = at + 100000 WHERE name = 'a' RETURNING number";
    let number: i64 = worker.client.query_one(job, &[]).unwrap().get(0);
    let wrong =
        format!("SELECT waterline.work('q', 'w', '{{k}}', p_jobs => '{}')", wrong.replace('1', &number.to_string()));
    assert_eq!(worker.client.batch_execute(&wrong).unwrap_err().code().unwrap().code(), "WQ002");
}

#[test]
fn a_stopping_worker_gets_nothing_and_keeps_its_jobs() {
    let (config, mut worker) = Worker::new(OPTIONS);
    for _ in 0..4 {
        push(&mut worker.client, "{}");
    }
    assert_eq!(worker.call(3, false).0, 3);
    worker.end(0, "finish", "1");
    let mut other = config.connect(postgres::NoTls).unwrap();
    let mut open = other.transaction().unwrap();
    open.execute("SELECT FROM waterline.job WHERE token = $1 FOR UPDATE", &[&worker.jobs[2]["token"].as_i64()])
        .unwrap();
    assert_eq!(worker.call(3, true), (0, 1, 1000));
    let stopping = "SELECT count(*) FROM waterline.job WHERE stopping AND state = 'running'";
    let stopping = |worker: &mut Worker| worker.client.query_one(stopping, &[]).unwrap().get::<_, i64>(0);
    assert_eq!(stopping(&mut worker), 1, "it waits for nobody");
    open.rollback().unwrap();
    assert_eq!(worker.call(3, true), (0, 0, 1000));
    assert_eq!(stopping(&mut worker), 2);
    worker.at(1000);
    assert_eq!(worker.call(3, true), (0, 0, 0));
    assert_eq!(worker.leases(), [4000, 4000], "and renews them");
    (0..2).for_each(|at| worker.end(at, "finish", "1"));
    assert_eq!(worker.call(3, true), (0, 2, 0), "it has nothing to wait for");
}

#[test]
fn an_end_that_must_wait_is_kept_and_blocks_no_other() {
    let (config, mut worker) = Worker::new(OPTIONS);
    for id in ["a", "b", "c"] {
        push(&mut worker.client, &format!(r#"{{"id": "{id}"}}"#));
    }
    assert_eq!(worker.call(2, false), (2, 0, 1000));
    let mut other = config.connect(postgres::NoTls).unwrap();
    let mut open = other.transaction().unwrap();
    open.batch_execute("SELECT FROM waterline.job WHERE name = 'a' FOR UPDATE").unwrap();
    worker.client.batch_execute("SET statement_timeout = '20s'").unwrap();
    worker.end(0, "finish", "1");
    assert_eq!(worker.call(2, false), (1, 0, 125), "its slot is free, and its end comes again soon");
    for (time, sleep, leases) in [(1000, 0, [3000, 4000, 4000]), (1000, 125, [3000, 4000, 4000])] {
        worker.at(time);
        assert_eq!(worker.call(2, false), (0, 0, sleep), "at {time}");
        assert_eq!(worker.leases(), leases, "at {time}");
    }
    worker.end(1, "finish", "1");
    assert_eq!(worker.call(1, false), (0, 1, 125), "another one ends meanwhile");
    worker.at(3500);
    assert_eq!(worker.call(1, false), (0, 0, 0));
    open.rollback().unwrap();
    // Its lease has ended, and no call has taken the job back.
    assert_eq!(worker.call(1, false), (0, 0, 0), "the renewal comes before a tick");
    assert_eq!(worker.call(1, false).1, 1);
    assert_eq!(worker.ask::<String>("state || crashes"), "finished0");
}

#[test]
fn a_bell_rings_as_long_as_the_longest_listener_asks() {
    let (_, mut worker) = Worker::new(OPTIONS);
    let mut until = |poll: i64| -> i64 {
        let wait = "SELECT sleep_ms FROM waterline.work('q', 'w', '{k}', p_poll => $1)";
        worker.client.query_one(wait, &[&poll]).unwrap();
        let bell = "SELECT pg_sequence_last_value(bell) FROM waterline.queue";
        worker.client.query_one(bell, &[]).unwrap().get(0)
    };
    let longest = until(3_600_000);
    assert_eq!([until(1), until(1000)], [longest; 2]);
}
