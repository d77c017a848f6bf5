//! The watermark as others see it: published once it is saved, and read without a lock.

use crate::base::index::Index;
use crate::base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
use std::fmt;
use std::sync::Weak;

mod followers;

/// A consumer's saved last processed index, for whoever goes no further than that.
///
/// A [`Handle`](crate::Handle) gives it, by [`AsRef`]. A clone is the same watermark. It is read without a lock, never goes
/// back, and keeps its last value when the consumer has ended.
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
#[derive(Clone, Default)]
pub struct Watermark {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// One past the watermark; 0 while there is none. [`Index::MAX`] is never a job, so it always fits.
    end: AtomicU64,
    /// One past the index at which its consumer began; 0 while that is not known.
    begun: AtomicU64,
    ended: AtomicBool,
    listeners: Mutex<Weaks<dyn Listener>>,
    publisher: Mutex<Option<Publisher>>,
    /// The watermarks of the consumers that are gated by this one.
    followers: Mutex<Weaks<Shared>>,
}

/// The consumer whose watermark it is.
struct Publisher {
    name: Option<String>,
    upstreams: Vec<Watermark>,
}

/// Who is told that a watermark has moved, or will never move again. Called with no lock held, and must not block.
pub(crate) trait Listener: Send + Sync {
    fn changed(&self);
    /// The end alone, for a listener to which a move means nothing.
    fn ended(&self) {
        self.changed();
    }
}

/// References to what others keep, for as long as they do.
struct Weaks<T: ?Sized> {
    all: Vec<Weak<T>>,
    /// Once there are so many, those that are gone are forgotten.
    crowded: usize,
}

impl Watermark {
    /// One that is there before its consumer is, for whoever is started first: give it to
    /// [`Builder::watermark`](crate::Builder::watermark) later.
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

    /// The name of its consumer's progress.
    pub(crate) fn name(&self) -> String {
        named(self.shared.publisher.lock().as_ref().and_then(|publisher| publisher.name.as_ref()))
    }

    /// Whether its consumer has ended, so that it never moves again. A next life of that consumer has another one.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    /// Whether it never reaches this index.
    pub(crate) fn ended_below(&self, index: Index) -> bool {
        // In this order: it may move until it ends.
        self.has_ended() && self.last_processed().is_none_or(|last| last < index)
    }

    /// It never moves again.
    pub(crate) fn end(&self) {
        self.shared.ended.store(true, Ordering::Release);
        self.listeners().iter().for_each(|listener| listener.ended());
    }

    /// Everything up to and including this index is processed, and that is saved; `None` while nothing was ever saved.
    #[must_use]
    pub fn last_processed(&self) -> Option<Index> {
        self.shared.end.load(Ordering::Acquire).checked_sub(1)
    }

    /// Its consumer begins with this index.
    pub(crate) fn begin(&self, next: Index) {
        self.shared.begun.store(next.saturating_add(1), Ordering::Release);
    }

    /// The lowest index that is not processed, once its consumer has begun.
    pub(crate) fn next(&self) -> Option<Index> {
        let begun = || self.shared.begun.load(Ordering::Acquire).checked_sub(1);
        self.last_processed().map(|last| last + 1).or_else(begun)
    }

    /// Moves it, before anybody is told that it moved.
    pub(crate) fn publish(&self, last_processed: Index) {
        self.shared.end.store(last_processed + 1, Ordering::Release);
    }

    /// Tells whoever listens that it was moved.
    pub(crate) fn announce(&self) {
        self.listeners().iter().for_each(|listener| listener.changed());
    }

    /// Returns those to be told, to be called without the lock: one of them may stop another
    /// consumer, which has listeners too.
    fn listeners(&self) -> Vec<Arc<dyn Listener>> {
        self.shared.listeners.lock().living().collect()
    }

    /// From now on this one is told, for as long as somebody keeps it.
    pub(crate) fn listen(&self, listener: Weak<dyn Listener>) {
        self.shared.listeners.lock().add(listener);
    }

    /// Whether it is the same one's.
    pub(crate) fn is_same(&self, other: &Watermark) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Each one keeps those before it: a chain of thousands is dropped one after the other, and
        // not one within the other.
        let mut kept: Vec<Watermark> = upstreams_of(self);
        while let Some(watermark) = kept.pop() {
            kept.extend(Arc::into_inner(watermark.shared).iter().flat_map(upstreams_of));
        }
    }
}

/// Takes the upstreams that it has kept until now.
fn upstreams_of(shared: &Shared) -> Vec<Watermark> {
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
            // Not before as many more have come: adding one costs the same however many there are.
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
