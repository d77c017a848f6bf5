//! The embedded store: opening it, its logs and tables, its bytes on a disk, and looks from beside.

#[cfg(feature = "rocksdb")]
mod attach;
#[cfg(feature = "disk")]
mod backup;
mod codec;
#[cfg(feature = "disk")]
mod cut;
mod formats;
mod kept;
mod log;
#[cfg(feature = "disk")]
mod look;
mod moves;
#[cfg(feature = "disk")]
mod on_disk;
mod opening;
#[cfg(feature = "sqlite")]
mod power;
mod replay;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sqlite")]
mod statements;
mod writes;
