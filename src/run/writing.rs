//! Mode *writing*: jobs run in parallel, and a user's transaction contains the results of those
//! that have finished meanwhile, together with their completion.
//!
//! A job that has run holds no thread and no slot of `max_processing`. Its result waits here until
//! the saver takes it for a transaction. The driver knows which jobs wait.

#[cfg(feature = "tokio")]
use super::asynchronous::Completion;
use super::worker::{Job, Report};
use super::{Assignment, Runner};
use crate::base::guard::{Guarded, drop_guarded, guarded};
use crate::base::sync::{Arc, Mutex};
use crate::base::{BoxError, Index, caught::Caught};
use crate::commit::changes::Changes;
use crate::observe::spans::Spans;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hasher for indices, which differ in their low bits and are not chosen by an attacker.
#[derive(Default)]
pub(crate) struct ByIndex(u64);

impl Hasher for ByIndex {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, index: u64) {
        // The map uses the high bits, too. (The golden ratio, as in Fibonacci hashing.)
        self.0 = (self.0 ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// The results that wait for a transaction. The window limits their number.
pub(crate) type Results<R> = Arc<Mutex<HashMap<Index, Guarded<R>, BuildHasherDefault<ByIndex>>>>;

pub(crate) struct Writing<F, R> {
    pub(crate) results: Results<R>,
    pub(crate) spans: Spans,
    /// Last, so that nothing is left to drop if its destructor panics.
    pub(crate) work: F,
}

impl<T, F, R> Runner<T> for Writing<F, R>
where
    T: Send + 'static,
    R: Send + 'static,
    F: Fn(Job<T>) -> Result<R, BoxError> + Send + Sync + 'static,
{
    fn run(&self, Assignment { token, job }: Assignment<T>, _: &mut Changes) -> Option<Report> {
        let index = job.index;
        let ran = guarded(|| {
            let _span = self.spans.enter(index, job.attempt);
            (self.work)(job)
        });
        let outcome = ran.map_err(Caught::boxed).map(|result| keep(&self.results, index, result));
        Some(Report { token, index, outcome })
    }

    fn forget(&self, index: Index) {
        forget(&self.results, index);
    }
}

#[cfg(feature = "tokio")]
impl<R: Send + 'static> Completion<R> for Results<R> {
    fn keep(&self, index: Index, output: R, _: &mut Changes) {
        keep(self, index, output);
    }

    fn forget(&self, index: Index) {
        forget(self, index);
    }
}

fn keep<R>(results: &Results<R>, index: Index, result: R) {
    // A result of an earlier attempt is there if that attempt timed out.
    let before = results.lock().insert(index, Guarded::new(result));
    drop(before);
}

fn forget<R>(results: &Results<R>, index: Index) {
    let result = results.lock().remove(&index);
    drop_guarded(result);
}
