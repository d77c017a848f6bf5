//! The runner of a queue, in a program with its own `tracing` subscriber.

mod durations;
#[cfg(feature = "metrics")]
mod metrics;
mod pushed;
mod runner;
mod stopping;
mod typed;
