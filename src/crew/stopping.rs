//! The flag that says that a consumer stops, for jobs that ask.
//!
//! Each consumer has one flag, and gives it once to each thread of its pool. So a job can ask
//! without a counter that all jobs share: to raise and lower one for each job costs a tenth of all
//! that a job costs.

use std::cell::RefCell;
// Not those of `sync`: nothing is ordered by this flag, so a model learns nothing from it.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Clone, Debug, Default)]
pub(crate) struct Stopping(Arc<AtomicBool>);

thread_local! {
    static OF_THIS_THREAD: RefCell<Option<Stopping>> = const { RefCell::new(None) };
}

impl Stopping {
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Lets jobs on the calling thread ask this flag from now on.
    pub(crate) fn ask_here(self) {
        let _gone_at_its_end = OF_THIS_THREAD.try_with(|asked| asked.replace(Some(self)));
    }
}

/// Lets jobs on the calling thread ask a flag until this is dropped. The flag lies in the thread
/// meanwhile, so that nothing is counted up and down.
#[cfg(feature = "tokio")]
pub(crate) struct Lent<'a>(&'a mut Option<Stopping>);

#[cfg(feature = "tokio")]
impl Stopping {
    /// Lends this flag to the calling thread.
    pub(crate) fn lend_here(flag: &mut Option<Stopping>) -> Lent<'_> {
        swap_here(flag);
        Lent(flag)
    }
}

#[cfg(feature = "tokio")]
impl Drop for Lent<'_> {
    fn drop(&mut self) {
        swap_here(self.0);
    }
}

#[cfg(feature = "tokio")]
fn swap_here(flag: &mut Option<Stopping>) {
    let _gone_at_its_end = OF_THIS_THREAD.try_with(|asked| std::mem::swap(&mut *asked.borrow_mut(), flag));
}

/// True if the calling thread belongs to the pool of a consumer that stops.
pub(crate) fn here() -> bool {
    let ask = |asked: &RefCell<Option<Stopping>>| asked.borrow().as_ref().is_some_and(Stopping::has_begun);
    OF_THIS_THREAD.try_with(ask).unwrap_or(false)
}
