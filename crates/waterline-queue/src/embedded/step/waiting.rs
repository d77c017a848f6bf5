//! Jobs that wait for the ends of others.
//!
//! A job that others wait for has a list of them, whose number is in its row: one that any end of
//! the job empties, and one that its death leaves as it is. An end takes the list out of the row,
//! so a job that is pushed anew under the same id begins a new one. A waiting job has a record for
//! each list that it is in, and its row has their number. An entry of a list without this record
//! is stale, and counts for nothing.
//!
//! A job that dies while it waits keeps these records, and is in no list any more: the ids in them
//! are those that it waits for when it is requeued.

use crate::embedded::keys::{List, ending, split_awaits, split_ending, split_waiting};
use crate::embedded::step::ending::Unrun;
use crate::embedded::step::{AT_ONCE, Ending, Step};
use crate::rules::ends;
use crate::rules::pushing::Push;
use crate::types::error::{QueueError, is_damage};
use crate::types::job::{JobId, JobState};
use crate::types::related::{Effect, OnDead};
use crate::types::row::Row;
use std::collections::HashSet;
use waterline::seam::{KeyRange, prefix_end};
use waterline::{BoxError, StoreError};

/// The most jobs that the search for a cycle sees. It holds up all writes of the store.
pub(super) const SEARCH: usize = 10_000;

/// The jobs that a job is to wait for.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Those that have not ended, with the number of their list if they have one.
    pub(super) on: Vec<(JobId, Option<u64>)>,
    /// One that is dead, so that this job dies too.
    pub(super) died: Option<JobId>,
    /// All of them, if this job dies: it keeps them.
    pub(super) kept: Vec<JobId>,
}

impl Waits {
    /// True if there is nothing to wait for.
    pub(super) fn is_over(&self) -> bool {
        self.on.is_empty() && self.died.is_none()
    }
}

/// Returns the number of the list for jobs with this setting.
pub(super) fn list_in(row: &Row, on_dead: OnDead) -> Option<u64> {
    if on_dead == OnDead::Hold { row.extras().held_up } else { row.extras().awaited }
}

impl Step<'_, '_> {
    // The push.

    /// Looks up the jobs that a job of this id is to wait for. `old` is the job that has the id
    /// now. It goes on to wait for the same jobs if the push names none.
    pub(super) fn waits(&mut self, id: &str, push: &Push, old: Option<&Row>) -> Result<Waits, BoxError> {
        if push.after.is_empty() && old.is_some_and(|old| old.state == JobState::Waiting) {
            return Ok(Waits { on: self.waits_of(id)?, ..Waits::default() });
        }
        let on_dead = push.row.extras().on_dead;
        // Nobody waits for a job that was never there, so it closes no cycle.
        let is_awaited = old.is_some_and(|old| old.extras().awaited.or(old.extras().held_up).is_some());
        let (mut waits, mut search) = (Waits::default(), Vec::new());
        for other in &push.after {
            if other == id {
                return Err(QueueError::Cycle {
                    queue: self.queue.name.clone(),
                    id: id.to_owned(),
                    through: Some(id.to_owned()),
                }
                .into());
            }
            let Some(row) = self.row(other)? else {
                if self.is_gone(other)? {
                    continue;
                }
                return Err(self.queue.not_found(other).into());
            };
            let effect = row.state.is_ended().then(|| on_dead.effect(row.state == JobState::Dead));
            match effect {
                Some(Effect::Counts) => {}
                Some(Effect::Dies) => {
                    waits.kept.push(other.clone());
                    waits.died = waits.died.or_else(|| Some(other.clone()));
                }
                Some(Effect::Waits) | None => {
                    if is_awaited && row.state == JobState::Waiting {
                        search.push(other.clone());
                    }
                    waits.on.push((other.clone(), list_in(&row, on_dead)));
                }
            }
        }
        self.refuse_cycle(id, search)?;
        if waits.died.is_some() {
            waits.kept.extend(waits.on.drain(..).map(|(other, _)| other));
            waits.kept.sort_unstable();
        }
        Ok(waits)
    }

    /// Returns the jobs that a job waits for, or that it waited for when it died.
    pub(super) fn waits_of(&mut self, id: &str) -> Result<Vec<(JobId, Option<u64>)>, BoxError> {
        let mut on = Vec::new();
        for pair in self.batch.scan(&self.queue.rows, &self.queue.keys.all_awaits(Some(id))) {
            let (key, other) = pair?;
            let list = split_awaits(&key).map(|(_, list)| list);
            on.push((String::from_utf8_lossy(&other).into_owned(), list));
        }
        Ok(on)
    }

    /// Refuses a job if one of these, which it is to wait for, waits for it.
    fn refuse_cycle(&mut self, id: &str, others: Vec<JobId>) -> Result<(), BoxError> {
        let mut seen: HashSet<JobId> = others.iter().cloned().collect();
        let mut search: Vec<(JobId, JobId)> = others.into_iter().map(|other| (other.clone(), other)).collect();
        while let Some((at, through)) = search.pop() {
            if !self.is_waiting(&at)? {
                continue;
            }
            for pair in self.batch.scan(&self.queue.rows, &self.queue.keys.all_awaits(Some(&at))) {
                let (_, next) = pair?;
                let next = String::from_utf8_lossy(&next).into_owned();
                if next == id {
                    return Err(
                        QueueError::Cycle { queue: self.queue.name.clone(), id: next, through: Some(through) }.into()
                    );
                }
                if seen.insert(next.clone()) {
                    if seen.len() > SEARCH {
                        return Err(QueueError::Cycle {
                            queue: self.queue.name.clone(),
                            id: id.to_owned(),
                            through: None,
                        }
                        .into());
                    }
                    search.push((next, through.clone()));
                }
            }
        }
        Ok(())
    }

    /// True if a job waits for others. A dead one may have kept the jobs that it waited for.
    fn is_waiting(&mut self, id: &str) -> Result<bool, BoxError> {
        match self.row(id) {
            // What its row has said, nobody knows; its records say that it waits.
            Err(error) if is_damage(&error) => Ok(true),
            row => Ok(row?.is_some_and(|row| row.state == JobState::Waiting)),
        }
    }

    /// True if a push names no jobs, or those that the job waits for already.
    pub(super) fn waits_so(
        &mut self,
        id: &str,
        old: Option<&Row>,
        push: &Push,
        waits: &Waits,
    ) -> Result<bool, BoxError> {
        let (Some(old), false) = (old, push.after.is_empty()) else { return Ok(true) };
        let (old, new) = (old.extras(), push.row.extras());
        if waits.died.is_some() || old.after as usize != waits.on.len() {
            return Ok(false);
        }
        for (_, list) in &waits.on {
            let Some(list) = list else { return Ok(false) };
            if self.batch.get(&self.queue.rows, &self.queue.keys.awaits(id, *list))?.is_none() {
                return Ok(false);
            }
        }
        Ok(waits.on.is_empty() || old.on_dead == new.on_dead)
    }

    /// Enters a job into the lists of those that it waits for.
    pub(super) fn wait_for(
        &mut self,
        id: &str,
        row: &mut Row,
        others: &[(JobId, Option<u64>)],
    ) -> Result<(), BoxError> {
        let keys = self.queue.keys;
        for (other, list) in others {
            let list = match list {
                Some(list) => *list,
                None => {
                    let other_row = self.row(other)?;
                    let mut other_row = other_row.ok_or_else(|| self.queue.not_found(other))?;
                    let list = self.list_of(&mut other_row, row.extras().on_dead);
                    self.write_row(other, &other_row)?;
                    list
                }
            };
            self.put(self.rows(), &keys.waiting(list, id), &[])?;
            self.put(self.rows(), &keys.awaits(id, list), other.as_bytes())?;
        }
        if !others.is_empty() {
            row.extras_mut().after = others.len() as u32;
        }
        Ok(())
    }

    /// Returns the list of those who wait for a job with this setting. The row gets one if it has
    /// none, whose number is in no other list and no lease.
    pub(super) fn list_of(&mut self, row: &mut Row, on_dead: OnDead) -> u64 {
        if let Some(list) = list_in(row, on_dead) {
            return list;
        }
        let next = &mut self.head().next_token;
        let list = *next;
        *next += 1;
        let extras = row.extras_mut();
        *(if on_dead == OnDead::Hold { &mut extras.held_up } else { &mut extras.awaited }) = Some(list);
        list
    }

    /// Takes a job that dies out of the lists that it is in: so many. Its own records stay. If they
    /// are many, its entries in the lists are stale from now on, and go with the lists.
    pub(super) fn leave_lists(&mut self, id: &str, count: u32) -> Result<(), StoreError> {
        if count as usize > AT_ONCE {
            return Ok(());
        }
        let own = self.batch.scan(&self.queue.rows, &self.queue.keys.all_awaits(Some(id)));
        let own = own.map(|pair| pair.map(|(key, _)| key)).collect::<Result<Vec<_>, _>>()?;
        for (_, list) in own.iter().filter_map(|key| split_awaits(key)) {
            self.delete(self.rows(), &self.queue.keys.waiting(list, id))?;
        }
        Ok(())
    }

    /// Keeps the ids of jobs for which a job would wait that dies at its push.
    pub(super) fn keep_waits(&mut self, id: &str, row: &mut Row, others: &[JobId]) -> Result<(), StoreError> {
        for other in others {
            // No list has this number.
            let next = &mut self.head().next_token;
            let number = *next;
            *next += 1;
            self.put(self.rows(), &self.queue.keys.awaits(id, number), other.as_bytes())?;
        }
        row.extras_mut().after = others.len() as u32;
        Ok(())
    }

    /// Removes the records of the lists that a job is in, or was in when it died: so many.
    pub(super) fn wait_no_more(&mut self, id: &str, count: u32) -> Result<(), StoreError> {
        let keys = self.queue.keys;
        let all = keys.all_awaits(Some(id));
        if count == 0 {
            return Ok(());
        }
        if count as usize > AT_ONCE {
            // Its entries in the lists are stale from now on, and go with the lists.
            self.wrote = true;
            return self.batch.delete_range(self.rows(), &all, &prefix_end(&all).unwrap_or_default());
        }
        let own = self.batch.scan(&self.queue.rows, &all).map(|pair| pair.map(|(key, _)| key));
        for key in own.collect::<Result<Vec<_>, _>>()? {
            if let Some((_, list)) = split_awaits(&key) {
                self.delete(self.rows(), &keys.waiting(list, id))?;
            }
            self.delete(self.rows(), &key)?;
        }
        Ok(())
    }

    // The end.

    /// Tells the end of a job to those who wait for it: to some of them now, and to the rest in
    /// later batches.
    pub(super) fn end_waits(&mut self, id: &str, row: &mut Row, died: bool) -> Result<(), BoxError> {
        let extras = row.extras();
        if extras.awaited.is_none() && (extras.held_up.is_none() || died) {
            return Ok(());
        }
        let extras = row.extras_mut();
        let lists = [extras.awaited.take(), if died { None } else { extras.held_up.take() }];
        self.endings.extend(lists.iter().flatten().map(|list| Ending::new(*list, id, died)));
        // A job that dies with the one that it waited for comes here too. Its own end is told by
        // the loop of the first one, so a long chain needs no deep stack.
        if std::mem::replace(&mut self.is_telling, true) {
            return Ok(());
        }
        let mut most = AT_ONCE;
        while let Some(mut ending) = self.endings.pop_front() {
            if !self.tell_list(&mut ending, &mut most)? {
                self.put_untold(&ending)?;
            }
        }
        self.is_telling = false;
        Ok(())
    }

    fn put_untold(&mut self, Ending { list, of, died, last }: &Ending) -> Result<(), StoreError> {
        self.staged.from.note(List::Untold, *list);
        self.put(self.entries(), &self.queue.keys.entry(List::Untold, *list, &ending(of, *died)), last.as_bytes())
    }

    /// Goes on to tell ends that had too many jobs waiting for them, to this number of jobs.
    pub(super) fn tell_untold(&mut self, mut most: usize) -> Result<(), BoxError> {
        self.is_telling = true;
        while most > 0 {
            let (listed, next) = self.listed(List::Untold, u64::MAX, 1)?;
            self.staged.from.set(List::Untold, next);
            let Some((list, entry)) = listed.into_iter().next() else { break };
            let Some((of, died)) = split_ending(&entry) else {
                self.remove_entry(List::Untold, list, &entry)?;
                continue;
            };
            let last = self.batch.get(&self.queue.entries, &self.queue.keys.entry(List::Untold, list, &entry))?;
            let last = String::from_utf8(last.unwrap_or_default()).unwrap_or_default();
            let mut ending = Ending { last, ..Ending::new(list, of, died) };
            most -= 1;
            let is_all = self.tell_list(&mut ending, &mut most)?;
            let all = KeyRange::prefix(&self.queue.keys.waiting(list, ""));
            if is_all && self.batch.rows(&self.queue.rows, all).next().is_none() {
                self.remove_entry(List::Untold, list, &entry)?;
            } else {
                // The place to go on from was damaged if it has passed some.
                ending.last = if is_all { JobId::new() } else { ending.last };
                self.put_untold(&ending)?;
            }
            for ending in std::mem::take(&mut self.endings) {
                self.put_untold(&ending)?;
            }
        }
        self.is_telling = false;
        Ok(())
    }

    /// Tells an end to those in its list, as long as `most` allows. Returns true if these are all.
    fn tell_list(&mut self, ending: &mut Ending, most: &mut usize) -> Result<bool, BoxError> {
        let from = self.queue.keys.waiting(ending.list, &ending.last);
        let to = prefix_end(&self.queue.keys.waiting(ending.list, ""));
        let pairs = self.batch.rows(&self.queue.rows, KeyRange { from, to }).take(*most);
        let keys = pairs.map(|pair| pair.map(|(key, _)| key)).collect::<Result<Vec<_>, _>>()?;
        let is_all = keys.len() < *most;
        *most -= keys.len();
        for key in keys {
            match split_waiting(&key) {
                Some(id) => {
                    self.tell_one(ending, id)?;
                    id.clone_into(&mut ending.last);
                }
                None => self.delete(self.rows(), &key)?,
            }
        }
        Ok(is_all)
    }

    /// Tells an end to one job.
    fn tell_one(&mut self, Ending { list, of, died, .. }: &Ending, id: &str) -> Result<(), BoxError> {
        let (queue, awaits) = (self.queue, self.queue.keys.awaits(id, *list));
        self.delete(self.rows(), &queue.keys.waiting(*list, id))?;
        if self.batch.get(&queue.rows, &awaits)?.is_none() {
            return Ok(());
        }
        let row = self.row_in(JobState::Waiting, id)?;
        // One that is dead by now keeps its records.
        let Some(mut row) = row.filter(|row| row.state == JobState::Waiting) else { return Ok(()) };
        if row.extras().on_dead.effect(*died) == Effect::Dies {
            return self.end_unrun(id, row, Unrun::of_death(of));
        }
        self.delete(self.rows(), &awaits)?;
        let after = &mut row.extras_mut().after;
        *after = after.saturating_sub(1);
        if *after > 0 {
            return Ok(self.write_row(id, &row)?);
        }
        self.leave(id, &row)?;
        row.state = ends::waiting(row.due, self.at.wall);
        let given = row.since;
        self.enter_given(id, &mut row, given)?;
        self.tell(id, Some(row.state), None);
        Ok(())
    }

    /// Ends the waits in lists that are none of these, those of all jobs: they were for a job whose
    /// row could not be read, and which has gone. The records that named it are damaged, too.
    pub(super) fn end_lost_waits(&mut self, lists: &HashSet<u64>) -> Result<(), BoxError> {
        let (queue, keys, mut lost) = (self.queue, self.queue.keys, Vec::new());
        for pair in self.batch.scan(&queue.rows, &keys.all_awaits(None)) {
            let (key, _) = pair?;
            lost.extend(split_awaits(&key).map(|(id, list)| (id.to_owned(), list)).filter(|of| !lists.contains(&of.1)));
        }
        for (id, list) in lost {
            let to = Some(keys.entries_from(List::Untold, list.saturating_add(1)));
            let untold = KeyRange { from: keys.entries_from(List::Untold, list), to };
            if self.batch.rows(&queue.entries, untold).next().is_none() {
                self.tell_one(&Ending::new(list, "", false), &id)?;
            }
        }
        Ok(())
    }

    /// Tells the removal of a job whose row cannot be read to all who wait for it.
    pub(super) fn end_waits_for(&mut self, of: &str) -> Result<(), BoxError> {
        let mut told = Vec::new();
        for pair in self.batch.scan(&self.queue.rows, &self.queue.keys.all_awaits(None)) {
            let (key, other) = pair?;
            if other == of.as_bytes()
                && let Some((id, list)) = split_awaits(&key)
            {
                told.push((id.to_owned(), list));
            }
        }
        for (id, list) in told {
            self.tell_one(&Ending::new(list, of, false), &id)?;
        }
        Ok(())
    }
}
