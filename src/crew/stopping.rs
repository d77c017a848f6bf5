//! The flags that ask a job to come to its end: its consumer stops, or its attempt is overdue.
//!
//! Each consumer has one flag for its stop, and gives it once to each thread of its pool. So a job
//! can ask without a counter that all jobs share: to raise and lower one for each job costs a tenth
//! of all that a job costs. An attempt has a flag of its own only if attempts have a timeout.

use std::cell::RefCell;
// Not those of `sync`: nothing is ordered by these flags, so a model learns nothing from them.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Clone, Debug, Default)]
pub(crate) struct Stopping(Arc<AtomicBool>);

/// The flag of one attempt that has a timeout.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overdue(Arc<Marks>);

#[derive(Debug, Default)]
struct Marks {
    /// True once the observers know that the attempt has begun.
    begun: AtomicBool,
    /// True once the attempt has run for as long as it may.
    overdue: AtomicBool,
}

/// The flags that jobs on one thread, or in one task, ask.
#[derive(Debug)]
pub(crate) struct Asked {
    stopping: Stopping,
    overdue: Option<Overdue>,
}

thread_local! {
    static OF_THIS_THREAD: RefCell<Option<Asked>> = const { RefCell::new(None) };
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
        let asked = Asked { stopping: self, overdue: None };
        let _gone_at_its_end = OF_THIS_THREAD.try_with(|here| here.replace(Some(asked)));
    }
}

impl Overdue {
    /// Makes it the flag of a new attempt. Somebody may still ask for the attempt before, so it
    /// keeps the old flag then.
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

    /// Gives the jobs on the calling thread the flag of the attempt that begins there; `None` if no
    /// attempt runs there any more.
    pub(crate) fn set_here(overdue: Option<Self>) {
        let set = |here: &RefCell<Option<Asked>>| {
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

/// Lets jobs on the calling thread ask other flags until this is dropped. The flags lie in the
/// thread meanwhile, so that nothing is counted up and down.
#[cfg(feature = "tokio")]
pub(crate) struct Lent<'a>(&'a mut Option<Asked>);

#[cfg(feature = "tokio")]
impl Asked {
    pub(crate) fn new(stopping: Stopping, overdue: Option<Overdue>) -> Self {
        Self { stopping, overdue }
    }

    /// True once the attempt has run for as long as it may.
    pub(crate) fn is_overdue(&self) -> bool {
        self.overdue.as_ref().is_some_and(Overdue::has_begun)
    }

    /// Lends these flags to the calling thread.
    pub(crate) fn lend_here(flags: &mut Option<Self>) -> Lent<'_> {
        swap_here(flags);
        Lent(flags)
    }
}

#[cfg(feature = "tokio")]
impl Drop for Lent<'_> {
    fn drop(&mut self) {
        swap_here(self.0);
    }
}

#[cfg(feature = "tokio")]
fn swap_here(flags: &mut Option<Asked>) {
    let _gone_at_its_end = OF_THIS_THREAD.try_with(|here| std::mem::swap(&mut *here.borrow_mut(), flags));
}

/// True if the calling thread belongs to the pool of a consumer that stops, or runs an attempt that
/// is overdue.
pub(crate) fn here() -> bool {
    let ask = |asked: &Asked| asked.stopping.has_begun() || asked.overdue.as_ref().is_some_and(Overdue::has_begun);
    OF_THIS_THREAD.try_with(|here| here.borrow().as_ref().is_some_and(ask)).unwrap_or(false)
}
