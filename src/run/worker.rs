//! The user's side of a job: the job, the worker that runs it, and the token that reports it.

use crate::base::{BoxError, Index, caught::Caught, structure::shows, sync::Arc};
use crate::threads::stopping::{self, Overdue};

/// One job in the hands of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Job<T> {
    /// The index of the job in its stream.
    pub index: Index,
    /// The number of this attempt since the consumer started, from 1. It is not stored: a new life
    /// begins at 1.
    pub attempt: u32,
    /// The fencing token of this life of the consumer, from
    /// [`Progress::fence`](crate::Progress::fence); 0 if there is none. Pass it to a storage that
    /// refuses writes of earlier lives.
    pub fence: u64,
    /// The value that the source returned for this index.
    pub payload: T,
}

impl<T> Job<T> {
    /// Creates a first attempt, for a test that calls a worker itself.
    ///
    /// ```
    /// let job = waterline::Job::new(7, "block");
    /// assert_eq!((job.index, job.attempt, job.payload), (7, 1, "block"));
    /// ```
    pub fn new(index: Index, payload: T) -> Self {
        Self { index, attempt: 1, fence: 0, payload }
    }

    /// Returns true once the job should end early: its consumer is stopping, or it is overdue.
    ///
    /// A consumer is stopping after [`Consumer::stop`](crate::Consumer::stop),
    /// [`Handle::request_stop`](crate::Handle::request_stop), a failure that halts it, or its drop.
    /// A stop waits for the jobs in flight, so a long job can ask, and return an error to end
    /// early. While the consumer stops, an attempt that ends with an error does not count: the job
    /// is put back, and runs again in the next life, whatever [`Retry`](crate::Retry) says. (A
    /// [permanent](crate::Failure::permanent) failure halts the consumer, or parks the job, as
    /// ever.)
    ///
    /// An attempt is overdue once it has run for longer than
    /// [`attempt_timeout`](crate::Builder::attempt_timeout). It then counts by its result: return
    /// an error if the work is not done.
    ///
    /// The call is cheap enough for an inner loop, on the thread that runs the job. On any other
    /// thread, and for a job that you [made](Self::new) in a test, it returns false.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress};
    ///
    /// let jobs: MemoryJobs<u64> = (0..1).collect();
    /// let (begin, begun) = crossbeam_channel::bounded(1);
    /// let consumer = Consumer::builder(jobs, MemoryProgress::new())
    ///     .start(move |job| {
    ///         begin.send(())?;
    ///         while !job.is_stopping() {
    ///             std::thread::yield_now();               // some more of a long piece of work
    ///         }
    ///         Err("cut short, since the consumer stops".into())
    ///     })?;
    /// assert!(begun.recv().is_ok());
    /// consumer.stop()?;                           // no error: the job is put back
    /// # Ok::<(), waterline::Error>(())
    /// ```
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        stopping::here()
    }
}

/// Runs jobs, several at a time.
///
/// `Ok` means that the job's effects are as durable as they need to be. The job does not run again
/// in this life of the process and, once its completion is saved, in no later one. After a crash
/// before that save it runs again (*at least once*), so repeating it must be harmless.
///
/// ```
/// use waterline::{BoxError, Job, Worker};
///
/// struct Print;
/// impl Worker<String> for Print {
///     fn run(&self, job: Job<String>) -> Result<(), BoxError> {
///         println!("{}: {}", job.index, job.payload);
///         Ok(())
///     }
/// }
/// # Print.run(Job::new(0, "x".into())).unwrap();
/// ```
pub trait Worker<T>: Send + Sync + 'static {
    /// Runs one job on a thread of the consumer's pool. It may block.
    ///
    /// # Errors
    /// Fails the attempt. The consumer retries as its [`Retry`](crate::Retry) says. A panic is a
    /// failed attempt, too.
    fn run(&self, job: Job<T>) -> Result<(), BoxError>;
}

impl<T, W: Worker<T> + ?Sized> Worker<T> for Arc<W> {
    fn run(&self, job: Job<T>) -> Result<(), BoxError> {
        (**self).run(job)
    }
}

pub(crate) struct Closure<F>(pub(crate) F);

impl<T, F> Worker<T> for Closure<F>
where
    F: Fn(Job<T>) -> Result<(), BoxError> + Send + Sync + 'static,
{
    fn run(&self, job: Job<T>) -> Result<(), BoxError> {
        (self.0)(job)
    }
}

/// The outcome of an attempt.
pub(crate) struct Report {
    pub(crate) token: usize,
    pub(crate) index: Index,
    /// Boxed, since each job moves a report and few jobs fail.
    pub(crate) outcome: Result<(), Box<Caught>>,
}

/// Marks the token of a report whose job is not done: its result waits for the sink. No flight has
/// such a token, and a report has no room for a field that few of them need.
const FOR_SINK: usize = usize::MAX / 4 + 1;

impl Report {
    /// The report of a job that has its result, and waits for its turn at the sink.
    pub(crate) fn for_sink(token: usize, index: Index) -> Self {
        Self { token: token | FOR_SINK, index, outcome: Ok(()) }
    }

    /// Returns the token of a job whose result waits for the sink; `None`: it is done, or failed.
    #[inline]
    pub(crate) fn waits_for_sink(&self) -> Option<usize> {
        (self.token & FOR_SINK != 0).then_some(self.token & !FOR_SINK)
    }
}

/// Takes the report of a [`Done`] token.
pub(crate) trait Reported: Send + Sync {
    fn report(&self, report: Report);
    /// Hears that the closure which starts deferred jobs panicked with this job, whose token
    /// decides what becomes of it.
    fn start_panicked(&self, index: Index, error: &str);
    fn is_stopping(&self) -> bool;
}

/// The token of a deferred job, which reports the job from any thread or task.
///
/// Using a token consumes it, so a job cannot be reported twice. Dropping it unused fails the
/// attempt, so a job cannot be forgotten. After the end of the consumer, or after the
/// [timeout](crate::Builder::attempt_timeout) of its attempt, a token does nothing. But it keeps
/// the name of the progress in use until it is used or dropped.
#[must_use = "dropping the token fails the job; call `complete` or `fail`"]
pub struct Done {
    /// `None` once it is used.
    to: Option<Arc<dyn Reported>>,
    token: usize,
    index: Index,
    /// The flag of the attempt, if attempts have a timeout.
    overdue: Option<Overdue>,
}

impl Done {
    pub(crate) fn new(to: Arc<dyn Reported>, token: usize, index: Index, overdue: Option<Overdue>) -> Self {
        Self { to: Some(to), token, index, overdue }
    }

    /// Reports success: the job's effects are as durable as they need to be.
    pub fn complete(mut self) {
        self.report(Ok(()));
    }

    /// Reports a failed attempt. The consumer retries as its [`Retry`](crate::Retry) says.
    ///
    /// The error must not own another token: one that halts the consumer is kept for `join`, which
    /// waits for every token whose attempt is not over.
    pub fn fail(mut self, error: impl Into<BoxError>) {
        self.report(Err(error.into()));
    }

    /// Returns true once the consumer is stopping, like [`Job::is_stopping`], on any thread and in
    /// any task. The consumer waits for this token.
    ///
    /// Also true once the attempt has failed because it took longer than
    /// [`attempt_timeout`](crate::Builder::attempt_timeout). Then the consumer does not wait for
    /// this token.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.overdue.as_ref().is_some_and(Overdue::has_begun) || self.to.as_ref().is_some_and(|to| to.is_stopping())
    }

    fn report(&mut self, outcome: Result<(), BoxError>) {
        if let Some(to) = self.to.take() {
            to.report(Report { token: self.token, index: self.index, outcome: outcome.map_err(Caught::boxed) });
        }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        if self.to.is_some() {
            let why = if std::thread::panicking() { "the job panicked" } else { "its Done token was dropped unused" };
            self.report(Err(why.into()));
        }
    }
}

shows!(Done, of: index = of.index);
