//! The logs of jobs that limits hold, and the freed log: the limits that have a place, in turn.

use crate::embedded::codec::head::FREED;
use crate::embedded::codec::limit::KEY;
use crate::embedded::txn::limits::LimitCache;
use crate::embedded::txn::{LOOKS, Txn};
use crate::types::job::{JobId, JobState};
use crate::types::limit::Names;
use crate::types::row::Row;
use waterline::BoxError;
use waterline::seam::KeyRange;

/// What a look at a limit in the freed log has found.
pub(crate) enum NextHeld {
    /// A job that may begin.
    Job(Box<Candidate>),
    /// No job that may begin, and the limit has moved on: look again.
    Passed,
    /// A job, but none of the kinds of this claim.
    Others,
    /// No limit: the entry is gone.
    Gap,
}

/// A held job that may begin.
pub(crate) struct Candidate {
    pub(crate) id: JobId,
    pub(crate) row: Row,
    /// The limit whose turn it is, in the cache, and its place in the freed log.
    pub(crate) turn: (usize, u64),
    pub(crate) names: Names,
    pub(crate) cache: LimitCache,
}

/// The first entry in the log of a limit.
pub(crate) enum First {
    Job(JobId, Box<Row>),
    /// A key that waits, by its place in the cache.
    Key(usize),
    /// None so far, but there may be more.
    Gaps,
    None,
}

impl Txn<'_, '_> {
    /// Passes the first job of a limit, which no claim of these kinds takes. In the log of its kind
    /// it stays, since the claim takes none of the others there. In the log of its key the others
    /// may be of a wanted kind, and no runner may ever take this one: it becomes ready, and its
    /// limits hold it again when it is claimed.
    pub(crate) fn pass_by(&mut self, cache: LimitCache, index: u64, id: &str, row: Row) -> Result<NextHeld, BoxError> {
        cache.write(self)?;
        let name = row.extras().held.clone();
        let Some(name) = name.filter(|name| self.queue.limits.names(&row).kind.as_ref() == Some(name)) else {
            self.set_free(id, row)?;
            return Ok(NextHeld::Passed);
        };
        if self.queue.limits.has_keys() {
            self.set_keys_free(&name)?;
        }
        self.staged.kinds.note_turn(index, &row.kind);
        Ok(NextHeld::Others)
    }

    /// Makes the first job of each key ready that waits in the log of a kind.
    fn set_keys_free(&mut self, name: &str) -> Result<(), BoxError> {
        let (queue, mut cache) = (self.queue, LimitCache::default());
        let kind = cache.open(self, name)?;
        let (next, end) = (cache.record(kind).next, cache.record(kind).end);
        let range = KeyRange { from: queue.keys.held(name, next), to: Some(queue.keys.held(name, end)) };
        let entries = self.batch.rows(&queue.entries, range).take(LOOKS).map(|pair| pair.map(|(_, entry)| entry));
        for entry in entries.collect::<Result<Vec<_>, _>>()? {
            if entry.first() != Some(&KEY) {
                continue;
            }
            let mut cache = LimitCache::default();
            let key = cache.open(self, &id_in(entry[1..].to_vec()))?;
            let waits = cache.record(key).waits.as_ref().is_some_and(|(kind, _)| kind == name);
            let first = if waits { self.first_held(&mut cache, key)? } else { First::None };
            cache.write(self)?;
            if let First::Job(id, row) = first {
                self.set_free(&id, *row)?;
            }
        }
        Ok(())
    }

    pub(crate) fn passed(&mut self, cache: LimitCache) -> Result<NextHeld, BoxError> {
        cache.write(self)?;
        Ok(NextHeld::Passed)
    }

    pub(crate) fn leave_freed(
        &mut self,
        mut cache: LimitCache,
        (turn, index): (usize, u64),
    ) -> Result<NextHeld, BoxError> {
        self.pass_freed(index)?;
        cache.record(turn).called = false;
        self.passed(cache)
    }

    /// Removes an entry of the freed log. The first entry moves to its place, if it is another one:
    /// a limit that keeps its turn for long would otherwise gather gaps behind it.
    pub(crate) fn pass_freed(&mut self, index: u64) -> Result<(), BoxError> {
        let (queue, next) = (self.queue, self.staged.head.log(FREED).next);
        self.head().log_mut(FREED).next += 1;
        self.staged.kinds.end_turn(index);
        if index == next {
            return Ok(());
        }
        self.staged.kinds.move_turn(next, index);
        let key = queue.keys.ready(FREED, index);
        match self.batch.get(&queue.entries, &queue.keys.ready(FREED, next))? {
            Some(first) => self.put(self.entries(), &key, &first)?,
            None => self.delete(self.entries(), &key)?,
        }
        Ok(())
    }

    /// Returns the first entry of a limit's log that is not stale.
    pub(crate) fn first_held(&mut self, cache: &mut LimitCache, at: usize) -> Result<First, BoxError> {
        let (queue, name) = (self.queue, cache.at(at).name.clone());
        for _ in 0..LOOKS {
            let record = cache.record(at);
            let place = record.next;
            if place >= record.end || record.held == 0 {
                (record.held, record.next) = (0, record.end);
                return Ok(First::None);
            }
            let Some(entry) = self.batch.get(&queue.entries, &queue.keys.held(&name, place))? else {
                cache.record(at).next += 1;
                continue;
            };
            let (what, of) = (entry.first().copied(), id_in(entry.get(1..).unwrap_or_default().to_vec()));
            if what == Some(KEY) {
                let key = cache.open(self, &of)?;
                if cache.record(key).waits.as_ref().is_some_and(|(kind, at)| (kind, *at) == (&name, place)) {
                    return Ok(First::Key(key));
                }
            } else if let Some(row) = self.row_in(JobState::Ready, &of)?.filter(|row| row.is_held(&name, place)) {
                return Ok(First::Job(of, Box::new(row)));
            }
            // A job that moves takes its entry along, so this entry or its job is damaged.
            self.has_lost = true;
            cache.record(at).next += 1;
        }
        Ok(First::Gaps)
    }

    /// Leaves a job that was not taken its turn.
    pub(crate) fn keep_turn(&mut self, candidate: Candidate) -> Result<(), BoxError> {
        candidate.cache.write(self)
    }

    /// Rebuilds the freed log: each limit that has a place enters it again when it is written.
    pub(crate) fn call_limits_anew(&mut self) -> Result<NextHeld, BoxError> {
        let freed = self.head().log_mut(FREED);
        freed.next = freed.end;
        self.staged.kinds.end_turns();
        for name in self.limit_names()? {
            let mut cache = LimitCache::default();
            let at = cache.open(self, &name)?;
            cache.record(at).called = false;
            cache.write(self)?;
        }
        Ok(NextHeld::Passed)
    }
}

/// The name in an entry; empty if it cannot be read, so that the entry is stale.
pub(crate) fn id_in(entry: Vec<u8>) -> JobId {
    String::from_utf8(entry).unwrap_or_default()
}
