//! The removal of a whole queue.

use super::args::Args;
use super::rows;
use crate::calls::Effect;
use crate::error::Error;
use crate::store::RedisStore;
use waterline_queue::QueueError;
use waterline_queue::remote::{not_found, queue_error};

impl RedisStore {
    /// Removes a queue with everything that belongs to it, and returns how many jobs it had.
    ///
    /// Jobs in any state, history, schedules, notes, limits and options go, in one call. It is
    /// refused while a worker of any process was heard of within a lease: each one calls once a
    /// second, even without a job. A process that has it open is told that there is none, and a
    /// queue of this name can be made anew.
    ///
    /// ```no_run
    /// # use waterline_redis::{RedisOptions, RedisStore};
    /// # let store = RedisStore::connect("redis://localhost/0", RedisOptions::new())?;
    /// let jobs = store.remove_queue("mail")?;
    /// println!("{jobs} jobs are gone");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Store`] with [`waterline::Error::NotFound`] for a queue that does not exist,
    /// and otherwise if it has workers, or if the server fails.
    pub fn remove_queue(&self, name: impl AsRef<str>) -> Result<u64, QueueError> {
        let (name, args) = (name.as_ref(), Args::clocked(None).flag(None));
        let keys = self.keys(name);
        let removed = self.calls().fcall(&[&keys], "wl_remove_queue", &args.all(), Effect::Confirmed);
        let jobs = removed.and_then(|answer| {
            let rows = rows::rows(answer, |row| row.whole());
            rows.map_err(|odd| Error::odd("wl_remove_queue", odd).about(&[&keys]))
        });
        let jobs = jobs
            .map_err(|error| not_found(name, &error).unwrap_or_else(|| queue_error(name, "remove a queue", error)))?;
        Ok(jobs.first().map_or(0, |jobs| jobs.unsigned_abs()))
    }
}
