//! A queue of jobs of 100 bytes that do nothing.

use crate::protocol::{Answer, Question, timed};
use waterline::Durability;
use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner};

pub(crate) fn answer(question: &Question) -> Answer {
    let (column, jobs, block) = (question.word("column"), question.jobs(), question.number("block").max(1));
    let pushes = question.word("call") == "push";
    match column {
        "on RocksDB" | "on SQLite" => {
            let Some(store) = crate::asked::open(question, crate::asked::engine(column), Durability::Buffered) else {
                return Answer::None("built without it");
            };
            let queue = Queue::open(&store, "q", QueueOptions::default()).expect("it opens");
            if pushes {
                return timed(|| push(&queue, jobs, block));
            }
            push(&queue, jobs, block);
            timed(|| {
                let runner = Runner::builder(&queue).max_processing(question.in_flight());
                let summary = runner.on("k", |_, _: String| Ok(Outcome::Done)).drain(DrainLimits::default());
                assert_eq!(summary.expect("the disk takes it").finished, jobs);
            })
        }
        #[cfg(feature = "rocksdb")]
        "raw RocksDB" => {
            let raw = crate::raw_rocksdb::Raw::new(false);
            if pushes {
                return timed(|| _ = raw.push(jobs, block));
            }
            raw.push(jobs, block);
            timed(|| _ = raw.run(jobs, false))
        }
        #[cfg(feature = "sqlite")]
        "raw SQLite" => {
            let raw = crate::raw_sqlite::RawQueue::new();
            if pushes {
                return timed(|| _ = raw.push(jobs, block));
            }
            raw.push(jobs, block);
            timed(|| _ = raw.run(jobs))
        }
        _ => crate::asked::OTHER,
    }
}

fn push(queue: &Queue, jobs: u64, block: u64) {
    let payload = "x".repeat(98);
    let new = || NewJob::new("k", &payload).expect("it is text");
    for first in (0..jobs).step_by(block as usize) {
        match block {
            1 => _ = queue.push(new()).expect("the disk takes it"),
            _ => _ = queue.push_all((first..jobs.min(first + block)).map(|_| new())).expect("the disk takes it"),
        }
    }
}
