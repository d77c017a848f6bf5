//! `buffer_unordered` and `buffered` of the crate futures, on a tokio runtime. Without `spawn` one
//! task polls all futures, so jobs that compute run one after the other.

use futures_util::stream::{self, StreamExt};
use protocol::{Answer, Finished, InOrder, Question, Saved, Shape, Task, Work, result};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

const LATENCIES: u64 = 2_000;

fn main() -> ExitCode {
    let about = "{futures-util}, {tokio} with its default runtime; `buffered` where results come in order";
    let columns = [("buffer_unordered", about.to_owned()), ("spawned tasks", [about, "; each job is a task"].concat())];
    protocol::answer(&columns, |question| match question.word("question") {
        "stream" => stream(question),
        "pushed" => pushed(),
        _ => Answer::None("not asked"),
    })
}

async fn run(task: Arc<Task>, index: u64) -> u64 {
    while task.is_held(index) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    match task.work {
        Work::Sleep => {
            tokio::time::sleep(Duration::from_millis(1)).await;
            task.ran(index);
        }
        _ => task.run(index),
    }
    index
}

fn stream(question: &Question) -> Answer {
    let (task, jobs, at_a_time) = (Task::of(question), question.jobs(), question.in_flight());
    let spawns = question.word("column") == "spawned tasks";
    let (saved, first) = Saved::open(&question.directory());
    protocol::timed(|| {
        let runtime = tokio::runtime::Runtime::new().expect("the runtime starts");
        let start = move |index| {
            let running = run(task.clone(), index);
            async move { if spawns { tokio::spawn(running).await.expect("it does not panic") } else { running.await } }
        };
        let indices = stream::iter((first..jobs).map(start));
        runtime.block_on(async {
            if question.shape() == Shape::Ordered {
                let (mut results, mut sink) = (indices.buffered(at_a_time), InOrder::from(first));
                while let Some(index) = results.next().await {
                    sink.take(index, result(index));
                    saved.set(index + 1);
                }
            } else {
                let (mut results, mut finished) = (indices.buffer_unordered(at_a_time), Finished::from(first));
                while let Some(index) = results.next().await {
                    saved.set(finished.note(index));
                }
            }
        });
        drop(saved);
    })
}

/// Measures a push to a task that waits.
fn pushed() -> Answer {
    let runtime = tokio::runtime::Runtime::new().expect("the runtime starts");
    let (hand, mut jobs) = mpsc::channel::<u64>(1_024);
    let (say, mut said) = mpsc::channel::<u64>(1_024);
    runtime.spawn(async move {
        while let Some(index) = jobs.recv().await {
            if say.send(index).await.is_err() {
                break;
            }
        }
    });
    protocol::each_timed(LATENCIES, |index| {
        hand.blocking_send(index).expect("the task lives");
        assert_eq!(said.blocking_recv(), Some(index));
    })
}
