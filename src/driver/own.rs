//! Whether this thread is one of a consumer's own, which must never wait for that consumer.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// What tells a consumer from all others that there ever were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u64);

impl Owner {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

thread_local! {
    /// A list, since a callback of one consumer may run on a thread of another.
    static OWNERS: RefCell<Vec<Owner>> = const { RefCell::new(Vec::new()) };
}

/// `None` on a thread that is ending: a consumer may be dropped by the destructor of a thread-local.
fn with<R>(use_owners: impl FnOnce(&mut Vec<Owner>) -> R) -> Option<R> {
    OWNERS.try_with(|owners| use_owners(&mut owners.borrow_mut())).ok()
}

/// While this lives, the thread belongs to the consumer.
pub(crate) struct Own(Owner);

impl Own {
    pub(crate) fn enter(consumer: Owner) -> Self {
        with(|owners| owners.push(consumer));
        Self(consumer)
    }

    /// This thread is the consumer's for as long as it lives, also while it ends: a thread-local of the user's, which is
    /// destroyed before the list since the list is older, may have the consumer.
    pub(crate) fn enter_for_good(consumer: Owner) {
        with(|owners| owners.push(consumer));
    }

    pub(crate) fn is(consumer: Owner) -> bool {
        with(|owners| owners.contains(&consumer)).unwrap_or(false)
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
