//! The count of all rows after damage was met: the jobs of each state are counted again, and a job
//! that lost its entry gets another one. With many jobs it takes a while.

use crate::embedded::keys::{List, id_of_row};
use crate::embedded::step::Step;
use crate::embedded::txn::repair::GONE;
use crate::rules::ends::{End, Run};
use crate::types::events::Event;
use crate::types::job::JobState;
use crate::types::row::Row;
use std::collections::{HashMap, HashSet};
use waterline::BoxError;
use waterline::seam::KeyRange;

/// The number of rows read at once.
const CHUNK: usize = 1000;

/// What was counted so far.
#[derive(Default)]
struct Counted {
    counts: [u64; JobState::ALL.len()],
    /// The number of jobs that each limit holds.
    held: HashMap<String, u64>,
    running: Vec<Row>,
    /// The lists of jobs that wait for another.
    lists: HashSet<u64>,
}

impl Step<'_, '_> {
    /// Counts all jobs again if a damaged entry was met. Returns whether it did.
    pub(super) fn find_lost(&mut self) -> Result<bool, BoxError> {
        let has_lost = std::mem::take(&mut self.txn.has_lost);
        if has_lost { self.recount().map(|()| true) } else { Ok(false) }
    }

    /// Counts all jobs again, sets damaged ones aside, and gives lost ones a new entry.
    pub(super) fn recount(&mut self) -> Result<(), BoxError> {
        let (queue, all) = (self.txn.queue, KeyRange::prefix(&self.txn.queue.keys.all_rows()));
        let (mut from, mut counted) = (all.from, Counted::default());
        loop {
            let range = KeyRange { from: from.clone(), to: all.to.clone() };
            let keys = self.txn.batch.rows(&queue.rows, range).take(CHUNK).map(|pair| pair.map(|(key, _)| key));
            let keys = keys.collect::<Result<Vec<_>, _>>()?;
            for id in keys.iter().filter_map(|key| id_of_row(key)) {
                self.count_job(id, &mut counted)?;
            }
            let Some(last) = keys.last().filter(|_| keys.len() == CHUNK) else { break };
            from = [last, &[0][..]].concat();
        }
        self.txn.head().counts = counted.counts;
        // From now on, no state counts these.
        for id in self.txn.all_damaged()? {
            let key = queue.keys.entry(List::Damaged, 0, &id);
            if let Some(value) = self.txn.batch.get(&queue.entries, &key)?.filter(|value| value.first() != Some(&GONE))
            {
                self.txn.put(queue.entries.id, &key, &[&[GONE], value.get(1..).unwrap_or_default()].concat())?;
            }
        }
        self.txn.recount_limits(Some(counted.held), &counted.running)?;
        if self.txn.staged.damaged == 0 { self.end_lost_waits(&counted.lists) } else { Ok(()) }
    }

    fn count_job(&mut self, id: &str, counted: &mut Counted) -> Result<(), BoxError> {
        let Some(row) = self.txn.row_in(None, id)? else { return Ok(()) };
        // Its row may have been restored.
        self.txn.forget_damaged(id)?;
        let row = if self.txn.has_entry(id, &row)? { Some(row) } else { self.enter_again(id, row)? };
        if let Some(row) = row {
            counted.counts[row.state.number()] += 1;
            if let Some(limit) = &row.extras().held {
                *counted.held.entry(limit.clone()).or_default() += 1;
            }
            counted.lists.extend([row.extras().awaited, row.extras().held_up].into_iter().flatten());
            counted.running.extend((row.state == JobState::Running).then_some(row));
        }
        Ok(())
    }

    /// Enters a job that lost its entry into the place of its state. Returns its row.
    fn enter_again(&mut self, id: &str, mut row: Row) -> Result<Option<Row>, BoxError> {
        if row.state == JobState::Running {
            // A worker of this process goes on with it. Otherwise it ran when its process died.
            if row.place >= self.txn.staged.life {
                self.txn.staged.tell(Event::Kept { id: id.to_owned(), token: row.place });
                self.txn.put_place(self.txn.rows(), &self.txn.queue.keys.running(row.place), id)?;
                return Ok(Some(row));
            }
            self.end_row(id, row, End::Crashed, None, &Run::default())?;
            return self.txn.row(id);
        }
        self.txn.enter(id, &mut row)?;
        self.txn.tell(id, Some(row.state), None);
        Ok(Some(row))
    }
}
