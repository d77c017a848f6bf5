//! apalis-sqlite: a job queue on SQLite, through sqlx and tokio.

use apalis::prelude::*;
use apalis_sqlite::{SqlitePool, SqliteStorage};
use futures_util::stream;
use protocol::{Answer, Question};
use std::process::ExitCode;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

const LATENCIES: u64 = 10;

fn main() -> ExitCode {
    let about = "{apalis-sqlite} on {sqlx} with its defaults (WAL, synchronous = OFF, batches of 10, an idle worker looks each 500 ms), \
                 a worker with concurrency as given";
    protocol::answer(&[("apalis-sqlite", about.to_owned())], |question| {
        let runtime = Runtime::new().expect("the runtime starts");
        let url = format!("sqlite:{}?mode=rwc", question.directory().join("queue.db").display());
        let storage = runtime.block_on(async {
            let pool = SqlitePool::connect(&url).await.expect("it opens");
            SqliteStorage::setup(&pool).await.expect("the file is new");
            SqliteStorage::<String>::new(&pool)
        });
        match (question.word("question"), question.word("call")) {
            ("queue", "push") => protocol::timed(|| push(&runtime, storage, question)),
            ("queue", "run") => run(&runtime, storage, question),
            ("pushed", _) if question.word("store") != "memory" => pushed(&runtime, storage),
            _ => Answer::None("not asked"),
        }
    })
}

fn payload() -> String {
    "x".repeat(98)
}

fn push(runtime: &Runtime, mut storage: SqliteStorage<String>, question: &Question) {
    let (jobs, block) = (question.jobs(), question.number("block").max(1));
    runtime.block_on(async {
        for first in (0..jobs).step_by(block as usize) {
            match block {
                1 => storage.push(payload()).await.expect("the disk takes it"),
                _ => {
                    let mut block = stream::iter((first..jobs.min(first + block)).map(|_| payload()));
                    storage.push_stream(&mut block).await.expect("the disk takes it");
                }
            }
        }
    });
}

async fn job(_: String, told: Data<UnboundedSender<()>>) -> Result<(), BoxDynError> {
    _ = told.send(());
    Ok(())
}

/// Starts a worker on a backend, and returns the channel on which its jobs report.
macro_rules! work {
    ($runtime:expr, $backend:expr, $at_a_time:expr) => {{
        let (tell, told) = unbounded_channel::<()>();
        let worker = WorkerBuilder::new("worker").backend($backend).concurrency($at_a_time).data(tell).build(job);
        $runtime.spawn(async move { worker.run().await });
        told
    }};
}

fn run(runtime: &Runtime, storage: SqliteStorage<String>, question: &Question) -> Answer {
    push(runtime, storage.clone(), question);
    protocol::timed(|| {
        let mut told = work!(runtime, storage, question.in_flight());
        (0..question.jobs()).for_each(|_| told.blocking_recv().expect("the worker lives"));
    })
}

/// An idle worker would look again only with its heartbeat, after 30 seconds. (The callback of
/// SQLite, which apalis documents for that, did not wake it here.) Its documentation has this
/// interval, too.
fn pushed(runtime: &Runtime, mut storage: SqliteStorage<String>) -> Answer {
    let mut told = work!(runtime, storage.clone().poll_with_interval(Duration::from_millis(500)), 2);
    protocol::each_timed(LATENCIES, |_| {
        runtime.block_on(storage.push(payload())).expect("the disk takes it");
        told.blocking_recv().expect("the worker lives");
    })
}
