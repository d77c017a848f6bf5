//! The job queue on PostgreSQL, on a real server.
#![cfg(unix)]

#[path = "../server/mod.rs"]
mod server;

#[path = "../progress/proxy.rs"]
mod proxy;

mod answers;
mod bells;
mod bench;
mod bounds;
mod calls;
mod chaos;
mod clocks;
mod complaints;
mod connections;
mod crossing;
mod damage;
mod dead_rows;
mod edges;
mod ends;
mod futures;
mod grants;
mod languages;
mod leases;
mod looks;
mod own;
mod prepared;
mod rules;
mod sessions;
mod sharing;
mod shown;
mod suite;
mod twins;
mod versions;
mod workers;
mod working;

/// The number of jobs or rounds of a test: small, or large with `WATERLINE_SOAK`.
fn size(small: u64, large: u64) -> u64 {
    if std::env::var_os("WATERLINE_SOAK").is_some() { large } else { small }
}
