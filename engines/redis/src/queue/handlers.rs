//! Handlers whose writes in Redis are made together with the ends of their jobs.

use super::finishing::{finish, queues_of};
use super::writes::Writes;
use serde::de::DeserializeOwned;
use std::time::Duration;
use waterline::{BoxError, Failure};
use waterline_queue::engine_api::{running_parts, take_end};
use waterline_queue::{Finisher, JobData, JobState, Outcome, RunnerBuilder, Running};

/// How long a server that is away is waited for, before the attempt fails.
const OUTAGE: Duration = Duration::from_secs(60);

/// Handlers whose writes are in the Redis of the queue.
pub trait RunnerExt: Sized {
    /// Runs jobs of this kind with a function that may also write to keys of yours in Redis: the
    /// writes are made together with the end of the job if that is [`Outcome::Done`] or
    /// [`Outcome::DoneWith`], and otherwise not at all.
    ///
    /// So each job has its writes *exactly once*, whatever dies. [`Writes`] says what may be
    /// written.
    ///
    /// ```no_run
    /// use waterline_queue::{Outcome, QueueOptions, Runner};
    /// use waterline_redis::{RedisOptions, RedisStore, RunnerExt};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = RedisStore::connect("redis://localhost/0", RedisOptions::new())?;
    /// let queue = store.queue("invoices", QueueOptions::default())?;
    /// let runner = Runner::builder(&queue)
    ///     .on_writing_redis("total", |_job, (order, amounts): (u64, Vec<i64>), w| {
    ///         let total: i64 = amounts.iter().sum();
    ///         w.hset("{invoices}:totals", order.to_string(), total.to_string()).incr("{invoices}:sum", total);
    ///         Ok(Outcome::Done)
    ///     })
    ///     .start()?;
    /// # runner.stop()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// * An error or another outcome ends the attempt as that of any handler does.
    /// * A write or a push that is refused fails the attempt, and nothing of it is made. The hook
    ///   [`after_each`](RunnerBuilder::after_each) sees the outcome of the function, and
    ///   [`teardown`](RunnerBuilder::teardown) what was written in the end.
    /// * If the job is no longer this worker's, nothing is written.
    /// * A server that is away or out of memory is waited for, up to a minute. If an answer is
    ///   lost, the server is asked what became of the end.
    ///
    /// The function runs on a thread of the runner, which makes the call, too. A queue that is not
    /// in Redis fails these jobs for good.
    #[must_use]
    fn on_writing_redis<P, F>(self, kind: impl Into<String>, handler: F) -> Self
    where
        P: DeserializeOwned,
        F: Fn(&Running, P, &mut Writes) -> Result<Outcome, BoxError> + Send + Sync + 'static;
}

impl RunnerExt for RunnerBuilder {
    fn on_writing_redis<P, F>(self, kind: impl Into<String>, handler: F) -> Self
    where
        P: DeserializeOwned,
        F: Fn(&Running, P, &mut Writes) -> Result<Outcome, BoxError> + Send + Sync + 'static,
    {
        self.on_deferred(kind, move |job: Running, payload: P, done: Finisher| {
            let mut writes = Writes::default();
            match handler(&job, payload, &mut writes) {
                Ok(outcome @ (Outcome::Done | Outcome::DoneWith(_))) => end(&job, outcome, &writes, done),
                other => done.end(other),
            }
        })
    }
}

/// Writes the end of a job that is done, unless it has timed out.
fn end(job: &Running, outcome: Outcome, writes: &Writes, done: Finisher) {
    let Some(end) = take_end(done) else { return };
    let written = end.after(Ok(outcome)).and_then(|outcome| {
        let _own = end.enter();
        write(job, outcome, writes)
    });
    end.written(written);
}

fn write(job: &Running, outcome: Outcome, writes: &Writes) -> Result<Option<Option<JobState>>, BoxError> {
    let (queue, held) = running_parts(job);
    queues_of(queue).map_err(|error| Failure::permanent(error.to_string()))?;
    let data: JobData = match outcome {
        Outcome::DoneWith(data) => data.into(),
        _ => None.into(),
    };
    Ok(finish(queue, &held, data, writes, OUTAGE)?)
}
