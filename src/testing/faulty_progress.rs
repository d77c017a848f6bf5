//! A progress whose saves fail, panic, hang, lose the name, or vanish in a crash.

use super::{PATIENCE, numbers_in, unboxed};
use crate::base::sync::{Arc, Mutex};
use crate::base::{BoxError, Error, Index};
use crate::progress::{Checkpoint, MemoryProgress, Progress, SaveError, Saved, Tenure};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::ops::{Range, RangeBounds};
use std::time::Duration;

/// A wrapper of a progress, whose saves fail, panic, hang or vanish on demand.
///
/// It is for tests of a full disk, of a name that was taken over, and of the jobs that run again
/// after a crash. It keeps everything that the inner progress keeps, including the jobs done above
/// the watermark. It panics if a save goes back, which no consumer does. If the inner progress can
/// be cloned, all clones share one set of [`faults`](Self::faults).
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
    /// The lowest index that the last save did not cover; 0 before the first save.
    floor: Index,
}

impl FaultyProgress {
    /// Wraps an empty [`MemoryProgress`].
    #[must_use]
    pub fn in_memory() -> Self {
        Self::default()
    }

    /// Returns the watermark that has reached the disk.
    #[must_use]
    pub fn last_processed(&self) -> Option<Index> {
        self.inner.last_processed()
    }

    /// Returns the progress after a crash: a separate value with what has reached the disk.
    ///
    /// Its name is free, and it has no faults.
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
    /// Wraps this progress, at first without faults.
    ///
    /// To see what a crash leaves after a [freeze](ProgressFaults::freeze_at), open the inner
    /// progress anew.
    pub fn new(inner: P) -> Self {
        Self { inner, faults: ProgressFaults::default(), floor: 0 }
    }

    /// Returns the faults, with which a test controls and watches a consumer's progress.
    #[must_use]
    pub fn faults(&self) -> ProgressFaults {
        self.faults.clone()
    }

    /// Records a save that succeeded.
    fn note(&mut self, last_processed: Option<Index>, next: Index) {
        self.floor = next;
        self.faults.shared.lock().saves.extend(last_processed);
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

/// The faults of a [`FaultyProgress`] and its record of saves, shared by all clones.
#[derive(Clone, Debug, Default)]
pub struct ProgressFaults {
    shared: Arc<Mutex<Faults>>,
}

#[derive(Debug, Default)]
struct Faults {
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
    /// Makes the saves with these numbers fail; the next save has the number 0.
    ///
    /// `fail(..)` is a full disk, and `fail(3..4)` fails only the fourth save. A failing save
    /// writes nothing. A later call replaces this one.
    pub fn fail(&self, writes: impl RangeBounds<u64>) {
        let mut shared = self.shared.lock();
        shared.failing = shared.counted_on(writes);
    }

    /// Makes the saves with these numbers, from 0 for the next one, return [`SaveError::Lost`].
    ///
    /// This is as if another consumer had the name. Such a save writes nothing. A later call
    /// replaces this one.
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

    /// Returns the [`Tenure`] of the last consumer of the progress, or `None` before the first.
    ///
    /// With it a test holds the consumer, or tells it that the name is lost.
    #[must_use]
    pub fn tenure(&self) -> Option<Tenure> {
        self.shared.lock().tenure.clone()
    }

    /// Makes the saves with these numbers panic; the next save has the number 0. A later call
    /// replaces this one.
    pub fn panic(&self, writes: impl RangeBounds<u64>) {
        let mut shared = self.shared.lock();
        shared.panicking = shared.counted_on(writes);
    }

    /// Ends the faults: from now on no save fails, panics or loses the name.
    pub fn heal(&self) {
        self.fail(0..0);
        self.lose(0..0);
        self.panic(0..0);
    }

    /// Freezes the disk at the save with this number; the next save has the number 0.
    ///
    /// That save and all later ones return `Ok`, but do not reach the disk.
    pub fn freeze_at(&self, write: u64) {
        let mut shared = self.shared.lock();
        shared.freeze_at = Some(shared.writes.saturating_add(write));
    }

    /// Blocks each save from now on, like a disk that hangs, until the returned value is dropped.
    #[must_use = "dropping it lets the saves through"]
    pub fn hold(&self) -> Hold {
        let (enter, entered) = unbounded();
        let (pass, passed) = unbounded();
        self.shared.lock().hold = Some((enter, passed));
        Hold { entered, _pass: pass }
    }

    /// Returns how many saves were tried, including those that failed.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.shared.lock().writes
    }

    /// Returns the saved watermarks, in order.
    ///
    /// It lists saves that did not reach the disk, but no saves that failed.
    #[must_use]
    pub fn saves(&self) -> Vec<Index> {
        self.shared.lock().saves.clone()
    }

    /// Applies the faults to a starting save. Returns whether the save reaches the disk.
    fn before_save(&self) -> Result<bool, SaveError> {
        let mut shared = self.shared.lock();
        let number = shared.writes;
        shared.writes += 1;
        let hold = shared.hold.clone();
        drop(shared);
        if let Some((enter, passed)) = hold {
            // If the holder is gone, both calls fail, and the save goes on.
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

impl Faults {
    fn counted_on(&self, writes: impl RangeBounds<u64>) -> Range<u64> {
        let writes = numbers_in(writes);
        writes.start.saturating_add(self.writes)..writes.end.saturating_add(self.writes)
    }
}

/// Blocks the saves of a [`FaultyProgress`] until it is dropped; created by
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
    /// If no save hangs within 20 seconds.
    #[track_caller]
    pub fn wait(&self) {
        assert!(self.entered.recv_timeout(PATIENCE).is_ok(), "no save began within {PATIENCE:?}");
    }
}
