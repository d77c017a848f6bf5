//! A service: it runs until it ends or a signal comes, and then stops within 30 s.
//!
//! `cargo run --no-default-features --example service` follows a stream for ever; Ctrl-C or `kill`
//! ends it. With `-- 20` it ends by itself after job 20. With `-- 20 13` job 13 fails, which halts
//! it.

use std::time::Duration;
use waterline::{BoxError, Consumer, Index, Jobs, MemoryProgress, Retry};

/// An endless stream.
struct Ticks;

impl Jobs for Ticks {
    type Job = ();

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(Index::MAX - 1))
    }

    fn at_index(&self, _: Index) -> Result<Option<()>, BoxError> {
        Ok(Some(()))
    }
}

// A channel of the standard library, to add no dependency.
#[expect(clippy::disallowed_methods)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<Index>());
    let (last, bad) = (numbers.next().transpose()?, numbers.next().transpose()?);
    // Before the first job: a signal that comes earlier kills the process at once.
    let (signal, over) = std::sync::mpsc::channel();
    let ended = signal.clone();
    ctrlc::set_handler(move || _ = signal.send("a signal came"))?;

    let mut builder = Consumer::builder(Ticks, MemoryProgress::new())
        .max_processing(4)
        .retry(Retry::fixed(Duration::from_millis(10)).max_attempts(2))
        .on_processed(|run| println!("processed and saved: {} to {}", run.start(), run.end()));
    if let Some(last) = last {
        builder = builder.stop_at(last);
    }
    let consumer = builder.start(move |job| {
        // A long job, which checks again and again whether it should stop.
        for _ in 0..10 {
            if job.is_stopping() {
                // An attempt that fails during a stop is no error as long as the job has attempts
                // left: the next life runs the job again.
                return Err("cut short, since the service stops".into());
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
        if Some(job.index) == bad { Err("it is said to be bad".into()) } else { Ok(()) }
    })?;

    let handle = consumer.handle();
    std::thread::spawn(move || handle.wait_end(Duration::MAX).map(|_| ended.send("it ended by itself")));
    println!("{}", over.recv()?);
    consumer.stop_within(Duration::from_secs(30)).map_err(|error| error.report())?;
    Ok(())
}
