//! The job queue in Redis, shared by many processes and languages. The rules are functions of the
//! server (`lua`), which the engine of all servers calls for a [`Queue`].

use crate::store::RedisStore;
use server::Functions;
use std::sync::Arc;
use waterline_queue::remote::Remote;
use waterline_queue::{GroupBuilder, Queue, QueueAdmin, QueueError, QueueOptions, WorkerInfo};

mod args;
mod door;
mod faults;
mod finishing;
mod handlers;
mod removing;
mod rows;
mod server;
mod writes;

pub use finishing::LeaseExt;
pub use handlers::RunnerExt;
pub use writes::Writes;

type Queues = Remote<Functions>;

impl RedisStore {
    fn queues(&self) -> Arc<Queues> {
        self.queues_or(|| Remote::new(Functions::new(self.clone())))
    }

    /// Opens the queue with this name (1 to 255 bytes), and makes it if there is none.
    ///
    /// Any number of processes may have it open at once, and workers in other languages call the
    /// same functions. It is used like a queue in a [`Store`](waterline::Store); see
    /// [`Queue::capabilities`] for what it lacks. Its options are kept on the server: the last
    /// process that opened it with others has changed them for all.
    ///
    /// ```no_run
    /// use waterline_queue::{DrainLimits, NewJob, Outcome, QueueOptions, Runner};
    /// use waterline_redis::{RedisOptions, RedisStore};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = RedisStore::connect("redis://localhost/0", RedisOptions::new())?;
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
    /// Those of [`Queue::open`]; a failure of the server is a [`waterline::Error::Store`].
    pub fn queue(&self, name: impl AsRef<str>, options: QueueOptions) -> Result<Queue, QueueError> {
        waterline_queue::engine_api::open(self.queues(), name.as_ref(), options)
    }

    /// Opens the queue with this name to inspect it, or to change it by hand.
    ///
    /// It takes no options: those on the server stay. It makes no queue, takes back no job, and
    /// does no work that has become due. See [`QueueAdmin`].
    ///
    /// ```no_run
    /// # use waterline_redis::{RedisOptions, RedisStore};
    /// # let store = RedisStore::connect("redis://localhost/0", RedisOptions::new())?;
    /// for name in store.queue_names()? {
    ///     println!("{}", store.queue_admin(&name)?.look().status()?);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    /// # use waterline_redis::{RedisOptions, RedisStore};
    /// # let store = RedisStore::connect("redis://localhost/0", RedisOptions::new())?;
    /// for worker in store.workers("mail")? {
    ///     println!("{worker} has {} jobs, and was heard of {:.1?} ago", worker.busy, worker.silent_for);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Store`] with [`waterline::Error::NotFound`] for a queue that does not exist,
    /// and with [`waterline::Error::Store`] if the server cannot be read.
    pub fn workers(&self, queue: impl AsRef<str>) -> Result<Vec<WorkerInfo>, QueueError> {
        self.queues().workers_named(queue.as_ref())
    }

    /// Begins a group of queues of this server. See [`Group`](waterline_queue::Group).
    ///
    /// In a cluster, a push into several of its queues needs that all are in one slot: see
    /// [`RedisOptions::tag`](crate::RedisOptions::tag).
    ///
    /// ```no_run
    /// # use waterline_redis::{RedisOptions, RedisStore};
    /// # let store = RedisStore::connect("redis://localhost/0", RedisOptions::new())?;
    /// # use waterline_queue::QueueOptions;
    /// let group = store.queue_group().queue("mail", ["welcome"], QueueOptions::default()).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn queue_group(&self) -> GroupBuilder {
        let store = self.clone();
        GroupBuilder::over(move |name, options| store.queue(name, options))
    }
}
