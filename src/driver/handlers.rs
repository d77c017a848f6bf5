//! The calls of threads and handles into the driver. A handler takes the lock and runs steps that
//! involve several parts, so only handlers name the [core](super::core).

mod batches;
pub(crate) mod control;
mod explain;
mod handing_out;
mod keys;
mod news;
mod observing;
mod ordered;
mod parking;
mod reading;
mod reports;
mod saving;
pub(crate) mod standby;
mod strip;
mod tenure;
mod timeouts;
mod watching;
mod workers;
