//! Jobs that run in parallel, and whose results are taken in order.

use super::{Builder, Consumer};
use crate::base::error::Error;
use crate::base::index::{BoxError, Index};
use crate::base::sync::Arc;
use crate::progress::Progress;
use crate::run::mode::Mode;
use crate::run::ordered::Ordered;
use crate::run::worker::Job;
use crate::source::Jobs;

impl<J: Jobs, P: Progress> Builder<J, P> {
    /// Starts, with a closure that works jobs off in parallel, and one that takes their results one by one, in index order.
    ///
    /// A job is done when its result was taken. Until it is its turn a result waits in memory, at most `max_search_ahead` of
    /// them; its job holds no slot of `max_processing` meanwhile. When the sink returns an error or panics, that job failed: its
    /// result is lost, and a retry works it off again; no later result is taken before that. In one life the sink is given
    /// ascending indices, and one again only after it failed there; in the next life it goes on with the first job that is
    /// not done, which it may have taken before, if that was not saved.
    ///
    /// While the consumer is paused no result is taken; after [`Handle::resume`](crate::Handle::resume) the sink goes on where
    /// it was. Once the consumer stops or halts no result is taken either: the sink ends the call that it is in, and the results
    /// that wait are dropped when the consumer ends. The next life works those jobs off again.
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
    /// Those of [`start`](Self::start).
    pub fn start_ordered<R, W, S>(self, work: W, sink: S) -> Result<Consumer, Error>
    where
        R: Send + 'static,
        W: Fn(Job<J::Job>) -> Result<R, BoxError> + Send + Sync + 'static,
        S: FnMut(Index, R) -> Result<(), BoxError> + Send + 'static,
    {
        self.launch(Mode::Ordered, |driver, _| Arc::new(Ordered::new(work, sink, driver.clone())))
    }
}
