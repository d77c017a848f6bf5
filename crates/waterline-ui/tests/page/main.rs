//! The page over HTTP: its data, its changes, and each refusal.
#![allow(missing_docs, reason = "these are tests")]

mod changes;
mod cost;
mod http;
mod mounted;
mod refusals;
mod views;
mod world;
