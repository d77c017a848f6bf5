//! The job queue on Redis, on a real server.
#![cfg(unix)]

#[path = "../server/mod.rs"]
mod server;

mod bench;
mod bounds;
mod chaos;
mod clocks;
mod cluster;
mod damage;
mod failover;
mod finishing;
mod languages;
mod leases;
mod pages;
mod refused;
mod room;
mod sick;
mod suite;
mod unique;
mod versions;
mod watching;

/// The number of jobs or rounds of a test: small, or large with `WATERLINE_SOAK`.
fn size(small: u64, large: u64) -> u64 {
    if std::env::var_os("WATERLINE_SOAK").is_some() { large } else { small }
}
