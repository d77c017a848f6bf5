//! Whether this thread is one of a consumer's own, which must never wait for that consumer.

use std::cell::RefCell;

thread_local! {
    /// A list, since a callback of one consumer may run on a thread of another.
    static OWNERS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// While this lives, the thread belongs to the consumer.
pub(crate) struct Own(usize);

impl Own {
    pub(crate) fn enter(consumer: usize) -> Self {
        OWNERS.with_borrow_mut(|owners| owners.push(consumer));
        Self(consumer)
    }

    pub(crate) fn is(consumer: usize) -> bool {
        OWNERS.with_borrow(|owners| owners.contains(&consumer))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        OWNERS.with_borrow_mut(|owners| {
            if let Some(at) = owners.iter().rposition(|owner| *owner == self.0) {
                owners.swap_remove(at);
            }
        });
    }
}
