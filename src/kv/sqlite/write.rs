//! The writing side: one connection. Concurrent batches of several threads share a transaction.

use super::failure::{failed, is_locked};
use super::writer::{COMMIT, Log, LongLog, Writer, apply, begin, roll_back};
use super::{connection::Connections, pace::Pace, still::log_of, transaction::Begun};
use crate::base::error::StoreError;
use crate::base::sync::{Arc, Mutex, MutexGuard};
use crate::kv::batch::Batch;
use rusqlite::Connection;
use std::path::Path;
use std::thread::ThreadId;

pub(super) struct PendingWrite {
    pub(super) connection: Mutex<Writer>,
    /// The thread that has a transaction of the user's statements open.
    held_by: Arc<Mutex<Option<ThreadId>>>,
    /// The batches of threads that wait for the connection.
    pub(super) waiting: Mutex<Vec<Arc<Waiting>>>,
    /// A log that is too long, if a warning is due.
    pub(super) long_log: Arc<Mutex<Option<LongLog>>>,
    pace: Arc<Pace>,
}

/// A batch whose thread waits for the connection. The thread that gets it writes this batch, too.
pub(super) struct Waiting {
    batch: Batch,
    synced: bool,
    told: Mutex<Option<Result<(), StoreError>>>,
}

impl PendingWrite {
    pub(super) fn new(connection: Connection, file: &Path) -> Self {
        let (long_log, pace) = (Arc::default(), Arc::new(Pace::new(log_of(file))));
        let (log, held_by) = (Log::new(file, Arc::clone(&long_log), Arc::clone(&pace)), Arc::default());
        let writer = Writer::new(connection, log, Arc::clone(&held_by));
        Self { connection: Mutex::new(writer), held_by, waiting: Mutex::default(), long_log, pace }
    }

    /// Begins a transaction for the user's statements. Other writers wait until it ends.
    pub(super) fn begin<'a>(
        &'a self,
        readers: &'a Connections,
        synced: bool,
        careful: bool,
    ) -> Result<Begun<'a>, StoreError> {
        self.refuse_myself()?;
        let writer = self.connection.lock();
        *self.held_by.lock() = Some(std::thread::current().id());
        Begun::new(writer, readers, synced, careful)
    }

    /// A thread would wait for itself for ever.
    fn refuse_myself(&self) -> Result<(), StoreError> {
        if *self.held_by.lock() == Some(std::thread::current().id()) {
            let source = "this thread has a transaction of the store open: try it again after it".into();
            return Err(StoreError::new("write".to_owned(), source));
        }
        Ok(())
    }

    /// Returns true (once) if the log is to be written back, or if a warning about it is due.
    pub(super) fn is_untidy(&self) -> bool {
        self.pace.is_due() || self.long_log.lock().is_some()
    }

    /// Writes the log back, and logs the warning that is due.
    pub(super) fn tidy(&self, readers: &Connections) {
        self.pace.write_back(readers);
        let long_log = self.long_log.lock().take();
        if let Some(long_log) = long_log {
            long_log.tell();
        }
    }

    /// Returns the connection if it is idle.
    pub(super) fn idle(&self) -> Option<MutexGuard<'_, Writer>> {
        self.connection.try_lock()
    }

    pub(super) fn with<R>(&self, call: impl FnOnce(&Connection) -> R) -> R {
        call(&self.connection.lock().connection)
    }

    pub(super) fn write(&self, batch: &Batch, synced: bool, readers: &Connections) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        if let Some(mut writer) = self.connection.try_lock() {
            let written = transaction(&writer, synced, |connection| apply(connection, batch));
            writer.look(batch.len(), readers);
            return written;
        }
        self.refuse_myself()?;
        let mine = Arc::new(Waiting { batch: batch.clone(), synced, told: Mutex::default() });
        self.waiting.lock().push(mine.clone());
        let mut writer = self.connection.lock();
        if let Some(told) = mine.told.lock().take() {
            return told;
        }
        let all = std::mem::take(&mut *self.waiting.lock());
        write_all(&writer, &all);
        writer.look(all.iter().map(|waiting| waiting.batch.len()).sum(), readers);
        mine.told.lock().take().unwrap_or_else(|| unreachable!("each batch on the list is written"))
    }
}

/// Writes these batches in one transaction. If that fails, each gets one of its own, so that only
/// the faulty one fails. If the file is locked, none is at fault, and none waits again.
fn write_all(writer: &Writer, all: &[Arc<Waiting>]) {
    let synced = all.iter().any(|waiting| waiting.synced);
    let together =
        transaction(writer, synced, |connection| all.iter().try_for_each(|waiting| apply(connection, &waiting.batch)));
    match together {
        Err(error) if is_locked(&error) => {
            for waiting in all {
                let (doing, source) = (error.doing.clone(), error.source.to_string().into());
                *waiting.told.lock() = Some(Err(StoreError::new(doing, source)));
            }
        }
        Err(_) if all.len() > 1 => {
            for waiting in all {
                let written = transaction(writer, waiting.synced, |connection| apply(connection, &waiting.batch));
                *waiting.told.lock() = Some(written);
            }
        }
        mut together => {
            for waiting in all {
                *waiting.told.lock() = Some(std::mem::replace(&mut together, Ok(())));
            }
        }
    }
}

/// Runs this in a transaction: all of it is written, or nothing.
fn transaction(
    writer: &Writer,
    synced: bool,
    run: impl FnOnce(&Connection) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    begin(writer, synced).map_err(failed("write"))?;
    let open = Open(&writer.connection);
    run(open.0)?;
    open.0.prepare_cached(COMMIT).and_then(|mut commit| commit.execute([])).map(drop).map_err(failed("write"))
}

/// A transaction that is rolled back on drop.
struct Open<'a>(&'a Connection);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.0.is_autocommit() {
            // SQLite has mostly rolled back by itself. If this fails, so does the next BEGIN.
            let _ = roll_back(self.0);
        }
    }
}
