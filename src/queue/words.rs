//! The words of a queue: what its users type and read. They know no store.

pub(crate) mod capabilities;
pub(crate) mod data;
pub(crate) mod durations;
pub(crate) mod ended;
pub(crate) mod error;
pub(crate) mod hook;
pub(crate) mod info;
pub(crate) mod job;
pub(crate) mod json;
pub(crate) mod limit;
pub(crate) mod meta;
pub(crate) mod new_job;
pub(crate) mod options;
pub(crate) mod page;
pub(crate) mod periodic;
pub(crate) mod progress;
pub(crate) mod related;
pub(crate) mod row;
pub(crate) mod run_times;
pub(crate) mod schedule;
pub(crate) mod told;
pub(crate) mod typed;
pub(crate) mod unique;
pub(crate) mod used;
pub(crate) mod wanted;
pub(crate) mod worker;
