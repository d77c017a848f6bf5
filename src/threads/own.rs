//! The hosts whose threads the calling thread is among, for whose end it must not wait.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that is unique among the hosts of this process, past ones included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner(u64);

impl Owner {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

thread_local! {
    /// A list, since a callback of one consumer may run on a thread of another.
    static OWNERS: RefCell<Vec<Owner>> = const { RefCell::new(Vec::new()) };
}

/// Returns `None` on a thread that is ending: the destructor of a thread-local may drop a consumer.
fn with<R>(use_owners: impl FnOnce(&mut Vec<Owner>) -> R) -> Option<R> {
    OWNERS.try_with(|owners| use_owners(&mut owners.borrow_mut())).ok()
}

/// Makes the thread one of a host until dropped.
pub struct Own(Owner);

impl Own {
    pub(super) fn enter(owner: Owner) -> Self {
        with(|owners| owners.push(owner));
        Self(owner)
    }

    /// Makes the calling thread one of the host for its whole life, even while it ends: a user's
    /// thread-local may hold the consumer, and is destroyed before the list, which is older.
    pub(super) fn enter_for_good(owner: Owner) {
        with(|owners| owners.push(owner));
    }

    pub(super) fn is(owner: Owner) -> bool {
        with(|owners| owners.contains(&owner)).unwrap_or(false)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        with(|owners| {
            if let Some(at) = owners.iter().rposition(|owner| *owner == self.0) {
                owners.swap_remove(at);
            }
        });
    }
}
