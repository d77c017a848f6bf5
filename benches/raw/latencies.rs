//! The time from a push to its job, and from the end of a job to a caller that waits for the
//! watermark.

use crate::protocol::{Answer, each_prepared, each_timed};
use crossbeam_channel::{Receiver, unbounded};
use std::time::Duration;
use waterline::{BoxError, Builder, Consumer, Done, Jobs, MemoryJobs, MemoryProgress, Progress, Store};
use waterline_queue::{NewJob, Outcome, Queue, QueueOptions, Runner};

/// Measures from a push into memory to the job of an idle consumer, which may make this many reads
/// at once.
pub(crate) fn pushed_in_memory(times: u64, reads: usize) -> Answer {
    let jobs = MemoryJobs::new();
    let (consumer, said) = told(Consumer::builder(jobs.clone(), MemoryProgress::new()).max_reading(reads));
    let answer = each_pushed(times, &said, |number| _ = jobs.push(number));
    consumer.stop().expect("nothing fails");
    answer
}

/// Measures from a push to a log to the job of an idle consumer.
pub(crate) fn pushed_to_log(store: &Store, times: u64) -> Answer {
    let log = store.log::<u64>("l").expect("a good name");
    let (consumer, said) = told(Consumer::builder(log.clone(), store.progress("p")));
    let answer = each_pushed(times, &said, |number| _ = log.push(&number).expect("the disk takes it"));
    consumer.stop().expect("nothing fails");
    answer
}

/// Measures from a push to a queue to the handler of an idle runner.
pub(crate) fn pushed_to_queue(store: &Store, times: u64) -> Answer {
    let queue = Queue::open(store, "q", QueueOptions::default()).expect("it opens");
    let (say, said) = unbounded();
    let runner = Runner::builder(&queue).max_processing(2).on("k", move |_, number: u64| {
        say.send(number)?;
        Ok(Outcome::Done)
    });
    let runner = runner.start().expect("it starts");
    let answer = each_pushed(times, &said, |number| {
        queue.push(NewJob::new("k", &number).expect("it is a number")).expect("the disk takes it");
    });
    runner.stop().expect("nothing fails");
    answer
}

/// Starts a consumer whose jobs report their index.
fn told<J: Jobs<Job = u64>, P: Progress>(builder: Builder<J, P>) -> (Consumer, Receiver<u64>) {
    let (say, said) = unbounded();
    let consumer = builder.max_processing(2).start(move |job| Ok::<_, BoxError>(say.send(job.payload)?));
    (consumer.expect("it starts"), said)
}

fn each_pushed(times: u64, said: &Receiver<u64>, push: impl Fn(u64)) -> Answer {
    each_timed(times, |number| {
        push(number);
        assert_eq!(said.recv(), Ok(number));
    })
}

/// Measures from the end of a job to a caller that waits for the watermark, saved in this store.
pub(crate) fn seen(store: &Store, times: u64) -> Answer {
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
    let answer = each_prepared(times, begin, |number, done: Done| {
        done.complete();
        assert!(handle.wait_for(number, Duration::from_secs(10)));
    });
    consumer.stop().expect("nothing fails");
    answer
}
