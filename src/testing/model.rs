//! The model of a queue: an engine of plain maps under one lock.

use crate::base::sync::{Arc, Mutex};
use crate::queue::engine::QueueNo;
use crate::queue::waits::shared::{OpenQueues, Shared};
use crate::queue::words::options::QueueOptions;
use crate::queue::{GroupBuilder, Queue, QueueError as PublicError};
use jobs::Jobs;
use std::collections::BTreeMap;
use std::sync::Weak;

mod claiming;
mod ending;
mod engine;
mod jobs;
mod pushing;
mod time;

/// A database of queues in plain maps under one lock.
///
/// It is the model with which each engine is compared: the same tests run on both. It has no
/// durability and no speed, and no call of it fails for want of a disk. So it is small, and a
/// reader can check it against the documentation. A queue that is opened on it is as any other
/// one, but for its [`Capabilities`](crate::queue::Capabilities): it has none of them.
///
/// ```
/// use waterline::queue::{Accept, NewJob, QueueOptions};
/// use waterline::testing::QueueModel;
///
/// let queue = QueueModel::new().open("mail", QueueOptions::default())?;
/// queue.push(NewJob::new("welcome", "ann@example.org")?)?;
/// queue.accept(Accept::new())?.expect("a job is ready").finish(None)?;
/// assert_eq!(queue.counts().finished, 1);
/// # Ok::<(), waterline::queue::QueueError>(())
/// ```
#[derive(Clone, Default)]
pub struct QueueModel(Arc<Model>);

#[derive(Default)]
struct Model {
    open: OpenQueues,
    queues: Mutex<BTreeMap<QueueNo, Kept>>,
}

/// A queue, and those who have it open.
struct Kept {
    jobs: Jobs,
    shared: Option<Arc<Shared>>,
    keep: Weak<()>,
}

impl QueueModel {
    /// Makes a database without a queue.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a queue of it: see [`Queue::open`]. A queue whose handles are gone is opened as in the
    /// next life of a process: jobs that ran count a crash.
    ///
    /// # Errors
    /// Those of [`Queue::open`].
    pub fn open(&self, name: impl AsRef<str>, options: QueueOptions) -> Result<Queue, PublicError> {
        Queue::on(self.0.clone(), name.as_ref(), options)
    }

    /// Begins a group of queues of it: see [`Group::new`](crate::queue::Group::new).
    pub fn group(&self) -> GroupBuilder {
        let model = self.clone();
        GroupBuilder::over(move |name, options| model.open(name, options))
    }

    /// Returns the database as the next process finds it if this one dies now.
    #[doc(hidden)]
    #[must_use]
    pub fn after_crash(&self) -> Self {
        let next = |kept: &Kept| Kept { jobs: kept.jobs.clone(), shared: None, keep: Weak::new() };
        let queues = self.0.queues.lock().iter().map(|(number, kept)| (*number, next(kept))).collect();
        Self(Arc::new(Model { open: OpenQueues::default(), queues: Mutex::new(queues) }))
    }
}

impl std::fmt::Debug for QueueModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueModel").finish_non_exhaustive()
    }
}
