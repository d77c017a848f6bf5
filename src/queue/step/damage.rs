//! Jobs whose rows cannot be read. They stay as they are, until somebody removes them.

use super::{Happened, Step};
use crate::base::error::Error;
use crate::base::index::BoxError;
use crate::kv::KeyRange;
use crate::queue::job::JobState;
use crate::queue::keys::{id_of_row, split_running};
use std::collections::HashMap;

/// True if this error says that a stored record is damaged.
pub(in crate::queue) fn is_damage(error: &BoxError) -> bool {
    matches!(error.downcast_ref(), Some(Error::Corrupt { .. }))
}

impl Step<'_, '_> {
    /// Removes a job whose row cannot be read. Its row does not say in which state it is counted,
    /// so all jobs are counted anew. Its entries are stale from now on.
    pub(super) fn remove_damaged(&mut self, id: &str) -> Result<(), BoxError> {
        let (queue, keys) = (self.queue, self.queue.keys);
        for key in [keys.row(id), keys.payload(id), keys.data(id), keys.meta(id), keys.progress(id)] {
            self.delete(queue.rows.id, &key)?;
        }
        self.wait_no_more(id, u32::MAX)?;
        self.end_waits_for(id)?;
        self.note_gone(id)?;
        let mut leases = Vec::new();
        for pair in self.batch.rows(&queue.rows, KeyRange::prefix(&keys.all_running())) {
            let (key, of) = pair?;
            leases.extend(split_running(&key).filter(|_| of == id.as_bytes()));
        }
        for token in leases {
            self.delete(queue.rows.id, &keys.running(token))?;
            self.tail.tell(Happened::Released { token });
            self.tail.gate.running = self.tail.gate.running.saturating_sub(1);
        }
        let mut counts = [0; JobState::ALL.len()];
        let (mut held, mut running) = (HashMap::new(), Vec::new());
        for pair in self.batch.rows(&queue.rows, KeyRange::prefix(&keys.all_rows())) {
            let (key, bytes) = pair?;
            let row = id_of_row(&key).and_then(|id| queue.decode_row(id, &bytes).ok());
            let Some(row) = row else { continue };
            counts[row.state.number()] += 1;
            if let Some(limit) = &row.extras().held {
                *held.entry(limit.clone()).or_default() += 1;
            }
            running.extend((row.state == JobState::Running).then_some(row));
        }
        self.head().counts = counts;
        self.recount_limits(held, &running)?;
        self.tell(id, None, Some(None));
        Ok(())
    }
}

#[cfg(test)]
impl crate::queue::Queue {
    /// Flips a bit in the row of a job.
    pub(in crate::queue) fn damage(&self, id: &str) {
        let (state, mut batch) = (self.inner(), crate::kv::batch::Batch::default());
        let mut row = self.bytes(&state.keys.row(id)).unwrap().unwrap();
        row[5] ^= 1;
        batch.put(state.rows.id, &[&state.keys.row(id)], &[&row]).unwrap();
        self.store().write_batch(&batch).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use crate::Store;
    use crate::base::error::Error;
    use crate::queue::intent::call;
    use crate::queue::{Accept, JobState, NewJob, Queue, QueueError, QueueOptions};

    /// A queue with three jobs. The tests damage the second one.
    fn queue() -> Queue {
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap();
        queue.push_all(["a", "b", "c"].map(|id| NewJob::new("k", &()).unwrap().id(id))).unwrap();
        queue
    }

    fn counts(queue: &Queue) -> [u64; 5] {
        let counts = queue.counts();
        [counts.scheduled, counts.ready, counts.running, counts.finished, counts.dead]
    }

    #[test]
    fn a_job_whose_row_is_damaged_stops_the_claims_by_name_until_somebody_removes_it() {
        let queue = queue();
        queue.damage("b");
        queue.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
        for _ in 0..3 {
            let error = queue.accept(Accept::new()).unwrap_err();
            assert!(matches!(error, QueueError::Store(Error::Corrupt { .. })) && error.to_string().contains("\"b\""));
        }
        assert!(queue.status().unwrap().to_string().contains("the row of the job \"b\""));
        queue.remove("b").unwrap();
        assert_eq!(counts(&queue), [0, 1, 0, 1, 0]);
        assert_eq!(queue.accept(Accept::new()).unwrap().unwrap().id(), "c");
        assert_eq!(queue.state("b").unwrap(), None);
    }

    #[test]
    fn the_removal_of_a_damaged_job_is_an_end_and_a_damaged_job_that_waits_holds_up_no_end() {
        let queue = queue();
        let push = |id: &str, after: &str| queue.push(NewJob::new("k", &()).unwrap().id(id).after([after])).unwrap();
        push("d", "b");
        queue.damage("b");
        queue.remove("b").unwrap();
        assert_eq!(queue.state("d").unwrap(), Some(JobState::Ready));
        // Its row is gone, and it counts as a job that was.
        push("e", "b");
        assert_eq!(queue.state("e").unwrap(), Some(JobState::Ready));
        for (id, after) in [("b", "a"), ("f", "a"), ("g", "b")] {
            push(id, after);
        }
        queue.damage("b");
        queue.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
        assert_eq!(queue.state("f").unwrap(), Some(JobState::Ready));
        queue.remove("b").unwrap();
        assert_eq!(queue.state("g").unwrap(), Some(JobState::Ready));
        assert_eq!((counts(&queue), queue.counts().waiting), ([0, 5, 0, 1, 0], 0));
    }

    #[test]
    fn a_running_job_whose_row_is_damaged_stays_at_a_new_start_and_its_removal_ends_the_lease() {
        let queue = queue();
        let mut leases: Vec<_> = (0..2).map(|_| queue.accept(Accept::new()).unwrap().unwrap()).collect();
        queue.damage("b");
        let running: Vec<_> = (0..2).zip(["a", "b"].map(str::to_owned)).collect();
        let recovered = call(queue.store(), queue.inner(), "open a queue", move |step| step.recover(&running));
        assert_eq!(recovered.unwrap(), (1, vec!["b".to_owned()]));
        let mut lease = leases.pop().unwrap();
        assert!(matches!(lease.finish(None).unwrap_err(), QueueError::Store(Error::Corrupt { .. })));
        queue.remove("b").unwrap();
        assert!(matches!(lease.finish(None), Err(QueueError::Halt { .. })));
        assert_eq!(counts(&queue), [0, 2, 0, 0, 0]);
        assert!(queue.list(JobState::Running, None, 9).unwrap().is_empty());
    }
}
