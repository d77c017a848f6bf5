//! The desks: the side of the driver that each thread and each handle talks to. They alone name the
//! [core](super::core): a desk takes the lock, and does there what is the matter of several parts.

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
