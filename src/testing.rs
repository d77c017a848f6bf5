//! Test tools: suites that check a source or a progress, and parts that fail on demand.
//!
//! They are in the feature `testing`, which is for dev-dependencies. With `waterline = { …,
//! features = ["testing"] }` under `[dev-dependencies]` your program stays as it is.
//!
//! * [`JobsSuite`] checks that a source keeps the rules of [`Jobs`](crate::Jobs).
//! * [`ProgressSuite`] checks that a progress keeps the rules of [`Progress`](crate::Progress).
//! * [`manual_worker()`] creates jobs that wait until the test ends them.
//! * [`Clock::manual`](crate::Clock::manual) creates a clock that only the test moves, for a
//!   [consumer](crate::Builder::clock) or a queue.
//! * [`FaultyProgress`] and [`FaultyStore`] have writes that fail, panic, hang, or are lost in a
//!   crash. A [`FaultyProgress`] also loses its name, and holds its consumer back.
//!
//! Nothing here waits for ever. If an expected event does not come in time, it panics and names it.

use crate::base::guard::{Panic, guarded};
use crate::base::{BoxError, error::describe};
use crate::progress::SaveError;
use std::fmt;
use std::ops::{Bound, Range, RangeBounds};
use std::time::Duration;

mod faulty_progress;
mod faulty_store;
mod jobs;
mod manual_worker;
mod progress;
#[cfg(test)]
mod records;

pub use faulty_progress::{FaultyProgress, Hold, ProgressFaults};
pub use faulty_store::FaultyStore;
pub use jobs::JobsSuite;
pub use manual_worker::{ManualWorker, StartedJob, StartedJobs, manual_worker};
pub use progress::ProgressSuite;

/// Longer than anything here takes on the slowest machine. Only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(20);

/// A broken rule, and how it is broken.
#[derive(Debug)]
struct Broken {
    rule: &'static str,
    how: String,
}

type Checked<R = ()> = Result<R, Broken>;

fn broken<R>(rule: &'static str, how: impl Into<String>) -> Checked<R> {
    Err(Broken { rule, how: how.into() })
}

/// Returns an error unless the condition is true.
fn insist(is_true: bool, rule: &'static str, how: impl FnOnce() -> String) -> Checked {
    if is_true { Ok(()) } else { broken(rule, how()) }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is broken: {}", self.rule, self.how)
    }
}

/// The result of a call into user code.
enum Answer<R> {
    Good(R),
    Failed(String),
    Panicked(String),
}

fn ask<R>(call: impl FnOnce() -> Result<R, BoxError>) -> Answer<R> {
    match guarded(call) {
        Ok(answer) => Answer::Good(answer),
        Err(error) if error.is::<Panic>() => Answer::Panicked(describe(&*error)),
        Err(error) => Answer::Failed(describe(&*error)),
    }
}

impl<R> Answer<R> {
    /// Returns the answer of a call that must succeed.
    fn good(self, rule: &'static str, call: impl FnOnce() -> String) -> Checked<R> {
        match self {
            Self::Good(answer) => Ok(answer),
            Self::Failed(error) => broken(rule, format!("{} failed: {error}", call())),
            Self::Panicked(error) => broken(rule, format!("{} {error}", call())),
        }
    }
}

/// Returns the error within, for callers of [`Progress::save`](crate::Progress::save).
fn unboxed(error: SaveError) -> BoxError {
    match error {
        SaveError::Retry(error) => error,
        lost @ SaveError::Lost(_) => lost.into(),
    }
}

/// Converts the range to a half-open one.
fn numbers_in(range: impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}
