//! Whether this thread is one of a consumer's own, which must never wait for that consumer.

use std::cell::RefCell;

thread_local! {
    /// A list, since a callback of one consumer may run on a thread of another.
    static OWNERS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// `None` on a thread that is ending: a consumer may be dropped by the destructor of a thread-local.
fn with<R>(use_owners: impl FnOnce(&mut Vec<usize>) -> R) -> Option<R> {
    OWNERS.try_with(|owners| use_owners(&mut owners.borrow_mut())).ok()
}

/// While this lives, the thread belongs to the consumer.
pub(crate) struct Own(usize);

impl Own {
    pub(crate) fn enter(consumer: usize) -> Self {
        with(|owners| owners.push(consumer));
        Self(consumer)
    }

    pub(crate) fn is(consumer: usize) -> bool {
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
