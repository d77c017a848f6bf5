//! Jobs and a source that are futures on a tokio runtime.
//!
//! `cargo run --release --features tokio --example tokio`
//!
//! `max_processing` limits the tasks (backpressure), so no queue between them can grow. A future
//! that fails or panics fails its job, which is then retried.

use std::time::Duration;
use tokio::runtime::{Handle, Runtime};
use waterline::{AsyncJobs, BoxError, Consumer, Index, MemoryProgress, Retry};

/// Stands for a client of a server that lists its pages.
struct Site {
    pages: Index,
}

impl AsyncJobs for Site {
    type Job = String;

    async fn head(&self) -> Result<Option<Index>, BoxError> {
        tokio::time::sleep(Duration::from_millis(2)).await;
        Ok(self.pages.checked_sub(1))
    }

    async fn at_index(&self, index: Index) -> Result<Option<String>, BoxError> {
        tokio::time::sleep(Duration::from_millis(2)).await;
        Ok((index < self.pages).then(|| format!("/page/{index}")))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    Runtime::new()?.block_on(async {
        let runtime = Handle::current();
        let consumer = Consumer::builder(Site { pages: 100 }.on(&runtime), MemoryProgress::new())
            .max_processing(16)
            .retry(Retry::exponential(Duration::from_millis(5), Duration::from_secs(1)).max_attempts(5).jitter(0.5))
            .stop_at(99)
            .start_async(&runtime, |job| async move {
                fetch(&job.payload, job.attempt).await?;
                Ok(())
            })?;

        let handle = consumer.handle();
        assert!(handle.wait_for_async(9, Duration::from_secs(60)).await);
        println!("{}", handle.status());
        consumer.join_async().await?;

        let status = handle.status();
        println!("{} pages fetched, {} attempts failed and were repeated", status.done, status.failed);
        Ok(())
    })
}

/// Stands for a request. It takes a while, and some fail at the first attempt.
async fn fetch(page: &str, attempt: u32) -> Result<usize, String> {
    tokio::time::sleep(Duration::from_millis(2)).await;
    if page.ends_with('7') && attempt == 1 { Err(format!("{page} is not ready")) } else { Ok(page.len()) }
}
