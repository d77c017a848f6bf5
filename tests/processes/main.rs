//! Processes that are killed, or that kill themselves, on a disk.
#![cfg(all(feature = "disk", unix))]

mod crash;
mod crashes;
mod queue;
mod stages;
mod weblog;
