//! The watermark as others see it: published once it is saved, and read without a lock.

use crate::config::ConfigError;
use crate::index::Index;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
use std::fmt;
use std::sync::Weak;

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
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
    publisher: Mutex<Option<Publisher>>,
}

/// The consumer whose watermark it is.
struct Publisher {
    name: Option<String>,
    upstreams: Vec<Watermark>,
}

/// Who is told that a watermark has moved, or will never move again. Called with no lock held, and must not block.
pub(crate) trait Listener: Send + Sync {
    fn moved(&self);
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

    /// From now on this consumer's. Nothing has changed when it is refused.
    pub(crate) fn claim(&self, name: Option<String>, upstreams: Vec<Watermark>) -> Result<(), ConfigError> {
        let mut publisher = self.shared.publisher.lock();
        if publisher.is_some() {
            return Err(ConfigError::WatermarkInUse { name: named(name.as_ref()) });
        }
        *publisher = Some(Publisher { name, upstreams: upstreams.clone() });
        drop(publisher);
        // Only once others can see it: of two that are started at the same time and wait for each other, one sees the other.
        if let Some(upstream) = upstreams.iter().find(|upstream| upstream.is_above(self)) {
            let cycle = ConfigError::GateCycle { consumer: self.name(), upstream: upstream.name() };
            self.release();
            return Err(cycle);
        }
        Ok(())
    }

    /// Its consumer could not be started.
    pub(crate) fn release(&self) {
        *self.shared.publisher.lock() = None;
    }

    /// Whether this one goes no further than the other one, by whatever detour.
    pub(crate) fn is_above(&self, other: &Watermark) -> bool {
        let mut seen: Vec<Watermark> = Vec::new();
        let mut ahead = vec![self.clone()];
        while let Some(next) = ahead.pop() {
            if next.is_same(other) {
                return true;
            }
            if !seen.iter().any(|seen| seen.is_same(&next)) {
                ahead.extend(next.shared.publisher.lock().iter().flat_map(|publisher| publisher.upstreams.clone()));
                seen.push(next);
            }
        }
        false
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
        self.announce();
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
        // Without the lock, since one that is told may stop another consumer, which has listeners too.
        let listeners: Vec<_> = self.shared.listeners.lock().iter().filter_map(Weak::upgrade).collect();
        listeners.iter().for_each(|listener| listener.moved());
    }

    /// From now on this one is told, for as long as somebody keeps it.
    pub(crate) fn listen(&self, listener: Weak<dyn Listener>) {
        let mut listeners = self.shared.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    /// Whether it is the same one's.
    pub(crate) fn is_same(&self, other: &Watermark) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
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
