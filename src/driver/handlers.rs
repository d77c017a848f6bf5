//! The side of the driver that each thread and each handle of a user talks to. A handler takes the
//! lock and runs the steps that involve several parts, so handlers alone name the
//! [core](super::core).

mod batches;
pub(crate) mod control;
mod handing_out;
pub(super) mod news;
mod observing;
mod ordered;
mod parking;
mod reading;
mod reports;
mod saving;
pub(crate) mod standby;
mod tenure;
mod timeouts;
mod watching;
