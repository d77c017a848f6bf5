//! Our column of the queues in Redis of `make compare`. It is a program of this crate, so that it
//! needs no RocksDB.

#[path = "../../../benches/compare/protocol/src/lib.rs"]
#[allow(dead_code, missing_docs, reason = "it is the part that all programs of the comparison share")]
mod protocol;

use protocol::{Answer, Question};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use tokio::runtime::Runtime;
use waterline_queue::{NewJob, Outcome, Queue, QueueOptions, Runner};
use waterline_redis::{RedisOptions, RedisStore};

fn main() -> ExitCode {
    let about = "this version with its defaults (64 futures at once, or as given), on {redis}";
    protocol::answer(&[("waterline-redis", about.to_owned())], |question| {
        if question.word("question") != "redis" {
            return Answer::None("not asked");
        }
        let store = RedisStore::connect(question.url(), RedisOptions::new()).expect("the server runs");
        store.migrate().expect("it takes the functions");
        let queue = store.queue("q", QueueOptions::default()).expect("it has the functions");
        match question.word("call") {
            "push" => protocol::served(question.port(), || push(&queue, question)),
            _ => run(&queue, question),
        }
    })
}

fn push(queue: &Queue, question: &Question) {
    let (jobs, block) = (question.jobs(), question.number("block").max(1));
    let payload = "x".repeat(98);
    let new = || NewJob::new("k", &payload).expect("it is text");
    for first in (0..jobs).step_by(block as usize) {
        match block {
            1 => _ = queue.push(new()).expect("the server takes it"),
            _ => _ = queue.push_all((first..jobs.min(first + block)).map(|_| new())).expect("the server takes it"),
        }
    }
}

fn run(queue: &Queue, question: &Question) -> Answer {
    push(queue, question);
    let runtime = Runtime::new().expect("the runtime starts");
    let _context = runtime.enter();
    let (tell, told) = channel();
    let mut runner = Runner::builder(queue).on_async("k", move |_, _: String| {
        _ = tell.send(());
        async { Ok(Outcome::Done) }
    });
    if question.in_flight() > 0 {
        runner = runner.max_processing(question.in_flight());
    }
    let mut running = None;
    let answer = protocol::served(question.port(), || {
        running = Some(runner.start().expect("the queue is open"));
        (0..question.jobs()).for_each(|_| told.recv().expect("the runner runs"));
    });
    drop(running);
    answer
}
