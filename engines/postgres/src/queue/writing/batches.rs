//! Jobs that are done, on their way into a transaction.

use super::{
    Finisher, Outcome, OwnEnd, RunnerBuilder, Running, Transaction, Wrote, queues_of, running_parts, take_end,
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use waterline::{BoxError, Failure};

/// The most jobs in one transaction.
const MOST: usize = 256;

/// Handlers whose rows are in the database of the queue.
pub trait RunnerExt: Sized {
    /// Runs jobs of this kind in two steps: `process`, and a shared `write`.
    ///
    /// `process` makes a result of each job, many at once. `write` writes the results of those that
    /// are done, in one transaction with the ends of their jobs. So each job has its rows *exactly
    /// once*, whatever dies, and many jobs share one commit.
    ///
    /// ```no_run
    /// use waterline_queue::{QueueOptions, Runner};
    /// use waterline_postgres::postgres::{NoTls, Transaction};
    /// use waterline_postgres::{PgOptions, PgStore, RunnerExt};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = PgStore::connect("host=localhost".parse()?, NoTls, PgOptions::new())?;
    /// let queue = store.queue("invoices", QueueOptions::default())?;
    /// let runner = Runner::builder(&queue)
    ///     .on_writing(
    ///         "total",
    ///         |_job, (order, amounts): (i64, Vec<i64>)| Ok((order, amounts.iter().sum::<i64>())),
    ///         |transaction: &mut Transaction<'_>, results| {
    ///             for (_job, (order, total)) in results {
    ///                 transaction.execute("INSERT INTO invoices VALUES ($1, $2)", &[order, total])?;
    ///             }
    ///             Ok(())
    ///         },
    ///     )
    ///     .start()?;
    /// # runner.stop()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// * An error of `process` ends the attempt as that of any handler does.
    /// * An error or a panic of `write`, or of the commit, rolls everything back. Then each of
    ///   these jobs has a transaction of its own, so only the attempt of the one at fault fails.
    ///   So `write` may be called more than once for a result. The hook
    ///   [`after_each`](RunnerBuilder::after_each) sees the outcome of `process`, and
    ///   [`teardown`](RunnerBuilder::teardown) what was written in the end.
    /// * A job whose lease has ended is left out, and nothing of it is written.
    /// * If the answer to a COMMIT is lost, the server is asked what became of the transaction. So
    ///   an end that counts is not reported as lost.
    /// * If the process freezes in the transaction, or `write` takes longer than three
    ///   quarters of the lease between two statements, the server ends it, with all of its locks.
    ///   `write` is called again, as after a loss of the connection.
    ///
    /// The transaction is READ COMMITTED, and `write` must not end it. `write` runs on one thread
    /// of the runner at a time, and jobs that are done meanwhile share the next transaction. Until
    /// its end is written, a job counts towards
    /// [`max_processing`](waterline_queue::RunnerBuilder::max_processing).
    ///
    /// A queue that is not in PostgreSQL fails these jobs for good.
    #[must_use]
    fn on_writing<P, R, F, W>(self, kind: impl Into<String>, process: F, write: W) -> Self
    where
        P: DeserializeOwned,
        R: Send + Sync + 'static,
        F: Fn(&Running, P) -> Result<R, BoxError> + Send + Sync + 'static,
        W: Fn(&mut Transaction<'_>, &[(Running, R)]) -> Result<(), BoxError> + Send + Sync + 'static;
}

impl RunnerExt for RunnerBuilder {
    fn on_writing<P, R, F, W>(self, kind: impl Into<String>, process: F, write: W) -> Self
    where
        P: DeserializeOwned,
        R: Send + Sync + 'static,
        F: Fn(&Running, P) -> Result<R, BoxError> + Send + Sync + 'static,
        W: Fn(&mut Transaction<'_>, &[(Running, R)]) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        let writer = Arc::new(Writer { state: Mutex::default(), write });
        self.on_deferred(kind, move |job: Running, payload: P, done: Finisher| match process(&job, payload) {
            Ok(result) => writer.add(job, result, done),
            Err(error) => done.fail(error),
        })
    }
}

struct Writer<R, W> {
    state: Mutex<State<R>>,
    write: W,
}

/// A job that is done, its result, and the right to end it.
type Done<R> = (Running, R, Finisher);

struct State<R> {
    done: Vec<Done<R>>,
    /// True while a thread writes.
    writes: bool,
}

impl<R> Default for State<R> {
    fn default() -> Self {
        Self { done: Vec::new(), writes: false }
    }
}

/// Jobs with their results, and their ends, which only this batch may write now.
struct Batch<R> {
    results: Vec<(Running, R)>,
    ends: Vec<OwnEnd>,
}

impl<R: Send + Sync, W> Writer<R, W>
where
    W: Fn(&mut Transaction<'_>, &[(Running, R)]) -> Result<(), BoxError> + Sync,
{
    /// Takes the result of a job. If no other thread writes, this one does, until nothing is left.
    fn add(&self, job: Running, result: R, done: Finisher) {
        {
            let mut state = self.state.lock();
            state.done.push((job, result, done));
            if std::mem::replace(&mut state.writes, true) {
                return;
            }
        }
        loop {
            let some: Vec<_> = {
                let mut state = self.state.lock();
                let most = state.done.len().min(MOST);
                state.writes = most > 0;
                state.done.drain(..most).collect()
            };
            if some.is_empty() {
                return;
            }
            let (queue, jobs) = (running_parts(&some[0].0).0.name().to_owned(), some.len());
            // If a user's destructor panics, these ends are dropped, and so fail. The others go on.
            if catch_unwind(AssertUnwindSafe(|| self.write_some(some))).is_err() {
                tracing::error!(target: "waterline", queue, jobs, "code of the user's panicked while the ends of jobs were written; those that are not written fail");
            }
        }
    }

    fn write_some(&self, some: Vec<Done<R>>) {
        let mut batch = Batch { results: Vec::new(), ends: Vec::new() };
        for (job, result, done) in some {
            // If the attempt has timed out, another end counts, and its rows are dropped.
            let Some(end) = take_end(done) else { continue };
            match end.after(Ok(Outcome::Done)) {
                Ok(_) => {
                    batch.results.push((job, result));
                    batch.ends.push(end);
                }
                Err(error) => end.written(Err(error)),
            }
        }
        self.write_batch(batch);
    }

    /// Writes jobs in one transaction, or each one alone if that fails.
    fn write_batch(&self, mut batch: Batch<R>) {
        while let Some((first, _)) = batch.results.first() {
            let queues = match queues_of(running_parts(first).0) {
                Ok((queues, _)) => queues,
                Err(error) => return batch.fail(|| Failure::permanent(error.to_string()).into()),
            };
            let jobs: Vec<_> = batch.results.iter().map(|(job, _)| running_parts(job).1).collect();
            let results = &batch.results;
            let written = queues.write_with(&jobs, &mut |transaction| {
                let called = catch_unwind(AssertUnwindSafe(|| (self.write)(transaction, results)));
                called.unwrap_or_else(|_| Err("the write of its rows panicked".into()))
            });
            match written {
                Wrote::Written(states) => {
                    batch.ends.drain(..).zip(states).for_each(|(end, state)| end.written(Ok(Some(state))));
                    return;
                }
                // From the last one, so that the places before it stay.
                Wrote::Lost(lost) => lost.into_iter().rev().for_each(|at| {
                    batch.results.remove(at);
                    batch.ends.remove(at).written(Ok(None));
                }),
                Wrote::Failed(_) if jobs.len() > 1 => {
                    let alone = batch.results.into_iter().zip(batch.ends);
                    alone.for_each(|(result, end)| self.write_batch(Batch { results: vec![result], ends: vec![end] }));
                    return;
                }
                Wrote::Failed(error) => {
                    let mut error = Some(error);
                    return batch.fail(|| error.take().unwrap_or_else(|| "it failed".into()));
                }
                Wrote::Unknown(error) => {
                    let (queue, id, jobs) = (running_parts(first).0.name(), first.id(), jobs.len());
                    tracing::error!(target: "waterline", queue, id, jobs, error, "the server does not say if the ends of these jobs, of which the first is named, are written; those that are not written run again");
                    batch.ends.drain(..).for_each(|end| end.written(Ok(None)));
                    return;
                }
            }
        }
    }
}

impl<R> Batch<R> {
    fn fail(self, mut error: impl FnMut() -> BoxError) {
        self.ends.into_iter().for_each(|end| end.written(Err(error())));
    }
}
