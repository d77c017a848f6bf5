//! An ordered stream through a consumer, with its progress in a store.

use crate::protocol::{Answer, InOrder, Question, Shape, Task, Work, result, timed};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use waterline::{BoxError, Builder, Consumer, Durability, Index, Jobs, Store, StoreProgress};

/// The jobs 0, 1, 2, …, read in runs.
struct Numbers(u64);

/// The same, read one by one.
struct OneByOne(u64);

impl Jobs for Numbers {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(self.0 - 1))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(Some(index))
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Index>) -> Result<(), BoxError> {
        into.extend(run);
        Ok(())
    }
}

impl Jobs for OneByOne {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(self.0 - 1))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(Some(index))
    }
}

pub(crate) fn answer(question: &Question) -> Answer {
    let engine = if cfg!(feature = "rocksdb") { "rocksdb" } else { "sqlite" };
    let store = crate::asked::open(question, engine, Durability::Buffered).expect("one of them is there");
    match question.word("column") {
        "waterline" => run(question, Numbers(question.jobs()), &store),
        "without read" => run(question, OneByOne(question.jobs()), &store),
        "async" => run_async(question, &store),
        _ => crate::asked::OTHER,
    }
}

fn builder<J: Jobs>(question: &Question, source: J, store: &Store) -> Builder<J, StoreProgress> {
    let builder = Consumer::builder(source, store.progress("stream"));
    builder.max_processing(question.in_flight()).stop_at(question.jobs() - 1)
}

fn run(question: &Question, source: impl Jobs<Job = Index>, store: &Store) -> Answer {
    let task = Task::of(question);
    timed(|| {
        let builder = builder(question, source, store);
        let work = move |index| {
            task.run(index);
            Ok(())
        };
        let consumer = if question.shape() == Shape::Ordered {
            let mut sink = InOrder::default();
            builder.start_ordered(
                move |job| work(job.payload).map(|()| result(job.payload)),
                move |index, result| {
                    sink.take(index, result);
                    Ok(())
                },
            )
        } else {
            builder.start(move |job| work(job.payload))
        };
        consumer.and_then(Consumer::join).expect("no job fails");
    })
}

#[cfg(not(feature = "tokio"))]
fn run_async(_: &Question, _: &Store) -> Answer {
    Answer::None("built without tokio")
}

#[cfg(feature = "tokio")]
fn run_async(question: &Question, store: &Store) -> Answer {
    if question.shape() == Shape::Ordered {
        return Answer::None("start_ordered takes functions");
    }
    async fn run(task: Arc<Task>, index: Index) -> Result<(), BoxError> {
        while task.is_held(index) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if task.work == Work::Sleep {
            tokio::time::sleep(Duration::from_millis(1)).await;
            task.ran(index);
        } else {
            task.run(index);
        }
        Ok(())
    }
    let task = Task::of(question);
    timed(|| {
        let runtime = tokio::runtime::Runtime::new().expect("the runtime starts");
        let builder = builder(question, Numbers(question.jobs()), store);
        let consumer = builder.start_async(runtime.handle(), move |job| run(task.clone(), job.payload));
        consumer.and_then(Consumer::join).expect("no job fails");
    })
}
