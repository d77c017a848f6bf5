//! The ends of jobs, told to the jobs that wait for them.

use crate::embedded::keys::{List, split_awaits, split_ending, split_waiting};
use crate::embedded::step::Step;
use crate::embedded::step::ending::Unrun;
use crate::embedded::txn::AT_ONCE;
use crate::embedded::txn::edges::UntoldEnd;
use crate::rules::ends;
use crate::types::job::{JobId, JobState};
use crate::types::related::Effect;
use crate::types::row::Row;
use std::collections::HashSet;
use waterline::BoxError;
use waterline::seam::{KeyRange, prefix_end};

impl Step<'_, '_> {
    /// Tells the end of a job to jobs that wait for it: some now, the rest in later batches.
    pub(super) fn end_waits(&mut self, id: &str, row: &mut Row, died: bool) -> Result<(), BoxError> {
        let extras = row.extras();
        if extras.awaited.is_none() && (extras.held_up.is_none() || died) {
            return Ok(());
        }
        let extras = row.extras_mut();
        let lists = [extras.awaited.take(), if died { None } else { extras.held_up.take() }];
        self.endings.extend(lists.iter().flatten().map(|list| UntoldEnd::new(*list, id, died)));
        // A job that dies because of this end comes here, too. The outer loop tells its end, so a
        // long chain needs no deep stack.
        if std::mem::replace(&mut self.is_telling, true) {
            return Ok(());
        }
        let mut most = AT_ONCE;
        while let Some(mut ending) = self.endings.pop_front() {
            if !self.tell_list(&mut ending, &mut most)? {
                self.txn.put_untold(&ending)?;
            }
        }
        self.is_telling = false;
        Ok(())
    }

    /// Continues to tell ends that too many jobs waited for, to up to `most` jobs.
    pub(super) fn tell_untold(&mut self, mut most: usize) -> Result<(), BoxError> {
        self.is_telling = true;
        while most > 0 {
            let (listed, next) = self.txn.listed(List::Untold, u64::MAX, 1)?;
            self.txn.staged.from.set(List::Untold, next);
            let Some((list, entry)) = listed.into_iter().next() else { break };
            let Some((of, died)) = split_ending(&entry) else {
                self.txn.remove_entry(List::Untold, list, &entry)?;
                continue;
            };
            let last =
                self.txn.batch.get(&self.txn.queue.entries, &self.txn.queue.keys.entry(List::Untold, list, &entry))?;
            let last = String::from_utf8(last.unwrap_or_default()).unwrap_or_default();
            let mut ending = UntoldEnd { last, ..UntoldEnd::new(list, of, died) };
            most -= 1;
            let is_all = self.tell_list(&mut ending, &mut most)?;
            let all = KeyRange::prefix(&self.txn.queue.keys.waiting(list, ""));
            if is_all && self.txn.batch.rows(&self.txn.queue.rows, all).next().is_none() {
                self.txn.remove_entry(List::Untold, list, &entry)?;
            } else {
                // Rows left after all were told: the place to go on from was damaged, so start
                // over.
                ending.last = if is_all { JobId::new() } else { ending.last };
                self.txn.put_untold(&ending)?;
            }
            for ending in std::mem::take(&mut self.endings) {
                self.txn.put_untold(&ending)?;
            }
        }
        self.is_telling = false;
        Ok(())
    }

    /// Tells an end to up to `most` jobs in its list. Returns whether these are all.
    fn tell_list(&mut self, ending: &mut UntoldEnd, most: &mut usize) -> Result<bool, BoxError> {
        let from = self.txn.queue.keys.waiting(ending.list, &ending.last);
        let to = prefix_end(&self.txn.queue.keys.waiting(ending.list, ""));
        let pairs = self.txn.batch.rows(&self.txn.queue.rows, KeyRange { from, to }).take(*most);
        let keys = pairs.map(|pair| pair.map(|(key, _)| key)).collect::<Result<Vec<_>, _>>()?;
        let is_all = keys.len() < *most;
        *most -= keys.len();
        for key in keys {
            match split_waiting(&key) {
                Some(id) => {
                    self.tell_one(ending, id)?;
                    id.clone_into(&mut ending.last);
                }
                None => self.txn.delete(self.txn.rows(), &key)?,
            }
        }
        Ok(is_all)
    }

    fn tell_one(&mut self, UntoldEnd { list, of, died, .. }: &UntoldEnd, id: &str) -> Result<(), BoxError> {
        let (queue, awaits) = (self.txn.queue, self.txn.queue.keys.awaits(id, *list));
        self.txn.delete(self.txn.rows(), &queue.keys.waiting(*list, id))?;
        if self.txn.batch.get(&queue.rows, &awaits)?.is_none() {
            return Ok(());
        }
        let row = self.txn.row_in(JobState::Waiting, id)?;
        // A job that is dead by now keeps its records.
        let Some(mut row) = row.filter(|row| row.state == JobState::Waiting) else { return Ok(()) };
        if row.extras().on_dead.effect(*died) == Effect::Dies {
            return self.end_unrun(id, row, Unrun::of_death(of));
        }
        self.txn.delete(self.txn.rows(), &awaits)?;
        let after = &mut row.extras_mut().after;
        *after = after.saturating_sub(1);
        if *after > 0 {
            return Ok(self.txn.write_row(id, &row)?);
        }
        self.txn.leave(id, &row)?;
        row.state = ends::waiting(row.due, self.txn.at.wall);
        let given = row.since;
        self.txn.enter_given(id, &mut row, given)?;
        self.txn.tell(id, Some(row.state), None);
        Ok(())
    }

    /// Ends the waits in lists that no job has (`lists` are those of all jobs). The job that had
    /// them is gone, and its row could not be read, nor the records that named it.
    pub(super) fn end_lost_waits(&mut self, lists: &HashSet<u64>) -> Result<(), BoxError> {
        let (queue, keys, mut lost) = (self.txn.queue, self.txn.queue.keys, Vec::new());
        for pair in self.txn.batch.scan(&queue.rows, &keys.all_awaits(None)) {
            let (key, _) = pair?;
            lost.extend(split_awaits(&key).map(|(id, list)| (id.to_owned(), list)).filter(|of| !lists.contains(&of.1)));
        }
        for (id, list) in lost {
            let to = Some(keys.entries_from(List::Untold, list.saturating_add(1)));
            let untold = KeyRange { from: keys.entries_from(List::Untold, list), to };
            if self.txn.batch.rows(&queue.entries, untold).next().is_none() {
                self.tell_one(&UntoldEnd::new(list, "", false), &id)?;
            }
        }
        Ok(())
    }

    /// Tells the removal of a job whose row cannot be read to all jobs that wait for it.
    pub(super) fn end_waits_for(&mut self, of: &str) -> Result<(), BoxError> {
        let mut told = Vec::new();
        for pair in self.txn.batch.scan(&self.txn.queue.rows, &self.txn.queue.keys.all_awaits(None)) {
            let (key, other) = pair?;
            if other == of.as_bytes()
                && let Some((id, list)) = split_awaits(&key)
            {
                told.push((id.to_owned(), list));
            }
        }
        for (id, list) in told {
            self.tell_one(&UntoldEnd::new(list, of, false), &id)?;
        }
        Ok(())
    }
}
