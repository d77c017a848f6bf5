//! The embedded store: opening it, its logs and tables, its bytes on a disk, looks, and files of
//! lines, whose offsets it keeps.

#[cfg(feature = "rocksdb")]
mod attach;
#[cfg(feature = "_disk")]
mod backup;
mod codec;
#[cfg(feature = "_disk")]
mod cut;
mod formats;
mod kept;
mod lines;
mod log;
#[cfg(feature = "_disk")]
mod look;
mod moves;
#[cfg(feature = "_disk")]
mod on_disk;
mod opening;
#[cfg(feature = "sqlite")]
mod power;
mod replace;
mod replay;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sqlite")]
mod statements;
mod writes;
