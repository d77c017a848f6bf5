//! Ten million jobs go through a queue: the cost of each million, and the disk used at the end.
//!
//! `cargo bench --bench queue_for_long` prints a line for each million, and takes about ten
//! minutes. An argument sets another number of millions. In between there are ten thousand jobs
//! that were scheduled, or failed once, with a delay of a few milliseconds.
//!
//! The cost must stay flat: a queue on an LSM tree suffers from its tombstones if a claim has to
//! pass those of all earlier jobs. The median of the last million may be at most 1.5 times that of
//! the second one. (The first fills the caches.) The disk may have at most 250 MB once the rows of
//! all finished jobs are gone.

use indicatif::{ProgressBar, ProgressStyle};
use std::path::Path;
use std::time::{Duration, Instant};
use waterline::{BoxError, Retry, Store};
use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Retention, Runner};

const MILLION: u64 = 1_000_000;
/// The jobs that are pushed, and then run, in one go. The queue never has many more.
const BLOCK: u64 = 10_000;
/// One in this many jobs is scheduled for later, and the next one fails once.
const SELDOM: u64 = 2_000;
const SOON: Duration = Duration::from_millis(5);

fn main() -> Result<(), BoxError> {
    // Cargo adds its own `--bench`.
    let millions = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let millions: u64 = millions.map_or(Ok(10), |millions| millions.parse())?;
    let dir = tempfile::tempdir()?;
    let store = Store::open(dir.path())?;
    let options = QueueOptions::default().retention(Retention::For(Duration::from_secs(1)));
    let queue = Queue::open(&store, "q", options.retry(Retry::fixed(SOON).max_attempts(3)))?;
    let style = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} jobs, {eta} to go")?;
    let bar = ProgressBar::new(millions * MILLION).with_style(style);
    let mut medians = Vec::new();
    for million in 1..=millions {
        let mut costs = Vec::new();
        for block in 0..MILLION / BLOCK {
            let begun = Instant::now();
            turn_over(&queue, (million - 1) * MILLION + block * BLOCK)?;
            costs.push(begun.elapsed().as_nanos() as u64 / BLOCK);
            bar.inc(BLOCK);
        }
        costs.sort_unstable();
        medians.push(costs[costs.len() / 2]);
        let (cost, megabytes) = (costs[costs.len() / 2], megabytes(dir.path())?);
        bar.suspend(|| println!("million {million}: {cost} ns a job, {megabytes} MB"));
    }
    bar.finish_and_clear();
    // An idle runner removes expired rows.
    let runner = runner(&queue).start()?;
    while queue.counts().finished > 0 {
        std::thread::yield_now();
    }
    runner.stop()?;
    let ratio = match medians[..] {
        [_, second, .., last] => format!("{:.2}", last as f64 / second as f64),
        _ => "unknown".to_owned(),
    };
    println!("the last million costs {ratio} times the second one (at most 1.5)");
    println!(
        "{} MB on the disk when all jobs are gone (at most 250); left: {:?}",
        megabytes(dir.path())?,
        queue.counts()
    );
    Ok(())
}

/// Pushes a block of jobs, and runs what is ready.
fn turn_over(queue: &Queue, first: u64) -> Result<(), BoxError> {
    let payload = "x".repeat(98);
    for jobs in (first..first + BLOCK).step_by(250) {
        let new = |job: u64| {
            let kind = if job % SELDOM == 1 { "fails once" } else { "k" };
            let new = NewJob::new(kind, &payload)?;
            Ok(if job.is_multiple_of(SELDOM) { new.delay(SOON) } else { new })
        };
        queue.push_all((jobs..jobs + 250).map(new).collect::<Result<Vec<_>, BoxError>>()?)?;
    }
    runner(queue).drain(DrainLimits::default())?;
    Ok(())
}

fn runner(queue: &Queue) -> waterline_queue::RunnerBuilder {
    Runner::builder(queue).max_processing(8).on("k", |_, _: String| Ok(Outcome::Done)).on(
        "fails once",
        |job, _: String| {
            if job.attempt() == 1 { Err("it fails once".into()) } else { Ok(Outcome::Done) }
        },
    )
}

fn megabytes(directory: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for file in std::fs::read_dir(directory)? {
        // RocksDB may delete the file meanwhile.
        bytes += file?.metadata().map_or(0, |file| file.len());
    }
    Ok(bytes >> 20)
}
