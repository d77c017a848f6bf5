//! The lock of a store. Names, ids, tails and bounds live in the memory of the one process that
//! writes, so a second one must be kept out.
//!
//! It is a small database of its own, in an exclusive transaction. That is built on the locks of
//! the operating system, so it is released when its process dies.

use super::failure::{failed, is_busy};
use super::still::beside;
use crate::base::{Error, sync::Mutex};
use crate::kv::place::opening;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;
use std::time::Duration;

/// Held until it is dropped.
pub(super) struct Lock {
    _held: Mutex<Connection>,
}

impl Lock {
    /// Takes the lock of this database. Errors name `path`.
    pub(super) fn take(file: &Path, path: &Path) -> Result<Self, Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let taken = Connection::open_with_flags(beside(file, "-lock"), flags).and_then(|held| {
            held.busy_timeout(Duration::ZERO)?;
            held.execute_batch("BEGIN EXCLUSIVE")?;
            Ok(held)
        });
        match taken {
            Ok(held) => Ok(Self { _held: Mutex::new(held) }),
            Err(error) if is_busy(&error) => Err(Error::Locked { path: path.to_owned() }),
            Err(error) => Err(failed(opening(path))(error).into()),
        }
    }
}
