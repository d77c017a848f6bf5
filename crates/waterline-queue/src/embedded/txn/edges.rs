//! Jobs that wait for the ends of others.
//!
//! The row of a job has the numbers of up to two lists of jobs that wait for it: one that any end
//! empties, and one that its death leaves as it is ([`OnDead::Hold`]). An end takes the list out of
//! the row, so a job pushed again under the same id begins a new one. For each list that it is in,
//! a waiting job has a record, and its row has their count. An entry of a list without this record
//! is stale.
//!
//! A job that dies while it waits leaves the lists but keeps these records: their ids are what it
//! waits for again when it is requeued.

use crate::embedded::keys::{List, ending, split_awaits, split_waiting};
use crate::embedded::txn::{AT_ONCE, Txn};
use crate::rules::pushing::Push;
use crate::types::error::{QueueError, is_damage};
use crate::types::job::{JobId, JobState};
use crate::types::related::{Effect, OnDead};
use crate::types::row::Row;
use std::collections::HashSet;
use waterline::seam::{KeyRange, prefix_end};
use waterline::{BoxError, StoreError};

/// The most jobs that the search for a cycle visits. It blocks all writes of the store.
pub(crate) const SEARCH: usize = 10_000;

/// The jobs that a job is to wait for.
#[derive(Debug, Default)]
pub(crate) struct WaitsFor {
    /// The jobs that have not ended, with the number of their list if they have one.
    pub(crate) on: Vec<(JobId, Option<u64>)>,
    /// A job that is dead, so that this one dies too.
    pub(crate) died: Option<JobId>,
    /// All of them if this job dies, which keeps them.
    pub(crate) kept: Vec<JobId>,
}

impl WaitsFor {
    /// True if there is nothing to wait for.
    pub(crate) fn is_over(&self) -> bool {
        self.on.is_empty() && self.died.is_none()
    }
}

/// Returns the number of the list for waiting jobs with this setting.
pub(crate) fn list_in(row: &Row, on_dead: OnDead) -> Option<u64> {
    if on_dead == OnDead::Hold { row.extras().held_up } else { row.extras().awaited }
}

/// The end of a job, to be told to the jobs in a list.
#[derive(Clone, Debug)]
pub(crate) struct UntoldEnd {
    pub(crate) list: u64,
    pub(crate) of: JobId,
    pub(crate) died: bool,
    /// The job that was told last. The next look begins behind it, and skips tombstones.
    pub(crate) last: JobId,
}

impl UntoldEnd {
    pub(crate) fn new(list: u64, of: &str, died: bool) -> Self {
        Self { list, of: of.to_owned(), died, last: JobId::new() }
    }
}

impl Txn<'_, '_> {
    /// Looks up the jobs that a pushed job is to wait for. `old` is the job that has its id now,
    /// which goes on to wait for the same jobs if the push names none.
    pub(crate) fn waits(&mut self, id: &str, push: &Push, old: Option<&Row>) -> Result<WaitsFor, BoxError> {
        if push.after.is_empty() && old.is_some_and(|old| old.state == JobState::Waiting) {
            return Ok(WaitsFor { on: self.waits_of(id)?, ..WaitsFor::default() });
        }
        let on_dead = push.row.extras().on_dead;
        // No job waits for a new one, so it closes no cycle.
        let is_awaited = old.is_some_and(|old| old.extras().awaited.or(old.extras().held_up).is_some());
        let (mut waits, mut search) = (WaitsFor::default(), Vec::new());
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

    /// Returns the jobs that a job waits for, or waited for when it died.
    pub(crate) fn waits_of(&mut self, id: &str) -> Result<Vec<(JobId, Option<u64>)>, BoxError> {
        let mut on = Vec::new();
        for pair in self.batch.scan(&self.queue.rows, &self.queue.keys.all_awaits(Some(id))) {
            let (key, other) = pair?;
            let list = split_awaits(&key).map(|(_, list)| list);
            on.push((String::from_utf8_lossy(&other).into_owned(), list));
        }
        Ok(on)
    }

    /// Refuses a job if one of these that it is to wait for already waits for it.
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

    /// True if a job waits for others. Its records alone do not say so: a dead job keeps them.
    fn is_waiting(&mut self, id: &str) -> Result<bool, BoxError> {
        match self.row(id) {
            // Its row cannot say, but its records say that it waits.
            Err(error) if is_damage(&error) => Ok(true),
            row => Ok(row?.is_some_and(|row| row.state == JobState::Waiting)),
        }
    }

    /// True if a push names no jobs, or the ones that the job waits for already.
    pub(crate) fn waits_so(
        &mut self,
        id: &str,
        old: Option<&Row>,
        push: &Push,
        waits: &WaitsFor,
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

    /// Enters a job into the lists of the jobs that it waits for.
    pub(crate) fn wait_for(
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

    /// Returns the list of jobs that wait for this one with this setting. A row without one gets a
    /// new number, which no other list and no lease has.
    pub(crate) fn list_of(&mut self, row: &mut Row, on_dead: OnDead) -> u64 {
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

    /// Takes a dying job out of the `count` lists that it is in. Its own records stay. With many
    /// lists, its entries turn stale instead, and go with the lists.
    pub(crate) fn leave_lists(&mut self, id: &str, count: u32) -> Result<(), StoreError> {
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

    /// Keeps the ids of the jobs that a job which dies at its push was to wait for.
    pub(crate) fn keep_waits(&mut self, id: &str, row: &mut Row, others: &[JobId]) -> Result<(), StoreError> {
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

    /// Removes the `count` records of the lists that a job is in, or was in when it died.
    pub(crate) fn wait_no_more(&mut self, id: &str, count: u32) -> Result<(), StoreError> {
        let keys = self.queue.keys;
        let all = keys.all_awaits(Some(id));
        if count == 0 {
            return Ok(());
        }
        if count as usize > AT_ONCE {
            // Its entries in the lists turn stale, and go with the lists.
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

    pub(crate) fn put_untold(&mut self, UntoldEnd { list, of, died, last }: &UntoldEnd) -> Result<(), StoreError> {
        self.staged.from.note(List::Untold, *list);
        self.put(self.entries(), &self.queue.keys.entry(List::Untold, *list, &ending(of, *died)), last.as_bytes())
    }

    /// Returns what a requeued job waits for again: jobs that live and do not wait for it.
    pub(crate) fn waits_again(&mut self, id: &str, row: &Row) -> Result<Vec<(JobId, Option<u64>)>, BoxError> {
        if row.extras().after == 0 {
            return Ok(Vec::new());
        }
        let mut others: Vec<JobId> = self.waits_of(id)?.into_iter().map(|(other, _)| other).collect();
        others.sort_unstable();
        others.dedup();
        let (mut on, mut behind) = (Vec::new(), None);
        for other in others {
            let of = match self.row(&other) {
                // It cannot end, so waiting for it would never end.
                Err(error) if is_damage(&error) => continue,
                of => of?,
            };
            let Some(of) = of.filter(|of| !of.state.is_ended()) else { continue };
            if of.state == JobState::Waiting {
                let behind = match &mut behind {
                    Some(behind) => behind,
                    none => none.insert(self.behind(row)?),
                };
                if behind.as_ref().is_none_or(|behind| behind.contains(&other)) {
                    continue;
                }
            }
            on.push((other, list_in(&of, row.extras().on_dead)));
        }
        Ok(on)
    }

    /// Returns the jobs that wait for this one, directly or not. `None`: too many to be sure.
    ///
    /// Mostly there are none, as only [`OnDead::Hold`](crate::OnDead::Hold) waits for a dead job.
    /// The other direction would follow the whole chain before each job of a chain that is
    /// requeued.
    fn behind(&mut self, row: &Row) -> Result<Option<HashSet<JobId>>, BoxError> {
        let (queue, keys) = (self.queue, self.queue.keys);
        let lists = |row: &Row| [row.extras().awaited, row.extras().held_up];
        let (mut seen, mut search) = (HashSet::new(), Vec::from(lists(row)));
        while let Some(list) = search.pop() {
            let Some(list) = list else { continue };
            let mut waiting = Vec::new();
            for pair in self.batch.rows(&queue.rows, KeyRange::prefix(&keys.waiting(list, ""))).take(SEARCH) {
                waiting.extend(split_waiting(&pair?.0).map(str::to_owned));
            }
            if waiting.len() == SEARCH {
                return Ok(None);
            }
            for id in waiting {
                // An entry without this record is stale.
                if self.batch.get(&queue.rows, &keys.awaits(&id, list))?.is_none() || seen.contains(&id) {
                    continue;
                }
                match self.row(&id) {
                    Err(error) if is_damage(&error) => {}
                    row => search.extend(row?.filter(|row| row.state == JobState::Waiting).iter().flat_map(lists)),
                }
                seen.insert(id);
            }
            if seen.len() >= SEARCH {
                return Ok(None);
            }
        }
        Ok(Some(seen))
    }
}
