//! The start of a consumer that writes results in the user's own transactions.

use super::{Builder, Consumer};
use crate::base::guard::{Guarded, drop_guarded};
use crate::base::{BoxError, Error, Index, sync::Arc};
use crate::progress::{CommitError, Commits, NotWritten, Progress, Saved, Transactional, commit};
use crate::run::writing::{Results, Writing};
use crate::run::{mode::Mode, worker::Job};
use crate::source::Jobs;

pub(super) struct Writer<W, R> {
    results: Results<R>,
    /// The results in the current transaction, kept for its retry.
    batch: Vec<(Index, R)>,
    /// Last, so that nothing is left to drop if its destructor panics.
    write: Guarded<W>,
}

impl<W, R> Writer<W, R> {
    pub(super) fn new(write: W, results: &Results<R>) -> Box<Self> {
        Box::new(Self { results: results.clone(), batch: Vec::new(), write: Guarded::new(write) })
    }

    /// Takes the results of these jobs. Returns false if one is missing.
    fn gather(&mut self, jobs: &[Index]) -> bool {
        let mut results = self.results.lock();
        if self.batch.len() == jobs.len() {
            // It is a retry.
            return self.batch.iter().map(|(index, _)| index).eq(jobs);
        }
        let back = self.batch.drain(..).map(|(index, result)| (index, Guarded::new(result)));
        results.extend(back);
        let taken = jobs.iter().map(|index| Some((*index, results.remove(index)?.take()?)));
        self.batch.extend(taken.flatten());
        self.batch.len() == jobs.len()
    }

    /// Drops the results, whose destructors are user code.
    fn drop_results(&mut self) {
        if std::mem::needs_drop::<R>() {
            self.batch.drain(..).for_each(drop_guarded);
        }
        self.batch.clear();
    }
}

impl<W, R> Drop for Writer<W, R> {
    fn drop(&mut self) {
        self.drop_results();
    }
}

impl<P, W, R> Commits<P> for Writer<W, R>
where
    P: Transactional,
    R: Send + 'static,
    W: FnMut(&mut P::Tx<'_>, &[(Index, R)]) -> Result<(), BoxError> + Send + 'static,
{
    fn commit(&mut self, progress: &mut P, saved: &Saved, jobs: &[Index]) -> Result<(), NotWritten> {
        if jobs.is_empty() {
            return commit(progress, saved, false, &mut |_| Ok(()));
        }
        let gathered = self.gather(jobs);
        debug_assert!(gathered, "each job that waits has its result");
        // The results are lent as a whole, so they need not be `Sync`.
        let (batch, write) = (&mut self.batch, &mut self.write);
        let outcome = commit(progress, saved, true, &mut |tx| match write.get_mut() {
            Some(write) if gathered => {
                let lent = &mut *batch;
                write(tx, lent)
            }
            _ => Err("the result of a job is gone".into()),
        });
        match &outcome {
            // They are retried together, or each alone.
            Err(NotWritten::Error(CommitError::Retry(_))) => {}
            Err(NotWritten::Error(CommitError::Write(_))) if jobs.len() > 1 => {}
            _ => self.drop_results(),
        }
        outcome
    }
}

impl<J: Jobs, P: Progress> Builder<J, P> {
    /// Limits the jobs that have run and are not written yet. Default: `max_search_ahead`.
    ///
    /// While there are as many, no job starts (backpressure): a slow database slows the jobs down,
    /// and a failing one stops them. Jobs already running may come on top. `max_search_ahead`
    /// bounds them in every case. Only for [`start_writing`](Self::start_writing), also with
    /// futures.
    ///
    /// If the progress does not [keep the jobs done ahead](Progress::keeps_done_ahead), jobs are
    /// written in index order, and this limits the width of the window.
    pub fn max_unwritten(mut self, jobs: u64) -> Self {
        self.asked.max_unwritten = Some(jobs);
        self
    }
}

impl<J: Jobs, P: Transactional> Builder<J, P> {
    /// Starts the consumer with `run` for the jobs and `write` for their results, *exactly once*.
    ///
    /// `run` runs the jobs in parallel, off the database. `write` writes the results of those that
    /// finished meanwhile, in one transaction with the fact that the jobs are done. So each job has
    /// its rows exactly once (see [`Transactional`], with an example).
    ///
    /// There is one transaction at a time, with at most 4,096 jobs in index order. A job is done
    /// when it is written; until then it holds no slot of `max_processing`, and its result waits in
    /// memory ([`max_unwritten`](Self::max_unwritten)). Two transactions are at least the
    /// [`pace`](Progress::pace) of the progress apart, unless many jobs wait.
    ///
    /// If `write` fails or panics while the connection lives, nothing of that transaction is
    /// written. If it had several jobs, each of them is then written alone, once. A job that fails
    /// alone has a failed attempt: its result is lost, and a [`Retry`](crate::Retry) runs it again.
    /// Without an attempt left it halts the consumer, or is parked
    /// ([`OnExhausted::Park`](crate::OnExhausted::Park), which needs no
    /// [`keeps_records`](Progress::keeps_records) here).
    ///
    /// A stop or a halt writes everything that has run; a progress that keeps only the watermark
    /// takes only jobs without an unfinished one below them, and the rest runs again. While the
    /// consumer is paused, jobs that have run are still written. [`on_job_done`](Self::on_job_done)
    /// is called after a successful run, before the job is written.
    ///
    /// A progress without transactions is refused by the compiler:
    ///
    /// ```compile_fail,E0277
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress};
    ///
    /// let jobs = MemoryJobs::<u64>::new();
    /// let started = Consumer::builder(jobs, MemoryProgress::new())
    ///     .start_writing(|job| Ok(job.payload), |_tx, _results| Ok(()));
    /// ```
    ///
    /// # Errors
    /// The errors of [`start`](Self::start), and [`Error::Fenced`] if the first save finds that the
    /// name was taken over since it was acquired.
    pub fn start_writing<R, F, W>(self, run: F, write: W) -> Result<Consumer, Error>
    where
        R: Send + 'static,
        F: Fn(Job<J::Job>) -> Result<R, BoxError> + Send + Sync + 'static,
        W: FnMut(&mut P::Tx<'_>, &[(Index, R)]) -> Result<(), BoxError> + Send + 'static,
    {
        let results: Results<R> = Arc::default();
        let writer = Writer::new(write, &results);
        self.launch_with(Mode::Writing, Some(writer), |driver, _| {
            Arc::new(Writing { results, spans: driver.spans(), work: run })
        })
    }
}
