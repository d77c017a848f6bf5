//! effectum: a job queue on SQLite, through tokio.

use effectum::{Error, Job, JobRunner, Queue, RunningJob, Worker};
use protocol::{Answer, Question};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

const LATENCIES: u64 = 200;
const PAYLOAD: [u8; 100] = [b'x'; 100];

fn main() -> ExitCode {
    let about = "{effectum} on {rusqlite} with its defaults (synchronous = NORMAL; its pragma for the WAL has a wrong name, \
                 so each write is flushed), a worker with max_concurrency as given";
    protocol::answer(&[("effectum", about.to_owned())], |question| {
        let runtime = Runtime::new().expect("the runtime starts");
        // The queue starts a task when it is dropped.
        let _within = runtime.enter();
        let queue = runtime.block_on(Queue::new(&question.directory().join("queue.db"))).expect("it opens");
        let answer = match (question.word("question"), question.word("call")) {
            ("queue", "push") => protocol::timed(|| push(&runtime, &queue, question)),
            ("queue", "run") => run(&runtime, &queue, question),
            ("pushed", _) if question.word("store") != "memory" => pushed(&runtime, &queue),
            _ => Answer::None("not asked"),
        };
        runtime.block_on(queue.close(Duration::from_secs(10))).expect("it ends");
        answer
    })
}

/// Reports each job. The worker needs a context that implements `Debug`.
#[derive(Clone, Debug)]
struct Told(UnboundedSender<()>);

async fn job(_: RunningJob, told: Arc<Told>) -> Result<(), Error> {
    _ = told.0.send(());
    Ok(())
}

fn worker(runtime: &Runtime, queue: &Queue, at_a_time: usize) -> (Worker, UnboundedReceiver<()>) {
    let (tell, told) = unbounded_channel();
    let worker = Worker::builder(queue, Arc::new(Told(tell)))
        .max_concurrency(at_a_time as u16)
        .jobs([JobRunner::builder("k", job).build()])
        .build();
    (runtime.block_on(worker).expect("it starts"), told)
}

fn push(runtime: &Runtime, queue: &Queue, question: &Question) {
    let (jobs, block) = (question.jobs(), question.number("block").max(1));
    let new = || Job::builder("k").payload(PAYLOAD.into()).build();
    runtime.block_on(async {
        for first in (0..jobs).step_by(block as usize) {
            match block {
                1 => drop(queue.add_job(new()).await.expect("the disk takes it")),
                _ => {
                    let block = (first..jobs.min(first + block)).map(|_| new()).collect();
                    drop(queue.add_jobs(block).await.expect("the disk takes it"));
                }
            }
        }
    });
}

fn run(runtime: &Runtime, queue: &Queue, question: &Question) -> Answer {
    push(runtime, queue, question);
    protocol::timed(|| {
        let (worker, mut told) = worker(runtime, queue, question.in_flight());
        runtime.block_on(async {
            for _ in 0..question.jobs() {
                told.recv().await.expect("the worker lives");
            }
            worker.unregister(Some(Duration::from_secs(10))).await.expect("its jobs end");
        });
    })
}

fn pushed(runtime: &Runtime, queue: &Queue) -> Answer {
    let (worker, mut told) = worker(runtime, queue, 2);
    let answer = protocol::each_timed(LATENCIES, |_| {
        let new = Job::builder("k").payload(PAYLOAD.into()).build();
        runtime.block_on(queue.add_job(new)).expect("the disk takes it");
        told.blocking_recv().expect("the worker lives");
    });
    runtime.block_on(worker.unregister(Some(Duration::from_secs(10)))).expect("its jobs end");
    answer
}
