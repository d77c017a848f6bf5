//! Jobs that are futures, beside the `buffer_unordered` of the crate futures.
//!
//! Both run the same futures on the same tokio runtime. `buffer_unordered` runs all futures in one
//! task, and has no watermark, no retries and no record of what is done. A job that is ready at its
//! first poll costs no task here either. Any other job is a task of its own, which another core may
//! run.
//!
//! *Deferred* jobs are tasks that the user spawns, beside the same tasks in `buffer_unordered`.
//!
//! *Effects* of futures cost less than the futures and the effects of functions together.
//!
//! *An async source* is read with `max_reading`, beside the same reads in `buffered`, which keeps
//! their order, too.
//!
//! On two virtual cores that others used as well, three runs gave 1.02 to 1.05 for jobs of a
//! millisecond, and 0.87 to 1.05 for jobs that do nothing.

use crate::cost::{Cost, Stopwatch};
use crate::sources::Numbers;
use crate::table::{Row, Table};
use futures_util::stream::{self, StreamExt};
use std::hint::black_box;
use std::time::Duration;
use tokio::runtime::Runtime;
use waterline::{AsyncJobs, BoxError, Consumer, Index, MemoryProgress, Store};

const JOBS: u64 = 500_000;
/// Jobs of a millisecond, of which 64 at a time take about a fifth of a second in all.
const WAITING_JOBS: u64 = 6_400;
const AT_A_TIME: usize = 64;
/// Reads of 30 ms, of which 64 at a time take a second and a half in all.
const READS: u64 = 3_200;

pub(crate) fn rows(table: &Table) {
    let runtime = Runtime::new().expect("the runtime starts");
    let row = Row { name: "async, 1 ms jobs, 64 in flight", floor: "buffer_unordered", times: WAITING_JOBS, most: 1.1 };
    table.row(row, || unordered(&runtime, WAITING_JOBS, wait), || consume(&runtime, WAITING_JOBS, wait));
    let row = Row { name: "async no-op, 64 in flight", floor: "buffer_unordered", times: JOBS, most: 2.0 };
    table.row(row, || unordered(&runtime, JOBS, nothing), || consume(&runtime, JOBS, nothing));
    let row = Row { name: "deferred on tokio, 64 in flight", floor: "spawned tasks", times: JOBS, most: 2.0 };
    table.row(row, || spawned(&runtime, JOBS), || deferred(&runtime, JOBS));
    let row = Row {
        name: "async no-op with effects, 64 in flight",
        floor: "async, and effects of functions",
        times: JOBS,
        most: 1.3,
    };
    table.row(row, || consume(&runtime, JOBS, nothing) + with_effects(None), || with_effects(Some(&runtime)));
    let row = Row { name: "async source, 30 ms reads, 64 at once", floor: "buffered", times: READS, most: 1.11 };
    table.row(row, || buffered(&runtime), || consume_at_once(&runtime));
}

/// A node behind a network.
struct Node;

async fn read(index: Index) -> Index {
    tokio::time::sleep(Duration::from_millis(30)).await;
    index
}

impl AsyncJobs for Node {
    type Job = Index;

    async fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(READS - 1))
    }

    async fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(Some(read(index).await))
    }
}

/// The same reads, in order, without a consumer.
fn buffered(runtime: &Runtime) -> Cost {
    let begun = Stopwatch::now();
    let done = runtime.block_on(stream::iter((0..READS).map(read)).buffered(AT_A_TIME).count());
    assert_eq!(done as u64, READS);
    begun.elapsed()
}

fn consume_at_once(runtime: &Runtime) -> Cost {
    let begun = Stopwatch::now();
    Consumer::builder(Node.on(runtime.handle()), MemoryProgress::new())
        .max_reading(AT_A_TIME)
        .stop_at(READS - 1)
        .start(|job| Ok(_ = black_box(job.payload)))
        .and_then(Consumer::join)
        .expect("the source answers");
    begun.elapsed()
}

/// Puts a row for each job, with jobs that are futures or functions.
fn with_effects(runtime: Option<&Runtime>) -> Cost {
    let store = Store::in_memory();
    let rows = store.table("rows").expect("the name is valid");
    let begun = Stopwatch::now();
    let consumer = Consumer::builder(Numbers(JOBS), store.progress("p"))
        .max_processing(AT_A_TIME)
        .max_search_ahead(100_000)
        .stop_at(JOBS - 1);
    let consumer = match runtime {
        Some(runtime) => consumer.start_transactional_async(runtime.handle(), move |job, mut effects| {
            let put = effects.put(&rows, job.payload.to_be_bytes(), "");
            async move {
                put?;
                Ok(effects)
            }
        }),
        None => {
            consumer.start_transactional(move |job, effects| Ok(effects.put(&rows, job.payload.to_be_bytes(), "")?))
        }
    };
    consumer.and_then(Consumer::join).expect("jobs that do not fail");
    begun.elapsed()
}

async fn wait(index: Index) {
    tokio::time::sleep(Duration::from_millis(1)).await;
    black_box(index);
}

async fn nothing(index: Index) {
    black_box(index);
}

fn unordered<Fut>(runtime: &Runtime, jobs: u64, job: impl Fn(Index) -> Fut) -> Cost
where
    Fut: Future<Output = ()>,
{
    let begun = Stopwatch::now();
    let done = runtime.block_on(stream::iter((0..jobs).map(job)).buffer_unordered(AT_A_TIME).count());
    assert_eq!(done as u64, jobs);
    begun.elapsed()
}

/// A task for each job.
fn spawned(runtime: &Runtime, jobs: u64) -> Cost {
    let begun = Stopwatch::now();
    let tasks = stream::iter((0..jobs).map(|index| runtime.spawn(nothing(index)))).buffer_unordered(AT_A_TIME);
    assert_eq!(runtime.block_on(tasks.count()) as u64, jobs);
    begun.elapsed()
}

fn deferred(runtime: &Runtime, jobs: u64) -> Cost {
    let handle = runtime.handle().clone();
    let begun = Stopwatch::now();
    let consumer = Consumer::builder(Numbers(jobs), MemoryProgress::new())
        .max_processing(AT_A_TIME)
        .max_search_ahead(100_000)
        .stop_at(jobs - 1)
        .start_deferred(move |job, done| {
            handle.spawn(async move {
                nothing(job.payload).await;
                done.complete();
            });
        });
    consumer.and_then(Consumer::join).expect("jobs that do not fail");
    begun.elapsed()
}

fn consume<Fut>(runtime: &Runtime, jobs: u64, job: impl Fn(Index) -> Fut + Copy + Send + Sync + 'static) -> Cost
where
    Fut: Future<Output = ()> + Send + 'static,
{
    let begun = Stopwatch::now();
    let consumer = Consumer::builder(Numbers(jobs), MemoryProgress::new())
        .max_processing(AT_A_TIME)
        .max_search_ahead(100_000)
        .stop_at(jobs - 1)
        .start_async(runtime.handle(), move |work| {
            let running = job(work.payload);
            async move {
                running.await;
                Ok(())
            }
        });
    consumer.and_then(Consumer::join).expect("jobs that do not fail");
    begun.elapsed()
}
