//! The model of a queue: an engine of plain maps under one lock.

use crate::engine::QueueNo;
use crate::notify::shared::{OpenQueues, Shared};
use crate::types::capabilities::Capabilities;
use crate::types::options::QueueOptions;
use crate::{GroupBuilder, Queue, QueueError as PublicError};
use jobs::Jobs;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

mod claiming;
mod ending;
mod engine;
mod job;
mod jobs;
mod marks;
mod pushing;
mod shared;
mod time;

/// A database of queues in plain maps under one lock.
///
/// It is the model against which each engine is compared: the same tests run on both. It has no
/// durability and no speed, and no call fails because of a disk. So it is small, and a reader can
/// check it against the documentation. A queue on it works like any other, but for its
/// [`Capabilities`]: it lacks those that [`like`](Self::like) does not name.
///
/// ```
/// use waterline_queue::{Accept, NewJob, QueueOptions};
/// use waterline_queue::testing::QueueModel;
///
/// let queue = QueueModel::new().open("mail", QueueOptions::default())?;
/// queue.push(NewJob::new("welcome", "ann@example.org")?)?;
/// queue.accept(Accept::new())?.expect("a job is ready").finish(None)?;
/// assert_eq!(queue.counts().finished, 1);
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
#[derive(Clone)]
pub struct QueueModel(Arc<Model>);

struct Model {
    can: Capabilities,
    /// Whether lines have entries, and not the rows of jobs: see `shared.rs`.
    has_entries: bool,
    open: OpenQueues,
    queues: Mutex<BTreeMap<QueueNo, ModelQueue>>,
}

/// A queue, and its open handles.
struct ModelQueue {
    jobs: Jobs,
    shared: Option<Arc<Shared>>,
    keep: Weak<()>,
}

impl QueueModel {
    /// Makes a database without a queue.
    #[must_use]
    pub fn new() -> Self {
        Self::like(Capabilities::ALL)
    }

    /// Makes a database without a queue that models an engine with these capabilities. Three of
    /// them change its rules:
    ///
    /// * [`one_process`](Capabilities::one_process): opening a queue counts a crash for the jobs
    ///   that ran, and a job that is to run alone waits for all others. Without it, many processes
    ///   share the queue: a crash is seen when the lease ends, nothing moves a job when its time
    ///   comes, and a job that is to run alone does so in its process.
    /// * [`steady_clock`](Capabilities::steady_clock): setting a clock ends no lease.
    /// * [`keys_take_turns`](Capabilities::keys_take_turns): if many processes share the queue, a
    ///   job that a claim of other kinds has met waits again if the clock is set back.
    ///
    /// The limits of a model hold the first job of their queue, whatever its key.
    #[must_use]
    pub fn like(can: Capabilities) -> Self {
        let has_entries = can.keys_take_turns;
        let can = Capabilities { writes_beside: false, keys_take_turns: false, names_limits: false, ..can };
        Self(Arc::new(Model { can, has_entries, open: OpenQueues::default(), queues: Mutex::default() }))
    }

    /// Opens a queue of it: see [`Queue::open`]. A queue whose handles are gone is opened as after
    /// a restart of its process: jobs that ran count a crash, if it has one process.
    ///
    /// # Errors
    /// The same as [`Queue::open`].
    pub fn open(&self, name: impl AsRef<str>, options: QueueOptions) -> Result<Queue, PublicError> {
        Queue::on(self.0.clone(), name.as_ref(), options)
    }

    /// Begins a group of queues of it: see [`Group::new`](crate::Group::new).
    pub fn group(&self) -> GroupBuilder {
        let model = self.clone();
        GroupBuilder::over(move |name, options| model.open(name, options))
    }

    /// Returns the database as the next process finds it if this one dies now.
    #[doc(hidden)]
    #[must_use]
    pub fn after_crash(&self) -> Self {
        let next =
            |kept: &ModelQueue| ModelQueue { jobs: kept.jobs.in_next_process(), shared: None, keep: Weak::new() };
        let queues = self.0.queues.lock().iter().map(|(number, kept)| (*number, next(kept))).collect();
        let (can, has_entries) = (self.0.can, self.0.has_entries);
        Self(Arc::new(Model { can, has_entries, open: OpenQueues::default(), queues: Mutex::new(queues) }))
    }
}

impl Default for QueueModel {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for QueueModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueModel").finish_non_exhaustive()
    }
}
