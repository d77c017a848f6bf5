//! Each worker by itself: its bell, ends of all kinds, its stop, and its death.

use super::*;

const OPTIONS: &str = r#"{"retry": {"first_ms": 0, "growth": "fixed", "attempts": 2}, "retention_ms": -1}"#;
const NEVER: f64 = 3600.0;

/// JSON that a conversion to values of a language would change.
const ODD: &[&str] = &[
    r#""\u0000""#,
    r#"{"b": 1, "a": 2, "a": 3}"#,
    "[1e400, -0.0, 1.0, 1E2, 123456789012345678901234567890, 0.1000000000000000055511151231257827]",
    r#"["\ud800", "\u00e9", "é", "e\u0301", "\/", "🌊👩‍👩‍👧‍👦", "\u2028"]"#,
    " { \"spaces\" :\t[ ] } \n",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
];

fn started(language: Language, lease: f64, poll: f64) -> (Bench, Client, Worker) {
    let bench = Bench::new(OPTIONS);
    let client = bench.client();
    let worker = bench.worker(language, lease, poll);
    (bench, client, worker)
}

fn state(client: &mut Client, id: &str) -> String {
    client.query_one("SELECT state FROM waterline.get('q', $1)", &[&id]).unwrap().get(0)
}

#[track_caller]
fn until_state(client: &mut Client, worker: &Worker, id: &str, wanted: &str) {
    let begun = std::time::Instant::now();
    loop {
        let state = state(client, id);
        if state == wanted {
            return;
        }
        assert!(begun.elapsed() < crate::server::PATIENCE, "{id} is {state}, not {wanted}: {}", worker.said());
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// Pushes a job that runs until its file is there.
fn push_slow(bench: &Bench, client: &mut Client, language: Language, file: &str) -> (String, PathBuf) {
    let path = bench.directory.path().join(file);
    let payload = serde_json::Value::from(path.to_str().unwrap()).to_string();
    (push(client, &format!("{}-slow", language.name()), &payload), path)
}

#[test]
fn json_comes_back_byte_for_byte() {
    for language in Language::ALL {
        let (_bench, mut client, worker) = started(language, 30.0, 1.0);
        let kind = format!("{}-echo", language.name());
        let jobs: Vec<_> = ODD.iter().map(|json| (json, push(&mut client, &kind, json))).collect();
        for (json, id) in jobs {
            until_state(&mut client, &worker, &id, "finished");
            let row = client.query_one("SELECT payload, data FROM waterline.get('q', $1)", &[&id]).unwrap();
            assert_eq!([row.get::<_, &str>(0), row.get(1)], [*json; 2], "{language:?}");
        }
    }
}

/// By itself, it asks once an hour.
#[test]
fn a_waiting_worker_is_woken_by_a_push_or_a_lost_connection() {
    for language in Language::ALL {
        let (_bench, mut client, worker) = started(language, NEVER, NEVER);
        let kind = format!("{}-echo", language.name());
        let here = "pg_stat_activity WHERE datname = current_database()";
        let waits = format!(
            "count(*) = 1 FROM {here} AND usename = '{}' AND state = 'idle' AND query LIKE '%waterline.work(%'",
            language.name()
        );
        for _ in 0..3 {
            common::eventually("a worker that waits", || one(&mut client, &waits));
            let id = push(&mut client, &kind, "1");
            until_state(&mut client, &worker, &id, "finished");
        }
        common::eventually("a worker that waits", || one(&mut client, &waits));
        let cut = format!("count(pg_terminate_backend(pid)) FROM {here} AND usename = '{}'", language.name());
        assert_eq!(one::<i64>(&mut client, &cut), 1);
        let id = push(&mut client, &kind, "1");
        until_state(&mut client, &worker, &id, "finished");
        assert!(worker.has_said("no connection, again in"), "{}", worker.said());
    }
}

#[test]
fn a_failed_attempt_or_refused_write_fails_alone() {
    for language in Language::ALL {
        let (_bench, mut client, worker) = started(language, 30.0, 1.0);
        // In one claim, and perhaps in one transaction of ends.
        let kinds = ["refused", "row", "odd", "row", "wrong", "refused", "thrown", "half"]
            .map(|kind| format!("{}-{kind}", language.name()));
        let push = "SELECT id FROM waterline.push_many('q', $1, array_fill('1'::text, ARRAY[cardinality($1::text[])]))";
        let rows = client.query(push, &[&kinds.as_slice()]).unwrap();
        let ids: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        for (id, wanted) in ids.iter().zip(["dead", "finished", "dead", "finished", "dead", "dead", "dead", "dead"]) {
            until_state(&mut client, &worker, id, wanted);
        }
        // Characters that a text of the database cannot have are escaped.
        let (odd, wrong) = match language {
            Language::Python => (r"odd: \x00 \ud800 🌊", "JSONDecodeError"),
            Language::Node => (r"odd: \u0000 \ud800 🌊", "JSON"),
        };
        for (at, wanted) in [(0, "null value in column"), (2, odd), (4, wrong), (5, "null value in column")] {
            let error = "SELECT error FROM waterline.get('q', $1)";
            let error: String = client.query_one(error, &[&ids[at]]).unwrap().get(0);
            assert!(error.contains(wanted), "{error}");
        }
        let ran: Vec<String> = client.query_one("SELECT array_agg(job ORDER BY job) FROM runs", &[]).unwrap().get(0);
        assert_eq!(ran, [ids[1].as_str(), &ids[3]], "what was refused has written nothing");
    }
}

#[test]
fn leases_are_renewed_and_lost_ones_stop_jobs() {
    for language in Language::ALL {
        let (bench, mut client, worker) = started(language, 2.0, 0.1);
        let (kept, file) = push_slow(&bench, &mut client, language, "kept");
        let (lost, _) = push_slow(&bench, &mut client, language, "lost");
        for id in [&kept, &lost] {
            until_state(&mut client, &worker, id, "running");
        }
        let until = "SELECT at FROM waterline.job WHERE number = substr($1, 2)::bigint";
        let until = |client: &mut Client| client.query_one(until, &[&kept]).unwrap().get::<_, i64>(0);
        let first = until(&mut client);
        common::eventually("a renewal after the first lease", || until(&mut client) >= first + 2000);
        // Another worker has it.
        let take = "UPDATE waterline.job SET token = 7, at = at + 3600000 WHERE number = substr($1, 2)::bigint";
        client.execute(take, &[&lost]).unwrap();
        let over = format!("lost {lost}");
        common::eventually("the loss of a lease", || worker.has_said(&over));
        File::create(file).unwrap();
        until_state(&mut client, &worker, &kept, "finished");
        // All of its slots are free again: the handler has returned, and its end was not written.
        let rest: Vec<_> = (0..4).map(|at| push_slow(&bench, &mut client, language, &format!("rest{at}"))).collect();
        for (id, _) in &rest {
            until_state(&mut client, &worker, id, "running");
        }
        assert_eq!(state(&mut client, &lost), "running");
        assert_eq!(one::<i64>(&mut client, "count(*) FROM waterline.job WHERE token = 7"), 1);
    }
}

#[test]
fn a_stopping_worker_ends_its_jobs_and_claims_no_more() {
    for language in Language::ALL {
        let (bench, mut client, mut worker) = started(language, 30.0, 0.1);
        let (slow, file) = push_slow(&bench, &mut client, language, "slow");
        until_state(&mut client, &worker, &slow, "running");
        worker.signal("TERM");
        let stopping = "count(*) = 1 FROM waterline.job WHERE stopping";
        common::eventually("the note that the worker stops", || one(&mut client, stopping));
        let later = push(&mut client, &format!("{}-echo", language.name()), "1");
        File::create(file).unwrap();
        assert!(worker.ended().success(), "{}", worker.said());
        assert!(worker.has_said("stopped"), "{}", worker.said());
        assert_eq!([&slow, &later].map(|id| state(&mut client, id)), ["finished", "ready"], "{language:?}");

        // A worker that is killed while it stops is no crash of its job; another death is one.
        for (name, crashes) in [("stopping", 0), ("dying", 1)] {
            let mut worker = bench.worker(language, 30.0, 0.1);
            let (slow, file) = push_slow(&bench, &mut client, language, name);
            until_state(&mut client, &worker, &slow, "running");
            if name == "stopping" {
                worker.signal("TERM");
                common::eventually("the note that the worker stops", || one(&mut client, stopping));
            }
            worker.kill();
            // One of its calls that is on its way would renew the lease.
            let calls = format!("count(*) = 0 FROM pg_stat_activity WHERE usename = '{}'", language.name());
            let calls = format!("{calls} AND datname = current_database()");
            common::eventually("the end of its connection", || one(&mut client, &calls));
            // Ends the lease without waiting.
            client.execute("UPDATE waterline.job SET at = 0 WHERE state = 'running'", &[]).unwrap();
            let worker = bench.worker(language, 30.0, 0.1);
            let again = "SELECT crashes FROM waterline.job WHERE number = substr($1, 2)::bigint AND NOT stopping AND \
                state = 'running' AND at > waterline.clock() + 10000";
            let mut found = None;
            common::eventually("another run", || {
                found = client.query_opt(again, &[&slow]).unwrap().map(|row| row.get::<_, i32>(0));
                found.is_some()
            });
            assert_eq!(found, Some(crashes), "{language:?}, {name}");
            File::create(file).unwrap();
            until_state(&mut client, &worker, &slow, "finished");
        }
    }
}

#[test]
fn a_job_cut_short_by_a_stop_loses_no_attempt() {
    for language in Language::ALL {
        let (_bench, mut client, mut worker) = started(language, 30.0, 0.1);
        let id = push(&mut client, &format!("{}-cut", language.name()), "1");
        until_state(&mut client, &worker, &id, "running");
        worker.signal("TERM");
        assert!(worker.ended().success(), "{}", worker.said());
        assert!(worker.has_said("cut short"), "{}", worker.said());
        let left = "SELECT state::text, failures, crashes, error FROM waterline.job WHERE at <= waterline.clock()";
        let left = client.query_one(left, &[]).unwrap();
        let left: (String, i32, i32, Option<String>) = (left.get(0), left.get(1), left.get(2), left.get(3));
        assert_eq!(left, ("ready".to_owned(), 0, 0, None), "{language:?}");
    }
}

#[test]
fn workers_are_listed_until_they_stop_and_after_a_kill() {
    for language in Language::ALL {
        let (bench, mut client, mut worker) = started(language, 30.0, 0.1);
        let (slow, _file) = push_slow(&bench, &mut client, language, "slow");
        until_state(&mut client, &worker, &slow, "running");
        let sql =
            "SELECT language, process, host <> '', slots, busy, jobs->0->>'id', silent FROM waterline.workers_of('q')";
        let row = client.query_one(sql, &[]).unwrap();
        let named = if language == Language::Python { "python" } else { "javascript" };
        assert_eq!(row.get::<_, &str>(0), named);
        assert_eq!([row.get::<_, i64>(1), row.get(3), row.get(4)], [worker.child.id().into(), 4, 1]);
        assert_eq!((row.get(2), row.get(5), row.get(6)), (true, slow.as_str(), false));
        // Another one, of the same name as far as the server knows, stops.
        let mut other = bench.worker(language, 30.0, 0.1);
        common::eventually("the other one", || one(&mut client, "count(*) = 2 FROM waterline.workers_of('q')"));
        other.signal("TERM");
        assert!(other.ended().success(), "{}", other.said());
        assert_eq!(one::<i64>(&mut client, "count(*) FROM waterline.workers_of('q')"), 1);
        worker.kill();
        client.batch_execute("SELECT set_config('waterline.now', (waterline.clock() + 25000)::text, false)").unwrap();
        let row = client.query_one(sql, &[]).unwrap();
        assert_eq!((row.get::<_, i64>(4), row.get(5), row.get(6)), (1, slow.as_str(), true), "{language:?}");
    }
}

#[test]
fn a_push_only_producer_pushes_with_its_rows() {
    for language in Language::ALL {
        let bench = Bench::new("{}");
        let mut client = bench.client();
        client
            .batch_execute(
                "SELECT waterline.create_queue('mail');
                 CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text, cents int);",
            )
            .unwrap();
        let shop = format!("shop_{}", language.name());
        let user = format!("CREATE ROLE {shop} LOGIN IN ROLE waterline_push; GRANT SELECT, INSERT ON orders TO {shop}");
        client.batch_execute(&user).unwrap();
        let produce = || {
            let mut command = language.command();
            let command = command.arg(language.file("examples", "producer")).args(["ann@example.org", "1999"]);
            let output = command.env("DATABASE_URL", bench.url(&shop)).output().unwrap();
            (output.status.success(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        assert_eq!(produce(), (true, "receipt-1 added".to_owned()), "{language:?}");
        let payload: String = one(&mut client, "payload FROM waterline.get('mail', 'receipt-1')");
        let payload: serde_json::Value = serde_json::from_str(&payload).unwrap();
        assert!(["1", "\"1\""].contains(&payload["order"].to_string().as_str()), "{payload}");
        // If one is refused, neither the row nor the job is there.
        client.batch_execute("ALTER TABLE orders ADD CHECK (id <> 2)").unwrap();
        assert!(!produce().0);
        client.batch_execute(&format!("REVOKE waterline_push FROM {shop}")).unwrap();
        assert!(!produce().0);
        assert_eq!(one::<i64>(&mut client, "count(*) FROM orders"), 1);
        assert_eq!(one::<i64>(&mut client, "count(*) FROM waterline.job"), 1);
    }
}

#[test]
fn a_worker_fits_in_70_lines() {
    for language in Language::ALL {
        let text = std::fs::read_to_string(language.file("examples", "worker")).unwrap();
        assert!(text.lines().count() <= 70, "{language:?}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{language:?}");
    }
}
