//! The status of a consumer, its events, its metrics and its errors.

mod bad_input;
mod errors;
#[cfg(feature = "metrics")]
mod metrics;
mod observers;
mod refused;
mod statuses;
