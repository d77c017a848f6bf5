//! The calls that renew leases.

use crate::bench::bench;
use crossbeam_channel::{bounded, unbounded};
use postgres::{Client, NoTls, Row};
use std::time::Duration;
use waterline_queue::{AttemptEnd, NewJob, Outcome, QueueError, QueueOptions, Runner};

const SLOTS: usize = 8;
const LEASE: Duration = Duration::from_millis(900);

/// Records each call: its jobs in their order, and its time.
const NOTED: &str = "CREATE TABLE calls (number bigserial, jobs bigint[], silent boolean, at timestamptz DEFAULT clock_timestamp());
    ALTER FUNCTION waterline.renew RENAME TO unnoted;
    CREATE FUNCTION waterline.renew(p_jobs bigint[], p_tokens bigint[], p_lease bigint DEFAULT NULL,
        p_silent boolean DEFAULT NULL, p_stops boolean DEFAULT NULL, p_about text DEFAULT NULL) RETURNS bigint[] LANGUAGE sql AS
    $$ INSERT INTO public.calls (jobs, silent) SELECT array_agg(j ORDER BY j), p_silent FROM unnest(p_jobs) j;
        SELECT waterline.unnoted(p_jobs, p_tokens, p_lease, p_silent, p_stops) $$";

/// The time between two calls has a least value, and on a loaded machine no largest one. So the
/// test waits for one that is short enough.
#[test]
fn one_call_renews_all_slots_each_third_of_a_lease() {
    let bench = bench();
    let queue = bench.store.queue("q", QueueOptions::default().lease(LEASE)).unwrap();
    let mut client = bench.config.connect(NoTls).unwrap();
    client.batch_execute(NOTED).unwrap();
    // For the server, no lease ends while this process is frozen.
    client.batch_execute("UPDATE waterline.queue SET lease = 3600000").unwrap();
    queue.push_all((0..SLOTS).map(|number| NewJob::new("k", &number).unwrap())).unwrap();
    let (begins, begun) = unbounded();
    let (release, is_released) = bounded::<()>(0);
    let runner = Runner::builder(&queue)
        .max_processing(SLOTS)
        .on("k", move |_, _: usize| {
            begins.send(()).unwrap();
            _ = is_released.recv();
            Ok(Outcome::Done)
        })
        .start()
        .unwrap();
    // If the test fails, the handlers go on before the runner is dropped.
    let release = release;
    (0..SLOTS).for_each(|_| begun.recv_timeout(common::LONG).expect("each slot has a job"));
    let last: i64 = client.query_one("SELECT coalesce(max(number), 0) FROM calls", &[]).unwrap().get(0);
    let after = "SELECT jobs = (SELECT array_agg(number ORDER BY number) FROM waterline.job),
            extract(epoch FROM at - lag(at) OVER (ORDER BY number))::float8 FROM calls WHERE number > $1 ORDER BY number";
    let third = LEASE.as_secs_f64() / 3.0;
    // A call that was under way may be for fewer jobs.
    common::eventually("two calls one after the other within half a lease", || {
        let calls = client.query(after, &[&(last + 1)]).unwrap();
        assert!(calls.iter().all(|call| call.get(0)), "each is for the jobs of all slots");
        let pauses: Vec<f64> = calls.iter().filter_map(|call| call.get(1)).collect();
        assert!(pauses.iter().all(|pause| *pause > third - 0.01), "sooner than each third of it: {pauses:?}");
        pauses.len() >= 3 && pauses.iter().any(|pause| *pause < 1.5 * third)
    });
    drop(release);
    runner.stop().unwrap();
    let ended: bool = client.query_one("SELECT count(*) = 0 FROM waterline.job", &[]).unwrap().get(0);
    assert!(ended, "each of them has ended");
}

/// Another program removes jobs by a call of its own, which this process does not notice.
#[test]
fn a_job_removed_elsewhere_is_lost_at_the_next_renewal() {
    let bench = bench();
    let queue = bench.store.queue("q", QueueOptions::default().lease(LEASE)).unwrap();
    let mut client = bench.config.connect(NoTls).unwrap();
    // For the server, no lease ends while this process is frozen.
    client.batch_execute("UPDATE waterline.queue SET lease = 3600000").unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _context = runtime.enter();
    let ((begins, begun), (ends, ended)) = (unbounded(), unbounded());
    let (release, is_released) = bounded::<()>(0);
    let futures = begins.clone();
    let runner = Runner::builder(&queue)
        .max_processing(2)
        .on_async("future", move |job, ()| {
            futures.send(job).unwrap();
            std::future::pending()
        })
        .on("thread", move |job, ()| {
            begins.send(job.clone()).unwrap();
            _ = is_released.recv();
            Ok(Outcome::Done)
        })
        .teardown(move |job, end| ends.send((job.id().to_owned(), end.clone())).unwrap())
        .start()
        .unwrap();
    let release = release;
    let job = |kind: &str, id: &str| NewJob::new(kind, &()).unwrap().id(id);
    queue.push_all([job("future", "f"), job("thread", "t"), job("thread", "next")]).unwrap();
    let running = [(); 2].map(|()| begun.recv_timeout(common::LONG).unwrap());
    assert!(running.iter().all(|job| !job.is_stopping() && job.check().is_ok()));
    client.batch_execute("SELECT waterline.steer('q', 'remove', 'f'), waterline.steer('q', 'remove', 't')").unwrap();
    // The future is dropped, so the next job has its slot. The thread is asked to end.
    assert_eq!(ended.recv_timeout(common::LONG).unwrap(), ("f".to_owned(), AttemptEnd::Lost));
    assert_eq!(begun.recv_timeout(common::LONG).unwrap().id(), "next");
    common::eventually("both to be asked to end", || {
        running.iter().all(|job| job.is_stopping() && job.check().is_err())
    });
    let status = queue.status().unwrap();
    assert_eq!(status.stuck.map(|stuck| (stuck.slots, stuck.first)), Some((1, "t".to_owned())));
    drop(release);
    let mut ended = [(); 2].map(|()| ended.recv_timeout(common::LONG).unwrap());
    ended.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(ended, [("next".to_owned(), AttemptEnd::Finished), ("t".to_owned(), AttemptEnd::Lost)]);
    runner.stop().unwrap();
}

/// The note of the stop fails, or comes when the process has gone.
#[test]
fn a_briefly_locked_job_is_still_given_up() {
    let bench = bench();
    let queue = bench.store.queue("q", QueueOptions::default()).unwrap();
    queue.push(NewJob::new("k", &()).unwrap()).unwrap();
    let [mut claims, mut gives_up, mut looks] = [(); 3].map(|()| bench.config.connect(NoTls).unwrap());
    let held = claims.query_one("SELECT job, token FROM waterline.claim('q', 1, 'w')", &[]).unwrap();
    let held: (i64, i64) = (held.get(0), held.get(1));
    let pid: i32 = gives_up.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    let is_given_up = |client: &mut Client| -> bool {
        client.query_one("SELECT stopping AND silent FROM waterline.job", &[]).unwrap().get(0)
    };
    let gives_up = std::thread::scope(|scope| {
        let mut locks = claims.transaction().unwrap();
        locks.execute("SELECT FROM waterline.job FOR UPDATE", &[]).unwrap();
        let thread = scope.spawn(move || {
            let renew = "SELECT waterline.renew(ARRAY[$1::bigint], ARRAY[$2::bigint], 1000, true, true)";
            let renewed: Vec<i64> = gives_up.query_one(renew, &[&held.0, &held.1]).unwrap().get(0);
            (renewed, gives_up)
        });
        common::eventually("the call to wait", || {
            let waits = "SELECT cardinality(pg_blocking_pids($1)) > 0";
            looks.query_one(waits, &[&pid]).unwrap().get(0)
        });
        locks.commit().unwrap();
        let (renewed, gives_up) = thread.join().unwrap();
        assert_eq!(renewed, [held.0]);
        gives_up
    });
    assert!(is_given_up(&mut looks));
    // A job that stays locked ends with its lease, and holds up no others.
    looks.batch_execute("UPDATE waterline.job SET stopping = false").unwrap();
    let mut locks = claims.transaction().unwrap();
    locks.execute("SELECT FROM waterline.job FOR UPDATE", &[]).unwrap();
    let mut gives_up = gives_up;
    let renew = "SELECT waterline.renew(ARRAY[$1::bigint], ARRAY[$2::bigint], 1000, true, true), current_setting('lock_timeout')";
    let row = gives_up.query_one(renew, &[&held.0, &held.1]).unwrap();
    assert_eq!((row.get::<_, Vec<i64>>(0), row.get::<_, String>(1)), (vec![held.0], "0".to_owned()));
    locks.commit().unwrap();
    assert!(!is_given_up(&mut looks));
}

#[test]
fn jobs_that_outlive_a_stop_are_put_back_without_its_note() {
    let bench = bench();
    let queue = bench.store.queue("q", QueueOptions::default()).unwrap();
    let mut client = bench.config.connect(NoTls).unwrap();
    client
        .batch_execute(
            "CREATE OR REPLACE FUNCTION waterline.note_stop(p_jobs bigint[], p_tokens bigint[], p_about text DEFAULT NULL) RETURNS void
            LANGUAGE plpgsql AS $$ BEGIN RAISE 'no notes today'; END $$",
        )
        .unwrap();
    client.batch_execute(NOTED).unwrap();
    let (begins, begun) = unbounded();
    let (release, is_released) = bounded::<()>(0);
    let runner = Runner::builder(&queue)
        .max_processing(3)
        .on("k", move |_, ()| {
            begins.send(()).unwrap();
            _ = is_released.recv();
            Ok(Outcome::Done)
        })
        .start()
        .unwrap();
    let release = release;
    queue.push_all((0..3).map(|_| NewJob::new("k", &()).unwrap())).unwrap();
    (0..3).for_each(|_| begun.recv_timeout(common::LONG).unwrap());
    assert!(matches!(runner.stop_within(Duration::ZERO), Err(QueueError::StopTimeout { .. })));
    let jobs = |client: &mut Client| {
        let rows =
            client.query("SELECT DISTINCT state::text, failures, crashes, error FROM waterline.job", &[]).unwrap();
        let job = |row: &Row| {
            (row.get::<_, String>(0), row.get::<_, i32>(1), row.get::<_, i32>(2), row.get::<_, Option<String>>(3))
        };
        rows.iter().map(job).collect::<Vec<_>>()
    };
    // What gives them up comes later than the end of the call, and would renew the leases.
    common::eventually("the jobs to be given up", || {
        let row = client.query_one("SELECT bool_and(stopping AND silent) FROM waterline.job", &[]).unwrap();
        row.get(0)
    });
    assert_eq!(jobs(&mut client)[0].0, "running");
    // In one call: otherwise it would wait for locked jobs one after the other.
    let calls = client.query_one("SELECT array_agg(cardinality(jobs)) FROM calls WHERE silent", &[]).unwrap();
    assert_eq!(calls.get::<_, Vec<i32>>(0), [3]);
    // Ends the leases without waiting. A renewal that had begun may come in between.
    common::eventually("the end of the leases", || {
        client.batch_execute("UPDATE waterline.job SET at = 0 WHERE state = 'running'").unwrap();
        client.batch_execute("SELECT waterline.claim('q', 0)").unwrap();
        jobs(&mut client).iter().all(|job| job.0 != "running")
    });
    assert_eq!(jobs(&mut client), [("ready".to_owned(), 0, 0, None)]);
    drop(release);
}
