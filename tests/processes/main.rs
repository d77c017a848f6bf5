//! Processes that are killed, or that kill themselves, on RocksDB.
#![cfg(all(feature = "rocksdb", unix))]

mod crash;
mod crashes;
mod queue;
mod stages;
