//! Processes that are killed or kill themselves, on a disk.
#![cfg(all(feature = "_disk", unix))]

mod crash;
mod crashes;
mod queue;
mod stages;
mod weblog;
