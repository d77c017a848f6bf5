//! The turns of jobs that a limit has held: the log of limits that have a place.

use crate::embedded::codec::head::FREED;
use crate::embedded::codec::limit::KEY;
use crate::embedded::step::limits::LimitCache;
use crate::embedded::step::recount::id_in;
use crate::embedded::step::{Claim, LOOKS, Step};
use crate::types::job::{JobId, JobState};
use crate::types::limit::Names;
use crate::types::row::Row;
use crate::types::wanted::{Wanted, is_among};
use waterline::BoxError;
use waterline::seam::KeyRange;

/// The first limit of the log, looked at.
pub(super) enum NextHeld {
    /// It has a job that may begin.
    Job(Box<Candidate>),
    /// It had none, and something was done about it: look again.
    Passed,
    /// It has a job, but none for a claim of these kinds.
    Others,
    /// No limit is there.
    Gap,
}

/// A held job that may begin.
pub(super) struct Candidate {
    id: JobId,
    pub(super) row: Row,
    /// The limit whose turn it is, and its place in the log.
    turn: (usize, u64),
    names: Names,
    book: LimitCache,
}

/// The first entry of a limit's log.
enum First {
    Job(JobId, Box<Row>),
    /// A key that waits, by its place in the book.
    Key(usize),
    /// Only gaps so far.
    Gaps,
    None,
}

impl Step<'_, '_> {
    /// Looks at the first limit of the log. A limit leaves it when it has no place or no job; one
    /// whose job is claimed goes to its end. So limits take turns.
    pub(super) fn turn(&mut self) -> Result<NextHeld, BoxError> {
        self.delete_behind(FREED)?;
        self.turn_at(self.staged.head.log(FREED).next, None)
    }

    /// Looks for the first limit whose job is wanted, and returns its place in the log and the
    /// priority of that job. The limits before it keep their turns.
    pub(super) fn wanted_turn(&mut self, wanted: &Wanted) -> Result<Option<(u64, usize)>, BoxError> {
        if !self.staged.head.has_freed() {
            return Ok(None);
        }
        self.delete_behind(FREED)?;
        let (mut index, kinds) = (0, wanted.kinds.as_deref());
        for _ in 0..LOOKS {
            let log = *self.staged.head.log(FREED);
            index = self.staged.kinds.behind_turns_of_others(log.next.max(index), kinds);
            if index >= log.end {
                break;
            }
            match self.turn_at(index, kinds)? {
                NextHeld::Passed => {}
                NextHeld::Gap | NextHeld::Others => index += 1,
                NextHeld::Job(held) => {
                    let takes = wanted.takes(&held.row, self.at.wall);
                    let found = takes.then_some((index, held.row.priority as usize));
                    self.keep_turn(*held)?;
                    if found.is_some() {
                        return Ok(found);
                    }
                    index += 1;
                }
            }
        }
        Ok(None)
    }

    /// Looks at the limit at this place of the log, for a claim of these kinds; `None`: of all.
    pub(super) fn turn_at(&mut self, index: u64, kinds: Option<&[String]>) -> Result<NextHeld, BoxError> {
        let queue = self.queue;
        let Some(name) = self.batch.get(&queue.entries, &queue.keys.ready(FREED, index))? else {
            self.pass_freed(index)?;
            return Ok(NextHeld::Gap);
        };
        let (name, mut book) = (id_in(name), LimitCache::default());
        let turn = self.open_limit(&mut book, &name)?;
        if !book.record(turn).called {
            // The entry was damaged, so another limit was to have its turn.
            return self.call_limits_anew();
        }
        if book.record(turn).held == 0 || book.record(turn).waits.is_some() || !book.at(turn).has_room() {
            return self.leave_freed(book, (turn, index));
        }
        let mut log = turn;
        let mut first = self.first_held(&mut book, turn)?;
        if let First::Key(key) = first {
            (log, first) = (key, self.first_held(&mut book, key)?);
            if matches!(first, First::None | First::Key(_)) {
                self.leave_line(&mut book, key)?;
            }
        }
        match first {
            First::Job(id, row) if !is_among(&row.kind, kinds) && self.unrun(&id, &row).is_none() => {
                self.pass_by(book, index, &id, *row)
            }
            First::Job(id, row) => self.look_at_held(book, (turn, index), log, (id, *row)),
            First::None if log == turn => self.leave_freed(book, (turn, index)),
            _ => self.passed(book),
        }
    }

    /// Passes the first job of a limit at this place, which no claim of these kinds takes. In the
    /// log of its kind it stays, since none of the others there is taken either. The others of its
    /// key may be, and no runner may ever take this one. So it gets ready once more, and is held
    /// anew by its limits when it is claimed.
    fn pass_by(&mut self, book: LimitCache, index: u64, id: &str, row: Row) -> Result<NextHeld, BoxError> {
        self.write_book(book)?;
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

    /// Takes the first jobs of the keys that wait in the log of a kind out of their logs.
    fn set_keys_free(&mut self, name: &str) -> Result<(), BoxError> {
        let (queue, mut book) = (self.queue, LimitCache::default());
        let kind = self.open_limit(&mut book, name)?;
        let (next, end) = (book.record(kind).next, book.record(kind).end);
        let range = KeyRange { from: queue.keys.held(name, next), to: Some(queue.keys.held(name, end)) };
        let entries = self.batch.rows(&queue.entries, range).take(LOOKS).map(|pair| pair.map(|(_, entry)| entry));
        for entry in entries.collect::<Result<Vec<_>, _>>()? {
            if entry.first() != Some(&KEY) {
                continue;
            }
            let mut book = LimitCache::default();
            let key = self.open_limit(&mut book, &id_in(entry[1..].to_vec()))?;
            let waits = book.record(key).waits.as_ref().is_some_and(|(kind, _)| kind == name);
            let first = if waits { self.first_held(&mut book, key)? } else { First::None };
            self.write_book(book)?;
            if let First::Job(id, row) = first {
                self.set_free(&id, *row)?;
            }
        }
        Ok(())
    }

    /// Makes a held job one that is ready, as long as it has been.
    fn set_free(&mut self, id: &str, mut row: Row) -> Result<(), BoxError> {
        self.leave(id, &row)?;
        Ok(self.enter_since(id, &mut row)?)
    }

    /// Looks at the first job of a limit whose turn it is. It is in this log: that of the limit, or
    /// of a key that waits for it.
    fn look_at_held(
        &mut self,
        mut book: LimitCache,
        (turn, index): (usize, u64),
        log: usize,
        (id, row): (JobId, Row),
    ) -> Result<NextHeld, BoxError> {
        if let Some(end) = self.unrun(&id, &row) {
            self.write_book(book)?;
            self.end_unrun(&id, row, end)?;
            return Ok(NextHeld::Passed);
        }
        let (names, cost) = (self.queue.limits.names(&row), row.extras().cost);
        let name = book.at(turn).name.clone();
        if turn != log && names.kind.as_ref() != Some(&name) {
            // The first job of the key was another one when the key began to wait.
            self.leave_line(&mut book, log)?;
            return self.passed(book);
        }
        if !book.at(turn).has_place(cost) {
            book.at(turn).need = cost;
            return self.leave_freed(book, (turn, index));
        }
        for other in names.iter().filter(|other| **other != name) {
            let at = self.open_limit(&mut book, other)?;
            let has_place = book.at(at).has_place(cost);
            if at == log {
                if !has_place {
                    self.leave_line(&mut book, log)?;
                    book.at(log).need = cost;
                    return self.passed(book);
                }
            } else if !has_place || book.record(at).held > 0 {
                if names.key.as_ref() == Some(other) {
                    // The keys had no limit when this job was held.
                    self.take_out(&mut book, &name, row.place)?;
                    self.hold(&mut book, at, &id, &row)?;
                    return self.passed(book);
                }
                self.wait_for_kind(&mut book, log, at, cost)?;
                return self.leave_freed(book, (turn, index));
            }
        }
        Ok(NextHeld::Job(Box::new(Candidate { id, row, turn: (turn, index), names, book })))
    }

    fn passed(&mut self, book: LimitCache) -> Result<NextHeld, BoxError> {
        self.write_book(book)?;
        Ok(NextHeld::Passed)
    }

    /// Takes a limit out of the log, at this place.
    fn leave_freed(&mut self, mut book: LimitCache, (turn, index): (usize, u64)) -> Result<NextHeld, BoxError> {
        self.pass_freed(index)?;
        book.record(turn).called = false;
        self.passed(book)
    }

    /// Takes the entry at this place out of the log of the limits that have a place. The first one
    /// takes that place, if it is not this one: a limit that keeps its turn, perhaps for long,
    /// would have a gap behind it for each that has had its own.
    fn pass_freed(&mut self, index: u64) -> Result<(), BoxError> {
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

    /// Returns the first entry of a limit's log that lives.
    fn first_held(&mut self, book: &mut LimitCache, at: usize) -> Result<First, BoxError> {
        let (queue, name) = (self.queue, book.at(at).name.clone());
        for _ in 0..LOOKS {
            let record = book.record(at);
            let place = record.next;
            if place >= record.end || record.held == 0 {
                (record.held, record.next) = (0, record.end);
                return Ok(First::None);
            }
            let Some(entry) = self.batch.get(&queue.entries, &queue.keys.held(&name, place))? else {
                book.record(at).next += 1;
                continue;
            };
            let (what, of) = (entry.first().copied(), id_in(entry.get(1..).unwrap_or_default().to_vec()));
            if what == Some(KEY) {
                let key = self.open_limit(book, &of)?;
                if book.record(key).waits.as_ref().is_some_and(|(kind, at)| (kind, *at) == (&name, place)) {
                    return Ok(First::Key(key));
                }
            } else if let Some(row) = self.row_in(JobState::Ready, &of)?.filter(|row| row.is_held(&name, place)) {
                return Ok(First::Job(of, Box::new(row)));
            }
            // A job that goes elsewhere takes its entry along, so this entry or its job is damaged.
            self.has_lost = true;
            book.record(at).next += 1;
        }
        Ok(First::Gaps)
    }

    /// Lets a job that was not taken keep its turn.
    pub(super) fn keep_turn(&mut self, candidate: Candidate) -> Result<(), BoxError> {
        self.write_book(candidate.book)
    }

    /// Claims a held job whose turn it is.
    pub(super) fn claim_held(&mut self, candidate: Candidate) -> Result<Claim, BoxError> {
        let waits_alone = candidate.row.extras().is_suspect && self.staged.gate.holds_alone();
        if waits_alone || self.is_no_company(&candidate.row) {
            self.keep_turn(candidate)?;
            return Ok(Claim::Nothing);
        }
        let Candidate { id, mut row, turn, names, mut book } = candidate;
        let cost = row.extras().cost;
        if !self.queue_has_tokens(&mut book, cost)? {
            self.write_book(book)?;
            return Ok(Claim::Nothing);
        }
        if let Some(limit) = row.extras().held.clone() {
            self.take_out(&mut book, &limit, row.place)?;
        }
        row.clear_state();
        self.take_places(&mut book, &names, cost)?;
        self.leave_freed(book, turn)?;
        self.begin(id, row)
    }

    /// Makes the log of limits that have a place anew.
    fn call_limits_anew(&mut self) -> Result<NextHeld, BoxError> {
        let freed = self.head().log_mut(FREED);
        freed.next = freed.end;
        self.staged.kinds.end_turns();
        for name in self.limit_names()? {
            let mut book = LimitCache::default();
            let at = self.open_limit(&mut book, &name)?;
            book.record(at).called = false;
            self.write_book(book)?;
        }
        Ok(NextHeld::Passed)
    }
}
