//! The content of a save, and its error.

use super::{Parked, Record, format};
use crate::base::{BoxError, Index, error::describe};
use std::error::Error as StdError;
use std::fmt;
use std::ops::RangeInclusive;

/// The saved state of a progress that keeps only the watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// The watermark: every index up to and including this one is processed.
    pub last_processed: Index,
}

impl Checkpoint {
    /// Creates a checkpoint: everything up to and including this index is processed.
    #[must_use]
    pub fn new(last_processed: Index) -> Self {
        Self { last_processed }
    }
}

/// All jobs that are done, for a progress that keeps more than the watermark.
///
/// A consumer passes it to [`Progress::save_all`](crate::Progress::save_all), and gets it back from
/// [`Progress::acquire_all`](crate::Progress::acquire_all) in its next life.
///
/// ```
/// use waterline::Saved;
///
/// // 0 to 6 are done, 7 is not, and 9 to 12 and 20 are.
/// let saved = Saved::new(Some(6), 7, vec![9..=12, 20..=20]);
/// assert_eq!((saved.last_processed, saved.next, saved.done.len()), (Some(6), 7, 2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// The watermark; `None` while even the first job of the stream is not done.
    pub last_processed: Option<Index>,
    /// The lowest index that is not done: the watermark + 1, or the first index of the stream.
    pub next: Index,
    /// The jobs that are done above `next`, as runs in ascending order with a gap between any two.
    pub done: Vec<RangeInclusive<Index>>,
    /// The jobs that were parked since the last successful save. In a value that an engine has
    /// loaded: all parked jobs, if it keeps no [`records`](Self::records). Empty if no jobs are
    /// parked.
    pub parked: Vec<Parked>,
    /// The rows that changed since the last successful save, one per key. In a value that an engine
    /// has loaded: all rows. Empty for a consumer that neither parks jobs nor counts crashes, or if
    /// the progress does not [keep records](crate::Progress::keeps_records).
    pub records: Vec<Record>,
}

impl Saved {
    /// Creates the value from the parts that an engine has loaded.
    #[must_use]
    pub fn new(last_processed: Option<Index>, next: Index, done: Vec<RangeInclusive<Index>>) -> Self {
        Self { last_processed, next, done, parked: Vec::new(), records: Vec::new() }
    }

    /// Sorts and joins the runs as in a save. A store loads them in the order of its saves.
    pub(super) fn in_order(mut self) -> Self {
        // The usual case, which must be fast: there may be very many, and a start waits for this.
        if self.is_in_order() {
            return self;
        }
        let next = self.next;
        self.done.retain_mut(|run| {
            *run = (*run.start()).max(next)..=*run.end();
            run.start() <= run.end()
        });
        self.done.sort_unstable_by_key(|run| *run.start());
        self.done.dedup_by(|run, last| {
            let joins = *run.start() <= last.end().saturating_add(1);
            if joins {
                *last = *last.start()..=*last.end().max(run.end());
            }
            joins
        });
        self
    }

    fn is_in_order(&self) -> bool {
        let mut lowest = self.next;
        self.done.iter().all(|run| {
            let follows = lowest <= *run.start() && run.start() <= run.end();
            // There is a gap between two runs.
            lowest = run.end().saturating_add(2);
            follows
        })
    }

    /// Checks that the value can be true: an engine may have read damaged bytes.
    ///
    /// # Errors
    /// What cannot be true.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { last_processed, next, done, .. } = self;
        if *last_processed == Some(Index::MAX) {
            return Err(format!("its watermark is {}, which is never a job", Index::MAX));
        }
        if let Some(last) = last_processed.filter(|last| last + 1 != *next) {
            return Err(format!("its watermark is {last}, and the lowest index that is not done is {next}"));
        }
        if last_processed.is_none() && *next == Index::MAX {
            return Err(format!("nothing is done, and the lowest index that is not is {next}, which is never a job"));
        }
        let mut highest = *next;
        for run in done {
            let (start, end) = (*run.start(), *run.end());
            if start > end {
                return Err(format!("it lists the jobs from {start} to {end}: that run ends before it begins"));
            }
            if end == Index::MAX {
                return Err(format!("it claims that {} is done, which is never a job", Index::MAX));
            }
            if start <= *next && *next <= end {
                return Err(format!("it says that job {next} is not done, and that it is"));
            }
            highest = highest.max(end);
        }
        if highest - next >= format::WIDEST {
            return Err(format!("it claims that jobs up to {highest} are done, far above {next}"));
        }
        Ok(())
    }
}

impl From<Checkpoint> for Saved {
    fn from(Checkpoint { last_processed }: Checkpoint) -> Self {
        Self::new(Some(last_processed), last_processed.saturating_add(1), Vec::new())
    }
}

/// Why a save failed, and so whether the consumer retries it.
///
/// A [`BoxError`] converts to a `Retry`, so `?` works in a function that returns one. Any other
/// error is `SaveError::Retry(error.into())`. An engine that has lost the name returns `Lost`:
///
/// ```
/// use waterline::SaveError;
///
/// fn write(token: u64, newest: u64) -> Result<(), SaveError> {
///     if token < newest {
///         return Err(SaveError::Lost(format!("token {newest} is newer than {token}").into()));
///     }
///     Ok(())
/// }
/// assert!(matches!(write(1, 2), Err(SaveError::Lost(_))));
/// ```
///
/// [`Progress::save`](crate::Progress::save) returns a [`BoxError`], which may be a `SaveError`: a
/// progress that keeps only the watermark returns `Err(SaveError::Lost(…).into())`.
#[derive(Debug)]
#[non_exhaustive]
pub enum SaveError {
    /// The save failed this time. The consumer retries it with back-off until it succeeds.
    Retry(BoxError),
    /// Another consumer has the name now, so no save can ever succeed. The consumer halts at once
    /// with [`Error::Fenced`](crate::Error::Fenced), whose `holder` is the text of this error.
    Lost(BoxError),
}

impl From<BoxError> for SaveError {
    /// Returns a `Retry`, unless the error is a `SaveError` already.
    fn from(error: BoxError) -> Self {
        error.downcast().map_or_else(Self::Retry, |error| *error)
    }
}

impl fmt::Display for SaveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retry(error) => write!(f, "the save failed: {}", describe(&**error)),
            Self::Lost(error) => write!(f, "another consumer has the name: {}", describe(&**error)),
        }
    }
}

impl StdError for SaveError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_sorted_joined_and_cut_at_next() {
        let saved = Saved::new(Some(4), 5, vec![20..=20, 7..=9, 1..=3, 8..=12, 13..=14, 3..=6]);
        assert_eq!(saved.in_order().done, [5..=14, 20..=20]);
        let top = Saved::new(None, 0, vec![Index::MAX - 1..=Index::MAX, 5..=Index::MAX]);
        assert_eq!(top.in_order().done, [5..=Index::MAX]);
    }
}
