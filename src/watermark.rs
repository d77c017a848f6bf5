//! The watermark as others see it: published once it is saved, and read without a lock.

use crate::index::Index;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};
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
#[derive(Clone)]
pub struct Watermark {
    shared: Arc<Shared>,
}

struct Shared {
    /// One past the watermark; 0 while there is none. [`Index::MAX`] is never a job, so it always fits.
    end: AtomicU64,
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
}

/// Who is told that a watermark has moved. Called with no lock held but that of the listeners, and must not block.
pub(crate) trait Listener: Send + Sync {
    fn moved(&self);
}

impl Watermark {
    pub(crate) fn new(last_processed: Option<Index>) -> Self {
        let end = AtomicU64::new(last_processed.map_or(0, |last| last + 1));
        Self { shared: Arc::new(Shared { end, listeners: Mutex::default() }) }
    }

    /// Everything up to and including this index is processed, and that is saved; `None` while nothing was ever saved.
    #[must_use]
    pub fn last_processed(&self) -> Option<Index> {
        self.shared.end.load(Ordering::Acquire).checked_sub(1)
    }

    /// Moves it, before anybody is told that it moved.
    pub(crate) fn publish(&self, last_processed: Index) {
        self.shared.end.store(last_processed + 1, Ordering::Release);
    }

    /// Tells whoever listens that it was moved.
    pub(crate) fn announce(&self) {
        self.shared.listeners.lock().retain(|listener| match listener.upgrade() {
            Some(listener) => {
                listener.moved();
                true
            }
            None => false,
        });
    }

    /// From now on this one is told, for as long as somebody keeps it.
    pub(crate) fn listen(&self, listener: Weak<dyn Listener>) {
        self.shared.listeners.lock().push(listener);
    }

    /// Whether it is the same one's.
    pub(crate) fn is_same(&self, other: &Watermark) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
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
