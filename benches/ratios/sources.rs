//! Sources that cost next to nothing, and one that costs much.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};
use waterline::{BoxError, Index, Jobs};

/// The jobs 0, 1, 2, …: a source that costs nothing.
pub(crate) struct Numbers(pub(crate) u64);

impl Jobs for Numbers {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(self.0 - 1))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(Some(index))
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Index>) -> Result<(), BoxError> {
        into.extend(run);
        Ok(())
    }
}

/// The same with the default `read`, which reads one job after the other, as a user's first source
/// does.
pub(crate) struct OneByOne(pub(crate) u64);

impl Jobs for OneByOne {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(self.0 - 1))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(Some(index))
    }
}

/// A source that takes a millisecond for each call, as at the other end of a network.
pub(crate) struct Slow {
    pub(crate) jobs: u64,
    /// True if a run is one call.
    pub(crate) in_runs: bool,
}

fn call() {
    let until = Instant::now() + Duration::from_millis(1);
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        std::thread::park_timeout(left);
    }
}

impl Jobs for Slow {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(self.jobs - 1))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        call();
        Ok(Some(index))
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Index>) -> Result<(), BoxError> {
        if self.in_runs {
            call();
            into.extend(run);
            return Ok(());
        }
        for index in run.take(8) {
            into.extend(self.at_index(index)?);
        }
        Ok(())
    }
}
