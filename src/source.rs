//! Sources of jobs: the trait, gates, a source in memory, and the wake-up that a source rings.

use crate::base::time::{self, Coarse};
use crate::base::{BoxError, Index, config::DEFAULT_POLL, retry::Retry};
use crate::source::{wakeup::Wakeup, watermark::Watermark};
use core::time::Duration;
use std::ops::RangeInclusive;

mod adapted;
#[cfg(feature = "tokio")]
mod asynchronous;
pub(crate) mod bound;
mod confirmed;
mod forward;
#[cfg(feature = "tokio")]
mod futures;
mod gate;
mod gated;
mod memory;
mod sparse;
pub(crate) mod wakeup;
pub(crate) mod watermark;

#[cfg(feature = "tokio")]
pub(crate) use asynchronous::unanswered;
#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncJobs, OnRuntime};
pub use confirmed::Confirmed;
pub(crate) use forward::forward;
#[cfg(feature = "tokio")]
pub(crate) use futures::Futures;
pub use gate::Gate;
pub use gated::Gated;
pub(crate) use gated::{Keeper, Rings};
pub use memory::MemoryJobs;
pub use sparse::{Item, Sparse, SparseError};
pub(crate) use sparse::{Steps, next_of};

/// The pauses before a job that should exist is read again. It is usually there a moment later: a
/// node shows its head before the body.
pub(crate) const MISSING: Retry = Retry::exponential(Duration::from_millis(20), DEFAULT_POLL);

/// When the default [`Jobs::read`] returns what it has, so that a source which takes a second for
/// each job does not keep the workers waiting for a whole run.
const READ_PATIENCE: coarsetime::Duration = coarsetime::Duration::from_millis(10);

/// An ordered stream that is addressed by index (a source).
///
/// The consumer pulls jobs from it; nothing is pushed. This is the consumer's backpressure: it
/// reads no more jobs than it has room for, and a source that grows faster only gets a larger lag.
///
/// The jobs of a source are final: an index never changes its job. If the newest jobs of a stream
/// can still be replaced, the source must show only those that no longer can.
///
/// The consumer calls these methods from one thread at a time and with no lock held, so they may
/// block, and may call the [`Handle`](crate::Handle). With
/// [`max_reading`](crate::Builder::max_reading) several reads are under way at once, never two of
/// one index. After an error or a panic it calls again: at once, and after a
/// [back-off](crate::Builder::source_retry) if calls fail in a row. Jobs that were read before run
/// meanwhile. A call that may hang needs a [timeout](crate::Builder::source_timeout). With the
/// feature `testing`, `waterline::testing::JobsSuite` checks a source of yours.
///
/// ```
/// use waterline::{BoxError, Index, Jobs};
///
/// /// The lines of a text, numbered from 0.
/// struct Lines(Vec<String>);
///
/// impl Jobs for Lines {
///     type Job = String;
///     fn head(&self) -> Result<Option<Index>, BoxError> {
///         Ok((self.0.len() as Index).checked_sub(1))
///     }
///     fn at_index(&self, index: Index) -> Result<Option<String>, BoxError> {
///         Ok(self.0.get(index as usize).cloned())
///     }
/// }
/// # assert_eq!(Lines(vec!["a".into()]).head().unwrap(), Some(0));
/// ```
pub trait Jobs: Send + Sync + 'static {
    /// The job that a worker gets. It need not be `Clone`: for a retry the consumer reads it again.
    type Job: Send + 'static;

    /// Returns the lowest index still available, or head + 1 if everything was removed. Default: 0.
    ///
    /// # Errors
    /// An error at the start of the consumer is [`Error::Source`](crate::Error::Source). Later the
    /// consumer tries again.
    fn first(&self) -> Result<Index, BoxError> {
        Ok(0)
    }

    /// Returns the highest index that is available (the head), or `None` while there is none.
    ///
    /// # Errors
    /// The consumer retries, and shows a lasting error in `status().blocked`.
    fn head(&self) -> Result<Option<Index>, BoxError>;

    /// Returns the job at this index, or `None` if the source does not have it (yet).
    ///
    /// The consumer starts no later index before it.
    ///
    /// # Errors
    /// The consumer retries, and shows a lasting error in `status().blocked`.
    fn at_index(&self, index: Index) -> Result<Option<Self::Job>, BoxError>;

    /// Reads a run of consecutive jobs in one call (prefetch).
    ///
    /// Implement it if one read of many jobs is cheaper than many reads of one. Append the jobs in
    /// index order, and stop at the first missing one. `read` may stop earlier once it has appended
    /// a job; the consumer asks again for the rest. A run is at most max(64, 2 × `max_processing`)
    /// long.
    ///
    /// The default calls [`at_index`](Self::at_index) in a loop, and returns after the first call
    /// that ends later than 10 ms. It uses a coarse clock, since an exact clock can take longer
    /// than `at_index`. So the limit may be 1 to 16 ms late.
    ///
    /// # Errors
    /// The jobs that were appended before the error are valid and run. The failed index is the
    /// start of the run plus the number of appended jobs.
    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Self::Job>) -> Result<(), BoxError> {
        read_one_by_one(run, into, |index| self.at_index(index), time::coarse_uncached)
    }

    /// Reads jobs of a source whose indices have *gaps*, at which there will never be a job.
    ///
    /// Think of deleted rows, or of a sequence in SQL. Implement it instead of
    /// [`read`](Self::read); a source without gaps does not need it.
    ///
    /// Report at most `most` jobs of the run in index order, with [`Sparse::job`], and what is
    /// missing for good. `run` starts at [`into.next()`](Sparse::next) and ends at the head or at
    /// the end of the consumer's window, so it may be very long. Report the whole gap even beyond
    /// the run: a huge gap in steps of a window costs a call and a save for each step.
    ///
    /// A gap is settled at once: it is part of the ranges of `on_processed`, and
    /// [`Status::absent`](crate::Status::absent) counts it. A failed job that waits for its retry
    /// may become a gap: the consumer passes it, with a warning. A gap must never become a job.
    /// (Many databases show rows out of order for a moment; see
    /// [`your_database`](crate::your_database).) If nothing is reported, the first index is missing
    /// for now, as in `read`, and the consumer asks again later.
    ///
    /// The default calls `read` with a run of `most` indices, and knows no gap.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use std::ops::RangeInclusive;
    /// use waterline::{BoxError, Index, Jobs, Sparse};
    ///
    /// /// A table whose rows have ascending ids, some of which were never used.
    /// struct Rows(BTreeMap<Index, String>);
    ///
    /// impl Jobs for Rows {
    ///     type Job = String;
    ///     fn head(&self) -> Result<Option<Index>, BoxError> {
    ///         Ok(self.0.keys().next_back().copied())
    ///     }
    ///     fn at_index(&self, index: Index) -> Result<Option<String>, BoxError> {
    ///         Ok(self.0.get(&index).cloned())
    ///     }
    ///     fn read_sparse(
    ///         &self,
    ///         run: RangeInclusive<Index>,
    ///         most: usize,
    ///         into: &mut Sparse<String>,
    ///     ) -> Result<(), BoxError> {
    ///         // First the head: a row that appears after it is not taken for a gap.
    ///         let head = self.head()?;
    ///         // select id, row from rows where id >= $1 order by id limit $2
    ///         let mut rows = self.0.range(run.start()..);
    ///         for _ in 0..most {
    ///             let Some((index, row)) = rows.next() else {
    ///                 head.into_iter().for_each(|head| into.none_through(head));
    ///                 break;
    ///             };
    ///             if index > run.end() {
    ///                 // One step, however far it is to the next row.
    ///                 into.none_through(index - 1);
    ///                 break;
    ///             }
    ///             into.job(*index, row.clone());
    ///         }
    ///         Ok(())
    ///     }
    /// }
    /// # let rows = Rows(BTreeMap::from([(3, "a".to_owned()), (9, "b".to_owned())]));
    /// # let mut read = Sparse::new(0);
    /// # rows.read_sparse(0..=20, 64, &mut read).unwrap();
    /// # assert_eq!(read.next(), 10);
    /// ```
    ///
    /// # Errors
    /// All that was reported before the error is valid. The default returns a
    /// [`ConfigError`](crate::ConfigError) if `most` is 0, and a [`SparseError`] if the run does
    /// not start at `into.next()`.
    fn read_sparse(
        &self,
        run: RangeInclusive<Index>,
        most: usize,
        into: &mut Sparse<Self::Job>,
    ) -> Result<(), BoxError> {
        self.read(sparse::dense_run(&run, most, into)?, into.dense())
    }

    /// Returns about how many bytes of memory this job takes. Default: the size of its type.
    ///
    /// They count towards [`Builder::max_read_ahead`](crate::Builder::max_read_ahead) from the read
    /// of the job until it is handed out. The default leaves out memory that the job points to, so
    /// implement it if your jobs are large.
    ///
    /// ```
    /// use waterline::{BoxError, Index, Jobs};
    ///
    /// struct Blocks(Vec<Vec<u8>>);
    ///
    /// impl Jobs for Blocks {
    ///     type Job = Vec<u8>;
    ///     fn head(&self) -> Result<Option<Index>, BoxError> {
    ///         Ok((self.0.len() as Index).checked_sub(1))
    ///     }
    ///     fn at_index(&self, index: Index) -> Result<Option<Vec<u8>>, BoxError> {
    ///         Ok(self.0.get(index as usize).cloned())
    ///     }
    ///     fn weight(&self, block: &Vec<u8>) -> usize {
    ///         block.len()
    ///     }
    /// }
    /// # assert_eq!(Blocks(vec![]).weight(&vec![1, 2, 3]), 3);
    /// ```
    fn weight(&self, job: &Self::Job) -> usize {
        let _ = job;
        size_of::<Self::Job>()
    }

    /// Gives the source a wake-up, once, before the first read. Default: it is not used.
    ///
    /// Keep it, ring it whenever a job appears, and return true. Then the consumer does not poll
    /// the source on a timer (unless `poll_every` is set). An adapter around another source passes
    /// the wake-up on to it. The gates of that source need it too: a gate rings it when it opens,
    /// and tells the consumer with it which upstream it follows.
    fn subscribe(&self, wakeup: Wakeup) -> bool {
        let _ = wakeup;
        false
    }

    /// Returns the limit up to which jobs may start below the head. Default: [`Gate::Open`].
    ///
    /// The consumer asks for it with each check of the [head](Self::head), which stays the true
    /// head. If the gate goes back, a job that has started still finishes, and is retried if it
    /// fails. A panic here counts as an error of the source.
    fn gate(&self) -> Gate {
        Gate::Open
    }

    /// Returns why the source does not show a job that was added above its head. Default: `None`.
    ///
    /// An example is a transaction of a database that is still open. Say who holds it up, and what
    /// to do. The consumer asks for it with each check of the [head](Self::head), and shows it in
    /// [`Blocked::SourceWaits`](crate::Blocked::SourceWaits) while it waits for a job above
    /// the head.
    ///
    /// ```
    /// use waterline::{Blocked, BoxError, Consumer, Index, Jobs, MemoryProgress};
    ///
    /// /// A table with rows that are not committed.
    /// struct Table;
    ///
    /// impl Jobs for Table {
    ///     type Job = String;
    ///     fn head(&self) -> Result<Option<Index>, BoxError> {
    ///         Ok(None)
    ///     }
    ///     fn at_index(&self, _: Index) -> Result<Option<String>, BoxError> {
    ///         Ok(None)
    ///     }
    ///     fn waits_for(&self) -> Option<String> {
    ///         Some("process 7 has not committed its transaction: end it there".to_owned())
    ///     }
    /// }
    ///
    /// let consumer = Consumer::builder(Table, MemoryProgress::new()).start(|_| Ok(()))?;
    /// let handle = consumer.handle();
    /// while matches!(handle.status().blocked, Blocked::Looking { .. }) {
    ///     std::thread::yield_now();
    /// }
    /// assert!(handle.status().to_string().ends_with("process 7 has not committed its transaction: end it there"));
    /// consumer.stop()?;
    /// # Ok::<(), waterline::Error>(())
    /// ```
    fn waits_for(&self) -> Option<String> {
        None
    }

    /// Sets how long each call may take, if a time is given, and returns the limit that now
    /// applies.
    ///
    /// [`Duration::MAX`] is no limit. `None`, the default, means that nothing can end a call of
    /// this source from outside, since it is a function on a thread; then
    /// [`Builder::source_timeout`](crate::Builder::source_timeout) is refused.
    ///
    /// `AsyncJobs` obey it. Implement it if the client behind your source takes a timeout: a call
    /// that was given up returns an error. An adapter around another source passes the call on.
    ///
    /// ```
    /// use std::sync::Mutex;
    /// use std::time::Duration;
    /// use waterline::{BoxError, Consumer, Index, Jobs, MemoryProgress};
    ///
    /// /// A client whose requests take a timeout.
    /// struct Client(Mutex<Duration>);
    ///
    /// impl Client {
    ///     fn get(&self, _path: &str, _timeout: Duration) -> Result<u64, BoxError> {
    ///         Ok(0)
    ///     }
    /// }
    ///
    /// impl Jobs for Client {
    ///     type Job = u64;
    ///     fn head(&self) -> Result<Option<Index>, BoxError> {
    ///         Ok(Some(self.get("/head", *self.0.lock().unwrap())?))
    ///     }
    ///     fn at_index(&self, index: Index) -> Result<Option<u64>, BoxError> {
    ///         Ok(Some(self.get(&format!("/blocks/{index}"), *self.0.lock().unwrap())?))
    ///     }
    ///     fn call_timeout(&self, after: Option<Duration>) -> Option<Duration> {
    ///         let mut timeout = self.0.lock().unwrap();
    ///         *timeout = after.unwrap_or(*timeout);
    ///         Some(*timeout)
    ///     }
    /// }
    ///
    /// let client = Client(Mutex::new(Duration::from_secs(30)));
    /// let consumer = Consumer::builder(client, MemoryProgress::new())
    ///     .source_timeout(Duration::from_secs(5))
    ///     .stop_at(0)
    ///     .start(|_| Ok(()))?;
    /// let handle = consumer.handle();
    /// consumer.join()?;
    /// assert_eq!(handle.status().source.timeout, Some(Duration::from_secs(5)));
    /// # Ok::<(), waterline::Error>(())
    /// ```
    fn call_timeout(&self, after: Option<Duration>) -> Option<Duration> {
        let _ = after;
        None
    }

    /// Returns the calls of this source as futures, if it has them. Only sources of this crate do.
    #[cfg(feature = "tokio")]
    #[doc(hidden)]
    fn futures(&self) -> Option<Futures<'_, Self::Job>> {
        None
    }

    /// Puts these jobs behind an upstream consumer of the same stream (a stage).
    ///
    /// No job starts before the upstream has processed its index and saved that. The consumer wakes
    /// up as soon as the upstream's watermark moves. With several gates, no job starts before all
    /// upstreams have processed it.
    ///
    /// ```
    /// use waterline::{Consumer, Jobs, MemoryJobs, MemoryProgress};
    ///
    /// let blocks: MemoryJobs<_> = (0..5).collect();
    /// let fetch = Consumer::builder(blocks.clone(), MemoryProgress::new()).start(|_| Ok(()))?;
    /// let index = Consumer::builder(blocks.gated_by(fetch.handle()), MemoryProgress::new())
    ///     .stop_at(4)
    ///     .start({
    ///         let fetch = fetch.handle();
    ///         move |job| Ok(assert!(fetch.last_processed_index() >= Some(job.index)))
    ///     })?;
    /// index.join()?;
    /// fetch.stop()?;
    /// # Ok::<(), waterline::Error>(())
    /// ```
    fn gated_by(self, upstream: impl AsRef<Watermark>) -> Gated<Self>
    where
        Self: Sized,
    {
        Gated::behind(self, upstream.as_ref().clone())
    }

    /// Shows only the jobs that have at least `n` others above them.
    ///
    /// This is for a chain whose newest blocks may still be replaced: the head is that of this
    /// source minus `n`, and all else is unchanged. A new job rings the wake-up, and confirms the
    /// one `n` below it.
    ///
    /// ```
    /// use waterline::{Jobs, MemoryJobs};
    ///
    /// let blocks: MemoryJobs<_> = ["genesis", "b", "c", "d"].into_iter().collect();
    /// let final_blocks = blocks.clone().confirmed(2);
    /// assert_eq!(final_blocks.head().unwrap(), Some(1));
    /// blocks.push("e");
    /// assert_eq!(final_blocks.head().unwrap(), Some(2));
    /// ```
    fn confirmed(self, n: u64) -> Confirmed<Self>
    where
        Self: Sized,
    {
        Confirmed::new(self, n)
    }
}

/// Reads one job after the other, as the default [`Jobs::read`] does. It reads the clock for each
/// job, so it uses a coarse one (5 to 10 ns). An exact clock takes 30 to 50 ns, as much as all
/// other work for a short job.
fn read_one_by_one<T>(
    run: RangeInclusive<Index>,
    into: &mut Vec<T>,
    mut at_index: impl FnMut(Index) -> Result<Option<T>, BoxError>,
    mut now: impl FnMut() -> Coarse,
) -> Result<(), BoxError> {
    let begun = now();
    for index in run {
        match at_index(index)? {
            Some(job) => into.push(job),
            None => break,
        }
        if now().duration_since(begun) >= READ_PATIENCE {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the jobs that a read of 0 to 9 returns, with a clock that shows these milliseconds.
    fn handed_over(clock: &[u64]) -> Vec<Index> {
        let (mut clock, mut into) = (clock.iter(), Vec::new());
        let now =
            || coarsetime::Instant::from_ticks(coarsetime::Duration::from_millis(*clock.next().unwrap()).as_ticks());
        read_one_by_one(0..=9, &mut into, |index| Ok(Some(index)), now).unwrap();
        into
    }

    #[test]
    fn the_default_read_returns_after_ten_milliseconds() {
        assert_eq!(handed_over(&[100; 11]).len(), 10, "no time passes");
        assert_eq!(handed_over(&[100, 100, 104, 108, 112]), [0, 1, 2, 3], "ticks of 4 ms");
        assert_eq!(handed_over(&[100, 100, 116]), [0, 1], "a tick of 16 ms");
        assert_eq!(handed_over(&[100, 1_100]), [0], "at least one job");
        assert_eq!(handed_over(&[100, 90, 90, 90, 90, 90, 90, 90, 90, 90, 90]).len(), 10, "a clock that goes back");
    }

    #[test]
    fn a_slow_source_returns_each_job_alone() {
        struct Slow;
        impl Jobs for Slow {
            type Job = Index;
            fn head(&self) -> Result<Option<Index>, BoxError> {
                Ok(Some(Index::MAX - 1))
            }
            fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
                // Longer than the time limit and a tick of any clock together.
                let until = std::time::Instant::now() + Duration::from_millis(40);
                while let Some(left) = until.checked_duration_since(std::time::Instant::now()) {
                    std::thread::park_timeout(left);
                }
                Ok(Some(index))
            }
        }
        let mut into = Vec::new();
        Slow.read(7..=70, &mut into).unwrap();
        assert_eq!(into, [7]);
    }
}
