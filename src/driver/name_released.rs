//! The consumers of this process that wait for a name, and are called when another one gives a name
//! back. Without a call they try at their pace.

use crate::base::guard::drop_guarded;
use crate::base::sync::Arc;
use std::sync::Weak;

/// A consumer that waits for its name.
pub(super) trait Waits: Send + Sync {
    /// Hears that a consumer of this name has given it back. Called with no lock held.
    fn name_freed(&self, name: &str);
}

#[cfg(not(waterline_loom))]
static WAITING: crate::base::sync::Mutex<Vec<Weak<dyn Waits>>> = crate::base::sync::Mutex::new(Vec::new());

/// A model has no consumer that waits.
#[cfg(waterline_loom)]
fn with_list<R>(_: impl FnOnce(&mut Vec<Weak<dyn Waits>>) -> R) -> Option<R> {
    None
}

#[cfg(not(waterline_loom))]
fn with_list<R>(change: impl FnOnce(&mut Vec<Weak<dyn Waits>>) -> R) -> Option<R> {
    Some(change(&mut WAITING.lock()))
}

/// Adds a consumer. A name that was given back since its first try is found by its next one.
pub(super) fn enlist(waiting: Weak<dyn Waits>) {
    with_list(|list| list.push(waiting));
}

/// Removes a consumer that waits no more.
pub(super) fn withdraw(waiting: &Weak<dyn Waits>) {
    with_list(|list| list.retain(|other| !Weak::ptr_eq(other, waiting) && other.strong_count() > 0));
}

/// True if a consumer of this process waits for a name.
pub(super) fn anybody_waits() -> bool {
    with_list(|list| !list.is_empty()).unwrap_or_default()
}

/// Calls those that may wait for this name.
pub(super) fn tell(name: &str) {
    let waiting: Option<Vec<Arc<dyn Waits>>> = with_list(|list| list.iter().filter_map(Weak::upgrade).collect());
    for one in waiting.into_iter().flatten() {
        one.name_freed(name);
        // This may be the last reference to a consumer.
        drop_guarded(one);
    }
}
