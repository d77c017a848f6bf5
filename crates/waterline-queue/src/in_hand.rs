//! A claimed job: the part that a [`Lease`](crate::Lease) and a [`Running`](crate::Running) share.

use crate::engine::{Edit, Held};
use crate::handle::Queue;
use crate::types::error::QueueError;
use crate::types::job::JobId;
use crate::types::row::Row;
use std::sync::atomic::{AtomicBool, Ordering};

/// A job in the hands of a worker, with its row as it was claimed.
pub(super) struct InHand {
    pub(super) queue: Queue,
    pub(super) id: JobId,
    pub(super) row: Row,
    /// True if the row as last read says that the job runs once more.
    pub(super) resubmitted: AtomicBool,
}

impl InHand {
    pub(super) fn new(queue: Queue, id: JobId, row: Row) -> Self {
        let resubmitted = AtomicBool::new(row.resubmit.is_some());
        Self { queue, id, row, resubmitted }
    }

    /// Returns the job and the token of the lease.
    pub(super) fn held(&self) -> Held {
        Held { queue: self.queue.number, id: self.id.clone(), token: self.row.place }
    }

    /// Notes the row of the job as it is now.
    pub(super) fn note(&self, row: &Row) {
        self.resubmitted.store(row.resubmit.is_some(), Ordering::Relaxed);
    }

    pub(super) fn edit(&self, edit: Edit) -> Result<(), QueueError> {
        let row = self.queue.engine.edit(self.queue.number, &self.id, Some(self.row.place), edit)?;
        self.note(&row);
        Ok(())
    }

    pub(super) fn show(&self, fraction: f64, note: &str) -> Result<(), QueueError> {
        let row = self.queue.engine.show(&self.held(), fraction, note)?;
        row.iter().for_each(|row| self.note(row));
        Ok(())
    }

    pub(super) fn holds(&self) -> bool {
        self.queue.engine.holds(&self.held())
    }

    /// Returns the error for a worker that has lost the job.
    pub(super) fn halt(&self) -> QueueError {
        self.queue.halt(&self.id)
    }
}

/// Gives a type, whose `job()` is an [`InHand`], the calls that show the job. They are methods of
/// the type itself, so that a caller can name one as a path: `Lease::id`.
macro_rules! shows_its_job {
    ($holder:ty) => {
        impl $holder {
            /// Returns the id of the job.
            #[must_use]
            pub fn id(&self) -> &str {
                &self.job().id
            }

            /// Returns the kind of the job.
            #[must_use]
            pub fn kind(&self) -> &str {
                &self.job().row.kind
            }

            /// Returns the number of this attempt, from 1, without snoozed attempts and crashes.
            #[must_use]
            pub fn attempt(&self) -> u32 {
                self.job().row.failures.saturating_add(1)
            }

            /// Returns the number of times that a process died while it ran this job.
            #[must_use]
            pub fn crashes(&self) -> u32 {
                self.job().row.crashes
            }

            /// Returns the data that this attempt or an earlier one has left, if it can be read.
            #[must_use]
            pub fn data(&self) -> Option<serde_json::Value> {
                let bytes = self.job().queue.engine.data(self.job().queue.number, self.id());
                $crate::types::json::from_json(&bytes.ok().flatten()?).ok()
            }

            /// Returns the time of its push, or of its tick
            /// ([`Queue::periodic`](crate::Queue::periodic)).
            #[must_use]
            pub fn pushed_at(&self) -> std::time::SystemTime {
                $crate::types::job::time(self.job().row.pushed)
            }

            /// Returns the root of its tree, for [`NewJob::leaf`](crate::NewJob::leaf), if it has
            /// one.
            #[must_use]
            pub fn root(&self) -> Option<&$crate::types::related::Root> {
                self.job().row.extras().root.as_ref()
            }

            /// Returns the key of its limits, if any: see [`NewJob::key`](crate::NewJob::key).
            #[must_use]
            pub fn key(&self) -> Option<&str> {
                self.job().row.extras().key.as_deref()
            }

            /// Returns the metadata of the job, as it is stored now.
            ///
            /// # Errors
            /// [`QueueError::Store`] when it cannot be read.
            pub fn meta(&self) -> Result<std::collections::BTreeMap<String, serde_json::Value>, QueueError> {
                self.job().queue.engine.meta(self.job().queue.number, self.id())
            }

            /// Returns the last progress of this attempt or an earlier one, if it can be read.
            #[must_use]
            pub fn last_progress(&self) -> Option<$crate::types::progress::JobProgress> {
                self.job().queue.engine.progress(self.job().queue.number, self.id()).ok().flatten()
            }

            /// True if the job was pushed once more while it runs, as of the last call. It then
            /// runs again when this run has succeeded.
            #[must_use]
            pub fn is_resubmitted(&self) -> bool {
                self.job().resubmitted.load(std::sync::atomic::Ordering::Relaxed)
            }
        }
    };
}

pub(super) use shows_its_job;
