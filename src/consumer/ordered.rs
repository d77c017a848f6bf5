//! The start of a consumer whose jobs run in parallel, with results taken in order.

use super::{Builder, Consumer};
use crate::base::{BoxError, Error, Index, sync::Arc};
use crate::progress::Progress;
use crate::run::ordered::{Ordered, Sink};
use crate::run::{mode::Mode, worker::Job};
use crate::source::Jobs;

impl<J: Jobs, P: Progress> Builder<J, P> {
    /// Starts the consumer with parallel `work` and a `sink` that takes the results in index order.
    ///
    /// A job is done when the sink has taken its result. Until its turn the result waits in memory,
    /// and the job holds no slot of `max_processing`. At most `max_search_ahead` results wait.
    ///
    /// If the sink returns an error or panics, that job has failed: its result is lost, and a retry
    /// runs `work` again. No later result is taken before that. In one life the sink gets ascending
    /// indices, and an index again only after it failed there. In the next life the sink goes on
    /// with the first unfinished job, which it may have taken before if that was not saved.
    ///
    /// While the consumer is paused the sink takes no result; after
    /// [`Handle::resume`](crate::Handle::resume) it goes on where it was. Once the consumer stops
    /// or halts, the sink finishes its call and takes no further result; those that wait are
    /// dropped at the end. The next life runs these jobs again.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress};
    ///
    /// let jobs: MemoryJobs<_> = ["one", "two", "three"].into_iter().collect();
    /// let (send, results) = crossbeam_channel::unbounded();
    /// Consumer::builder(jobs, MemoryProgress::new())
    ///     .stop_at(2)
    ///     .start_ordered(|job| Ok(job.payload.len()), move |index, length| Ok(send.send((index, length))?))?
    ///     .join()?;
    /// assert_eq!(results.iter().collect::<Vec<_>>(), [(0, 3), (1, 3), (2, 5)]);
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn start_ordered<R, W, S>(self, work: W, sink: S) -> Result<Consumer, Error>
    where
        R: Send + 'static,
        W: Fn(Job<J::Job>) -> Result<R, BoxError> + Send + Sync + 'static,
        S: FnMut(Index, R) -> Result<(), BoxError> + Send + 'static,
    {
        self.launch(Mode::Ordered, |driver, _| Arc::new(Ordered { sink: Sink::new(sink), spans: driver.spans(), work }))
    }
}
