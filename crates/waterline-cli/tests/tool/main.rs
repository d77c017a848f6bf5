//! The tool as a process, beside an application that is running, was killed, or has halted.
#![cfg(feature = "sqlite")]

mod application;
mod attached;
mod changes;
mod doctor;
mod faults;
mod looks;
mod modes;
mod program;
mod races;
mod refused;
#[cfg(feature = "serve")]
mod serve;
mod stuck;
mod through;
#[cfg(all(unix, feature = "top"))]
mod top;
