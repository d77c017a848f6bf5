//! A key for which jobs wait.

use crate::base::Index;

/// A key for which jobs wait, as [`Handle::busiest_key`](crate::Handle::busiest_key) returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BusyKey {
    /// The job that has the key: it runs, waits for a retry, or is not written yet.
    pub index: Index,
    /// The jobs that wait behind it.
    pub behind: u64,
}
