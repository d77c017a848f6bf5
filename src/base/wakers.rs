//! Tasks that wait for an event or a timeout. The event wakes them; a dropped task leaves the list.

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

/// The tasks that wait at one place, guarded by that place's lock.
#[derive(Debug, Default)]
pub struct Tasks {
    #[cfg(feature = "tokio")]
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

/// Tasks to wake once no lock is held: a waker may run any code, and its drop may drop the task.
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

    /// Wakes them. The caller must hold no lock.
    pub fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
    }
}

impl Tasks {
    /// Takes at most `most` tasks off the list, longest waiting first.
    pub fn call(&mut self, most: usize, called: &mut Called) {
        let wakers = std::iter::from_fn(|| self.wakers.pop_first()).map(|(_, waker)| waker);
        called.0.extend(wakers.take(most));
    }

    #[cfg(feature = "seam")]
    pub fn is_empty(&self) -> bool {
        self.wakers.is_empty()
    }

    /// Puts a task on the list, or updates it in its place. The caller drops the returned old waker
    /// without the lock.
    #[cfg(feature = "tokio")]
    fn enter(&mut self, place: &mut Option<u64>, waker: &Waker) -> Option<Waker> {
        let at = *place.get_or_insert_with(|| {
            self.next += 1;
            self.next
        });
        self.wakers.insert(at, waker.clone())
    }

    /// Takes a task off the list. The caller drops its waker without the lock.
    #[cfg(feature = "tokio")]
    fn leave(&mut self, place: Option<u64>) -> Option<Waker> {
        self.wakers.remove(&place?)
    }
}
