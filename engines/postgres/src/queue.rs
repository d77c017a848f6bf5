//! The job queue in PostgreSQL, shared by many processes and languages. The rules are functions of
//! the database (`schema/queue`), which the engine of all servers calls for a [`Queue`].

use crate::store::PgStore;
use calls::Database;
use std::sync::Arc;
use waterline_queue::remote::Remote;
use waterline_queue::{GroupBuilder, Queue, QueueAdmin, QueueError, QueueOptions, WorkerInfo};

mod answers;
mod calls;
mod faults;
mod idle;
mod removing;
mod rows;
mod server;
mod within;
mod writing;

pub use within::{LeaseExt, QueueExt};
pub use writing::RunnerExt;

type Queues = Remote<Database>;

impl PgStore {
    /// Returns the job queues of this database. Each open one holds the store.
    fn queues(&self) -> Arc<Queues> {
        self.queues_or(|| Remote::new(Database::new(self.clone())))
    }

    /// Opens the queue with this name (1 to 255 bytes), and makes it if there is none.
    ///
    /// Any number of processes may have it open at once, and workers in other languages call the
    /// functions of the schema. It is used like a queue in a [`Store`](waterline::Store); see
    /// [`Queue::capabilities`] for what it lacks. Its options are kept in the database: the last
    /// process that opened it with others has changed them for all.
    ///
    /// ```no_run
    /// use waterline_queue::{DrainLimits, NewJob, Outcome, QueueOptions, Runner};
    /// use waterline_postgres::postgres::{Config, NoTls};
    /// use waterline_postgres::{PgOptions, PgStore};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config: Config = "host=localhost user=app dbname=shop".parse()?;
    /// let store = PgStore::connect(config, NoTls, PgOptions::new())?;
    /// store.migrate()?;
    /// let queue = store.queue("mail", QueueOptions::default())?;
    /// queue.push(NewJob::new("welcome", "ann@example.org")?)?;
    /// Runner::builder(&queue)
    ///     .on("welcome", |_job, address: String| {
    ///         println!("welcome, {address}");
    ///         Ok(Outcome::Done)
    ///     })
    ///     .drain(DrainLimits::default())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Queue::open`]; a failure of the database is a [`waterline::Error::Store`].
    pub fn queue(&self, name: impl AsRef<str>, options: QueueOptions) -> Result<Queue, QueueError> {
        waterline_queue::engine_api::open(self.queues(), name.as_ref(), options)
    }

    /// Lists the names of the queues.
    ///
    /// ```no_run
    /// # use waterline_postgres::{PgOptions, PgStore, postgres::NoTls};
    /// # let store = PgStore::connect("host=localhost".parse()?, NoTls, PgOptions::new())?;
    /// for name in store.queue_names()? {
    ///     println!("{}", store.queue_admin(&name)?.look().status()?);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Store`] if the database cannot be read.
    pub fn queue_names(&self) -> Result<Vec<String>, QueueError> {
        self.queues().names()
    }

    /// Opens the queue with this name to inspect it, or to change it by hand.
    ///
    /// It takes no options: those in the database stay. It makes no queue, takes back no job, and
    /// does no work that has become due. See [`QueueAdmin`], and [`queue_names`](Self::queue_names)
    /// for an example. Here a push is bounded, since the database knows the bound.
    ///
    /// # Errors
    /// [`QueueError::Store`] with [`waterline::Error::NotFound`] for a queue that does not exist;
    /// [`QueueError::Config`] while it is open in this process with options; otherwise those of
    /// [`queue`](Self::queue).
    pub fn queue_admin(&self, name: impl AsRef<str>) -> Result<QueueAdmin, QueueError> {
        waterline_queue::engine_api::admin(self.queues(), name.as_ref())
    }

    /// Returns the workers of a queue, as [`Queue::workers`] does, without opening it.
    ///
    /// ```no_run
    /// # use waterline_postgres::{PgOptions, PgStore, postgres::NoTls};
    /// # let store = PgStore::connect("host=localhost".parse()?, NoTls, PgOptions::new())?;
    /// for worker in store.workers("mail")? {
    ///     println!("{worker} has {} jobs, and was heard of {:.1?} ago", worker.busy, worker.silent_for);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Store`] with [`waterline::Error::NotFound`] for a queue that does not exist,
    /// and with [`waterline::Error::Store`] if the database cannot be read.
    pub fn workers(&self, queue: impl AsRef<str>) -> Result<Vec<WorkerInfo>, QueueError> {
        self.queues().workers_named(queue.as_ref())
    }

    /// Begins a group of queues of this database. See [`Group`](waterline_queue::Group).
    ///
    /// ```no_run
    /// # use waterline_postgres::{PgOptions, PgStore, postgres::NoTls};
    /// # let config = "host=localhost".parse()?;
    /// # let store = PgStore::connect(config, NoTls, PgOptions::new())?;
    /// # use waterline_queue::QueueOptions;
    /// let group = store.queue_group().queue("mail", ["welcome"], QueueOptions::default()).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn queue_group(&self) -> GroupBuilder {
        let store = self.clone();
        GroupBuilder::over(move |name, options| store.queue(name, options))
    }
}
