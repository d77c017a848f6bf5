//! The bytes of the records of a queue.

pub(crate) mod durations;
pub(crate) mod entry;
pub(crate) mod extras;
pub(crate) mod head;
pub(crate) mod limit;
pub(crate) mod push;
#[cfg(test)]
mod records;
pub(crate) mod retry;
pub(crate) mod row;
#[cfg(test)]
pub(crate) mod samples;
pub(crate) mod side_records;
