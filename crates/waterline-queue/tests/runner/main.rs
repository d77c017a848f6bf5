//! The runner of a queue. Its program has a subscriber of `tracing` of its own.

mod durations;
#[cfg(feature = "metrics")]
mod metrics;
mod pushed;
mod runner;
mod stopping;
mod typed;
