//! The lateness of saves while busy threads use all cores.

use crate::sources::Numbers;
use crossbeam_channel::bounded;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};
use waterline::{Consumer, Handle, Index, Store};

/// How long the threads are busy.
const BUSY: Duration = Duration::from_secs(5);

/// How long a job takes.
const JOB: Duration = Duration::from_micros(10);

/// How long after the last save the next one is due.
const PACE: Duration = Duration::from_millis(1);

/// The saves as the jobs see them: their number, the time of the last one, and their gaps.
struct Seen {
    saves: u64,
    since: Instant,
    gaps: Vec<Duration>,
}

/// Returns how many milliseconds late a save is at the 99th percentile.
pub(crate) fn ms_late() -> f64 {
    #[cfg(feature = "rocksdb")]
    let dir = tempfile::tempdir().expect("a directory for the database");
    #[cfg(feature = "rocksdb")]
    let store = Store::open(dir.path()).expect("the database opens");
    #[cfg(not(feature = "rocksdb"))]
    let store = Store::in_memory();
    let handle: Arc<OnceLock<Handle>> = Arc::default();
    let seen = Arc::new(Mutex::new(Seen { saves: 0, since: Instant::now(), gaps: Vec::new() }));
    let look = {
        let (handle, seen) = (handle.clone(), seen.clone());
        move || {
            let saves = handle.get().map_or(0, |handle| handle.status().saves);
            let mut seen = seen.lock();
            if saves > seen.saves {
                let now = Instant::now();
                let gap = now - std::mem::replace(&mut seen.since, now);
                seen.saves = saves;
                seen.gaps.push(gap);
            }
        }
    };
    let consumer = Consumer::builder(Numbers(Index::MAX - 1), store.progress("busy"))
        .max_processing(4 * available_parallelism().map_or(2, usize::from))
        .unlimited_search_ahead()
        .start(move |job| {
            let begun = Instant::now();
            // Only some jobs look, so that the look costs next to nothing.
            if job.index % 8 == 0 {
                look();
            }
            while begun.elapsed() < JOB {
                std::hint::spin_loop();
            }
            Ok(())
        })
        .expect("it starts");
    handle.set(consumer.handle()).expect("it is set once");
    let (_never, over) = bounded::<()>(0);
    assert!(over.recv_timeout(BUSY).is_err(), "nobody sends");
    consumer.stop().expect("nothing fails");
    let mut seen = seen.lock();
    seen.gaps.sort_unstable();
    let gap = seen.gaps[seen.gaps.len() * 99 / 100];
    gap.saturating_sub(PACE).as_secs_f64() * 1000.0
}
