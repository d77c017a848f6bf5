//! The removal of a whole queue.

use super::calls::{Database, values};
use super::faults::Failed;
use crate::error::Error;
use crate::store::PgStore;
use waterline_queue::QueueError;
use waterline_queue::remote::{not_found, queue_error};

impl PgStore {
    /// Removes a queue with everything that belongs to it, and returns how many jobs it had.
    ///
    /// Jobs in any state, history, schedules, notes, limits and options go. It is refused while a
    /// worker of any process was heard of within a lease: each one calls once a second, even
    /// without a job. The queue is removed piece by piece. From the first one on, a process that
    /// has it open is told that there is none (`WQ001`), and a queue of this name can be made anew.
    /// If the call fails on the way, the rest is named `removed …`, and the same call removes it.
    ///
    /// ```no_run
    /// # use waterline_postgres::{PgOptions, PgStore, postgres::NoTls};
    /// # let store = PgStore::connect("host=localhost".parse()?, NoTls, PgOptions::new())?;
    /// let jobs = store.remove_queue("mail")?;
    /// println!("{jobs} jobs are gone");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Store`] with [`waterline::Error::NotFound`] for a queue that does not exist,
    /// and otherwise if it has workers, or if the database fails.
    pub fn remove_queue(&self, name: impl AsRef<str>) -> Result<u64, QueueError> {
        let (queues, name) = (self.queues(), name.as_ref());
        let mut removed = 0;
        loop {
            let (jobs, more) = queues.server().remove_some(name)?;
            removed += jobs;
            if !more {
                return Ok(removed);
            }
        }
    }
}

impl Database {
    /// Removes a piece of a queue, and returns whether there is more.
    fn remove_some(&self, name: &str) -> Result<(u64, bool), QueueError> {
        let sql = self.sql_of("remove_queue", 1);
        let values = values![TEXT name];
        let removed = self.with(None, |client, _| {
            let rows = client.query_typed(&sql, &values)?;
            let row = rows.first().ok_or(Error::Closed)?;
            Ok((row.try_get::<_, i64>(0)?, row.try_get::<_, bool>(1)?))
        });
        let (jobs, more) = removed.map_err(|error| {
            let error = Failed::from(error);
            not_found(name, &error).unwrap_or_else(|| queue_error(name, "remove a queue", error))
        })?;
        Ok((jobs.unsigned_abs(), more))
    }
}
