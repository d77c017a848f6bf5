//! A look at all rows, once something was damaged: the jobs of each state are counted anew, and a
//! job that lost its entry gets another one. It takes a while if the jobs are many.

use crate::embedded::codec::entry;
use crate::embedded::codec::limit::{JOB, Record};
use crate::embedded::keys::{List, id_of_row};
use crate::embedded::step::Step;
use crate::embedded::step::damage::GONE;
use crate::rules::ends::{End, Run};
use crate::types::events::Event;
use crate::types::job::{JobId, JobState};
use crate::types::row::Row;
use std::collections::{HashMap, HashSet};
use waterline::BoxError;
use waterline::seam::{Family, KeyRange};

/// The rows that are in memory at once.
const CHUNK: usize = 1000;

/// The jobs that were counted.
#[derive(Default)]
struct Counted {
    counts: [u64; JobState::ALL.len()],
    /// The jobs that each limit holds.
    held: HashMap<String, u64>,
    running: Vec<Row>,
    /// The lists of those who wait for a job.
    lists: HashSet<u64>,
}

impl Step<'_, '_> {
    /// Counts all jobs anew. Each one that cannot be read is set aside, and each one that has lost
    /// its entry gets another one.
    pub(super) fn recount(&mut self) -> Result<(), BoxError> {
        let (queue, all) = (self.queue, KeyRange::prefix(&self.queue.keys.all_rows()));
        let (mut from, mut counted) = (all.from, Counted::default());
        loop {
            let range = KeyRange { from: from.clone(), to: all.to.clone() };
            let keys = self.batch.rows(&queue.rows, range).take(CHUNK).map(|pair| pair.map(|(key, _)| key));
            let keys = keys.collect::<Result<Vec<_>, _>>()?;
            for id in keys.iter().filter_map(|key| id_of_row(key)) {
                self.count_job(id, &mut counted)?;
            }
            let Some(last) = keys.last().filter(|_| keys.len() == CHUNK) else { break };
            from = [last, &[0][..]].concat();
        }
        self.head().counts = counted.counts;
        // From now on no state counts them.
        for id in self.all_damaged()? {
            let key = queue.keys.entry(List::Damaged, 0, &id);
            if let Some(value) = self.batch.get(&queue.entries, &key)?.filter(|value| value.first() != Some(&GONE)) {
                self.put(queue.entries.id, &key, &[&[GONE], value.get(1..).unwrap_or_default()].concat())?;
            }
        }
        self.recount_limits(Some(counted.held), &counted.running)?;
        if self.staged.damaged == 0 { self.end_lost_waits(&counted.lists) } else { Ok(()) }
    }

    fn count_job(&mut self, id: &str, counted: &mut Counted) -> Result<(), BoxError> {
        let Some(row) = self.row_in(None, id)? else { return Ok(()) };
        // Somebody has restored its row.
        self.forget_damaged(id)?;
        let row = if self.has_entry(id, &row)? { Some(row) } else { self.enter_again(id, row)? };
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

    /// True if the job is found at the place that its row says.
    fn has_entry(&mut self, id: &str, row: &Row) -> Result<bool, BoxError> {
        let (queue, keys) = (self.queue, self.queue.keys);
        let (family, key, value) = match row.state {
            JobState::Scheduled => (&queue.entries, keys.entry(List::Scheduled, row.due, id), None),
            JobState::Finished => (&queue.entries, keys.entry(List::Finished, row.place, id), None),
            JobState::Dead => (&queue.entries, keys.entry(List::Dead, row.place, id), None),
            JobState::Waiting => (&queue.entries, keys.entry(List::Waiting, row.place, id), None),
            JobState::Running => return self.is_place_of(&queue.rows, &keys.running(row.place), id),
            JobState::Ready => match &row.extras().held {
                Some(limit) => {
                    let record = self.batch.get(&queue.rows, &keys.limit(limit))?;
                    let record = record.and_then(|bytes| Record::decode(&queue.name, limit, &bytes).ok());
                    if record.is_some_and(|record| row.place < record.next) {
                        return Ok(false);
                    }
                    (&queue.entries, keys.held(limit, row.place), Some([&[JOB], id.as_bytes()].concat()))
                }
                None => {
                    let lane = row.priority as usize;
                    let key = if row.place < self.staged.head.lanes[lane].next {
                        keys.line(&row.kind, lane, row.place)
                    } else {
                        keys.ready(lane, row.place)
                    };
                    return self.is_place_of(&queue.entries, &key, id);
                }
            },
            JobState::Damaged => return Ok(true),
        };
        let stored = self.batch.get(family, &key)?;
        Ok(stored.is_some_and(|stored| value.is_none_or(|value| value == stored)))
    }

    fn is_place_of(&mut self, family: &Family, key: &[u8], id: &str) -> Result<bool, BoxError> {
        let stored = self.batch.get(family, key)?;
        Ok(stored.is_some_and(|stored| entry::id_in(&self.queue.name, key, &stored).is_ok_and(|of| of == id)))
    }

    /// Enters a job that has lost its entry into the list of its state. Returns its row.
    fn enter_again(&mut self, id: &str, mut row: Row) -> Result<Option<Row>, BoxError> {
        if row.state == JobState::Running {
            // A worker of this process goes on with it. Otherwise it ran when its process died.
            if row.place >= self.staged.life {
                self.staged.tell(Event::Kept { id: id.to_owned(), token: row.place });
                self.put_place(self.rows(), &self.queue.keys.running(row.place), id)?;
                return Ok(Some(row));
            }
            self.end_row(id, row, End::Crashed, None, &Run::default())?;
            return self.row(id);
        }
        self.enter(id, &mut row)?;
        self.tell(id, Some(row.state), None);
        Ok(Some(row))
    }
}

/// The name that an entry has as its value; empty if it has none, so that it is stale.
pub(super) fn id_in(entry: Vec<u8>) -> JobId {
    String::from_utf8(entry).unwrap_or_default()
}
