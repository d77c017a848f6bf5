//! A queue of apalis, on the Redis server of the driver.

use apalis::layers::WorkerBuilderExt as _;
use apalis::prelude::{BoxDynError, Data, TaskSink as _, WorkerBuilder};
use apalis_redis::RedisStorage;
use futures_util::stream;
use protocol::{Answer, Question};
use std::process::ExitCode;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

fn main() -> ExitCode {
    let about = "{apalis-redis} on {redis} with its defaults (batches of 10), a worker as in its README, or with \
                 concurrency as given";
    protocol::answer(&[("apalis-redis", about.to_owned())], |question| {
        let runtime = Runtime::new().expect("the runtime starts");
        let connection = runtime.block_on(apalis_redis::connect(question.url())).expect("the server runs");
        let storage = RedisStorage::<String>::new(connection);
        match question.word("call") {
            "push" => protocol::served(question.port(), || push(&runtime, storage, question)),
            _ => run(&runtime, storage, question),
        }
    })
}

fn payload() -> String {
    "x".repeat(98)
}

fn push(runtime: &Runtime, mut storage: RedisStorage<String>, question: &Question) {
    let (jobs, block) = (question.jobs(), question.number("block").max(1));
    runtime.block_on(async {
        for first in (0..jobs).step_by(block as usize) {
            match block {
                1 => storage.push(payload()).await.expect("the server takes it"),
                _ => {
                    let mut block = stream::iter((first..jobs.min(first + block)).map(|_| payload()));
                    storage.push_stream(&mut block).await.expect("the server takes it");
                }
            }
        }
    });
}

async fn job(_: String, told: Data<UnboundedSender<()>>) -> Result<(), BoxDynError> {
    _ = told.send(());
    Ok(())
}

fn run(runtime: &Runtime, storage: RedisStorage<String>, question: &Question) -> Answer {
    push(runtime, storage.clone(), question);
    let (tell, mut told) = unbounded_channel::<()>();
    let worker = WorkerBuilder::new("worker").backend(storage);
    protocol::served(question.port(), || {
        match question.in_flight() {
            0 => runtime.spawn(worker.data(tell).build(job).run()),
            many => runtime.spawn(worker.concurrency(many).data(tell).build(job).run()),
        };
        (0..question.jobs()).for_each(|_| told.blocking_recv().expect("the worker lives"));
    })
}
