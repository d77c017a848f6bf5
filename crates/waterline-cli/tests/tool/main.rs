//! The tool as a process, beside an application that runs, one that was killed, and one that has
//! halted.
#![cfg(feature = "sqlite")]

mod application;
mod changes;
mod doctor;
mod faults;
mod looks;
mod program;
mod refused;
mod stuck;
mod through;
