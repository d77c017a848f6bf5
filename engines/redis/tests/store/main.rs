//! Connections, functions and bells, on real servers.
#![cfg(unix)]

#[path = "../server/mod.rs"]
mod server;

mod bells;
mod calls;
mod connecting;
mod faults;
mod migrating;
mod places;
#[cfg(feature = "tls")]
mod tls;
