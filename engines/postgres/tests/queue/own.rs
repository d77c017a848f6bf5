//! Pushes and ends in transactions with the user's own rows.

use crate::bench::{Bench, bench, wait_for_all_ends};
use crate::futures::{KINDS, both};
use crate::proxy::Proxy;
use crate::server::Server;
use postgres::{Client, Config, NoTls, Transaction};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use waterline::{BoxError, Consumer, MemoryJobs, Retry};
use waterline_postgres::{LeaseExt, PgOptions, PgStore, QueueExt, RunnerExt};
use waterline_queue::{
    Accept, AttemptEnd, JobState, NewJob, Outcome, Queue, QueueError, QueueOptions, Retention, Runner, Running,
};
use waterline_queue_suite::bench::in_a_runtime;

const EFFECTS: &str = "CREATE TABLE effects (job bigint NOT NULL)";

fn job(number: u64) -> NewJob {
    NewJob::new("k", &number).unwrap()
}

fn options() -> QueueOptions {
    QueueOptions::default().retry(Retry::fixed(Duration::ZERO).max_attempts(50)).retention(Retention::Keep)
}

/// A queue, and a client of its database with a table for effects.
fn opened() -> (PgStore, Queue, Client) {
    let Bench { store, config } = bench();
    let queue = store.queue("q", options()).unwrap();
    let mut client = config.connect(NoTls).unwrap();
    client.batch_execute(EFFECTS).unwrap();
    (store, queue, client)
}

fn count(client: &mut Client, of: &str) -> u64 {
    client.query_one(&format!("SELECT count({of}) FROM effects"), &[]).unwrap().get::<_, i64>(0) as u64
}

fn put(transaction: &mut Transaction<'_>, job: u64) {
    transaction.execute("INSERT INTO effects VALUES ($1)", &[&(job as i64)]).unwrap();
}

#[test]
fn a_push_commits_with_its_rows_or_not_at_all() {
    let (_store, queue, mut client) = opened();
    for (commits, jobs) in [(false, 0), (true, 3)] {
        let mut transaction = client.transaction().unwrap();
        put(&mut transaction, 1);
        let pushed = queue.push_in(&mut transaction, job(1).id("a")).unwrap();
        let twice = queue.push_all_in(&mut transaction, [job(2), job(3).id("a"), job(4)]).unwrap();
        assert_eq!((pushed.id.as_str(), twice.len()), ("a", 3));
        assert!(!twice[1].is_new(), "it is a job of the same id");
        assert!(queue.accept(Accept::new()).unwrap().is_none(), "nothing is committed yet");
        if commits {
            transaction.commit().unwrap();
        } else {
            transaction.rollback().unwrap();
        }
        assert_eq!(
            (queue.list(JobState::Ready, None, 9).unwrap().len(), count(&mut client, "*")),
            (jobs, jobs as u64 / 3)
        );
    }
    let elsewhere = Queue::open(&waterline::Store::in_memory(), "q", QueueOptions::default()).unwrap();
    let refused = elsewhere.push_in(&mut client.transaction().unwrap(), job(1));
    assert!(matches!(refused, Err(QueueError::Config(_))), "{refused:?}");
}

#[test]
fn a_lost_lease_fails_the_transaction_of_its_end() {
    let (_store, queue, mut client) = opened();
    queue.push(job(1)).unwrap();
    let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
    queue.remove(lease.id()).unwrap();
    let mut transaction = client.transaction().unwrap();
    put(&mut transaction, 1);
    let ended = lease.finish_in(&mut transaction, None);
    assert!(matches!(ended, Err(QueueError::Halt { .. })), "{ended:?}");
    _ = transaction.commit();
    assert_eq!(count(&mut client, "*"), 0);
}

#[test]
fn an_end_counts_only_if_its_transaction_commits() {
    let (_store, queue, mut client) = opened();
    let id = queue.push(job(1)).unwrap().id;
    for (attempt, commits) in [(1, false), (2, true)] {
        let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
        assert_eq!(lease.attempt(), attempt);
        let mut transaction = client.transaction().unwrap();
        put(&mut transaction, 1);
        lease.finish_in(&mut transaction, "data").unwrap();
        if commits {
            transaction.commit().unwrap();
        } else {
            transaction.rollback().unwrap();
        }
        drop(lease);
        let info = queue.get(&id).unwrap().unwrap();
        let (state, data) = if commits { (JobState::Finished, Some("data".into())) } else { (JobState::Ready, None) };
        assert_eq!((info.state, info.data, count(&mut client, "*")), (state, data, u64::from(commits)));
    }
}

#[test]
fn a_stream_pushes_jobs_in_its_progress_commit() {
    let (store, queue, mut client) = opened();
    let pushes = queue.clone();
    let jobs: MemoryJobs<u64> = (0..100).collect();
    let failed = AtomicU64::new(0);
    Consumer::builder(jobs, store.progress("p"))
        .stop_at(99)
        .retry(Retry::fixed(Duration::ZERO))
        .start_writing(
            |job| Ok(job.payload),
            move |transaction: &mut Transaction<'_>, numbers| {
                pushes.push_all_in(transaction, numbers.iter().map(|(_, number)| job(*number)))?;
                numbers.iter().for_each(|(_, number)| put(transaction, *number));
                // The first try of a transaction fails after its pushes.
                if failed.fetch_add(1, Ordering::Relaxed) == 0 { Err("not yet".into()) } else { Ok(()) }
            },
        )
        .unwrap()
        .join()
        .unwrap();
    let pushed = queue.list(JobState::Ready, None, 200).unwrap();
    assert_eq!((pushed.len(), count(&mut client, "DISTINCT job"), count(&mut client, "*")), (100, 100, 100));
}

#[test]
fn a_job_with_refused_rows_fails_alone() {
    let (_store, queue, mut client) = opened();
    queue.push_all((0..200).map(|number| NewJob::new(KINDS[number / 50 % 2], &number).unwrap())).unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&calls);
    // The successful attempts of the handler, and those that were written.
    let (made, written) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (makes, writes) = (Arc::clone(&made), Arc::clone(&written));
    let builder = Runner::builder(&queue)
        .max_processing(64)
        .after_each(move |_, outcome| _ = makes.fetch_add(u64::from(outcome.is_ok()), Ordering::Relaxed))
        .teardown(move |_, end| _ = writes.fetch_add(u64::from(*end == AttemptEnd::Finished), Ordering::Relaxed));
    let process = |_: &_, number: u64| if number % 50 == 7 { Err("no result".into()) } else { Ok(number) };
    let write = move |transaction: &mut Transaction<'_>, results: &[(Running, u64)]| {
        seen.fetch_add(1, Ordering::Relaxed);
        for (_, number) in results {
            match number % 50 {
                8 => _ = transaction.execute("INSERT INTO effects VALUES (NULL)", &[])?,
                9 => panic!("a bug"),
                _ => put(transaction, *number),
            }
        }
        Ok(())
    };
    let summary = in_a_runtime(|| both(builder, process, write).drain(waterline_queue::DrainLimits::default()));
    let summary = summary.unwrap();
    // Each of the twelve has fifty attempts.
    assert_eq!((summary.finished, summary.dead, summary.retried), (188, 12, 12 * 49), "{summary:?}");
    // The rows of eight of the twelve are refused in each of the fifty attempts.
    assert_eq!((made.load(Ordering::Relaxed), written.load(Ordering::Relaxed)), (188 + 8 * 50, 188));
    assert_eq!((count(&mut client, "*"), count(&mut client, "DISTINCT job")), (188, 188));
    let ended = "SELECT count(*) FROM waterline.ended WHERE NOT died";
    assert_eq!(client.query_one(ended, &[]).unwrap().get::<_, i64>(0), 188);
}

/// A store whose connections are cut at random, also in a COMMIT, and before an answer.
fn cut(cuts: u32) -> (Server, crate::server::Database, Proxy, PgStore) {
    let server = Server::start(&[("fsync", "off")]);
    let database = server.database();
    drop(database.store(PgOptions::new()));
    database.client().batch_execute(EFFECTS).unwrap();
    let proxy = Proxy::start(server.port(), 0, common::seed());
    let mut config = Config::new();
    config.host("127.0.0.1").port(proxy.port()).user("postgres").dbname(&database.name);
    let store = PgStore::connect(config, NoTls, PgOptions::new().ttl(Duration::from_secs(2))).unwrap();
    proxy.cut(cuts);
    (server, database, proxy, store)
}

fn opened_again(store: &PgStore, options: QueueOptions) -> Queue {
    let mut queue = None;
    common::eventually("a connection that is not cut", || {
        queue = store.queue("q", options.clone()).ok();
        queue.is_some()
    });
    queue.unwrap()
}

#[test]
fn a_commit_with_a_lost_answer_writes_rows_once() {
    let cuts = u32::try_from(crate::size(12, 200)).unwrap();
    let (_server, database, proxy, store) = cut(cuts);
    // The jobs of a claim whose answer is lost are found when their leases end. They count a crash,
    // and run alone after the second one, so they are few.
    let queue = opened_again(&store, options().lease(Duration::from_secs(4)).unlimited_crashes());
    let (mut client, lost) = (database.client(), Arc::new(AtomicU64::new(0)));
    let counts = Arc::clone(&lost);
    let write = |transaction: &mut Transaction<'_>, results: &[(Running, u64)]| -> Result<(), BoxError> {
        for (_, number) in results {
            transaction.execute("INSERT INTO effects VALUES ($1)", &[&(*number as i64)])?;
        }
        Ok(())
    };
    let builder = both(Runner::builder(&queue).max_processing(4), |_, number| Ok(number), write)
        .teardown(move |_, ended| _ = counts.fetch_add(u64::from(*ended == AttemptEnd::Lost), Ordering::Relaxed));
    let mut pushed = 0_u64;
    in_a_runtime(|| {
        let _runner = builder.start().unwrap();
        let push = "SELECT count(*) FROM waterline.push_many('q', $1, $2)";
        while proxy.left() > 0 || proxy.commits() == [0, 0] {
            if proxy.left() == 0 {
                proxy.cut(1);
            }
            let payloads: Vec<_> = (pushed..pushed + 20).map(|number| number.to_string()).collect();
            client.query_one(push, &[&KINDS.repeat(10), &payloads]).unwrap();
            pushed += 20;
            std::thread::park_timeout(Duration::from_millis(20));
        }
        wait_for_all_ends(&mut client);
    });
    assert_eq!((count(&mut client, "*"), count(&mut client, "DISTINCT job")), (pushed, pushed));
    let [before, after] = proxy.commits();
    println!("{pushed} jobs, {cuts} cuts, {before} before and {after} after a COMMIT came through");
    assert_eq!(lost.load(Ordering::Relaxed), 0, "no end that counts is told as lost");
}

#[test]
fn ends_with_a_lost_answer_are_not_reported_lost() {
    let cuts = u32::try_from(crate::size(20, 400)).unwrap();
    let (_server, database, proxy, store) = cut(cuts);
    let queue = opened_again(&store, options().lease(Duration::from_secs(3)).unlimited_crashes());
    let (finished, lost) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counts = [Arc::clone(&finished), Arc::clone(&lost)];
    let _runner = Runner::builder(&queue)
        .max_processing(2)
        .on("k", |_job, _: u64| Ok(Outcome::Done))
        .teardown(move |_, ended| {
            let [finished, lost] = &counts;
            match ended {
                AttemptEnd::Finished => _ = finished.fetch_add(1, Ordering::Relaxed),
                _ => _ = lost.fetch_add(1, Ordering::Relaxed),
            }
        })
        .start()
        .unwrap();
    let (mut client, mut pushed) = (database.client(), 0_u64);
    while proxy.left() > 0 {
        client.query_one("SELECT waterline.push('q', 'k', $1)::text", &[&pushed.to_string()]).unwrap();
        pushed += 1;
        std::thread::park_timeout(Duration::from_millis(5));
    }
    wait_for_all_ends(&mut client);
    common::eventually("the runner to hear of them", || finished.load(Ordering::Relaxed) == pushed);
    assert_eq!(lost.load(Ordering::Relaxed), 0, "of {pushed} jobs with {cuts} cuts");
}

#[test]
fn a_job_with_an_unknown_end_runs_again_after_its_lease() {
    let Bench { store, config } = bench();
    let options = options().lease(Duration::from_millis(900)).unlimited_crashes();
    let queue = store.queue("q", options).unwrap();
    let mut client = config.connect(NoTls).unwrap();
    client.batch_execute(EFFECTS).unwrap();
    // The backend dies in the first COMMIT. The server has forgotten what became of it and the job.
    let dies = "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.job < 0 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER t AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die();
        CREATE OR REPLACE FUNCTION pg_catalog.pg_xact_status(xid8) RETURNS text LANGUAGE sql AS 'SELECT NULL::text';
        CREATE OR REPLACE FUNCTION waterline.ended_by(p_jobs bigint[], p_tokens bigint[], OUT outcomes text[],
            OUT states text[]) LANGUAGE sql AS $$ SELECT '{gone}'::text[], '{NULL}'::text[] $$";
    client.batch_execute(dies).unwrap();
    let calls = AtomicU64::new(0);
    let write = move |transaction: &mut Transaction<'_>, results: &[(Running, u64)]| -> Result<(), BoxError> {
        let is_first = calls.fetch_add(1, Ordering::SeqCst) == 0;
        for (_, job) in results {
            transaction.execute("INSERT INTO effects VALUES ($1)", &[&if is_first { -1 } else { *job as i64 }])?;
        }
        Ok(())
    };
    let runner = Runner::builder(&queue).max_processing(2).on_writing("k", |_, job: u64| Ok(job), write);
    let runner = runner.start().unwrap();
    let id = queue.push(job(7)).unwrap().id;
    common::eventually("its second run", || queue.get(&id).unwrap().unwrap().state == JobState::Finished);
    runner.stop().unwrap();
    assert_eq!((count(&mut client, "*"), count(&mut client, "CASE WHEN job = 7 THEN 1 END")), (1, 1));
}

/// Counts the attempts that a runner was told have finished.
fn counting(told: &Arc<AtomicU64>) -> impl Fn(&Running, &AttemptEnd) + Send + Sync + use<> {
    let told = Arc::clone(told);
    move |_, end| _ = told.fetch_add(u64::from(*end == AttemptEnd::Finished), Ordering::SeqCst)
}

#[test]
fn a_reused_transaction_number_is_not_taken_for_ours() {
    for promotes in [false, true] {
        lose_a_commit(promotes);
    }
}

fn lose_a_commit(promotes: bool) {
    let Bench { store, config } = bench();
    let queue = store.queue("q", options().lease(Duration::from_millis(900)).unlimited_crashes()).unwrap();
    let mut client = config.connect(NoTls).unwrap();
    client.batch_execute(EFFECTS).unwrap();
    // The backend dies in the first COMMIT. Then the server is as after a crash, or has the history
    // of a replica: another session has committed a transaction of that number.
    let dies = "CREATE SEQUENCE history; SELECT nextval('history');
        CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.job < 0 THEN PERFORM setval('history', $1); PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
            RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER t AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die();
        CREATE OR REPLACE FUNCTION pg_catalog.pg_walfile_name(pg_lsn) RETURNS text LANGUAGE sql AS
            $$ SELECT lpad(last_value::text, 8, '0') FROM public.history $$;
        CREATE OR REPLACE FUNCTION pg_catalog.pg_xact_status(xid8) RETURNS text LANGUAGE sql AS $$ SELECT 'committed' $$";
    client.batch_execute(&dies.replace("$1", if promotes { "2" } else { "1" })).unwrap();
    let (calls, told) = (AtomicU64::new(0), Arc::default());
    let write = move |transaction: &mut Transaction<'_>, results: &[(Running, i64)]| -> Result<(), BoxError> {
        let is_first = calls.fetch_add(1, Ordering::SeqCst) == 0;
        for (_, job) in results {
            transaction.execute("INSERT INTO effects VALUES ($1)", &[&if is_first { -1 } else { *job }])?;
        }
        Ok(())
    };
    let runner = Runner::builder(&queue).teardown(counting(&told)).on_writing("k", |_, job: i64| Ok(job), write);
    let runner = runner.start().unwrap();
    let id = queue.push(job(7)).unwrap().id;
    common::eventually("its second run", || queue.get(&id).unwrap().unwrap().state == JobState::Finished);
    runner.stop().unwrap();
    assert_eq!((count(&mut client, "CASE WHEN job = 7 THEN 1 END"), count(&mut client, "*")), (1, 1));
    assert_eq!(told.load(Ordering::SeqCst), 1, "it is told as finished once: {promotes}");
}

#[test]
fn a_run_whose_claim_a_crash_lost_is_not_told_as_finished() {
    let Bench { store, config } = bench();
    let queue = store.queue("q", options()).unwrap();
    let (runs, told) = (AtomicU64::new(0), Arc::default());
    let runner = Runner::builder(&queue)
        .max_processing(1)
        .teardown(counting(&told))
        .on("k", move |_, _: u64| {
            if runs.fetch_add(1, Ordering::SeqCst) == 0 {
                // The claim did not reach the disk, so it was never made. No client is connected.
                config.connect(NoTls)?.batch_execute(
                    "UPDATE waterline.job SET state = 'ready', token = NULL, at = 0;
                     SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE datname = current_database() AND pid <> pg_backend_pid()",
                )?;
            }
            Ok(Outcome::Done)
        })
        .start()
        .unwrap();
    let id = queue.push(job(7)).unwrap().id;
    let has_finished = || queue.get(&id).is_ok_and(|job| job.is_some_and(|job| job.state == JobState::Finished));
    common::eventually("its second run", has_finished);
    runner.stop().unwrap();
    assert_eq!(told.load(Ordering::SeqCst), 1, "it is told as finished once");
}

#[test]
fn a_lost_server_during_a_write_fails_no_job() {
    for kind in KINDS {
        let (store, ..) = opened();
        let queue = store.queue("once", options().retry(Retry::fixed(Duration::ZERO).max_attempts(1))).unwrap();
        let calls = Arc::new(AtomicU64::new(0));
        let write = move |transaction: &mut Transaction<'_>, _: &[(Running, u64)]| -> Result<(), BoxError> {
            if calls.fetch_add(1, Ordering::SeqCst) == 0 {
                transaction.execute("SELECT pg_terminate_backend(pg_backend_pid())", &[])?;
            }
            Ok(())
        };
        in_a_runtime(|| {
            let runner = both(Runner::builder(&queue), |_, number| Ok(number), write).start().unwrap();
            let id = queue.push(NewJob::new(kind, &1).unwrap()).unwrap().id;
            common::eventually("its end", || queue.get(&id).unwrap().unwrap().state.is_ended());
            runner.stop().unwrap();
            assert_eq!(queue.get(&id).unwrap().unwrap().state, JobState::Finished, "{kind}");
        });
    }
}

#[test]
fn a_write_that_fails_during_a_stop_puts_the_job_back() {
    for kind in KINDS {
        let (store, ..) = opened();
        let queue = store.queue("once", options().retry(Retry::fixed(Duration::ZERO).max_attempts(1))).unwrap();
        let begun = Arc::new(AtomicU64::new(0));
        let begins = Arc::clone(&begun);
        let write = move |_: &mut Transaction<'_>, results: &[(Running, u64)]| -> Result<(), BoxError> {
            begins.store(1, Ordering::SeqCst);
            while !results[0].0.is_stopping() {
                std::thread::yield_now();
            }
            Err("it is cut short".into())
        };
        in_a_runtime(|| {
            let runner = both(Runner::builder(&queue), |_, number| Ok(number), write).start().unwrap();
            let id = queue.push(NewJob::new(kind, &1).unwrap()).unwrap().id;
            common::eventually("the write", || begun.load(Ordering::SeqCst) == 1);
            runner.stop().unwrap();
            assert_eq!(queue.get(&id).unwrap().unwrap().state, JobState::Ready, "{kind}");
        });
    }
}

#[test]
fn queues_of_a_group_hear_only_of_their_own_jobs() {
    let (store, ..) = opened();
    let long = options().lease(Duration::from_secs(3600));
    let group = store.queue_group().queue("one", ["k"], options()).queue("two", ["l"], long).open().unwrap();
    let [one, two] = ["one", "two"].map(|name| group.queue(name).unwrap().clone());
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (wait, calls, done) = (parking_lot::Mutex::new(wait), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (called, did) = (Arc::clone(&calls), Arc::clone(&done));
    let (tell, bounds) = std::sync::mpsc::channel::<String>();
    let process = move |_: &Running, job: u64| {
        did.fetch_add(1, Ordering::SeqCst);
        Ok(job)
    };
    let write = move |transaction: &mut Transaction<'_>, _: &[(Running, u64)]| -> Result<(), BoxError> {
        tell.send(transaction.query_one("SHOW idle_in_transaction_session_timeout", &[])?.get(0))?;
        if called.fetch_add(1, Ordering::SeqCst) == 0 {
            wait.lock().recv()?;
        }
        Ok(())
    };
    let runner = group.runner().max_processing(8).on_writing("k", process, write).start().unwrap();
    one.push(job(0)).unwrap();
    common::eventually("the first write", || calls.load(Ordering::SeqCst) == 1);
    two.push(job(1).id("a").delay(Duration::from_secs(3600))).unwrap();
    let subscription = two.subscribe("a").unwrap();
    one.push(job(2).id("a")).unwrap();
    two.push(job(3).id("b")).unwrap();
    common::eventually("both to wait for the second write", || done.load(Ordering::SeqCst) == 3);
    go.send(()).unwrap();
    let ended = two.subscribe("b").unwrap().wait_for(JobState::Finished, Duration::from_secs(60)).unwrap();
    assert!(ended.is_some());
    assert_eq!(subscription.state(), Some(JobState::Scheduled));
    runner.stop().unwrap();
    assert_eq!(bounds.try_iter().collect::<Vec<_>>(), ["45s"; 2], "three quarters of the shortest lease");
}
