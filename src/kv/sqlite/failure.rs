//! SQLite's errors, each with what to do about it.

use crate::base::error::StoreError;
use rusqlite::ErrorCode;

/// An SQLite error, with the advice that its own text lacks.
#[derive(Debug, thiserror::Error)]
#[error("{error}: {advice}")]
struct SqliteFailure {
    error: rusqlite::Error,
    advice: &'static str,
}

/// Returns a conversion into the error of a call that failed to do this.
pub(super) fn failed(doing: impl Into<String>) -> impl FnOnce(rusqlite::Error) -> StoreError {
    move |error| {
        let source = match error.sqlite_error_code().and_then(advice) {
            Some(advice) => SqliteFailure { error, advice }.into(),
            None => error.into(),
        };
        StoreError::new(doing.into(), source)
    }
}

fn advice(code: ErrorCode) -> Option<&'static str> {
    Some(match code {
        ErrorCode::DatabaseBusy => {
            "another connection holds the lock of the file for longer than `busy_timeout`: end its transaction, or \
             do not wait for the store inside of one"
        }
        ErrorCode::DatabaseCorrupt => "the file is damaged: restore it from a backup",
        ErrorCode::NotADatabase => "this file is no SQLite database: give another path",
        ErrorCode::SystemIoFailure => "its disk refuses it: look if it is full, or broken",
        ErrorCode::DiskFull => "free some space on its disk",
        ErrorCode::ReadOnly => "this process may not write to the file or its directory: look at their permissions",
        ErrorCode::CannotOpen => {
            "look if its directory is there, at the permissions of both, and at the limit of open files"
        }
        _ => return None,
    })
}

/// True if another connection holds the lock.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

/// True if this call failed because another connection holds the lock.
pub(super) fn is_locked(error: &StoreError) -> bool {
    error.source.downcast_ref().is_some_and(|SqliteFailure { error, .. }| is_busy(error))
}
