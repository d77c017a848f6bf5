//! The embedded store: opening it, its logs and tables, its bytes on a disk, and looks from beside.

#[cfg(feature = "rocksdb")]
mod attach;
mod codec;
#[cfg(feature = "rocksdb")]
mod cut;
mod formats;
mod log;
#[cfg(feature = "rocksdb")]
mod look;
mod moves;
#[cfg(feature = "rocksdb")]
mod on_disk;
mod opening;
mod replay;
#[cfg(feature = "sqlite")]
mod statements;
mod writes;
