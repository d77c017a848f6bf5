//! The job queue, call by call, on the store of the build.

mod after;
#[cfg(feature = "tokio")]
mod awaiting;
mod bounded;
mod calls;
#[cfg(feature = "tokio")]
mod crowded;
mod group;
mod json;
mod limits;
mod meta;
mod parity;
mod periodic;
mod suite;
mod time;
mod unique;
