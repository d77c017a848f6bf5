//! The flags that ask a job to end: its consumer stops, or its attempt is overdue.
//!
//! Each consumer has one flag for its stop, and gives it once to each worker thread. So a job reads
//! it without a shared counter: raising and lowering one for each job costs a tenth of the whole
//! job. An attempt has a flag of its own only if there is a timeout.

use std::cell::RefCell;
// Not those of `sync`: these flags order nothing, so a model would learn nothing from them.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Clone, Debug, Default)]
pub(crate) struct Stopping(Arc<AtomicBool>);

/// The flag of an attempt that has a timeout.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overdue(Arc<Marks>);

#[derive(Debug, Default)]
struct Marks {
    /// True once the observers know that the attempt has begun.
    begun: AtomicBool,
    /// True once the attempt is overdue.
    overdue: AtomicBool,
}

/// The flags that jobs on a thread, or in a task, read.
#[derive(Debug)]
pub(crate) struct StopFlags {
    stopping: Stopping,
    overdue: Option<Overdue>,
}

thread_local! {
    static OF_THIS_THREAD: RefCell<Option<StopFlags>> = const { RefCell::new(None) };
}

impl Stopping {
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Lets jobs on the calling thread read this flag from now on.
    pub(crate) fn ask_here(self) {
        let asked = StopFlags { stopping: self, overdue: None };
        let _gone_at_its_end = OF_THIS_THREAD.try_with(|here| here.replace(Some(asked)));
    }
}

impl Overdue {
    /// Makes this the flag of a new attempt. The previous attempt keeps its flag while it may read
    /// it.
    pub(crate) fn renew(&mut self) {
        match Arc::get_mut(&mut self.0) {
            Some(marks) => *marks = Marks::default(),
            None => *self = Self::default(),
        }
    }

    pub(crate) fn begin(&self) {
        self.0.overdue.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.overdue.load(Ordering::Relaxed)
    }

    /// True once the observers know that the attempt has begun.
    pub(crate) fn is_observed(&self) -> bool {
        self.0.begun.load(Ordering::Acquire)
    }

    /// Sets the flag of the attempt that begins on the calling thread, or none after its last
    /// attempt.
    pub(crate) fn set_here(overdue: Option<Self>) {
        let set = |here: &RefCell<Option<StopFlags>>| {
            if let Some(asked) = here.borrow_mut().as_mut() {
                asked.overdue = overdue;
            }
        };
        let _gone_at_its_end = OF_THIS_THREAD.try_with(set);
    }

    /// Returns the flag of the attempt on the calling thread.
    pub(crate) fn here() -> Option<Self> {
        OF_THIS_THREAD.try_with(|here| here.borrow().as_ref().and_then(|asked| asked.overdue.clone())).ok().flatten()
    }

    /// Notes that the observers know of the attempt that begins on the calling thread.
    pub(crate) fn observed_here() {
        if let Some(overdue) = Self::here() {
            overdue.0.begun.store(true, Ordering::Release);
        }
    }
}

/// Lets jobs on the calling thread read other flags until dropped. The flags move into the thread
/// meanwhile, so that no counter changes.
#[cfg(feature = "tokio")]
pub(crate) struct LentFlags<'a>(&'a mut Option<StopFlags>);

#[cfg(feature = "tokio")]
impl StopFlags {
    pub(crate) fn new(stopping: Stopping, overdue: Option<Overdue>) -> Self {
        Self { stopping, overdue }
    }

    /// True once the attempt is overdue.
    pub(crate) fn is_overdue(&self) -> bool {
        self.overdue.as_ref().is_some_and(Overdue::has_begun)
    }

    /// Lends these flags to the calling thread.
    pub(crate) fn lend_here(flags: &mut Option<Self>) -> LentFlags<'_> {
        swap_here(flags);
        LentFlags(flags)
    }
}

#[cfg(feature = "tokio")]
impl Drop for LentFlags<'_> {
    fn drop(&mut self) {
        swap_here(self.0);
    }
}

#[cfg(feature = "tokio")]
fn swap_here(flags: &mut Option<StopFlags>) {
    let _gone_at_its_end = OF_THIS_THREAD.try_with(|here| std::mem::swap(&mut *here.borrow_mut(), flags));
}

/// True if the calling thread is a worker of a consumer that stops, or runs an overdue attempt.
pub(crate) fn here() -> bool {
    let ask = |asked: &StopFlags| asked.stopping.has_begun() || asked.overdue.as_ref().is_some_and(Overdue::has_begun);
    OF_THIS_THREAD.try_with(|here| here.borrow().as_ref().is_some_and(ask)).unwrap_or(false)
}
