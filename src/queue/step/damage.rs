//! Jobs that cannot be read. They are set aside, so that everything else goes on, until somebody
//! removes them.
//!
//! A job that is set aside has an entry in a list of them: a byte that is 1 while a state still
//! counts the job, and the reason as text. Its row and its other records stay as they are.

use super::recount::id_in;
use super::{Happened, Step};
use crate::base::error::{Error, describe};
use crate::base::index::BoxError;
use crate::kv::KeyRange;
use crate::queue::job::JobState;
use crate::queue::keys::{List, split_entry, split_running};
use crate::queue::lines::Damaged;
use crate::queue::row::Row;

/// True if this error says that a stored record is damaged.
pub(in crate::queue) fn is_damage(error: &BoxError) -> bool {
    matches!(error.downcast_ref(), Some(Error::Corrupt { .. }))
}

impl Step<'_, '_> {
    /// Returns the row of a job that an entry names, which stands for this state. `None` also if
    /// the row cannot be read: the job is set aside then, and the entry is stale.
    pub(super) fn row_in(&mut self, state: impl Into<Option<JobState>>, id: &str) -> Result<Option<Row>, BoxError> {
        match self.row(id) {
            Err(error) if is_damage(&error) => {
                self.set_aside(id, state.into(), &error)?;
                Ok(None)
            }
            row => row,
        }
    }

    /// Sets a job aside that cannot be read. The first entry of it that somebody comes across says
    /// in which state it is counted; `None`: the entry does not say.
    pub(in crate::queue) fn set_aside(
        &mut self,
        id: &str,
        state: Option<JobState>,
        error: &BoxError,
    ) -> Result<(), BoxError> {
        let (queue, key) = (self.queue, self.queue.keys.entry(List::Damaged, 0, id));
        let stored = self.batch.get(&queue.entries, &key)?;
        let is_counted = stored.as_ref().is_none_or(|stored| stored.first() == Some(&1));
        if let Some(state) = state.filter(|_| is_counted) {
            let count = &mut self.head().counts[state.number()];
            *count = count.saturating_sub(1);
        }
        if state == Some(JobState::Running) {
            self.release_leases(id)?;
        }
        let is_new = stored.is_none();
        if is_new || is_counted && state.is_some() {
            let reason = describe(&**error);
            let value = [&[u8::from(is_counted && state.is_none())], reason.as_bytes()].concat();
            self.put(queue.entries.id, &key, &value)?;
            if is_new {
                self.tail.damaged += 1;
                self.log_damage(Damaged::Job { id: id.to_owned(), error: reason });
                self.tell(id, Some(JobState::Damaged), None);
            }
        }
        Ok(())
    }

    /// Removes the entry of a job that was set aside. Returns false if there is none.
    pub(super) fn forget_damaged(&mut self, id: &str) -> Result<bool, BoxError> {
        let (queue, key) = (self.queue, self.queue.keys.entry(List::Damaged, 0, id));
        if self.tail.damaged == 0 || self.batch.get(&queue.entries, &key)?.is_none() {
            return Ok(false);
        }
        self.tail.damaged -= 1;
        self.delete(queue.entries.id, &key)?;
        Ok(true)
    }

    /// Returns the ids of all jobs that are set aside.
    pub(super) fn all_damaged(&mut self) -> Result<Vec<String>, BoxError> {
        let queue = self.queue;
        let (from, to) = (queue.keys.entries_from(List::Damaged, 0), queue.keys.entries_end(List::Damaged));
        let mut ids = Vec::new();
        for pair in self.batch.rows(&queue.entries, KeyRange { from, to: Some(to) }) {
            ids.extend(split_entry(&pair?.0).map(|(_, id)| id.to_owned()));
        }
        Ok(ids)
    }

    /// Ends the leases of a job whose row does not say which one it has.
    fn release_leases(&mut self, id: &str) -> Result<(), BoxError> {
        let (queue, keys) = (self.queue, self.queue.keys);
        let (mut leases, mut others) = (Vec::new(), Vec::new());
        for pair in self.batch.rows(&queue.rows, KeyRange::prefix(&keys.all_running())) {
            let (key, of) = pair?;
            match of == id.as_bytes() {
                true => leases.extend(split_running(&key)),
                false => others.push(id_in(of)),
            }
        }
        if leases.is_empty() {
            return Ok(());
        }
        for token in leases {
            self.delete(queue.rows.id, &keys.running(token))?;
            self.tail.tell(Happened::Released { token });
            self.tail.gate.running = self.tail.gate.running.saturating_sub(1);
        }
        // Nor does its row say which limits it runs under.
        self.tail.gate.released += 1;
        let rows = others.iter().filter_map(|id| self.row(id).ok().flatten());
        let running: Vec<_> = rows.filter(|row| row.state == JobState::Running).collect();
        self.recount_limits(None, &running)
    }

    /// Removes a job whose row cannot be read. Its row does not say in which state it is counted,
    /// so all jobs are counted anew. Its entries are stale from now on.
    pub(super) fn remove_damaged(&mut self, id: &str) -> Result<(), BoxError> {
        let (queue, keys) = (self.queue, self.queue.keys);
        for key in [keys.row(id), keys.payload(id), keys.data(id), keys.meta(id), keys.progress(id)] {
            self.delete(queue.rows.id, &key)?;
        }
        self.forget_damaged(id)?;
        self.wait_no_more(id, u32::MAX)?;
        self.end_waits_for(id)?;
        self.note_gone(id)?;
        self.release_leases(id)?;
        // Time never comes to this list.
        let (from, to) = (keys.entries_from(List::Waiting, 0), keys.entries_end(List::Waiting));
        let mut waits = Vec::new();
        for pair in self.batch.rows(&queue.entries, KeyRange { from, to: Some(to) }) {
            let (key, _) = pair?;
            waits.extend(split_entry(&key).filter(|(_, of)| *of == id).map(|(at, _)| at));
        }
        for at in waits {
            self.remove_entry(List::Waiting, at, id)?;
        }
        self.recount()?;
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
    fn a_job_whose_row_is_damaged_is_set_aside_until_somebody_removes_it() {
        let queue = queue();
        queue.damage("b");
        for id in ["a", "c"] {
            let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
            assert_eq!(lease.id(), id);
            lease.finish(None).unwrap();
        }
        assert!(queue.accept(Accept::new()).unwrap().is_none());
        assert_eq!((counts(&queue), queue.counts().damaged), ([0, 0, 0, 2, 0], 1));
        assert!(queue.status().unwrap().to_string().contains("damaged 1: list them by that state, and remove them"));
        let listed = queue.list(JobState::Damaged, None, 9).unwrap();
        assert_eq!((listed.len(), listed[0].id.as_str(), listed[0].payload.as_slice()), (1, "b", &b"null"[..]));
        assert!(listed[0].damaged.as_ref().unwrap().contains("the row of the job \"b\""), "{listed:?}");
        assert!(queue.list(JobState::Damaged, Some(&listed[0]), 9).unwrap().is_empty());
        queue.remove("b").unwrap();
        assert_eq!((counts(&queue), queue.counts().damaged), ([0, 0, 0, 2, 0], 0));
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
    fn a_running_job_whose_row_is_damaged_is_set_aside_at_a_new_start_and_its_lease_ends() {
        let queue = queue();
        let mut leases: Vec<_> = (0..2).map(|_| queue.accept(Accept::new()).unwrap().unwrap()).collect();
        queue.damage("b");
        let running: Vec<_> = (0..2).zip(["a", "b"].map(str::to_owned)).collect();
        let recovered = call(queue.store(), queue.inner(), "open a queue", move |step| step.recover(&running));
        assert_eq!(recovered.unwrap(), 1);
        let mut lease = leases.pop().unwrap();
        assert!(matches!(lease.finish(None), Err(QueueError::Halt { .. })));
        assert_eq!((counts(&queue), queue.counts().damaged), ([0, 2, 0, 0, 0], 1));
        queue.remove("b").unwrap();
        assert_eq!((counts(&queue), queue.counts().damaged), ([0, 2, 0, 0, 0], 0));
        assert!(queue.list(JobState::Running, None, 9).unwrap().is_empty());
    }
}
