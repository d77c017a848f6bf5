//! Reads the rows of functions that show something, by the names of their columns.

use postgres::types::Json;
use postgres::{Error, Row};
use waterline_queue::remote::{LimitRow, PeriodicRow, Shown, WorkerRow};

/// Reads the columns that are named like the fields.
macro_rules! read {
    ($row:ident, $of:ident: $($field:ident)+ $(, $($rest:tt)+)?) => {
        Ok($of { $($field: $row.try_get(stringify!($field))?,)+ $($($rest)+)? })
    };
}

pub(super) fn shown(row: &Row) -> Result<Shown, Error> {
    read!(row, Shown: id state priority place tie kind payload data meta key failures crashes pushed due since resubmit
        error fraction note noted root root_at is_root expires cost held_by pending suspect skipped)
}

/// Reads what waiters are told of a job.
pub(super) fn state(row: &Row) -> Result<Shown, Error> {
    read!(row, Shown: id state data error fraction note noted, ..Shown::default())
}

pub(super) fn limit(row: &Row) -> Result<LimitRow, Error> {
    read!(row, LimitRow: name at_once rate_count rate_per_ns rate_burst running tokens held)
}

pub(super) fn periodic(row: &Row) -> Result<PeriodicRow, Error> {
    read!(row, PeriodicRow: name last run skipped schedule next damaged)
}

pub(super) fn worker(row: &Row) -> Result<WorkerRow, Error> {
    let Json(jobs) = row.try_get("jobs")?;
    read!(row, WorkerRow: name process host language version kinds slots busy began silent_for silent stopping
        newest_ran lease_left, jobs)
}
