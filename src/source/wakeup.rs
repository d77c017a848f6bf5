//! Wakes the reader to check its source again, for a source, a user or the crate's own threads.
//!
//! No call is lost: a bit is set *before* the reader is woken, and taken *before* the reader
//! checks. So a call during a check leaves its bit set, and the reader checks once more.

use crate::base::sync::{Arc, AtomicU8, Condvar, Mutex, Ordering, spin_until, wait_until};
#[cfg(feature = "tokio")]
use crate::base::wakers::Wakers;
use crate::source::bound::{Bound, MetLog, Numbered};
use crate::source::watermark::Watermark;
use std::time::Instant;

/// The source may have new jobs: ask for its head.
const LOOK: u8 = 1;
/// There is something to read, a timer changed, or the consumer ends.
const WORK: u8 = 2;
/// The consumer has ended.
const CLOSED: u8 = 4;
/// The gate of the source has moved: ask for the gate, but not for the head.
const GATE: u8 = 8;

/// Why a waiting reader was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rung {
    pub(crate) look: bool,
    pub(crate) gate: bool,
    pub(crate) closed: bool,
}

impl Rung {
    fn of(bits: u8) -> Self {
        Self { look: bits & LOOK != 0, gate: bits & GATE != 0, closed: bits & CLOSED != 0 }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Bell {
    bits: AtomicU8,
    /// Guards no data. It separates the last check of `bits` before the sleep from the sleep.
    gate: Mutex<()>,
    rung: Condvar,
    /// The calls into an async source, which are dropped when the consumer ends.
    #[cfg(feature = "tokio")]
    calls: Wakers,
}

impl Bell {
    /// Requests a check of the source. Returns false if the consumer has ended.
    pub(crate) fn look(&self) -> bool {
        self.set(LOOK)
    }

    /// Reports work other than a check.
    pub(crate) fn work(&self) {
        self.set(WORK);
    }

    /// Reports that the gate of the source has moved. Returns false if the consumer has ended.
    pub(crate) fn gate_moved(&self) -> bool {
        self.set(GATE)
    }

    /// Takes the requests for a check and for the gate, and leaves the others.
    pub(crate) fn take(&self) -> Rung {
        Rung::of(self.bits.fetch_and(!(LOOK | GATE), Ordering::AcqRel))
    }

    fn is_closed(&self) -> bool {
        self.bits.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Closes the bell: no one listens any more.
    pub(crate) fn close(&self) {
        self.set(CLOSED);
        #[cfg(feature = "tokio")]
        self.calls.wake_all();
    }

    fn set(&self, bit: u8) -> bool {
        let before = self.bits.fetch_or(bit, Ordering::AcqRel);
        if before & CLOSED != 0 {
            return false;
        }
        if before & bit == 0 {
            // The lock orders this call either before the sleeper's last check of the bits, or
            // after it fell asleep.
            drop(self.gate.lock());
            self.rung.notify_one();
        }
        true
    }

    /// True if the bell has rung, for whatever reason, since all calls were taken.
    pub(crate) fn has_rung(&self) -> bool {
        self.bits.load(Ordering::Acquire) != 0
    }

    pub(crate) fn spin(&self) {
        spin_until(|| self.has_rung());
    }

    /// Sleeps until the bell rings, or until the deadline.
    pub(crate) fn sleep(&self, deadline: Option<Instant>) {
        let mut gate = self.gate.lock();
        let mut timed_out = false;
        while !timed_out && !self.has_rung() {
            timed_out = wait_until(&self.rung, &mut gate, deadline);
        }
    }

    /// Takes all calls. A closed bell stays closed.
    pub(crate) fn take_all(&self) -> Rung {
        Rung::of(self.bits.fetch_and(CLOSED, Ordering::AcqRel))
    }
}

/// Wakes the consumer of a source, which gets it from [`Jobs::subscribe`](crate::Jobs::subscribe).
///
/// The source rings it when a job appears.
///
/// ```
/// use waterline::{Consumer, Jobs, MemoryJobs, MemoryProgress};
///
/// let jobs = MemoryJobs::new();                  // keeps the wake-up and rings it on every push
/// let consumer = Consumer::builder(jobs.clone(), MemoryProgress::new())
///     .stop_at(0)
///     .start(|job| { assert_eq!(job.payload, "hello"); Ok(()) })?;
/// jobs.push("hello");
/// consumer.join()?;
/// # Ok::<(), waterline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Wakeup {
    bell: Arc<Bell>,
    watermark: Watermark,
    /// `None` once the consumer has taken it: a wake-up that a source still keeps holds none of it.
    met: Arc<Mutex<Option<Met>>>,
}

/// What a wake-up meets on its way to a source.
///
/// Each gate adds itself when the wake-up passes, so adapters in between only have to pass it on.
#[derive(Debug, Default)]
pub(crate) struct Met {
    /// The watermarks that the gates of the source follow, each of them once.
    pub(crate) upstreams: Vec<Watermark>,
    /// The bounds that hold the source back.
    pub(crate) bounds: Vec<Arc<dyn Bound>>,
    /// The logs that the source reads.
    pub(crate) logs: Vec<MetLog>,
}

impl Wakeup {
    pub(crate) fn new(bell: Arc<Bell>, watermark: Watermark) -> Self {
        Self { bell, watermark, met: Arc::new(Mutex::new(Some(Met::default()))) }
    }

    /// Notes that a gate of the source follows this watermark.
    pub(crate) fn follow(&self, upstream: &Watermark) {
        self.meet(|met| met.upstreams.push(upstream.clone()));
    }

    /// Notes a bound that holds the source back.
    pub(crate) fn bounded_by(&self, bound: Arc<dyn Bound>) {
        self.meet(|met| met.bounds.push(bound));
    }

    /// Notes that this log of the store with this address is read.
    pub(crate) fn reads(&self, log: Arc<dyn Numbered>, store: usize) {
        let first = log.first();
        self.meet(|met| met.logs.push(MetLog { log, first, store }));
    }

    fn meet(&self, add: impl FnOnce(&mut Met)) {
        if let Some(met) = &mut *self.met.lock() {
            add(met);
        }
    }

    /// Takes everything that it has met.
    pub(crate) fn take_met(&self) -> Met {
        let met = self.met.lock().take().unwrap_or_default();
        Met { upstreams: Watermark::distinct(met.upstreams), ..met }
    }

    pub(crate) fn watermark(&self) -> &Watermark {
        &self.watermark
    }

    /// Makes the consumer check its source again. Returns false if the consumer has ended.
    ///
    /// A call is cheap, never blocks and is never lost: a call during a check causes another one.
    /// After it returned false, the source can forget this wake-up.
    pub fn ring(&self) -> bool {
        self.bell.look()
    }

    /// Makes the consumer ask for its gate again. Returns false if the consumer has ended.
    pub(crate) fn ring_gate(&self) -> bool {
        self.bell.gate_moved()
    }

    /// The tasks to wake when the consumer has ended.
    #[cfg(feature = "tokio")]
    pub(crate) fn calls(&self) -> &Wakers {
        &self.bell.calls
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.bell.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn wait(bell: &Bell, deadline: Option<Instant>) -> Rung {
        bell.sleep(deadline);
        bell.take_all()
    }

    #[test]
    fn a_ring_before_the_wait_ends_the_wait() {
        let bell = Bell::default();
        assert!(bell.look());
        assert_eq!(wait(&bell, None), Rung { look: true, gate: false, closed: false });
        let past = Instant::now() - Duration::from_millis(1);
        assert_eq!(wait(&bell, Some(past)), Rung { look: false, gate: false, closed: false }, "a ring is taken once");
    }

    #[test]
    fn a_closed_bell_refuses_rings_and_ends_each_wait() {
        let bell = Arc::new(Bell::default());
        let wakeup = Wakeup::new(bell.clone(), Watermark::new());
        bell.close();
        assert!(!wakeup.ring());
        assert!(wait(&bell, None).closed);
        assert!(wait(&bell, None).closed, "a closed bell stays closed");
    }
}

#[cfg(all(test, waterline_loom))]
mod model {
    use super::*;
    use crate::base::sync::{AtomicU64, explore, spawn};

    fn wait(bell: &Bell) -> Rung {
        bell.sleep(None);
        bell.take_all()
    }

    #[test]
    fn loom_a_ring_during_any_step_is_not_lost() {
        explore(3, || {
            let (bell, jobs) = (Arc::new(Bell::default()), Arc::new(AtomicU64::new(0)));
            let pushers = [(); 2].map(|()| {
                let (wakeup, jobs) = (Wakeup::new(bell.clone(), Watermark::new()), jobs.clone());
                spawn(move || {
                    jobs.fetch_add(1, Ordering::Relaxed);
                    assert!(wakeup.ring());
                })
            });
            while jobs.load(Ordering::Relaxed) < 2 {
                assert!(wait(&bell).look);
            }
            pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        });
    }

    #[test]
    fn loom_work_and_the_end_wake_the_sleeper() {
        explore(3, || {
            let bell = Arc::new(Bell::default());
            let other = bell.clone();
            let worker = spawn(move || {
                other.work();
                other.close();
                assert!(!other.look(), "nobody listens any more");
            });
            while !wait(&bell).closed {}
            worker.join().unwrap();
        });
    }
}
