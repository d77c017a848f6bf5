//! Changing the metadata of a job.

use crate::engine::Edit;
use crate::handle::Queue;
use crate::types::error::QueueError;
use crate::types::job::JobId;
use crate::types::meta::check_key;
use serde_json::Value;

impl Queue {
    /// Sets a value of the metadata of a job in any state; `None` removes it. It is one atomic
    /// write, and the other values stay. A worker that runs the job sees it by
    /// [`Running::meta`](crate::Running::meta).
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "imports", QueueOptions::default())?;
    /// let id = queue.push(NewJob::new("import", "a.csv")?.meta("for", "ann")?)?.id;
    /// queue.set_meta(&id, "ticket", Some(4711.into()))?;
    /// queue.set_meta(&id, "for", None)?;
    /// let job = queue.get(&id)?.expect("it waits");
    /// assert_eq!((job.meta.get("for"), job.meta.get("ticket")), (None, Some(&4711.into())));
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::NotFound`] for an unknown id, [`QueueError::Config`] for a key that does not
    /// have 1 to 255 bytes, for metadata of more than 64 KiB in all, and for a value that is nested
    /// too deeply; [`QueueError::Store`] when the database fails. Nothing is changed then.
    pub fn set_meta(
        &self,
        id: impl Into<JobId>,
        key: impl Into<String>,
        value: Option<Value>,
    ) -> Result<(), QueueError> {
        let (id, key) = (id.into(), key.into());
        check_key(&key)?;
        self.engine.edit(self.number, &id, None, Edit::Meta(key, value)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::meta::Meta;
    use crate::{Accept, NewJob, QueueOptions};
    use waterline::Store;

    fn queue() -> Queue {
        Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap()
    }

    #[test]
    fn a_push_and_a_removal_leave_no_old_record() {
        let queue = queue();
        let keys = queue.state_of().keys;
        let stored = || [keys.meta("a"), keys.progress("a")].map(|key| queue.bytes(&key).unwrap().is_some());
        let job = || NewJob::new("k", &1).unwrap().id("a");
        for goes in ["pushed", "removed"] {
            queue.push(job().meta("k", &1).unwrap()).unwrap();
            let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
            lease.progress(0.5, "").unwrap();
            lease.bury("no way").unwrap();
            assert_eq!(stored(), [true, true]);
            match goes {
                "pushed" => drop(queue.push(job()).unwrap()),
                _ => queue.remove("a").unwrap(),
            }
            assert_eq!(stored(), [false, false], "{goes}");
            let _ = queue.remove("a");
        }
    }

    #[test]
    fn a_change_under_another_lease_is_refused() {
        let queue = queue();
        queue.push(NewJob::new("k", &1).unwrap().id("a")).unwrap();
        let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
        let set = queue.call(|step| step.txn.set_meta("a", Some(99), "k", Some(&1.into())).map(drop));
        assert!(matches!(set.unwrap_err(), QueueError::Halt { .. }));
        assert_eq!(queue.engine.meta(queue.number, "a").unwrap(), Meta::new());
        lease.finish(None).unwrap();
    }
}
