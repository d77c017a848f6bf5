//! The thread that tells the user what was processed: serial, in order, without a gap.

use crate::base::caught::Failure;
use crate::base::guard::{drop_guarded, guarded};
use crate::base::index::Index;
use crate::base::sync::Arc;
use std::ops::RangeInclusive;

/// The one that has the news.
pub(crate) trait NewsPort: Send + Sync + 'static {
    /// Blocks until something was saved; `None` when nothing will be any more.
    fn news(&self) -> Option<RangeInclusive<Index>>;
    /// The callback panicked; it is not called again.
    fn panicked(&self, run: RangeInclusive<Index>, panic: Failure);
}

pub(crate) fn notify<D: NewsPort>(desk: &Arc<D>, callback: impl Fn(RangeInclusive<Index>)) {
    while let Some(run) = desk.news() {
        let called = guarded(|| {
            callback(run.clone());
            Ok(())
        });
        if let Err(panic) = called {
            desk.panicked(run, panic.into());
            break;
        }
    }
    drop_guarded(callback);
}
