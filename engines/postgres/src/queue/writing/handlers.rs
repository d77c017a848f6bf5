//! Handlers whose rows are in the database of the queue.

use super::batches::Writer;
use super::{Finisher, RunnerBuilder, Running, Transaction};
use serde::de::DeserializeOwned;
use waterline::BoxError;
use waterline_queue::TypedJob;
use waterline_queue::engine_api::{on_async_then, typed};

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

    /// Runs jobs of this type as [`on_writing`](Self::on_writing) does.
    #[must_use]
    fn job_writing<J, R, F, W>(self, process: F, write: W) -> Self
    where
        J: TypedJob,
        R: Send + Sync + 'static,
        F: Fn(&Running, J) -> Result<R, BoxError> + Send + Sync + 'static,
        W: Fn(&mut Transaction<'_>, &[(Running, R)]) -> Result<(), BoxError> + Send + Sync + 'static;

    /// Runs jobs of this kind as [`on_writing`](Self::on_writing) does, with a `process` that is a
    /// future: it takes no thread, and no transaction is open while it runs.
    ///
    /// ```no_run
    /// use waterline_queue::{QueueOptions, Runner};
    /// use waterline_postgres::postgres::{NoTls, Transaction};
    /// use waterline_postgres::{PgOptions, PgStore, RunnerExt};
    ///
    /// # async fn rate(_currency: &str) -> Result<f64, std::io::Error> { Ok(1.0) }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = PgStore::connect("host=localhost".parse()?, NoTls, PgOptions::new())?;
    /// # let runtime = tokio::runtime::Runtime::new()?;
    /// # let _context = runtime.enter();
    /// let queue = store.queue("rates", QueueOptions::default())?;
    /// let runner = Runner::builder(&queue)
    ///     .on_writing_async(
    ///         "fetch",
    ///         |_job, currency: String| async move {
    ///             let rate = rate(&currency).await?;      // a request
    ///             Ok((currency, rate))
    ///         },
    ///         |transaction: &mut Transaction<'_>, results| {
    ///             for (_job, (currency, rate)) in results {
    ///                 transaction.execute("INSERT INTO rates VALUES ($1, $2)", &[currency, rate])?;
    ///             }
    ///             Ok(())
    ///         },
    ///     )
    ///     .max_processing(1_000)
    ///     .start()?;
    /// # runner.stop()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The runtime, its context, and what drops a future are as in
    /// [`on_async`](RunnerBuilder::on_async). `write` runs on a thread of its own.
    #[must_use]
    fn on_writing_async<P, R, F, Fut, W>(self, kind: impl Into<String>, process: F, write: W) -> Self
    where
        P: DeserializeOwned,
        R: Send + Sync + 'static,
        F: Fn(Running, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, BoxError>> + Send + 'static,
        W: Fn(&mut Transaction<'_>, &[(Running, R)]) -> Result<(), BoxError> + Send + Sync + 'static;

    /// Runs jobs of this type as [`on_writing_async`](Self::on_writing_async) does.
    ///
    /// ```no_run
    /// use waterline_queue::{QueueOptions, Runner, TypedJob};
    /// use waterline_postgres::postgres::{NoTls, Transaction};
    /// use waterline_postgres::{PgOptions, PgStore, RunnerExt};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Fetch(String);
    ///
    /// impl TypedJob for Fetch {
    ///     const KIND: &'static str = "fetch";
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = PgStore::connect("host=localhost".parse()?, NoTls, PgOptions::new())?;
    /// # let queue = store.queue("pages", QueueOptions::default())?;
    /// # let runtime = tokio::runtime::Runtime::new()?;
    /// # let _context = runtime.enter();
    /// let insert = |transaction: &mut Transaction<'_>, pages: &[(_, String)]| {
    ///     for (_job, page) in pages {
    ///         transaction.execute("INSERT INTO pages VALUES ($1)", &[page])?;
    ///     }
    ///     Ok(())
    /// };
    /// let runner = Runner::builder(&queue).job_writing_async(|_job, Fetch(page)| async { Ok(page) }, insert).start()?;
    /// # runner.stop()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    fn job_writing_async<J, R, F, Fut, W>(self, process: F, write: W) -> Self
    where
        J: TypedJob,
        R: Send + Sync + 'static,
        F: Fn(Running, J) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, BoxError>> + Send + 'static,
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
        let writer = Writer::new(write);
        self.on_deferred(kind, move |job: Running, payload: P, done: Finisher| match process(&job, payload) {
            Ok(result) => writer.add(job, result, done),
            Err(error) => done.fail(error),
        })
    }

    fn job_writing<J, R, F, W>(self, process: F, write: W) -> Self
    where
        J: TypedJob,
        R: Send + Sync + 'static,
        F: Fn(&Running, J) -> Result<R, BoxError> + Send + Sync + 'static,
        W: Fn(&mut Transaction<'_>, &[(Running, R)]) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        typed::<J>(self).on_writing(J::KIND, process, write)
    }

    fn on_writing_async<P, R, F, Fut, W>(self, kind: impl Into<String>, process: F, write: W) -> Self
    where
        P: DeserializeOwned,
        R: Send + Sync + 'static,
        F: Fn(Running, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, BoxError>> + Send + 'static,
        W: Fn(&mut Transaction<'_>, &[(Running, R)]) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        let writer = Writer::new(write);
        on_async_then(self, kind, process, move |job, result, done| writer.add_of_future(job, result, done))
    }

    fn job_writing_async<J, R, F, Fut, W>(self, process: F, write: W) -> Self
    where
        J: TypedJob,
        R: Send + Sync + 'static,
        F: Fn(Running, J) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, BoxError>> + Send + 'static,
        W: Fn(&mut Transaction<'_>, &[(Running, R)]) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        typed::<J>(self).on_writing_async(J::KIND, process, write)
    }
}
