//! Kinds of jobs that are types.

use crate::types::config::ConfigError;
use crate::types::error::QueueError;
use crate::types::job::check_kind;
use crate::types::limit::Limit;
use crate::types::new_job::NewJob;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// A kind of jobs as a type: the type is the payload, and the name of the kind is written once.
///
/// So a misspelt kind does not compile, where a string would be a dead job.
/// [`Queue::push_job`](crate::Queue::push_job) pushes such a job,
/// [`RunnerBuilder::job`](crate::RunnerBuilder::job) runs it, and
/// [`QueueOptions::job`](crate::QueueOptions::job) gives the queue the limit of the kind. The job
/// is an ordinary one, so types and strings go together: `Welcome::KIND` is the string.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use std::time::Duration;
/// use waterline::{Retry, Store};
/// use waterline_queue::{
///     DrainLimits, Limit, NewJob, Outcome, Queue, QueueOptions, Runner, TypedJob, Unique,
/// };
///
/// #[derive(Serialize, Deserialize)]
/// struct Welcome {
///     address: String,
///     tenant: String,
/// }
///
/// impl TypedJob for Welcome {
///     const KIND: &'static str = "welcome";
///     const ATTEMPT_TIMEOUT: Option<Duration> = Some(Duration::from_secs(30));
///
///     fn settings(&self, job: NewJob) -> NewJob {
///         job.retry(Retry::fixed(Duration::from_secs(60)).max_attempts(3)).key(&self.tenant).unique(Unique::until_claimed())
///     }
///
///     fn limit(limit: Limit) -> Limit {
///         limit.at_once(20)
///     }
/// }
///
/// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default().job::<Welcome>())?;
/// let welcome = |name: &str| Welcome { address: format!("{name}@example.org"), tenant: "example".into() };
/// queue.push_job(&welcome("ann"))?;
/// queue.push(NewJob::of(&welcome("bob"))?.retry(Retry::none()))?;      // this one is tried once
///
/// let summary = Runner::builder(&queue)
///     .job(|_job, welcome: Welcome| {
///         println!("welcome, {}", welcome.address);
///         Ok(Outcome::Done)
///     })
///     .drain(DrainLimits::default())?;
/// assert_eq!(summary.finished, 2);
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
///
/// Everything that takes a [`NewJob`] takes `NewJob::of`. The name of the kind can be used wherever
/// a kind is expected, also in a pattern:
///
/// ```
/// # use waterline::Store;
/// # use waterline_queue::*;
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Page(u32);
/// # impl TypedJob for Page {
/// #     const KIND: &'static str = "page";
/// # }
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Bind;
/// # impl TypedJob for Bind {
/// #     const KIND: &'static str = "bind";
/// # }
/// let group = Group::new(&Store::in_memory())
///     .queue("books", [Page::KIND, Bind::KIND], QueueOptions::default().job::<Page>().job::<Bind>())
///     .open()?;
/// let books = group.queue("books").expect("it is there");
/// books.periodic("again", Every::hours(1), NewJob::of(&Page(1))?).start_at_next().start()?;
/// books.push_batch([NewJob::of(&Page(2))?, NewJob::of(&Page(3))?], NewJob::of(&Bind)?)?;
/// while let Some(mut lease) = group.accept(Accept::new())? {
///     match lease.kind() {
///         Page::KIND => println!("page {}", lease.payload::<Page>()?.0),
///         Bind::KIND => println!("all pages are done"),
///         kind => println!("{kind}?"),
///     }
///     lease.finish(None)?;
/// }
/// assert_eq!(group.counts().finished, 3);
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
///
/// Jobs outlive the program, and are stored as JSON: give a new field of the type a default
/// (`#[serde(default)]`), and a type of another shape another `KIND`.
pub trait TypedJob: Serialize + DeserializeOwned {
    /// The name of the kind: 1 to 255 bytes. It is stored with each job, so keep it in a rename.
    const KIND: &'static str;

    /// How long an attempt may take: see
    /// [`RunnerBuilder::attempt_timeout`](crate::RunnerBuilder::attempt_timeout). `None` is the
    /// runner's setting, and [`Duration::MAX`] no limit. 0 is refused at the start of the runner.
    const ATTEMPT_TIMEOUT: Option<Duration> = None;

    /// Returns the job with the settings of each push of this kind. Default: the job unchanged.
    ///
    /// [`NewJob::of`] calls it first, so a setting that a push makes afterwards wins. It must
    /// return the given job, with its payload: one of another kind is [`ConfigError::KindForeign`].
    fn settings(&self, job: NewJob) -> NewJob {
        job
    }

    /// Returns the [`Limit`] of the jobs of this kind. Default: none.
    ///
    /// It is given an empty one for this kind, and must return it: one for other jobs is
    /// [`ConfigError::KindForeign`]. One that differs from place to place does not belong here:
    /// give it to [`QueueOptions::limit`](crate::QueueOptions::limit).
    ///
    /// The queue applies it if it was opened with [`QueueOptions::job`](crate::QueueOptions::job),
    /// and a runner of the kind does not start otherwise ([`ConfigError::LimitMissing`]).
    fn limit(limit: Limit) -> Limit {
        limit
    }
}

/// Returns the limit of a kind, if it has one.
pub(crate) fn limit_of<J: TypedJob>() -> Result<Option<Limit>, ConfigError> {
    check_kind(J::KIND)?;
    let empty = Limit::kind(J::KIND);
    let limit = J::limit(empty.clone());
    if limit.of != empty.of {
        let returned = format!("a limit of {}", limit.of);
        return Err(ConfigError::KindForeign { kind: J::KIND.to_owned(), returned });
    }
    Ok(Some(limit).filter(|limit| *limit != empty))
}

impl NewJob {
    /// Makes a job of a type, with the [settings](TypedJob::settings) of its kind. A setting that
    /// is made afterwards replaces that of the kind, except that [`after`](Self::after) and
    /// [`meta`](Self::meta) add to it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline_queue::{NewJob, Priority, TypedJob};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Report(String);
    ///
    /// impl TypedJob for Report {
    ///     const KIND: &'static str = "report";
    ///
    ///     fn settings(&self, job: NewJob) -> NewJob {
    ///         job.priority(Priority::Low)
    ///     }
    /// }
    ///
    /// let report = NewJob::of(&Report("sales".into()))?;
    /// assert_eq!(report, NewJob::new("report", "sales")?.priority(Priority::Low));
    /// let urgent = report.priority(Priority::Urgent).delay(Duration::from_secs(60));
    /// # let _ = urgent;
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Payload`] if the job cannot be turned into JSON, and [`QueueError::Config`]
    /// with [`ConfigError::KindForeign`] if its settings make it a job of another kind.
    pub fn of<J: TypedJob>(job: &J) -> Result<Self, QueueError> {
        let new = job.settings(Self::new(J::KIND, job)?);
        if new.kind != J::KIND {
            let returned = format!("a job of the kind {:?}", new.kind);
            return Err(ConfigError::KindForeign { kind: J::KIND.to_owned(), returned }.into());
        }
        Ok(new)
    }
}
