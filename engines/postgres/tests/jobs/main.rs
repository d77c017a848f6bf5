//! A table as a stream, on a real server.
#![cfg(unix)]

#[path = "../server/mod.rs"]
mod server;

mod faults;
mod ledger;
mod odd;
mod refused;
mod suite;
mod tables;
mod writers;

/// The number of rows or rounds of a test: small, or large with `WATERLINE_SOAK`.
fn size(small: u64, large: u64) -> u64 {
    if std::env::var_os("WATERLINE_SOAK").is_some() { large } else { small }
}
