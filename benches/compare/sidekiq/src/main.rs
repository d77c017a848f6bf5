//! A queue of sidekiq-rs, on the Redis server of the driver.

use async_trait::async_trait;
use bb8::Pool;
use protocol::{Answer, Question};
use sidekiq::{Processor, ProcessorConfig, RedisConnectionManager, RedisPool, Worker};
use std::process::ExitCode;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// The connections of a pool by default.
const CONNECTIONS: u32 = 10;

fn main() -> ExitCode {
    let about = "{rusty-sidekiq} on {bb8} with its defaults (a worker a processor), or the given workers and a \
                 connection for each";
    protocol::answer(&[("sidekiq-rs", about.to_owned())], |question| {
        let runtime = Runtime::new().expect("the runtime starts");
        let connections = CONNECTIONS + question.in_flight() as u32;
        let pool = runtime.block_on(async {
            let manager = RedisConnectionManager::new(question.url()).expect("it is an address");
            Pool::builder().max_size(connections).build(manager).await.expect("the server runs")
        });
        match (question.word("call"), question.number("block")) {
            ("push", 1) => protocol::served(question.port(), || push(&runtime, &pool, question.jobs())),
            ("push", _) => Answer::None("no call pushes many"),
            _ => run(&runtime, pool, question),
        }
    })
}

/// A handler that reports each job.
#[derive(Clone)]
struct Job(UnboundedSender<()>);

#[async_trait]
impl Worker<String> for Job {
    async fn perform(&self, _: String) -> sidekiq::Result<()> {
        _ = self.0.send(());
        Ok(())
    }
}

fn push(runtime: &Runtime, pool: &RedisPool, jobs: u64) {
    runtime.block_on(async {
        for _ in 0..jobs {
            Job::perform_async(pool, "x".repeat(98)).await.expect("the server takes it");
        }
    });
}

fn run(runtime: &Runtime, pool: RedisPool, question: &Question) -> Answer {
    push(runtime, &pool, question.jobs());
    let (tell, mut told) = unbounded_channel();
    let mut processor = Processor::new(pool, vec!["default".to_owned()]);
    processor.register(Job(tell));
    if question.in_flight() > 0 {
        processor = processor.with_config(ProcessorConfig::default().num_workers(question.in_flight()));
    }
    protocol::served(question.port(), || {
        runtime.spawn(processor.run());
        (0..question.jobs()).for_each(|_| told.blocking_recv().expect("the worker lives"));
    })
}
