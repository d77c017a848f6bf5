//! Cores and drivers for tests.

use super::{Driver, core::Core};
use crate::base::{retry::Retry, sync::Arc};
use crate::progress::{SaveBackend, SavePort};
use crate::reader::{Payloads, Weights};
use crate::source::watermark::Watermark;
use crate::window::{Limits, Window};
use std::time::Instant;

/// A test that saves by itself.
pub(super) struct ByHand;

impl SaveBackend for ByHand {
    fn save(&self, _: Arc<dyn SavePort>, _: bool) {}

    fn hurry(&self) {}
}

/// Makes the core of a consumer that begins with job 0 and retries nothing.
pub(super) fn core(max_processing: usize, max_search_ahead: u64, now: Instant) -> Core {
    let window = Window::begin(0, Limits { max_processing, max_search_ahead });
    Core::new(window, Retry::none(), usize::MAX, now)
}

/// Reads this many more jobs of a source that has no others. The value of a job is its index.
pub(super) fn read(core: &mut Core, jobs: u64) {
    let from = core.window.unread_from();
    core.window.handle_head(Some(from + jobs - 1));
    while core.window.poll().is_some() {}
    core.window.handle_fetched(jobs);
    let mut read = <dyn Payloads>::new((from..from + jobs).collect::<Vec<_>>());
    core.reading.prefetch.add(&mut *read, Weights::equal(jobs as usize, 1));
}

pub(super) fn driver(core: Core) -> Arc<Driver> {
    Driver::new(core, Arc::default(), Watermark::new(), Arc::new(ByHand))
}
