//! The time from a push to the job, and from the end of a job to whoever waits for the watermark.

use crate::protocol::{Answer, Question, each_prepared, each_timed};
use crossbeam_channel::{Receiver, unbounded};
use std::time::Duration;
use waterline::queue::{NewJob, Outcome, Queue, QueueOptions, Runner};
use waterline::{BoxError, Builder, Consumer, Done, Durability, Jobs, MemoryJobs, MemoryProgress, Progress};

const LATENCIES: u64 = 2_000;

pub(crate) fn pushed(question: &Question) -> Answer {
    let (column, in_memory) = (question.word("column"), question.word("store") == "memory");
    if column == "waterline" && in_memory {
        let jobs = MemoryJobs::new();
        let (consumer, said) = told(Consumer::builder(jobs.clone(), MemoryProgress::new()));
        return end(consumer, each_pushed(&said, |number| _ = jobs.push(number)));
    }
    let (false, true) = (in_memory, column.contains("on ")) else { return crate::OTHER };
    let Some(store) = crate::open(question, crate::engine(column), Durability::Buffered) else {
        return Answer::None("built without it");
    };
    if !column.starts_with("queue") {
        let log = store.log::<u64>("l").expect("a good name");
        let (consumer, said) = told(Consumer::builder(log.clone(), store.progress("p")));
        return end(consumer, each_pushed(&said, |number| _ = log.push(&number).expect("the disk takes it")));
    }
    let queue = Queue::open(&store, "q", QueueOptions::default()).expect("it opens");
    let (say, said) = unbounded();
    let runner = Runner::builder(&queue).max_processing(2).on("k", move |_, number: u64| {
        say.send(number)?;
        Ok(Outcome::Done)
    });
    let runner = runner.start().expect("it starts");
    let answer = each_pushed(&said, |number| {
        queue.push(NewJob::new("k", &number).expect("it is a number")).expect("the disk takes it");
    });
    runner.stop().expect("nothing fails");
    answer
}

/// Starts a consumer whose jobs say which one runs.
fn told<J: Jobs<Job = u64>, P: Progress>(builder: Builder<J, P>) -> (Consumer, Receiver<u64>) {
    let (say, said) = unbounded();
    let consumer = builder.max_processing(2).start(move |job| Ok::<_, BoxError>(say.send(job.payload)?));
    (consumer.expect("it starts"), said)
}

fn each_pushed(said: &Receiver<u64>, push: impl Fn(u64)) -> Answer {
    each_timed(LATENCIES, |number| {
        push(number);
        assert_eq!(said.recv(), Ok(number));
    })
}

fn end(consumer: Consumer, answer: Answer) -> Answer {
    consumer.stop().expect("nothing fails");
    answer
}

pub(crate) fn seen(question: &Question) -> Answer {
    if question.word("column") != "waterline" {
        return crate::OTHER;
    }
    let Some(store) = crate::open(question, question.word("store"), Durability::Buffered) else {
        return Answer::None("built without it");
    };
    let jobs = MemoryJobs::new();
    let (hand, handed) = unbounded();
    let consumer = Consumer::builder(jobs.clone(), store.progress("p"))
        .max_processing(2)
        .start_deferred(move |_, done| drop(hand.send(done)))
        .expect("it starts");
    let handle = consumer.handle();
    let begin = |_| {
        jobs.push(0);
        handed.recv().expect("the consumer lives")
    };
    let answer = each_prepared(LATENCIES, begin, |number, done: Done| {
        done.complete();
        assert!(handle.wait_for(number, Duration::from_secs(10)));
    });
    end(consumer, answer)
}
