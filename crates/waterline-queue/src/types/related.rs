//! The relations of a job to others: its root, and the jobs whose ends it awaits.

use crate::types::config::ConfigError;
use crate::types::job::{check_signature, millis};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The root of a tree of jobs: see [`NewJob::root`](crate::NewJob::root).
///
/// A job has it from its push or from the job that pushed it. A program that has stored only the
/// name and the time makes it anew, to push a leaf:
///
/// ```
/// use std::time::{Duration, SystemTime, UNIX_EPOCH};
/// use waterline::Store;
/// use waterline_queue::{NewJob, Queue, QueueOptions, Root};
///
/// let queue = Queue::open(&Store::in_memory(), "pages", QueueOptions::default())?;
/// queue.push(NewJob::new("refresh all", &())?.root("template:box", SystemTime::now()))?;
/// // An older root, from a message of another service.
/// let root = Root::new("template:box", UNIX_EPOCH + Duration::from_millis(1_700_000_000_000));
/// let leaf = queue.push(NewJob::new("refresh", "/")?.leaf(&root))?.id;
/// assert_eq!(queue.get(&leaf)?.expect("it is there").root, Some(root));
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Root {
    /// The name of the tree.
    pub signature: String,
    /// The time of the root, in whole milliseconds.
    pub timestamp: SystemTime,
}

impl Root {
    /// Makes the root of the tree with this name, at this time.
    ///
    /// A push refuses an empty or too long name ([`ConfigError::Length`]), and a time beyond the
    /// year 9999 ([`ConfigError::RunAt`]).
    #[must_use]
    pub fn new(signature: impl Into<String>, timestamp: SystemTime) -> Self {
        Self { signature: signature.into(), timestamp }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        check_signature(&self.signature)?;
        millis(self.timestamp).map(|_| ())
    }

    pub(crate) fn millis(&self) -> u64 {
        let since = self.timestamp.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// What happens to a job when one that it waits for dies.
#[doc(alias = "dead letter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnDead {
    /// The job dies too, and its error names the other one. The default. If it is requeued
    /// ([`Queue::requeue`](crate::Queue::requeue)), it waits for the other one again if that
    /// has not ended by then.
    #[default]
    Die,
    /// A dead job has ended like a finished one: the job runs.
    Run,
    /// The job keeps waiting until the other one is requeued and finishes, or until that one's row
    /// is removed, by a caller or by its retention.
    Hold,
}

impl OnDead {
    pub(crate) const ALL: [Self; 3] = [Self::Die, Self::Run, Self::Hold];

    pub(crate) fn effect(self, died: bool) -> Effect {
        match self {
            Self::Die if died => Effect::Dies,
            Self::Hold if died => Effect::Waits,
            _ => Effect::Counts,
        }
    }
}

/// What the end of a job means for one that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It waits for one job less.
    Counts,
    Dies,
    /// It keeps waiting.
    Waits,
}

/// Why a job finished without a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Skipped {
    /// A twin of it started after its push, and succeeded: see
    /// [`NewJob::skip_if_executed`](crate::NewJob::skip_if_executed).
    Executed,
    /// A newer root of its tree was pushed: see [`NewJob::root`](crate::NewJob::root).
    Superseded,
}

impl Skipped {
    pub(crate) const ALL: [Self; 2] = [Self::Executed, Self::Superseded];
}
