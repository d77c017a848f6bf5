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

/// The number of rows or rounds of a test: a small one, or with `WATERLINE_SOAK` a large one.
fn size(small: u64, large: u64) -> u64 {
    if std::env::var_os("WATERLINE_SOAK").is_some() { large } else { small }
}
