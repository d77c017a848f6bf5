//! Marks, by which jobs turn out to be needless: unique jobs, successful runs, and roots.

use crate::embedded::codec::side_records::Marked;
use crate::embedded::keys::{List, Mark};
use crate::embedded::txn::Txn;
use crate::types::events::Damaged;
use crate::types::job::JobId;
use crate::types::related::Skipped;
use crate::types::row::Row;
use crate::types::unique::{Fingerprint, Until, refuses_twins};
use waterline::BoxError;
use waterline::seam::describe;

const DAY: u64 = 24 * 60 * 60 * 1000;

/// How long a successful run is remembered, in milliseconds. Mostly, a twin waits for less.
const EXECUTED_FOR: u64 = DAY;

/// How long a root is remembered, in milliseconds: 28 days, as in MediaWiki.
const ROOT_FOR: u64 = 28 * DAY;

/// A job that refuses a new one.
pub(crate) struct Twin {
    pub(crate) id: JobId,
    /// Its row; `None`: it is gone, or cannot be read.
    pub(crate) row: Option<Row>,
}

impl Txn<'_, '_> {
    fn mark(&mut self, mark: Mark, of: &str) -> Result<Option<Marked>, BoxError> {
        let queue = self.queue;
        let bytes = self.batch.get(&queue.rows, &queue.keys.mark(mark, of))?;
        let read = |bytes: Vec<u8>| Marked::decode(&queue.name, of, &bytes);
        let marked = bytes.map(read).transpose();
        Ok(marked.map_err(|reason| queue.corrupt(format!("the mark {of:?}: {reason}")))?)
    }

    /// Returns a mark to compare a job with, unless the mark is over. One that cannot be read
    /// counts as none: a job that runs once too often is better than one that never runs.
    fn mark_or_none(&mut self, id: &str, mark: Mark, of: &str) -> Option<Marked> {
        let (marked, wall) = (self.stored_mark(id, mark, of), self.at.wall);
        marked.filter(|marked| marked.until == 0 || marked.until > wall)
    }

    /// Does the same with a mark that is over but was not swept yet.
    fn stored_mark(&mut self, id: &str, mark: Mark, of: &str) -> Option<Marked> {
        self.mark(mark, of).unwrap_or_else(|error| {
            self.log_damage(Damaged::Mark { id: id.to_owned(), error: describe(&*error) });
            None
        })
    }

    /// Makes a mark that names no job and is kept for `time` milliseconds.
    fn mark_for(&self, number: u64, time: u64) -> Marked {
        let since = self.at.wall;
        Marked { number, until: since.saturating_add(time), since, id: String::new() }
    }

    fn put_mark(&mut self, mark: Mark, of: &str, old: Option<Marked>, new: &Marked) -> Result<(), BoxError> {
        if let Some(old) = old.filter(|old| old.until > 0 && old.until != new.until) {
            self.remove_entry(List::Marks, old.until, &entry_of(mark, of))?;
        }
        if new.until > 0 {
            self.put_entry(List::Marks, new.until, &entry_of(mark, of))?;
        }
        let (key, bytes) = (self.queue.keys.mark(mark, of), new.encode(&self.queue.name, of));
        Ok(self.put(self.rows(), &key, &bytes)?)
    }

    /// Deletes a mark that is over, by its entry.
    pub(crate) fn forget_mark(&mut self, at: u64, entry: &str) -> Result<(), BoxError> {
        if let Some(of) = entry.strip_prefix(Mark::Note as u8 as char) {
            return self.forget_note(at, entry, of);
        }
        let queue = self.queue;
        let key = queue.keys.mark_of_entry(entry);
        let of = entry.get(1..).unwrap_or_default();
        let bytes = self.batch.get(&queue.rows, &key)?;
        // A mark that cannot be read stays: it counts as none.
        let is_over = |bytes: Vec<u8>| Marked::decode(&queue.name, of, &bytes).is_ok_and(|marked| marked.until == at);
        if bytes.is_some_and(is_over) {
            self.delete(self.rows(), &key)?;
        }
        Ok(self.remove_entry(List::Marks, at, entry)?)
    }

    // Unique jobs.

    /// Returns the job because of which a new one is refused. It may have the same id.
    pub(crate) fn twin_of(&mut self, id: &str, new: &Row) -> Result<Option<Twin>, BoxError> {
        let extras = new.extras();
        let (Some(_), Some(fingerprint)) = (extras.unique, extras.fingerprint) else { return Ok(None) };
        let marked = self.mark_or_none(id, Mark::Unique, &fingerprint.text());
        let Some(Marked { until, id: owner, .. }) = marked else { return Ok(None) };
        let row = self.row(&owner).unwrap_or_else(|error| {
            self.log_damage(Damaged::Mark { id: id.to_owned(), error: describe(&*error) });
            None
        });
        if until > 0 {
            return Ok(Some(Twin { id: owner, row }));
        }
        let is_twin = |row: &Row| {
            let extras = row.extras();
            let refuses = extras.unique.is_some_and(|until| refuses_twins(until, row.state));
            refuses && extras.fingerprint == Some(fingerprint)
        };
        Ok(row.filter(is_twin).map(|row| Twin { id: owner, row: Some(row) }))
    }

    /// Writes the marks of a new job: that it is unique, and its root.
    pub(crate) fn register(&mut self, id: &str, row: &Row, window: u64) -> Result<(), BoxError> {
        let extras = row.extras();
        if let (Some(until), Some(fingerprint)) = (extras.unique, extras.fingerprint) {
            let until = if until == Until::Time { self.at.wall.saturating_add(window) } else { 0 };
            self.put_unique(id, fingerprint, until)?;
        }
        if let Some(root) = extras.root.as_ref().filter(|_| extras.is_root) {
            let number = root.millis();
            let old = self.mark_or_none(id, Mark::Root, &root.signature);
            if old.as_ref().is_none_or(|old| old.number <= number) {
                let new = self.mark_for(number, ROOT_FOR);
                self.put_mark(Mark::Root, &root.signature, old, &new)?;
            }
        }
        Ok(())
    }

    fn put_unique(&mut self, id: &str, fingerprint: Fingerprint, until: u64) -> Result<(), BoxError> {
        let of = fingerprint.text();
        let old = self.mark_or_none(id, Mark::Unique, &of);
        let new = Marked { number: 0, until, since: self.at.wall, id: id.to_owned() };
        self.put_mark(Mark::Unique, &of, old, &new)
    }

    /// Allows twins of a unique job from now on, if the mark is its own.
    fn release_unique(&mut self, id: &str, fingerprint: Fingerprint) -> Result<(), BoxError> {
        let of = fingerprint.text();
        let Some(marked) = self.stored_mark(id, Mark::Unique, &of).filter(|marked| marked.id == id) else {
            return Ok(());
        };
        if marked.until > 0 {
            self.remove_entry(List::Marks, marked.until, &entry_of(Mark::Unique, &of))?;
        }
        let key = self.queue.keys.mark(Mark::Unique, &of);
        Ok(self.delete(self.rows(), &key)?)
    }

    /// Allows twins of a job that is unique until a worker takes it.
    pub(crate) fn release_claimed(&mut self, id: &str, row: &mut Row) -> Result<(), BoxError> {
        let extras = row.extras();
        if let (Some(Until::Claimed), Some(fingerprint)) = (extras.unique, extras.fingerprint) {
            self.release_unique(id, fingerprint)?;
            let extras = row.extras_mut();
            extras.unique = None;
            extras.fingerprint = Some(fingerprint).filter(|_| extras.skips_from.is_some());
        }
        Ok(())
    }

    /// Allows twins of a job that has ended or is removed.
    pub(crate) fn release_ended(&mut self, id: &str, row: &Row, is_removed: bool) -> Result<(), BoxError> {
        let extras = row.extras();
        match (extras.unique, extras.fingerprint) {
            // Its window goes on, however it ended.
            (Some(Until::Time), _) if !is_removed => Ok(()),
            (Some(_), Some(fingerprint)) => self.release_unique(id, fingerprint),
            _ => Ok(()),
        }
    }

    /// Makes a requeued job unique again, unless it has a twin by now.
    pub(crate) fn register_again(&mut self, id: &str, row: &Row) -> Result<(), BoxError> {
        let extras = row.extras();
        match (extras.unique, extras.fingerprint) {
            (Some(Until::Claimed | Until::Done), Some(fingerprint)) if self.twin_of(id, row)?.is_none() => {
                self.put_unique(id, fingerprint, 0)
            }
            _ => Ok(()),
        }
    }

    // Jobs that need not run.

    /// Returns why a job that is claimed need not run, if so.
    pub(crate) fn skips(&mut self, id: &str, row: &Row) -> Option<Skipped> {
        let extras = row.extras();
        if let Some(root) = &extras.root {
            let newest = self.mark_or_none(id, Mark::Root, &root.signature);
            if newest.is_some_and(|newest| newest.number > root.millis()) {
                return Some(Skipped::Superseded);
            }
        }
        let (from, fingerprint) = extras.skips_from.zip(extras.fingerprint)?;
        // A retry must run: a run that began before the failure cannot stand for it.
        if row.failures > 0 || row.crashes > 0 {
            return None;
        }
        let last = self.mark_or_none(id, Mark::Executed, &fingerprint.text());
        last.filter(|last| last.number >= from).map(|_| Skipped::Executed)
    }

    /// Remembers a successful run. `row` is that of the running job.
    pub(crate) fn note_executed(&mut self, id: &str, row: &Row) -> Result<(), BoxError> {
        let extras = row.extras();
        let Some((_, fingerprint)) = extras.skips_from.zip(extras.fingerprint) else { return Ok(()) };
        let of = fingerprint.text();
        let old = self.mark_or_none(id, Mark::Executed, &of);
        let number = old.as_ref().map_or(0, |old| old.number).max(row.place);
        let new = self.mark_for(number, EXECUTED_FOR);
        self.put_mark(Mark::Executed, &of, old, &new)
    }
}

/// Returns the id of a mark's entry: the last part of the mark's key.
pub(crate) fn entry_of(mark: Mark, of: &str) -> String {
    format!("{}{of}", mark as u8 as char)
}

#[cfg(test)]
mod tests {
    use crate::accept::Accept;
    use crate::embedded::keys::Mark;
    use crate::handle::Queue;
    use crate::types::job::PushOutcome;
    use crate::types::new_job::NewJob;
    use crate::types::options::QueueOptions;
    use crate::types::unique::Unique;
    use std::time::{Duration, SystemTime};
    use waterline::Store;
    use waterline::seam::{self, Records};

    /// A job with each kind of mark.
    fn job(id: &str) -> NewJob {
        let job = NewJob::new("k", &1).unwrap().id(id).unique(Unique::until_done()).skip_if_executed();
        job.root("tree", SystemTime::UNIX_EPOCH + Duration::from_secs(1))
    }

    /// Replaces these marks with garbage. Returns how many were there.
    fn damage(queue: &Queue, marks: &[(Mark, &str)]) -> usize {
        let (state, mut batch) = (queue.state_of(), Records::default());
        let keys = marks.iter().map(|(mark, of)| state.keys.mark(*mark, of));
        let there: Vec<_> = keys.filter(|key| queue.bytes(key).unwrap().is_some()).collect();
        there.iter().for_each(|key| batch.put(state.rows.id, &[key], &[b"\x01damaged"]).unwrap());
        seam::write_records(queue.store(), &batch).unwrap();
        there.len()
    }

    #[test]
    fn an_unreadable_mark_keeps_no_job_from_running() {
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap();
        queue.push(job("a")).unwrap();
        let of = queue.row("a").unwrap().unwrap().extras().fingerprint.unwrap().text();
        queue.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
        queue.push(job("b")).unwrap();
        let marks = [(Mark::Unique, of.as_str()), (Mark::Executed, &of), (Mark::Root, "tree")];
        assert_eq!(damage(&queue, &marks), 3);
        assert_eq!(queue.push(job("c")).unwrap().outcome, PushOutcome::Added, "it runs rather twice than never");
        assert_eq!(
            queue.push(job("d")).unwrap().outcome,
            PushOutcome::Duplicate("c".into()),
            "c has a mark that can be read"
        );
        assert_eq!(damage(&queue, &marks), 3);
        for id in ["b", "c"] {
            let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
            assert_eq!(lease.id(), id);
            lease.bury("it must not become a mark").unwrap();
        }
        assert_eq!(queue.push(job("e")).unwrap().outcome, PushOutcome::Added);
    }

    #[test]
    fn an_unreadable_twin_refuses_no_job() {
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap();
        queue.push(job("a")).unwrap();
        let (state, mut batch) = (queue.state_of(), Records::default());
        batch.put(state.rows.id, &[&state.keys.row("a")], &[b"damaged"]).unwrap();
        seam::write_records(queue.store(), &batch).unwrap();
        assert_eq!(queue.push(job("b")).unwrap().outcome, PushOutcome::Added);
    }
}
