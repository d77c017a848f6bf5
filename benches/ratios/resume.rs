//! The cost of keeping the jobs done above the watermark, and of resuming from them.

use crate::sources::Numbers;
use crate::table::median;
use common::until;
use std::path::Path;
use std::time::{Duration, Instant};
#[cfg(feature = "rocksdb")]
use waterline::Done;
use waterline::{Consumer, Retry, Store};

/// Returns the milliseconds to start a consumer on an open store, with half of a million jobs done
/// at random.
pub(crate) fn start_ms(open: impl Fn(&Path) -> Store) -> f64 {
    const WINDOW: u64 = 1_000_000;
    let dir = tempfile::tempdir().expect("a directory for the database");
    let begin = |store: &Store| {
        let builder = Consumer::builder(Numbers(WINDOW), store.progress("resume")).unlimited_search_ahead();
        builder.retry(Retry::fixed(Duration::from_secs(3600))).start(|job| {
            let done = job.index > 0 && fastrand::Rng::with_seed(job.index).bool();
            if done { Ok(()) } else { Err("not in this life".into()) }
        })
    };
    let store = open(dir.path());
    let consumer = begin(&store).expect("it starts");
    let status =
        until(&consumer.handle(), "every job to end or fail", |s| s.done + s.failed == WINDOW && s.unsaved == 0);
    assert!(status.done_ahead.abs_diff(WINDOW / 2) < WINDOW / 100, "{status:?}");
    consumer.stop().expect("it stops");
    drop(store);
    let times = (0..5).map(|_| {
        let store = open(dir.path());
        let begun = Instant::now();
        let consumer = begin(&store).expect("it starts");
        let took = begun.elapsed();
        assert_eq!(consumer.handle().status().done_ahead, status.done_ahead, "all of it was restored");
        consumer.stop().expect("it stops");
        took
    });
    median(times.collect()).as_secs_f64() * 1000.0
}

/// The bytes that RocksDB's log adds to a key and its value: the headers of the record and of the
/// batch, a tag, a family and two lengths.
#[cfg(feature = "rocksdb")]
const AROUND: u64 = 7 + 12 + 4;

/// Returns the bytes written to RocksDB while jobs finish at random in a window of 100,000,
/// relative to 24 bytes per save and 3 per job.
#[cfg(feature = "rocksdb")]
pub(crate) fn share_of_bytes() -> f64 {
    const WINDOW: usize = 100_000;
    const JOBS: usize = 200_000;
    let dir = tempfile::tempdir().expect("a directory for the database");
    let store = Store::open(dir.path()).expect("the database opens");
    let (hand, handed) = crossbeam_channel::unbounded::<Done>();
    let consumer = Consumer::builder(Numbers(u64::MAX), store.progress("bytes"))
        .max_processing(WINDOW)
        .max_search_ahead(10 * WINDOW as u64)
        .threads(1)
        .start_deferred(move |_, done| drop(hand.send(done)))
        .expect("it starts");
    let handle = consumer.handle();
    let mut random = fastrand::Rng::with_seed(20_261_121);
    let mut running: Vec<Done> = handed.iter().take(WINDOW).collect();
    let (mut before, mut saves) = (0, 0);
    for round in 0..=JOBS / 1000 {
        for _ in 0..1000 {
            running.swap_remove(random.usize(..running.len())).complete();
        }
        // The next jobs take the free slots.
        running.extend(handed.iter().take(WINDOW - running.len()));
        until(&handle, "a save", |status| status.unsaved == 0);
        if round == 0 {
            (before, saves) = (log_bytes(dir.path()), handle.status().saves);
        }
    }
    let bytes = log_bytes(dir.path()) - before;
    handle.request_stop();
    drop((running, handed));
    let _ = consumer.stop();
    let saves = handle.status().saves - saves;
    let given = bytes - saves * AROUND;
    given as f64 / (24 * saves + 3 * JOBS as u64) as f64
}

/// Returns the size of the write-ahead log.
#[cfg(feature = "rocksdb")]
fn log_bytes(directory: &Path) -> u64 {
    let files = std::fs::read_dir(directory).expect("it is there").flatten();
    let logs = files.filter(|file| file.path().extension().is_some_and(|extension| extension == "log"));
    logs.map(|file| file.metadata().expect("it is there").len()).sum()
}
