//! The order of jobs by key.

use super::Builder;
use crate::reader::hashed;
use crate::source::Jobs;
use std::hash::Hash;

impl<J: Jobs, P> Builder<J, P> {
    /// Runs the jobs of one key one after the other, in index order; other keys run beside them.
    ///
    /// The closure returns the key of a job, or `None` for a job that waits for no other one. A key
    /// is taken when its lowest job is read. It is free for the next job of the key once that one
    /// is done, parked or gone: in [`start_ordered`](Self::start_ordered) once the sink has taken
    /// its result, and in `start_transactional` and `start_writing` once it is written. So there a
    /// job may *read* the rows of its key, change them and write them back, exactly once: all
    /// earlier jobs of the key are in the tables, and no other one runs.
    ///
    /// * A job that fails keeps its key until it succeeds, is parked, or halts the consumer; the
    ///   jobs behind it wait, and other keys go on. If it is parked, the next job of its key runs:
    ///   who must not go on without it keeps [`OnExhausted::Halt`](crate::OnExhausted::Halt). A
    ///   redriven job runs out of order, but beside no other one of its key.
    /// * Jobs that wait take no slot and no room of the read-ahead, so a key with many jobs delays
    ///   no other one. Their values take half of [`max_read_ahead`](Self::max_read_ahead) at most;
    ///   beyond that they are read again when their turn comes. At most 131,072 jobs wait; then
    ///   nothing new is read. [`Status::behind`](crate::Status::behind) counts them, and
    ///   [`Handle::busiest_key`](crate::Handle::busiest_key) finds the longest line.
    /// * Without effects a job may run again after a crash, as ever, and then also after a later
    ///   one of its key that ran before the crash.
    ///
    /// The closure runs where the source is read. If it panics, the source has failed at that job,
    /// and is asked again after a pause. It may be another one in the next life: the order holds
    /// from then on. Default: no order. Not for batches, which are refused.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, Store};
    ///
    /// let store = Store::in_memory();
    /// let highest = store.table("highest")?;
    /// let bids: MemoryJobs<_> = [("a", 3_u64), ("b", 9), ("a", 7), ("a", 5), ("b", 2)].into_iter().collect();
    /// let rows = highest.clone();
    /// Consumer::builder(bids, store.progress("bids"))
    ///     .ordered_by(|(lot, _)| Some(*lot))
    ///     .stop_at(4)
    ///     .start_transactional(move |job, effects| {
    ///         let (lot, bid) = job.payload;
    ///         // All earlier bids for this lot are in the table, and no other one is under way.
    ///         let before = rows.get(lot)?.map_or(0, |row| row[0].into());
    ///         Ok(effects.put(&rows, lot, [u8::try_from(bid.max(before))?])?)
    ///     })?
    ///     .join()?;
    /// assert_eq!((highest.get("a")?, highest.get("b")?), (Some(vec![7]), Some(vec![9])));
    /// # Ok::<(), waterline::Error>(())
    /// ```
    #[doc(alias("partition", "per-key order"))]
    pub fn ordered_by<K: Hash>(mut self, key: impl Fn(&J::Job) -> Option<K> + Send + Sync + 'static) -> Self {
        self.key = Some(hashed(key));
        self.asked.by_key = true;
        self
    }
}
