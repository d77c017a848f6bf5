//! The thread that calls `on_processed`: one call at a time, in order, without a gap.

use crate::base::guard::{drop_guarded, guarded};
use crate::base::{Index, caught::Caught, sync::Arc};
use std::ops::RangeInclusive;

/// The source of the news: the driver.
pub(crate) trait NewsPort: Send + Sync + 'static {
    /// Blocks until something was saved. Returns `None` once nothing will be any more.
    fn news(&self) -> Option<RangeInclusive<Index>>;
    /// Reports that the callback panicked; it is not called again.
    fn panicked(&self, run: RangeInclusive<Index>, panic: Caught);
}

pub(crate) fn notify<D: NewsPort>(port: &Arc<D>, callback: impl Fn(RangeInclusive<Index>)) {
    while let Some(run) = port.news() {
        let called = guarded(|| {
            callback(run.clone());
            Ok(())
        });
        if let Err(panic) = called {
            port.panicked(run, panic.into());
            break;
        }
    }
    drop_guarded(callback);
}
