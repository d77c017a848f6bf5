//! Tasks that wait for an event, or for so long at most. The event wakes each of them; a task that
//! is dropped leaves the list.

#[cfg(feature = "tokio")]
mod waits;

#[cfg(feature = "tokio")]
pub(crate) use self::waits::Wakers;
#[cfg(all(feature = "seam", feature = "tokio"))]
pub use self::waits::wait_at;
#[cfg(feature = "tokio")]
pub use self::waits::within;
use std::collections::BTreeMap;
use std::task::Waker;

/// The tasks that wait at one place. The lock of that place guards them.
#[derive(Debug, Default)]
pub struct Tasks {
    #[cfg(feature = "tokio")]
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

/// Tasks that are to be woken once no lock is held: a waker may run any code, and the last one of a
/// task may drop the task.
#[derive(Debug, Default)]
#[must_use]
pub struct Called(Vec<Waker>);

impl Called {
    #[cfg(feature = "seam")]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cfg(feature = "seam")]
    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Wakes them. The caller holds no lock.
    pub fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
    }
}

impl Tasks {
    /// Takes tasks off the list: so many at most, those first that have waited longest.
    pub fn call(&mut self, most: usize, called: &mut Called) {
        let wakers = std::iter::from_fn(|| self.wakers.pop_first()).map(|(_, waker)| waker);
        called.0.extend(wakers.take(most));
    }

    #[cfg(feature = "seam")]
    pub fn is_empty(&self) -> bool {
        self.wakers.is_empty()
    }

    /// Puts a task on the list, in its place if it has one. The waker that was there is to be
    /// dropped without the lock.
    #[cfg(feature = "tokio")]
    fn enter(&mut self, place: &mut Option<u64>, waker: &Waker) -> Option<Waker> {
        let at = *place.get_or_insert_with(|| {
            self.next += 1;
            self.next
        });
        self.wakers.insert(at, waker.clone())
    }

    /// Takes a task off the list. Its waker is to be dropped without the lock.
    #[cfg(feature = "tokio")]
    fn leave(&mut self, place: Option<u64>) -> Option<Waker> {
        self.wakers.remove(&place?)
    }
}
