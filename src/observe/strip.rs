//! The window of a consumer as a strip of cells, for a page that draws it.

use crate::base::Index;
use crate::base::serialized::{fields, long};
use crate::observe::status::Attempt;
use std::time::Duration;

/// How many attempts and retries a strip lists at most.
pub(crate) const LISTED: usize = 100;

/// The window of a consumer as a strip of cells, from [`Handle::strip`](crate::Handle::strip).
///
/// `serde` writes its fields, the cells as one text with a letter each: see [`StripCell`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Strip {
    /// The first index of the strip: the lowest unprocessed one.
    pub from: Index,
    /// One past the last index of the strip.
    pub end: Index,
    /// How many indices a cell has. The last cell may have fewer.
    pub per_cell: u64,
    /// The cells, in index order. Empty while nothing is left to do.
    pub cells: Vec<StripCell>,
    /// The limit on the jobs in flight.
    pub max_processing: usize,
    /// The limit on the width of the window; [`u64::MAX`] means none.
    pub max_search_ahead: u64,
    /// The attempts in flight with the lowest indices, at most 100.
    pub running: Vec<Attempt>,
    /// The jobs with the lowest indices that wait for their next attempt, at most 100.
    pub retries: Vec<StripRetry>,
    /// How many jobs wait for their next attempt.
    pub retrying: u64,
}

/// A cell of a [`Strip`]: the state of its indices. If they differ, it shows the first in this
/// list, which an operator has to know first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StripCell {
    /// A job failed and waits for its next attempt (`f`).
    Failed,
    /// A job is parked (`p`).
    Parked,
    /// A job runs (`r`).
    Running,
    /// All are gaps (`g`): the source has said in this life of the consumer that there will never
    /// be a job. At most 1,024 runs of gaps are kept; others, and those of an earlier life, show as
    /// done.
    Gap,
    /// All are done, or gaps (`d`).
    Done,
    /// Some are done (`+`).
    PartlyDone,
    /// None was started (`.`).
    NotStarted,
}

/// A job that failed and waits for its next attempt, in a [`Strip`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StripRetry {
    /// The index of the job.
    pub index: Index,
    /// The number of the attempt that failed, from 1.
    pub attempt: u32,
    /// How long until the next attempt; zero if the job is due.
    pub retry_in: Duration,
    /// The error of that attempt.
    pub error: String,
}

/// The indices that a strip shows, in cells of one width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ruler {
    pub(crate) from: Index,
    pub(crate) end: Index,
    pub(crate) per_cell: u64,
}

impl Ruler {
    /// Divides the indices into at most this many cells.
    pub(crate) fn new(from: Index, end: Index, most: usize) -> Self {
        let span = end.saturating_sub(from);
        Self { from, end: from + span, per_cell: span.div_ceil(most.max(1) as u64).max(1) }
    }

    /// Returns the first index of each cell, and one past its last.
    pub(crate) fn cells(self) -> impl Iterator<Item = (Index, Index)> {
        let count = (self.end - self.from).div_ceil(self.per_cell);
        (0..count).map(move |cell| {
            let start = self.from + cell * self.per_cell;
            (start, start.saturating_add(self.per_cell).min(self.end))
        })
    }

    pub(crate) fn cell_of(self, index: Index) -> Option<usize> {
        let is_there = (self.from..self.end).contains(&index);
        is_there.then(|| usize::try_from((index - self.from) / self.per_cell).unwrap_or(usize::MAX))
    }
}

impl StripCell {
    /// Returns the state of `count` indices, of which `done` are done, including `gaps` gaps.
    pub(crate) fn of(count: u64, done: u64, gaps: u64) -> Self {
        match done {
            0 => Self::NotStarted,
            _ if done < count => Self::PartlyDone,
            _ if gaps >= count => Self::Gap,
            _ => Self::Done,
        }
    }

    fn letter(self) -> char {
        match self {
            Self::Failed => 'f',
            Self::Parked => 'p',
            Self::Running => 'r',
            Self::Gap => 'g',
            Self::Done => 'd',
            Self::PartlyDone => '+',
            Self::NotStarted => '.',
        }
    }
}

// JavaScript cannot hold `u64::MAX` exactly.
fields!(Strip, of: from, end, per_cell, cells = of.cells.iter().map(|cell| cell.letter()).collect::<String>(),
    max_processing, max_search_ahead = Some(of.max_search_ahead).filter(|width| *width < u64::MAX), running, retries,
    retrying);

fields!(StripRetry, of: index, attempt, retry_in = long(of.retry_in), error);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ruler_cells_cover_each_index_once() {
        for (from, end, most) in [(0, 0, 10), (5, 6, 10), (5, 15, 10), (5, 16, 10), (0, 999_999, 1_000), (7, 3, 1)] {
            let ruler = Ruler::new(from, end, most);
            let cells: Vec<_> = ruler.cells().collect();
            assert!(cells.len() <= most, "{from} {end} {most}: {}", cells.len());
            assert_eq!(cells.first().map_or(from, |cell| cell.0), from);
            assert_eq!(cells.last().map_or(from.max(end), |cell| cell.1), from.max(end));
            assert!(cells.windows(2).all(|two| two[0].1 == two[1].0));
            for (nth, (start, end)) in cells.into_iter().enumerate() {
                assert_eq!([ruler.cell_of(start), ruler.cell_of(end - 1)], [Some(nth); 2]);
            }
            assert_eq!(ruler.cell_of(end.max(from)), None);
        }
        assert_eq!(Ruler::new(u64::MAX - 5, u64::MAX, 2).cells().count(), 2);
    }
}
