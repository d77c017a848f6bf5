//! A progress whose saves fail, panic, hang, find the name lost, or are lost in a crash.

use super::{PATIENCE, numbers_in, unboxed};
use crate::base::error::Error;
use crate::base::index::{BoxError, Index};
use crate::base::sync::{Arc, Mutex};
use crate::progress::{Checkpoint, MemoryProgress, Progress, SaveError, Saved, Tenure};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::ops::{Range, RangeBounds};
use std::time::Duration;

/// A progress around another one, whose saves fail, panic, hang or are lost when a test wants it:
/// for tests of a full disk, of a name that was taken over, and of the jobs that run again after a
/// crash.
///
/// It keeps what the inner progress keeps, so jobs that are done above the watermark too. It panics
/// when a save goes back, which no consumer does. Where the inner progress can be cloned, a clone
/// shares the faults, like [`faults`](Self::faults).
///
/// ```
/// use std::time::Duration;
/// use waterline::testing::FaultyProgress;
/// use waterline::{Blocked, Consumer, MemoryJobs};
///
/// let progress = FaultyProgress::in_memory();
/// let faults = progress.faults();
/// faults.fail(..3);                                   // the first three saves fail
/// let jobs: MemoryJobs<_> = (0..9).collect();
/// let consumer = Consumer::builder(jobs, progress.clone()).start(|_| Ok(()))?;
/// assert!(consumer.handle().wait_for(8, Duration::from_secs(20)), "and are tried again");
/// consumer.stop()?;
/// assert_eq!(progress.last_processed(), Some(8));
/// assert!(faults.writes() > 3);
/// # Ok::<(), waterline::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FaultyProgress<P = MemoryProgress> {
    inner: P,
    faults: ProgressFaults,
    /// The lowest index that the last save did not cover; 0 before the first.
    floor: Index,
}

impl FaultyProgress {
    /// Around an empty [`MemoryProgress`].
    #[must_use]
    pub fn in_memory() -> Self {
        Self::default()
    }

    /// What has reached the disk.
    #[must_use]
    pub fn last_processed(&self) -> Option<Index> {
        self.inner.last_processed()
    }

    /// What a crash leaves: a progress of its own with what has reached the disk, whose name is
    /// free and which has no faults.
    ///
    /// ```
    /// use waterline::testing::FaultyProgress;
    /// use waterline::{Consumer, MemoryJobs};
    ///
    /// let jobs: MemoryJobs<_> = (0..9).collect();
    /// let progress = FaultyProgress::in_memory();
    /// progress.faults().freeze_at(3);
    /// let first_life = Consumer::builder(jobs, progress.clone()).max_search_ahead(1).stop_at(8);
    /// first_life.start(|_| Ok(()))?.join()?;          // nine jobs, but the disk took three saves
    /// assert_eq!(progress.after_crash().last_processed(), Some(2));
    /// # Ok::<(), waterline::Error>(())
    /// ```
    #[must_use]
    pub fn after_crash(&self) -> Self {
        let disk = MemoryProgress::new();
        if let Some(last) = self.last_processed() {
            let mut writer = disk.clone();
            let written = writer.acquire().is_ok() && writer.save(&Checkpoint::new(last)).is_ok();
            debug_assert!(written, "a new progress takes a checkpoint");
        }
        Self::new(disk)
    }
}

impl<P> FaultyProgress<P> {
    /// Around this progress, and without a fault. After a [freeze](ProgressFaults::freeze_at) open
    /// the inner one anew to see what a crash leaves.
    pub fn new(inner: P) -> Self {
        Self { inner, faults: ProgressFaults::default(), floor: 0 }
    }

    /// What goes wrong, to be said and seen while a consumer has the progress.
    #[must_use]
    pub fn faults(&self) -> ProgressFaults {
        self.faults.clone()
    }
}

impl<P: Progress> Progress for FaultyProgress<P> {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        let loaded = self.inner.acquire()?;
        self.floor = loaded.map_or(0, |checkpoint| checkpoint.last_processed.saturating_add(1));
        Ok(loaded)
    }

    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
        let to = checkpoint.last_processed;
        let reaches_the_disk = self.faults.before_save().map_err(unboxed)?;
        if let Some(last) = self.floor.checked_sub(1) {
            assert!(last < to, "promise 7: a checkpoint goes back from {last} to {to}");
        }
        if reaches_the_disk {
            self.inner.save(checkpoint)?;
        }
        self.note(Some(to), to.saturating_add(1));
        Ok(())
    }

    fn keeps_done_ahead(&self) -> bool {
        self.inner.keeps_done_ahead()
    }

    fn acquire_all(&mut self) -> Result<Option<Saved>, Error> {
        let loaded = self.inner.acquire_all()?;
        self.floor = loaded.as_ref().map_or(0, |saved| saved.next);
        Ok(loaded)
    }

    fn save_all(&mut self, saved: &Saved) -> Result<(), SaveError> {
        let reaches_the_disk = self.faults.before_save()?;
        assert!(self.floor <= saved.next, "promise 7: a save goes back from {} to {}", self.floor, saved.next);
        if reaches_the_disk {
            self.inner.save_all(saved)?;
        }
        self.note(saved.last_processed, saved.next);
        Ok(())
    }

    fn label(&self) -> Option<String> {
        self.inner.label()
    }

    fn pace(&self) -> Duration {
        self.inner.pace()
    }

    fn fence(&self) -> u64 {
        self.inner.fence()
    }

    fn subscribe(&mut self, tenure: Tenure) {
        self.faults.shared.lock().tenure = Some(tenure.clone());
        self.inner.subscribe(tenure);
    }
}

impl<P> FaultyProgress<P> {
    /// Notes a save that succeeded.
    fn note(&mut self, last_processed: Option<Index>, next: Index) {
        self.floor = next;
        self.faults.shared.lock().saves.extend(last_processed);
    }
}

/// What goes wrong in a [`FaultyProgress`], and what it was asked to do. A clone is the same.
#[derive(Clone, Debug, Default)]
pub struct ProgressFaults {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    writes: u64,
    saves: Vec<Index>,
    failing: Range<u64>,
    losing: Range<u64>,
    panicking: Range<u64>,
    freeze_at: Option<u64>,
    hold: Option<(Sender<()>, Receiver<()>)>,
    tenure: Option<Tenure>,
}

impl ProgressFaults {
    /// The saves with these numbers fail, counted from 0 with the next one: `fail(..)` is a full
    /// disk, `fail(3..4)` fails the fourth alone. What failed is not written. Replaces what was
    /// said before.
    pub fn fail(&self, writes: impl RangeBounds<u64>) {
        let mut shared = self.shared.lock();
        shared.failing = shared.counted_on(writes);
    }

    /// The saves with these numbers find that another consumer has the name
    /// ([`SaveError::Lost`]), counted from 0 with the next one, and are not written. Replaces what
    /// was said before.
    ///
    /// ```
    /// use waterline::testing::FaultyProgress;
    /// use waterline::{Consumer, Error, MemoryJobs};
    ///
    /// let progress = FaultyProgress::in_memory();
    /// progress.faults().lose(1..);                        // the second save, and all later ones
    /// let jobs: MemoryJobs<_> = (0..9).collect();
    /// let builder = Consumer::builder(jobs, progress.clone()).max_search_ahead(1);
    /// assert!(matches!(builder.start(|_| Ok(()))?.join(), Err(Error::Fenced { .. })));
    /// assert_eq!(progress.last_processed(), Some(0));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn lose(&self, writes: impl RangeBounds<u64>) {
        let mut shared = self.shared.lock();
        shared.losing = shared.counted_on(writes);
    }

    /// Gives the way back to the consumer that has the progress now, or had it last: to hold it, to
    /// let it go on, and to tell it that the name is lost. `None` before the first consumer.
    #[must_use]
    pub fn tenure(&self) -> Option<Tenure> {
        self.shared.lock().tenure.clone()
    }

    /// The saves with these numbers panic, counted from 0 with the next one. Replaces what was said
    /// before.
    pub fn panic(&self, writes: impl RangeBounds<u64>) {
        let mut shared = self.shared.lock();
        shared.panicking = shared.counted_on(writes);
    }

    /// From now on no save fails, panics, or finds the name lost.
    pub fn heal(&self) {
        self.fail(0..0);
        self.lose(0..0);
        self.panic(0..0);
    }

    /// The save with this number, counted from 0 with the next one, and all later ones, return `Ok`
    /// and do not reach the disk.
    pub fn freeze_at(&self, write: u64) {
        let mut shared = self.shared.lock();
        shared.freeze_at = Some(shared.writes.saturating_add(write));
    }

    /// From now on each save waits until the returned value is dropped, like a disk that hangs.
    #[must_use = "dropping it lets the saves through"]
    pub fn hold(&self) -> Hold {
        let (enter, entered) = unbounded();
        let (pass, passed) = unbounded();
        self.shared.lock().hold = Some((enter, passed));
        Hold { entered, _pass: pass }
    }

    /// How many saves were tried, those that failed included.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.shared.lock().writes
    }

    /// What was saved, in order: also what did not reach the disk, and not what failed.
    #[must_use]
    pub fn saves(&self) -> Vec<Index> {
        self.shared.lock().saves.clone()
    }

    /// Strikes the save that begins; true if it reaches the disk.
    fn before_save(&self) -> Result<bool, SaveError> {
        let mut shared = self.shared.lock();
        let number = shared.writes;
        shared.writes += 1;
        let hold = shared.hold.clone();
        drop(shared);
        if let Some((enter, passed)) = hold {
            // Whoever held it may be gone: then it is let through.
            let _ = enter.send(());
            let _ = passed.recv();
        }
        let shared = self.shared.lock();
        let (fails, panics) = (shared.failing.contains(&number), shared.panicking.contains(&number));
        let loses = shared.losing.contains(&number);
        let frozen = shared.freeze_at.is_some_and(|at| number >= at);
        drop(shared);
        assert!(!panics, "the disk panics in write {number}, as the test wished");
        if loses {
            return Err(SaveError::Lost(format!("somebody else, since write {number}, as the test wished").into()));
        }
        if fails {
            return Err(SaveError::Retry(format!("the disk fails in write {number}, as the test wished").into()));
        }
        Ok(!frozen)
    }
}

impl Shared {
    fn counted_on(&self, writes: impl RangeBounds<u64>) -> Range<u64> {
        let writes = numbers_in(writes);
        writes.start.saturating_add(self.writes)..writes.end.saturating_add(self.writes)
    }
}

/// Holds back the saves of a [`FaultyProgress`]; dropping it lets them through. Made by
/// [`ProgressFaults::hold`].
#[derive(Debug)]
pub struct Hold {
    entered: Receiver<()>,
    _pass: Sender<()>,
}

impl Hold {
    /// Waits until a save hangs.
    ///
    /// # Panics
    /// When none does within 20 seconds.
    #[track_caller]
    pub fn wait(&self) {
        assert!(self.entered.recv_timeout(PATIENCE).is_ok(), "no save began within {PATIENCE:?}");
    }
}
