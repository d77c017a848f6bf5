//! Running the jobs of a queue with handlers.

pub(crate) mod attempt;
#[cfg(feature = "tokio")]
pub(crate) mod awaiting;
pub(crate) mod builder;
pub(crate) mod drain;
#[cfg(feature = "tokio")]
pub(crate) mod futures;
pub(crate) mod gates;
pub(crate) mod handle;
pub(crate) mod handler;
pub(crate) mod hooks;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
pub(crate) mod outcome;
pub(crate) mod own_end;
pub(crate) mod pool;
pub(crate) mod running;
pub(crate) mod source;
#[cfg(feature = "tokio")]
pub(crate) mod task;
pub(crate) mod timeouts;
pub(crate) mod typed;
