//! Jobs on a tokio runtime. The consumer stays the same, and each job is a task that holds its
//! `Done` token.
//!
//! `cargo run --release --example tokio`
//!
//! `max_processing` limits the tasks (backpressure), so there is no queue between them that could
//! grow. A task that panics or is cancelled drops its token. That fails the job, and it is tried
//! again.

use std::time::Duration;
use tokio::runtime::Runtime;
use waterline::{Consumer, MemoryJobs, MemoryProgress, Retry};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = Runtime::new()?;
    let spawner = runtime.handle().clone();
    let pages: MemoryJobs<String> = (0..100).map(|n| format!("/page/{n}")).collect();

    let consumer = Consumer::builder(pages, MemoryProgress::new())
        .max_processing(16)
        .retry(Retry::exponential(Duration::from_millis(5), Duration::from_secs(1)).max_attempts(5).jitter(0.5))
        .stop_at(99)
        .start_deferred(move |job, done| {
            spawner.spawn(async move {
                match fetch(&job.payload, job.attempt).await {
                    Ok(_) => done.complete(),
                    Err(error) => done.fail(error),
                }
            });
        })?;

    let handle = consumer.handle();
    // `join` blocks, so async code gives it a thread that may block: here from within an async
    // block.
    runtime.block_on(async { tokio::task::spawn_blocking(|| consumer.join()).await })??;

    let status = handle.status();
    println!("{status}");
    println!("{} pages fetched, {} attempts failed and were repeated", status.done, status.failed);
    Ok(())
}

/// Stands for a request. It takes a while, and the first attempt of some fails.
async fn fetch(page: &str, attempt: u32) -> Result<usize, String> {
    tokio::time::sleep(Duration::from_millis(2)).await;
    if page.ends_with('7') && attempt == 1 { Err(format!("{page} is not ready")) } else { Ok(page.len()) }
}
