//! The consumers of this process on standby, which are called when another one releases its name.
//! Without a call they retry at their own pace.

use crate::base::{guard::drop_guarded, sync::Arc};
use std::sync::Weak;

/// A consumer on standby.
pub(super) trait OnStandby: Send + Sync {
    /// Called without a lock when a consumer of this name has released it.
    fn name_freed(&self, name: &str);
}

#[cfg(not(waterline_loom))]
static WAITING: crate::base::sync::Mutex<Vec<Weak<dyn OnStandby>>> = crate::base::sync::Mutex::new(Vec::new());

/// A model has no list.
#[cfg(waterline_loom)]
fn with_list<R>(_: impl FnOnce(&mut Vec<Weak<dyn OnStandby>>) -> R) -> Option<R> {
    None
}

#[cfg(not(waterline_loom))]
fn with_list<R>(change: impl FnOnce(&mut Vec<Weak<dyn OnStandby>>) -> R) -> Option<R> {
    Some(change(&mut WAITING.lock()))
}

/// Adds a consumer. Its next try finds a name that was released since the first one.
pub(super) fn enlist(waiting: Weak<dyn OnStandby>) {
    with_list(|list| list.push(waiting));
}

/// Removes a consumer that is no longer on standby.
pub(super) fn withdraw(waiting: &Weak<dyn OnStandby>) {
    with_list(|list| list.retain(|other| !Weak::ptr_eq(other, waiting) && other.strong_count() > 0));
}

/// True if a consumer of this process is on standby.
pub(super) fn has_waiters() -> bool {
    with_list(|list| !list.is_empty()).unwrap_or_default()
}

/// Calls the consumers that may wait for this name.
pub(super) fn tell(name: &str) {
    let waiting: Option<Vec<Arc<dyn OnStandby>>> = with_list(|list| list.iter().filter_map(Weak::upgrade).collect());
    for one in waiting.into_iter().flatten() {
        one.name_freed(name);
        // This may be the last reference to a consumer.
        drop_guarded(one);
    }
}
