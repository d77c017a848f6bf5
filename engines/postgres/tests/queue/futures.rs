//! Jobs whose rows are written in the transaction of their end, made by a function or a future.

use crate::bench::{Bench, bench};
use crossbeam_channel::{bounded, unbounded};
use parking_lot::Mutex;
use postgres::{Client, NoTls, Transaction};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use waterline::{BoxError, Retry};
use waterline_postgres::{PgStore, RunnerExt};
use waterline_queue::{
    AttemptEnd, ConfigError, DrainLimits, JobState, NewJob, Queue, QueueError, QueueOptions, Retention, Runner,
    RunnerBuilder, Running, TypedJob,
};
use waterline_queue_suite::bench::in_a_runtime;

/// The kinds of jobs of [`both`]: the first one is a function, the second one a future.
pub const KINDS: [&str; 2] = ["k", "f"];

/// Adds handlers for both kinds. The future yields before it calls `process`.
pub fn both<P, W>(builder: RunnerBuilder, process: P, write: W) -> RunnerBuilder
where
    P: Fn(&Running, u64) -> Result<u64, BoxError> + Clone + Send + Sync + 'static,
    W: Fn(&mut Transaction<'_>, &[(Running, u64)]) -> Result<(), BoxError> + Clone + Send + Sync + 'static,
{
    let future = Arc::new(process.clone());
    builder.on_writing(KINDS[0], process, write.clone()).on_writing_async(
        KINDS[1],
        move |job, number| {
            let process = Arc::clone(&future);
            async move {
                tokio::task::yield_now().await;
                process(&job, number)
            }
        },
        write,
    )
}

/// A queue whose failed jobs run again at once, and a client of its database with a table.
fn opened() -> (PgStore, Queue, Client) {
    let Bench { store, config } = bench();
    let options = QueueOptions::default().retry(Retry::fixed(Duration::ZERO).max_attempts(9));
    let queue = store.queue("q", options.retention(Retention::Keep)).unwrap();
    let mut client = config.connect(NoTls).unwrap();
    client.batch_execute("CREATE TABLE effects (job bigint NOT NULL)").unwrap();
    (store, queue, client)
}

fn insert(transaction: &mut Transaction<'_>, results: &[(Running, u64)]) -> Result<(), BoxError> {
    for (_, number) in results {
        transaction.execute("INSERT INTO effects VALUES ($1)", &[&number.cast_signed()])?;
    }
    Ok(())
}

fn rows(client: &mut Client) -> Vec<i64> {
    let rows = client.query("SELECT job FROM effects ORDER BY 1", &[]).unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

fn job(kind: &str, number: u64) -> NewJob {
    NewJob::new(kind, &number).unwrap().id(number.to_string())
}

#[derive(Serialize, Deserialize)]
struct Number(u64);

impl TypedJob for Number {
    const KIND: &'static str = "number";
}

#[derive(Serialize, Deserialize)]
struct Later(u64);

impl TypedJob for Later {
    const KIND: &'static str = "later";
}

/// A call of the driver would panic on a thread of the runtime, which has one here.
#[test]
fn results_of_futures_are_written_off_the_runtime() {
    let (_store, queue, mut client) = opened();
    for number in 0..100 {
        queue.push_job(&Later(number)).unwrap();
        queue.push_job(&Number(100 + number)).unwrap();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let process = |_job, Later(number)| async move {
        tokio::task::yield_now().await;
        Ok(number)
    };
    let builder = Runner::builder(&queue).max_processing(20).job_writing_async(process, insert);
    let builder = builder.job_writing(|_, Number(number)| Ok(number), insert);
    let summary = runtime.block_on(builder.drain_async(DrainLimits::default())).unwrap();
    assert_eq!((summary.finished, rows(&mut client)), (200, (0..200).collect()), "{summary:?}");
}

#[test]
fn a_stop_drops_a_future_before_it_writes() {
    let (_store, queue, mut client) = opened();
    let (begins, begun) = unbounded();
    queue.push(job("f", 1)).unwrap();
    in_a_runtime(|| {
        let process = move |_, number: u64| {
            let begins = begins.clone();
            async move {
                begins.send(())?;
                std::future::pending::<()>().await;
                Ok(number)
            }
        };
        let runner = Runner::builder(&queue).on_writing_async("f", process, insert).start().unwrap();
        begun.recv_timeout(common::LONG).unwrap();
        assert!(matches!(runner.stop_within(Duration::ZERO), Err(QueueError::StopTimeout { .. })));
        common::eventually("it to be put back", || queue.state("1").unwrap() == Some(JobState::Ready));
    });
    let info = queue.get("1").unwrap().unwrap();
    assert_eq!((info.failures, info.crashes, rows(&mut client)), (0, 0, vec![]));
}

/// Its result waits behind the transaction of another job meanwhile.
#[test]
fn a_result_of_an_attempt_that_timed_out_is_not_written() {
    for kind in KINDS {
        let (_store, queue, mut client) = opened();
        let ((ends, ended), (begins, begun)) = (unbounded(), unbounded());
        let (release, is_released) = bounded::<()>(0);
        let process = move |_: &Running, number| {
            begins.send(number)?;
            Ok(number)
        };
        let write = move |transaction: &mut Transaction<'_>, results: &[(Running, u64)]| {
            if results[0].1 == 1 {
                _ = is_released.recv();
            }
            insert(transaction, results)
        };
        in_a_runtime(|| {
            let builder = both(Runner::builder(&queue).max_processing(2), process, write);
            let builder = builder.attempt_timeout_of(kind, Duration::from_millis(300));
            let teardown = move |job: &Running, end: &AttemptEnd| _ = ends.send((job.id().to_owned(), end.clone()));
            let runner = builder.teardown(teardown).start().unwrap();
            for number in 1..=2 {
                queue.push(job(kind, number)).unwrap();
                assert_eq!(begun.recv_timeout(common::LONG).unwrap(), number);
            }
            let (id, end) = ended.recv_timeout(common::LONG).unwrap();
            assert!(id == "2" && matches!(end, AttemptEnd::Retried { .. }), "{kind}: {id} {end:?}");
            drop(release);
            common::eventually("both to be done", || queue.counts().finished == 2);
            runner.stop().unwrap();
        });
        assert_eq!(rows(&mut client), [1, 2], "{kind}");
    }
}

#[test]
fn a_write_that_stops_its_runner_does_not_wait_for_itself() {
    for kind in KINDS {
        let (_store, queue, mut client) = opened();
        let (own, (tell, told)) = (Arc::new(Mutex::new(None::<Runner>)), unbounded());
        let mine = Arc::clone(&own);
        let write = move |transaction: &mut Transaction<'_>, results: &[(Running, u64)]| {
            let runner = mine.lock().take();
            tell.send(runner.map(Runner::stop))?;
            insert(transaction, results)
        };
        in_a_runtime(|| {
            let mut held = own.lock();
            *held = Some(both(Runner::builder(&queue), |_, number| Ok(number), write).start().unwrap());
            drop(held);
            queue.push(job(kind, 1)).unwrap();
            let stopped = told.recv_timeout(common::LONG).expect("it waits for itself");
            assert!(matches!(stopped, Some(Err(QueueError::Config(ConfigError::OwnThread)))), "{kind}: {stopped:?}");
            common::eventually("its end", || queue.state("1").unwrap() == Some(JobState::Finished));
        });
        assert_eq!(rows(&mut client), [1], "{kind}");
    }
}
