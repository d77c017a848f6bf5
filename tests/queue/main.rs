//! The job queue, but for its runner and its random models.

mod after;
#[cfg(feature = "tokio")]
mod asynchronous;
mod bounded;
mod calls;
mod crash;
mod durations;
mod gates;
mod group;
mod limits;
mod many;
mod meta;
#[cfg(feature = "metrics")]
mod metrics;
mod parity;
mod periodic;
mod pushed;
mod rules;
mod unique;
