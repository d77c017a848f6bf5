//! The desks: the side of the driver that each thread and each handle talks to. What a desk does
//! under the lock is here, too, as far as it is the matter of several parts of the core.

mod batches;
pub(crate) mod control;
mod handing_out;
mod news;
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
