//! The workers that the database knows: each writes its row with calls that it makes anyway, no
//! call waits for that, and the list shows what each one has.

use crate::bench::bench;
use crate::calls::client;
use crate::sharing::set_clock;
use crossbeam_channel::{bounded, unbounded};
use postgres::{Client, NoTls};
use std::time::Duration;
use waterline_postgres::{PgOptions, PgStore};
use waterline_queue::{NewJob, Outcome, Queue, QueueOptions, Runner, Waits, WorkerInfo};

/// The time at which a client of these tests begins.
const BEGIN: i64 = 1_000_000;

fn push(client: &mut Client, count: i32) {
    client.execute("SELECT waterline.push('q', 'k', '1') FROM generate_series(1, $1)", &[&count]).unwrap();
}

/// Calls `work` as a worker of this name and number, with these slots, without its jobs.
fn work(client: &mut Client, name: &str, number: i64, slots: i32) {
    let about = format!(r#"{{"number": {number}, "process": 7, "host": "h", "language": "python", "version": "1.0"}}"#);
    client
        .execute("SELECT waterline.work('q', $1, '{k}', $2, p_about => $3::text::json)", &[&name, &slots, &about])
        .unwrap();
}

/// Name of a worker, its busy slots, the time since it was heard of, and whether it is silent.
type Seen = (Option<String>, i64, i64, bool);

fn seen(client: &mut Client) -> Vec<Seen> {
    let rows = client.query("SELECT name, busy, silent_for, silent FROM waterline.workers_of('q')", &[]).unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect()
}

fn of(name: &str, busy: i64, silent_for: i64, silent: bool) -> Seen {
    (Some(name.to_owned()), busy, silent_for, silent)
}

fn rows(client: &mut Client) -> i64 {
    client.query_one("SELECT count(*) FROM waterline.worker", &[]).unwrap().get(0)
}

#[test]
fn runners_are_seen_from_another_process_until_they_stop() {
    let bench = bench();
    let store = |name: &str| {
        let options = PgOptions::new().ttl(Duration::from_secs(60)).holder(name);
        PgStore::connect(bench.config.clone(), NoTls, options).unwrap()
    };
    let (begins, begun) = unbounded();
    let (release, is_released) = bounded::<()>(0);
    let runner = |store: &PgStore, kinds: &[&str], slots| {
        let queue = store.queue("q", QueueOptions::default()).unwrap();
        let builder = kinds.iter().fold(Runner::builder(&queue), |builder, kind| {
            let (begins, is_released) = (begins.clone(), is_released.clone());
            builder.on(*kind, move |job, ()| {
                begins.send(job.id().to_owned()).unwrap();
                _ = is_released.recv();
                Ok(Outcome::Done)
            })
        });
        builder.max_processing(slots).start().unwrap()
    };
    let (a, b, third) = (store("a"), store("b"), store("third"));
    let (first, second) = (runner(&a, &["mail", "scan"], 2), runner(&b, &["scan"], 5));
    let queue = third.queue("q", QueueOptions::default()).unwrap();
    queue.push(NewJob::new("mail", &()).unwrap().id("m")).unwrap();
    assert_eq!(begun.recv_timeout(common::LONG).unwrap(), "m");
    let busy = |workers: &[WorkerInfo]| workers.iter().map(|worker| worker.busy).collect::<Vec<_>>();
    common::eventually("both workers", || busy(&third.workers("q").unwrap()) == [1, 0]);
    let workers = queue.workers().unwrap();
    let what = |worker: &WorkerInfo| (worker.to_string(), worker.slots, worker.kinds.clone().unwrap().join(" "));
    let seen: Vec<_> = workers.iter().map(what).collect();
    assert_eq!(seen, [("a".to_owned(), Some(2), "mail scan".to_owned()), ("b".to_owned(), Some(5), "scan".to_owned())]);
    for worker in &workers {
        assert_eq!((worker.process, worker.language.as_deref()), (Some(std::process::id()), Some("rust")));
        assert_eq!(worker.version.as_deref(), Some(env!("CARGO_PKG_VERSION")));
        assert!(worker.host.as_deref().is_some_and(|host| !host.is_empty()));
        assert!(!worker.is_silent && !worker.is_stopping && worker.silent_for < Duration::from_secs(40));
    }
    assert_eq!((&*workers[0].jobs[0].id, &*workers[0].jobs[0].kind), ("m", "mail"));
    assert!(workers[0].lease_left > Some(Duration::from_secs(20)) && workers[1].lease_left.is_none());
    assert!(matches!(third.workers("other"), Err(error) if error.to_string().contains("other")));
    // A worker without a job is gone with its stop, and one with a job when that has ended.
    second.stop().unwrap();
    assert_eq!(busy(&third.workers("q").unwrap()), [1]);
    let stops = std::thread::spawn(move || first.stop().unwrap());
    common::eventually("the stop", || third.workers("q").unwrap().iter().all(|worker| worker.is_stopping));
    assert_eq!(busy(&third.workers("q").unwrap()), [1]);
    drop(release);
    stops.join().unwrap();
    assert_eq!(third.workers("q").unwrap(), []);
}

/// The slots of a runner are those of all its queues together.
#[test]
fn a_runner_of_two_queues_is_seen_in_both() {
    let bench = bench();
    let options = || QueueOptions::default().lease(Duration::from_secs(1));
    let group = |store: &PgStore| {
        let group = store.queue_group().queue("mail", ["m"], options()).queue("thumbs", ["t"], options());
        group.open().unwrap()
    };
    let (begins, begun) = unbounded();
    let (release, is_released) = bounded::<()>(0);
    let group_here = group(&bench.store);
    let runner = ["m", "t"].into_iter().fold(group_here.runner(), |builder, kind| {
        let (begins, is_released) = (begins.clone(), is_released.clone());
        builder.on(kind, move |_, ()| {
            begins.send(()).unwrap();
            _ = is_released.recv();
            Ok(Outcome::Done)
        })
    });
    let runner = runner.max_processing(2).start().unwrap();
    let other = PgStore::connect(bench.config.clone(), NoTls, PgOptions::new().holder("other")).unwrap();
    let group = group(&other);
    for _ in 0..3 {
        group.push_all(["m", "t"].map(|kind| NewJob::new(kind, &()).unwrap())).unwrap();
    }
    (0..2).for_each(|_| begun.recv_timeout(common::LONG).unwrap());
    // The slots may be taken by jobs of one of them: that one stands still, and the other has a
    // worker.
    let stands = |waits: &Waits| matches!(waits, Waits::StandsStill { slots: 2, workers: Some(1), .. });
    common::eventually("a queue to stand still, and no other worker", || {
        let all_taken = |queue: &Queue| {
            let workers = queue.workers().unwrap();
            workers.len() == 1 && (workers[0].busy, workers[0].slots, workers[0].is_silent) == (2, Some(2), false)
        };
        let queues = group.status().unwrap().queues;
        queues.iter().any(|status| stands(&status.waits))
            && queues.iter().all(|status| !matches!(status.waits, Waits::NoWorker))
            && ["mail", "thumbs"].iter().all(|name| all_taken(group.queue(name).unwrap()))
    });
    drop(release);
    runner.stop().unwrap();
}

#[test]
fn killed_workers_are_silent_before_leases_end() {
    let (_, mut client) = client(r#"{"lease_ms": 30000}"#);
    push(&mut client, 3);
    work(&mut client, "w1", 1, 2);
    work(&mut client, "w2", 2, 0);
    assert_eq!(seen(&mut client), [of("w1", 2, 0, false), of("w2", 0, 0, false)]);
    set_clock(&mut client, BEGIN + 20_000);
    work(&mut client, "w2", 2, 0);
    assert_eq!(seen(&mut client), [of("w1", 2, 20_000, false), of("w2", 0, 0, false)]);
    set_clock(&mut client, BEGIN + 20_001);
    assert_eq!(seen(&mut client), [of("w2", 0, 1, false), of("w1", 2, 20_001, true)]);
    let sql = "SELECT lease_left, newest_ran, jobs->0->>'id' FROM waterline.workers_of('q', 1) WHERE silent";
    let row = client.query_one(sql, &[]).unwrap();
    let (left, newest, id): (i64, i64, String) = (row.get(0), row.get(1), row.get(2));
    assert_eq!((left, newest, &*id), (9_999, 20_001, "~1"));
    // Its leases end, and others take its jobs. It is listed for a day.
    set_clock(&mut client, BEGIN + 30_001);
    work(&mut client, "w2", 2, 3);
    assert_eq!(seen(&mut client), [of("w2", 3, 0, false), of("w1", 0, 30_001, true)]);
}

#[test]
fn a_worker_without_details_is_seen_by_its_jobs() {
    let (_, mut client) = client(r#"{"lease_ms": 30000}"#);
    push(&mut client, 2);
    let claim = "SELECT job, token FROM waterline.claim('q', 2, 'plain')";
    let claimed = client.query(claim, &[]).unwrap();
    let (jobs, tokens): (Vec<i64>, Vec<i64>) =
        claimed.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1))).unzip();
    assert_eq!((seen(&mut client), rows(&mut client)), (vec![of("plain", 2, 0, false)], 0));
    set_clock(&mut client, BEGIN + 15_000);
    client.execute("SELECT waterline.renew($1, $2)", &[&jobs, &tokens]).unwrap();
    set_clock(&mut client, BEGIN + 25_000);
    assert_eq!(seen(&mut client), [of("plain", 2, 10_000, false)]);
    client.execute("SELECT waterline.finish($1, $2)", &[&jobs, &tokens]).unwrap();
    assert_eq!(seen(&mut client), []);
    // A worker that finds no job gives no other sign of life.
    client.execute(claim, &[]).unwrap();
    client.execute("SELECT waterline.work('q', NULL, NULL)", &[]).unwrap();
    assert_eq!(seen(&mut client), [(None, 0, 0, false), of("plain", 0, 0, false)]);
    set_clock(&mut client, BEGIN + 45_001);
    assert_eq!(seen(&mut client), [(None, 0, 20_001, true), of("plain", 0, 20_001, true)]);
}

#[test]
fn workers_of_one_name_are_told_apart_by_number() {
    let (_, mut client) = client(r#"{"lease_ms": 30000}"#);
    push(&mut client, 5);
    work(&mut client, "w", 1, 3);
    // Its process dies, and comes back.
    set_clock(&mut client, BEGIN + 25_000);
    work(&mut client, "w", 2, 1);
    assert_eq!(seen(&mut client), [of("w", 1, 0, false), of("w", 3, 25_000, true)]);
    // Two that begin in the same millisecond: one of them has the jobs.
    work(&mut client, "w", 3, 1);
    let busy: i64 = seen(&mut client).iter().map(|(_, busy, ..)| busy).sum();
    assert_eq!(busy, 5);
    // The rows of one queue are not those of another one.
    client.execute("SELECT waterline.create_queue('r')", &[]).unwrap();
    let others: i64 = client.query_one("SELECT count(*) FROM waterline.workers_of('r')", &[]).unwrap().get(0);
    assert_eq!(others, 0);
}

#[test]
fn a_lone_job_is_shown_unless_another_worker_goes_on() {
    let (_, mut client) = client(r#"{"lease_ms": 30000}"#);
    let alone = |client: &mut Client| -> Option<bool> {
        client.query_one("SELECT (waterline.status_inputs('q', 'looks')->>'alone')::boolean", &[]).unwrap().get(0)
    };
    push(&mut client, 1);
    work(&mut client, "a", 1, 8);
    assert_eq!((alone(&mut client), seen(&mut client)), (None, vec![of("a", 1, 0, false)]));
    client.batch_execute("UPDATE waterline.job SET suspect = true").unwrap();
    assert_eq!((alone(&mut client), seen(&mut client)), (Some(true), vec![of("a", 8, 0, false)]), "it begins no other");
    work(&mut client, "b", 2, 4);
    let both = vec![of("a", 8, 0, false), of("b", 0, 0, false)];
    assert_eq!((alone(&mut client), seen(&mut client)), (None, both));
    client.batch_execute("UPDATE waterline.worker SET stopping = true WHERE name = 'b'").unwrap();
    assert_eq!(alone(&mut client), Some(true));
    // It is to run alone, and another job of its process has not ended.
    client.batch_execute("UPDATE waterline.job SET state = 'ready', alone_until = 1000001").unwrap();
    assert_eq!(alone(&mut client), Some(false));
}

#[test]
fn worker_rows_are_written_each_third_lease_or_at_a_stop() {
    let (_, mut client) = client(r#"{"lease_ms": 30000}"#);
    let written = |client: &mut Client| -> (i64, i64) {
        let row = client.query_one("SELECT seen, xmin::text::bigint FROM waterline.worker", &[]).unwrap();
        (row.get(0), row.get(1))
    };
    let mut writes = Vec::new();
    for after in (0..35_000).step_by(100) {
        set_clock(&mut client, BEGIN + after);
        work(&mut client, "w", 1, 2);
        // Other slots are said after a second.
        let slots = if (20_500..21_000).contains(&after) { 3 } else { 2 };
        work(&mut client, "w", 1, slots);
        writes.push(written(&mut client));
    }
    writes.dedup();
    let times: Vec<_> = writes.iter().map(|(seen, _)| seen - BEGIN).collect();
    assert_eq!(times, [0, 10_000, 20_000, 30_000]);
    let slots = |client: &mut Client, after: i64, slots: i32| -> i32 {
        set_clock(client, BEGIN + after);
        work(client, "w", 1, slots);
        client.query_one("SELECT slots FROM waterline.worker", &[]).unwrap().get(0)
    };
    assert_eq!([slots(&mut client, 30_999, 5), slots(&mut client, 31_000, 5)], [2, 5]);
    let stop = "SELECT waterline.work('q', 'w', '{k}', 5, p_stops => $1, p_about => '{\"number\": 1}')";
    client.execute(stop, &[&true]).unwrap();
    assert_eq!(seen(&mut client), []);
    // Within a second, another one of its name may have stopped.
    set_clock(&mut client, BEGIN + 31_999);
    client.execute(stop, &[&false]).unwrap();
    assert_eq!(seen(&mut client), []);
    set_clock(&mut client, BEGIN + 32_000);
    client.execute(stop, &[&false]).unwrap();
    let began: i64 = client.query_one("SELECT began FROM waterline.workers_of('q')", &[]).unwrap().get(0);
    assert_eq!(began, BEGIN + 32_000, "it has begun anew");
}

#[test]
fn a_locked_worker_row_blocks_no_call() {
    let (config, mut client) = client(r#"{"lease_ms": 30000}"#);
    let mut other = config.connect(NoTls).unwrap();
    other.batch_execute("SET waterline.now = '1000000'").unwrap();
    client.batch_execute("SET statement_timeout = '20s'").unwrap();
    let number = |client: &mut Client| -> Vec<i64> {
        let rows = client.query("SELECT seen FROM waterline.worker ORDER BY number", &[]).unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    // It makes the row, and has not committed.
    let mut transaction = other.transaction().unwrap();
    transaction.execute("SELECT waterline.work('q', 'w', '{k}', 1, p_about => '{\"number\": 1}')", &[]).unwrap();
    push(&mut client, 1);
    work(&mut client, "w", 1, 1);
    assert_eq!(number(&mut client), [0_i64; 0]);
    transaction.commit().unwrap();
    for lock in [
        "SELECT FROM waterline.worker FOR UPDATE",
        "DELETE FROM waterline.worker",
        "UPDATE waterline.worker SET host = 'x'",
    ] {
        let mut transaction = other.transaction().unwrap();
        transaction.execute(lock, &[]).unwrap();
        set_clock(&mut client, BEGIN + 60_000);
        push(&mut client, 1);
        work(&mut client, "w", 1, 1);
        assert_eq!(number(&mut client), [BEGIN], "{lock}");
        client
            .batch_execute("SET search_path = waterline; SELECT drop_workers(q, clock() + 90000000) FROM queue q")
            .unwrap();
        assert_eq!(number(&mut client), [BEGIN], "{lock}");
        transaction.rollback().unwrap();
    }
    work(&mut client, "w", 1, 1);
    assert_eq!(number(&mut client), [BEGIN + 60_000]);
}

#[test]
fn reads_and_long_transactions_note_no_worker() {
    let (_, mut client) = client("{}");
    let old = "BEGIN; SELECT pg_sleep(1.1)"; // as old as a transaction of a user's may be
    for begin in [old, "BEGIN READ ONLY"] {
        client.batch_execute(begin).unwrap();
        let note = r#"SELECT waterline.peek_now('q', 'w', NULL, '[{"queue": "q", "name": "w", "number": 1}]')"#;
        client.execute(note, &[]).unwrap();
        client.batch_execute("COMMIT").unwrap();
        assert_eq!(rows(&mut client), 0, "{begin}");
    }
    let misspelt = "SELECT waterline.work('q', 'w', NULL, p_about => '{\"proces\": 1}')";
    let refused = client.execute(misspelt, &[]).unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "WQ002", "{refused}");
}

#[test]
fn dead_workers_are_kept_a_day_and_stopped_ones_briefly() {
    let (_, mut client) = client(r#"{"lease_ms": 30000}"#);
    work(&mut client, "dead", 1, 1);
    work(&mut client, "stopped", 2, 1);
    let stop = "SELECT waterline.work('q', 'stopped', '{k}', 1, p_stops => true, p_about => '{\"number\": 2}')";
    client.execute(stop, &[]).unwrap();
    // More than one piece of a sweep.
    let many = "INSERT INTO waterline.worker (queue, number, began, seen) SELECT id, n, 0, 1000000
        FROM waterline.queue, generate_series(1000, 4000) n";
    client.execute(many, &[]).unwrap();
    let left = |client: &mut Client, after: i64| {
        set_clock(client, BEGIN + after);
        client.execute("SELECT waterline.claim('q')", &[]).unwrap();
        rows(client)
    };
    let day = 86_400_000;
    assert_eq!([60_000, 90_000].map(|after| left(&mut client, after)), [3_003; 2]);
    assert_eq!([150_000, day].map(|after| left(&mut client, after)), [3_002; 2]);
    assert_eq!(left(&mut client, day + 60_000), 0);
}

#[test]
fn a_silent_worker_stays_silent_when_the_clock_goes_back() {
    let (_, mut client) = client(r#"{"lease_ms": 30000}"#);
    work(&mut client, "dead", 1, 1);
    set_clock(&mut client, BEGIN + 25_000);
    work(&mut client, "well", 2, 1);
    assert_eq!(seen(&mut client), [of("well", 0, 0, false), of("dead", 0, 25_000, true)]);
    set_clock(&mut client, BEGIN - 900_000);
    work(&mut client, "well", 2, 1);
    assert_eq!(seen(&mut client), [of("well", 0, 0, false), of("dead", 0, 25_000, true)]);
}

#[test]
fn long_texts_are_cut_and_damaged_rows_hide_no_others() {
    let (_, mut client) = client("{}");
    let call = "SELECT waterline.work('q', repeat('w', 10000), ARRAY(SELECT 'k' || n FROM generate_series(1, $1) n),
        p_about => json_build_object('number', $1, 'host', repeat('h', 10000), 'process', 'none', 'version', -1))";
    for kinds in [256, 257] {
        client.execute(call, &[&kinds]).unwrap();
    }
    let sql =
        "SELECT array_agg(concat_ws(' ', length(name), length(host), cardinality(kinds), process) ORDER BY number)
        FROM waterline.worker";
    let seen: Vec<String> = client.query_one(sql, &[]).unwrap().get(0);
    assert_eq!(seen, ["255 255 256", "255 255"], "no process, and of the second one no kinds");
    let store = bench();
    let mut client = store.config.connect(NoTls).unwrap();
    drop(store.store.queue("q", QueueOptions::default()).unwrap());
    let (low, high) = (i64::MIN, i64::MAX);
    let damaged = format!(
        "INSERT INTO waterline.worker SELECT id, 1, NULL, -7, '', NULL, E'\\n', '{{NULL,a}}', -1, -1, {low}, {high}, false FROM waterline.queue;
        INSERT INTO waterline.worker SELECT id, 2, 'x', 7, '', NULL, 'x', '{{}}', 1, 2147483647, {high}, {low}, false FROM waterline.queue;"
    );
    client.batch_execute(&damaged).unwrap();
    let workers = store.store.workers("q").unwrap();
    let shown: Vec<_> = workers.iter().map(|worker| (worker.kinds.clone(), worker.slots, worker.process)).collect();
    assert_eq!(shown, [(Some(vec!["a".to_owned()]), None, None), (Some(Vec::new()), Some(1), Some(7))]);
    // Each is written again when its worker is heard of.
    for number in [1, 2] {
        work(&mut client, "w", number, 1);
    }
    let well = "SELECT count(*) FROM waterline.workers_of('q') WHERE name = 'w' AND slots = 1 AND NOT silent";
    let well: i64 = client.query_one(well, &[]).unwrap().get(0);
    assert_eq!(well, 2);
}

#[test]
fn wrong_details_cost_a_worker_no_lease_or_end() {
    let (_, mut client) = client("{}");
    push(&mut client, 2);
    set_clock(&mut client, BEGIN);
    // A misspelt word shows at the first call.
    let wrong = ["[1]", r#"{"pid": 1}"#, r#"{"host": "a\u0000b"}"#, r#"{"process": 1e400000}"#];
    for about in wrong {
        let first = client.execute("SELECT waterline.work('q', 'w', NULL, p_about => $1::text::json)", &[&about]);
        assert!(first.is_err() || about.contains("process"), "{about}");
    }
    let got = "SELECT job, token FROM waterline.claim('q', 2, 'w', p_lease => 3000)";
    let held: Vec<(i64, i64)> = client.query(got, &[]).unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    let [(one, token), (two, other)] = held[..] else { panic!("{held:?}") };
    let jobs = format!(r#"[{{"job": {one}, "token": {token}}}]"#);
    // Each of them renews in time, though nothing about it is noted.
    for (nth, about) in (1..).zip(wrong) {
        set_clock(&mut client, BEGIN + nth * 2_500);
        let work =
            "SELECT waterline.work('q', 'w', NULL, 1, 3000, p_jobs => $1::text::json, p_about => $2::text::json)";
        client.execute(work, &[&jobs, &about]).unwrap();
        let renew = "SELECT waterline.renew(ARRAY[$1::bigint], ARRAY[$2::bigint], 3000, p_about => $3)";
        client.execute(renew, &[&two, &other, &about]).unwrap();
    }
    for about in [
        "5",
        "null",
        "{}",
        "x",
        r#"[{"queue": "q", "slots": 2147483648}]"#,
        r#"[{"queue": "q", "stopping": "perhaps"}]"#,
    ] {
        let renew = "SELECT cardinality(waterline.renew(ARRAY[$1::bigint], ARRAY[$2::bigint], 3000, p_about => $3))";
        assert_eq!(client.query_one(renew, &[&two, &other, &about]).unwrap().get::<_, i32>(0), 1, "{about}");
    }
    let end = format!(r#"[{{"job": {one}, "token": {token}, "end": "finish"}}]"#);
    let work = "SELECT waterline.work('q', 'w', NULL, 1, 3000, p_jobs => $1::text::json, p_about => '[1]')";
    client.execute(work, &[&end]).unwrap();
    let left = "SELECT count(*), sum(crashes) FROM waterline.job WHERE state = 'running'";
    let left = client.query_one(left, &[]).unwrap();
    assert_eq!((left.get::<_, i64>(0), left.get::<_, i64>(1)), (1, 0));
    // Kinds of two dimensions hide no worker.
    client.execute("SELECT waterline.claim('q', 1, 'w2', ARRAY[['a', 'b'], ['c', 'd']])", &[]).unwrap();
    assert!(!seen(&mut client).is_empty());
}

#[test]
fn workers_of_one_name_write_one_row_a_second() {
    let (_, mut client) = client("{}");
    set_clock(&mut client, BEGIN);
    let mut written = || {
        for stops in [false, true, false, true] {
            client.execute("SELECT waterline.work('q', 'w', NULL, p_stops => $1)", &[&stops]).unwrap();
        }
        client.query_one("SELECT ctid::text FROM waterline.worker", &[]).unwrap().get::<_, String>(0)
    };
    let first = written();
    assert_eq!(written(), first, "the row is where it was");
}
