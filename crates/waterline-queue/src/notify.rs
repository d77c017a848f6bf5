//! Waiters in memory: for a job, for a change, for a log line.

pub(crate) mod averages;
pub(crate) mod bell;
pub(crate) mod kinds;
pub(crate) mod lines;
pub(crate) mod losses;
pub(crate) mod presence;
pub(crate) mod shared;
pub(crate) mod subscribers;
pub(crate) mod waiting;
#[cfg(feature = "tokio")]
pub(crate) mod waiting_tasks;
pub(crate) mod watchers;
