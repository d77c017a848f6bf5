//! The progress on PostgreSQL, on a real server.
#![cfg(unix)]

#[path = "../server/mod.rs"]
mod server;

mod admin;
mod bank;
mod connecting;
mod dumped;
mod faults;
mod member;
mod names;
mod network;
mod odd;
mod proxy;
mod replace;
mod suites;
mod tls;
mod writes;
