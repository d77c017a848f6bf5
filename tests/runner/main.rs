//! The runner of a queue. Its program has a subscriber of `tracing` of its own.

#[cfg(feature = "tokio")]
mod asynchronous;
mod durations;
mod gates;
#[cfg(feature = "metrics")]
mod metrics;
mod pushed;
mod runner;
mod stopping;
mod typed;
