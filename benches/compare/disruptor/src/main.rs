//! The disruptor: a ring, and a thread for each worker. Each worker sees all events and takes every
//! n-th of them. One thread after the workers sees the events that all of them have passed, so the
//! results come out in order. Idle threads spin.

use disruptor::{BusySpin, Producer, Sequence, build_single_producer};
use protocol::{Answer, InOrder, Question, Saved, Shape, Task, result};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The size of the ring: the power of two below the window of the others.
const RING: usize = 8_192;
const LATENCIES: u64 = 2_000;

#[derive(Default)]
struct Event(u64);

fn main() -> ExitCode {
    let about = "{disruptor}: a ring of 8,192, BusySpin, a thread a job in flight that takes every n-th event";
    protocol::answer(&[("disruptor", about.to_owned())], |question| match question.word("question") {
        "stream" => stream(question),
        "pushed" => pushed(),
        _ => Answer::None("not asked"),
    })
}

fn stream(question: &Question) -> Answer {
    if question.shape() == Shape::Stuck {
        return Answer::None("every n-th job waits for the stuck one");
    }
    let (task, jobs, ordered) = (Task::of(question), question.jobs(), question.shape() == Shape::Ordered);
    let (saved, first) = Saved::open(&question.directory());
    let workers = question.in_flight() as u64;
    protocol::timed(|| {
        let mut builder = build_single_producer(RING, Event::default, BusySpin).with_multi_consumer();
        for worker in 0..workers {
            let task = task.clone();
            builder = builder.handle_events_with(move |event: &Event, _: Sequence, _: bool| {
                if event.0 % workers == worker {
                    task.run(event.0);
                }
            });
        }
        let mut sink = InOrder::from(first);
        let mut producer = builder
            .and_then()
            .handle_events_with(move |event: &Event, _: Sequence, _: bool| {
                if ordered {
                    sink.take(event.0, result(event.0));
                }
                saved.set(event.0 + 1);
            })
            .build();
        (first..jobs).for_each(|index| producer.publish(|event| event.0 = index));
        drop(producer);
    })
}

/// Measures a push to a thread that spins.
fn pushed() -> Answer {
    let seen = Arc::new(AtomicU64::new(0));
    let see = seen.clone();
    let mut producer = build_single_producer(RING, Event::default, BusySpin)
        .handle_events_with(move |event: &Event, _: Sequence, _: bool| see.store(event.0, Ordering::Release))
        .build();
    protocol::each_timed(LATENCIES, |index| {
        producer.publish(|event| event.0 = index + 1);
        while seen.load(Ordering::Acquire) <= index {
            std::hint::spin_loop();
        }
    })
}
