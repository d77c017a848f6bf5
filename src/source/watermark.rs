//! The public watermark: published once it is saved, and read without a lock.

use crate::base::Index;
use crate::base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Weak;

mod followers;

/// The watermark of a consumer: everything up to and including this index is processed and saved.
///
/// Use it wherever something must go no further than the consumer. A [`Handle`](crate::Handle) has
/// it, by [`AsRef`]. A clone is the same watermark. It is read without a lock, never goes back, and
/// keeps its last value after the end of the consumer.
///
/// ```
/// use waterline::{Consumer, MemoryJobs, MemoryProgress, Watermark};
///
/// let jobs: MemoryJobs<_> = (0..5).collect();
/// let consumer = Consumer::builder(jobs, MemoryProgress::new()).stop_at(4).start(|_| Ok(()))?;
/// let handle = consumer.handle();
/// let watermark: &Watermark = handle.as_ref();
/// consumer.join()?;
/// assert_eq!(watermark.last_processed(), Some(4));
/// # Ok::<(), waterline::Error>(())
/// ```
#[doc(alias = "checkpoint")]
#[derive(Clone, Default)]
pub struct Watermark {
    shared: Arc<Marked>,
}

#[derive(Default)]
struct Marked {
    /// One past the watermark; 0 while there is none. [`Index::MAX`] is never a job, so this fits.
    end: AtomicU64,
    /// The first index of its consumer, plus 1; 0 while unknown.
    begun: AtomicU64,
    ended: AtomicBool,
    /// `None` while no job is parked and no log is read, to keep an idle consumer small.
    parking: Mutex<Option<Box<Parking>>>,
    listeners: Mutex<Weaks<dyn Listener>>,
    publisher: Mutex<Option<Publisher>>,
    /// The watermarks of the consumers that are gated by this one.
    followers: Mutex<Weaks<Marked>>,
}

/// The parked jobs of a consumer, which may run once more, and the keepers of their items.
#[derive(Default)]
struct Parking {
    jobs: BTreeSet<Index>,
    keepers: Weaks<dyn Released>,
}

/// The consumer that moves a watermark.
struct Publisher {
    name: Option<String>,
    upstreams: Vec<Watermark>,
}

/// Hears when a watermark moves and when its consumer ends. Called without locks; must not block.
pub(crate) trait Listener: Send + Sync {
    fn changed(&self);
    /// Called at the end. Implement it if moves of the watermark are irrelevant.
    fn ended(&self) {
        self.changed();
    }
}

/// Hears which parked jobs of a consumer are done or given up, and so will not run again. Called
/// with no lock held; must not block.
pub(crate) trait Released: Send + Sync {
    fn released(&self, jobs: &[Index]);
}

/// Weak references to values that others keep.
struct Weaks<T: ?Sized> {
    all: Vec<Weak<T>>,
    /// The length at which references to dropped values are removed.
    crowded: usize,
}

impl Watermark {
    /// Creates a watermark before its consumer starts, for a follower that starts first.
    ///
    /// Pass it to [`Builder::watermark`](crate::Builder::watermark) later.
    ///
    /// ```
    /// use waterline::{Consumer, Jobs, MemoryJobs, MemoryProgress, Watermark};
    ///
    /// let blocks: MemoryJobs<_> = (0..5).collect();
    /// let fetched = Watermark::new();
    /// let index = Consumer::builder(blocks.clone().gated_by(&fetched), MemoryProgress::new()).stop_at(4).start(|_| Ok(()))?;
    /// let fetch = Consumer::builder(blocks, MemoryProgress::new()).watermark(fetched).start(|_| Ok(()))?;
    /// index.join()?;
    /// fetch.stop()?;
    /// # Ok::<(), waterline::Error>(())
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the name of its consumer's progress, or "unnamed".
    pub(crate) fn name(&self) -> String {
        named(self.progress_name().as_ref())
    }

    /// Returns the name of its consumer's progress, if any.
    pub(crate) fn progress_name(&self) -> Option<String> {
        self.shared.publisher.lock().as_ref()?.name.clone()
    }

    /// True if its consumer has ended, so that it never moves again.
    ///
    /// A consumer that is started again has another watermark.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    /// True if it will never reach this index.
    pub(crate) fn ended_below(&self, index: Index) -> bool {
        // In this order, since it may move until its consumer ends.
        self.has_ended() && self.last_processed().is_none_or(|last| last < index)
    }

    /// Records that its consumer has ended, and tells the listeners.
    pub(crate) fn end(&self) {
        self.shared.ended.store(true, Ordering::Release);
        self.listeners().iter().for_each(|listener| listener.ended());
    }

    /// Returns the last index of the unbroken run that is processed and saved, or `None` if there
    /// is none.
    #[must_use]
    pub fn last_processed(&self) -> Option<Index> {
        self.shared.end.load(Ordering::Acquire).checked_sub(1)
    }

    pub(crate) fn begin(&self, next: Index) {
        self.shared.begun.store(next.saturating_add(1), Ordering::Release);
    }

    /// Returns the lowest unprocessed index, or `None` while its consumer has not begun.
    pub(crate) fn next(&self) -> Option<Index> {
        let begun = || self.shared.begun.load(Ordering::Acquire).checked_sub(1);
        self.last_processed().map(|last| last + 1).or_else(begun)
    }

    /// Moves the watermark. [`announce`](Self::announce) tells the listeners later.
    pub(crate) fn publish(&self, last_processed: Index) {
        self.shared.end.store(last_processed + 1, Ordering::Release);
    }

    /// Records parked jobs of its consumer, which may run once more. Publish the watermark that
    /// passes them afterwards: then a reader that sees a job passed also sees it parked.
    pub(crate) fn note_parked(&self, parked: Vec<Index>) {
        if parked.is_empty() {
            return;
        }
        self.shared.parking.lock().get_or_insert_default().jobs.extend(parked);
    }

    /// Records that these jobs are no longer parked, and tells the keepers of their items.
    pub(crate) fn note_unparked(&self, jobs: &[Index]) {
        if jobs.is_empty() {
            return;
        }
        let mut parking = self.shared.parking.lock();
        let Some(parked) = parking.as_deref_mut() else { return };
        jobs.iter().for_each(|index| _ = parked.jobs.remove(index));
        let keepers: Vec<_> = parked.keepers.living().collect();
        drop(parking);
        keepers.iter().for_each(|keeper| keeper.released(jobs));
    }

    /// Returns the parked jobs in this range, ascending.
    pub(crate) fn parked_within(&self, range: Range<Index>) -> Vec<Index> {
        let parking = self.shared.parking.lock();
        parking.iter().flat_map(|parking| parking.jobs.range(range.clone())).copied().collect()
    }

    pub(crate) fn has_parked(&self, index: Index) -> bool {
        self.shared.parking.lock().as_ref().is_some_and(|parking| parking.jobs.contains(&index))
    }

    /// Tells this keeper which jobs are no longer parked, as long as the keeper lives.
    pub(crate) fn tell_released(&self, keeper: Weak<dyn Released>) {
        self.shared.parking.lock().get_or_insert_default().keepers.add(keeper);
    }

    /// Returns the lowest index that its consumer still needs of a log, except for its parked jobs:
    /// the lowest unprocessed one. A consumer that has processed nothing needs all.
    pub(crate) fn needed_from(&self) -> Index {
        self.last_processed().map_or(0, |last| last + 1)
    }

    /// Tells the listeners that the watermark moved.
    pub(crate) fn announce(&self) {
        self.listeners().iter().for_each(|listener| listener.changed());
    }

    /// Returns the listeners. Call them without the lock, since one of them may stop another
    /// consumer, which has listeners too.
    fn listeners(&self) -> Vec<Arc<dyn Listener>> {
        self.shared.listeners.lock().living().collect()
    }

    /// Adds a listener, as long as the listener lives.
    pub(crate) fn listen(&self, listener: Weak<dyn Listener>) {
        self.shared.listeners.lock().add(listener);
    }

    /// True if both handles belong to the same consumer.
    #[must_use]
    pub fn is_same(&self, other: &Watermark) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        // Each watermark keeps its upstreams. The loop drops a chain of thousands without
        // recursion, which could overflow the stack.
        let mut kept: Vec<Watermark> = upstreams_of(self);
        while let Some(watermark) = kept.pop() {
            kept.extend(Arc::into_inner(watermark.shared).iter().flat_map(upstreams_of));
        }
    }
}

/// Takes the upstreams that this watermark keeps.
fn upstreams_of(shared: &Marked) -> Vec<Watermark> {
    shared.publisher.lock().take().map(|publisher| publisher.upstreams).unwrap_or_default()
}

impl<T: ?Sized> Default for Weaks<T> {
    fn default() -> Self {
        Self { all: Vec::new(), crowded: 8 }
    }
}

impl<T: ?Sized> Weaks<T> {
    fn add(&mut self, one: Weak<T>) {
        if self.all.len() >= self.crowded {
            self.all.retain(|one| one.strong_count() > 0);
            // The limit doubles, so adding has an amortised constant cost.
            self.crowded = (self.all.len() * 2).max(8);
        }
        self.all.push(one);
    }

    fn remove(&mut self, one: &Arc<T>) {
        self.all.retain(|other| !std::ptr::addr_eq(other.as_ptr(), Arc::as_ptr(one)));
    }

    fn living(&self) -> impl Iterator<Item = Arc<T>> {
        self.all.iter().filter_map(Weak::upgrade)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.all.len()
    }
}

fn named(name: Option<&String>) -> String {
    name.cloned().unwrap_or_else(|| "unnamed".to_owned())
}

impl AsRef<Watermark> for Watermark {
    fn as_ref(&self) -> &Watermark {
        self
    }
}

impl fmt::Debug for Watermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watermark").field(&self.last_processed()).finish()
    }
}
