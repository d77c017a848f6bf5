//! Notes: values that all jobs of a kind share.

use super::intent::call;
use super::keys::Mark;
use super::meta::{check_key, check_text};
use super::state::QueueState;
use super::{Queue, SOME};
use crate::base::error::Error;
use crate::commit::sealed::Fields;
use crate::commit::sealed::{Kind, SUM};
use crate::effects::Effects;
use crate::kv::{KeyRange, Order};
use crate::queue::error::QueueError;
use crate::queue::job::{LATEST, after, check_kind, from_json, time};
use serde_json::Value;
use std::fmt;
use std::time::{Duration, SystemTime};

pub(crate) const SEAL: Kind = Kind { label: "queue.note", versions: &[1] };

/// The notes of a kind of jobs, from [`Queue::notes`]: values that these jobs share, and that stay
/// when the jobs have gone. For example the state of a service that all of them call, a count, or
/// the place at which the next job goes on. A clone is the same notes.
///
/// A note is a value of JSON under a key of 1 to 255 bytes, and has 64 KiB at most. It stays until
/// somebody removes it, or for a time: a note whose time is over is never seen again, and is
/// deleted by the calls that come later. The time is that of the clock on the wall.
///
/// Each change is one atomic write. Use them in handlers, beside them, or in the write of a job's
/// end ([`Effects::add_note`], [`Effects::set_note`]). For many values use a
/// [`Table`](crate::Table).
///
/// ```
/// use std::time::Duration;
/// use waterline::Store;
/// use waterline::queue::{Limits, NewJob, Outcome, Queue, QueueOptions, Runner};
///
/// let queue = Queue::open(&Store::in_memory(), "images", QueueOptions::default())?;
/// queue.push_all([NewJob::new("thumbnail", "cat")?, NewJob::new("thumbnail", "dog")?])?;
/// let notes = queue.notes("thumbnail")?;
/// let shared = notes.clone();
/// Runner::builder(&queue)
///     .on_transactional("thumbnail", move |_job, name: String, effects| {
///         shared.set_for("last", name, Duration::from_secs(3600))?;
///         effects.add_note(&shared, "made", 1)?;         // with the end of the job, or not at all
///         Ok(Outcome::Done)
///     })
///     .drain(Limits::default())?;
/// assert_eq!((notes.get("made")?, notes.get("last")?), (Some(2.into()), Some("dog".into())));
/// # Ok::<(), waterline::queue::QueueError>(())
/// ```
#[derive(Clone)]
pub struct Notes {
    queue: Queue,
    kind: String,
}

/// A note, from [`Notes::list`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Note {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// The time at which it goes away; `None`: it stays.
    pub expires_at: Option<SystemTime>,
    /// The reason why it cannot be read. Then its value is `null`: set it, or remove it.
    pub damaged: Option<String>,
}

/// A note as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Noted {
    /// The time at which it goes away, in milliseconds since 1970; 0: it stays.
    pub(super) until: u64,
    pub(super) value: Value,
}

impl Noted {
    pub(super) fn is_over(&self, wall: u64) -> bool {
        self.until > 0 && self.until <= wall
    }
}

impl Noted /* bytes */ {
    pub(super) fn encode(&self, queue: &str, of: &str) -> Vec<u8> {
        let value = self.value.to_string();
        let mut bytes = SEAL.begin(1 + 8 + value.len() + SUM);
        bytes.extend_from_slice(&self.until.to_be_bytes());
        bytes.extend_from_slice(value.as_bytes());
        SEAL.close(queue, of.as_bytes(), &mut bytes);
        bytes
    }

    pub(super) fn decode(queue: &str, of: &str, bytes: &[u8]) -> Result<Self, String> {
        let mut rest = Fields(SEAL.open(queue, of.as_bytes(), bytes)?.body);
        let mut read = || Some(Self { until: rest.number()?, value: from_json(rest.0).ok()? });
        read().ok_or_else(|| "its fields are no note".to_owned())
    }
}

/// A change of a note.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    /// Another value, until this time; 0: it stays.
    Set(Value, u64),
    Add(i64),
    /// Another time.
    Keep(u64),
    Remove,
}

/// Returns the note that a change makes of another one. Pure: a note whose time is over is none.
///
/// # Errors
/// The reason why there is nothing to be counted.
pub(super) fn changed(old: Option<&Noted>, change: &Change) -> Result<Option<Noted>, String> {
    Ok(match (change, old) {
        (Change::Remove, _) | (Change::Keep(_), None) => None,
        (Change::Set(value, until), _) => Some(Noted { until: *until, value: value.clone() }),
        (Change::Keep(until), Some(old)) => Some(Noted { until: *until, value: old.value.clone() }),
        (Change::Add(by), None) => Some(Noted { until: 0, value: (*by).into() }),
        (Change::Add(by), Some(old)) => {
            let count = old.value.as_i64().ok_or("the note there is no whole number of 64 bits: set it to one")?;
            let sum = count.checked_add(*by);
            let sum = sum.ok_or_else(|| format!("{count} and {by} are more than 64 bits: set it to another number"))?;
            Some(Noted { until: old.until, value: sum.into() })
        }
    })
}

/// Returns the last part of the key of a note: the length of the kind as two digits, the kind, and
/// the key that the user gave. It is text, since the entry of its time has it as an id.
fn place(kind: &str, key: &str) -> String {
    format!("{:02x}{kind}{key}", kind.len())
}

/// Returns the name of these notes and the key of one, for an error.
pub(super) fn counted_in(queue: &str, of: &str) -> (String, Vec<u8>) {
    let length = of.get(..2).and_then(|digits| usize::from_str_radix(digits, 16).ok()).unwrap_or(0);
    let (kind, key) = of.get(2..).and_then(|rest| rest.split_at_checked(length)).unwrap_or(("", of));
    (format!("notes of {kind} in {queue}"), key.as_bytes().to_vec())
}

impl QueueState {
    pub(super) fn decode_note(&self, of: &str, bytes: &[u8]) -> Result<Noted, Error> {
        Noted::decode(&self.name, of, bytes).map_err(|reason| self.corrupt(format!("the note {of:?}: {reason}")))
    }
}

impl Queue {
    /// Returns the notes of a kind of jobs (1 to 255 bytes). Jobs of that kind need not be there.
    ///
    /// # Errors
    /// [`QueueError::Config`] for a kind that no job can have.
    pub fn notes(&self, kind: impl Into<String>) -> Result<Notes, QueueError> {
        let kind = kind.into();
        check_kind(&kind)?;
        Ok(Notes { queue: self.clone(), kind })
    }
}

impl Notes {
    /// Returns the kind of jobs.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Returns the value under this key; `None` if there is none, or its time is over.
    ///
    /// # Errors
    /// [`QueueError::Store`] with [`Error::Corrupt`] for a note that cannot be read, and with
    /// [`Error::Store`] when the database fails.
    pub fn get(&self, key: impl AsRef<str>) -> Result<Option<Value>, QueueError> {
        let state = self.queue.inner();
        let of = place(&self.kind, key.as_ref());
        let bytes = self.queue.bytes(&state.keys.mark(Mark::Note, &of))?;
        let noted = bytes.map(|bytes| state.decode_note(&of, &bytes)).transpose()?;
        let wall = state.moment().wall;
        Ok(noted.filter(|noted| !noted.is_over(wall)).map(|noted| noted.value))
    }

    /// Sets the value under this key. It stays until it is removed, also if the one before had a
    /// time.
    ///
    /// # Errors
    /// [`QueueError::Config`] for a key that does not have 1 to 255 bytes and for a value of more
    /// than 64 KiB or that is nested too deep, [`QueueError::Store`] when the database fails.
    /// Nothing is changed then.
    pub fn set(&self, key: impl Into<String>, value: impl Into<Value>) -> Result<(), QueueError> {
        self.change(key.into(), Change::Set(value.into(), 0)).map(drop)
    }

    /// Sets the value under this key for some time, counted in milliseconds and rounded up, and
    /// until the year 9999 at most.
    ///
    /// # Errors
    /// Those of [`set`](Self::set).
    pub fn set_for(&self, key: impl Into<String>, value: impl Into<Value>, time: Duration) -> Result<(), QueueError> {
        self.change(key.into(), Change::Set(value.into(), self.until(time))).map(drop)
    }

    /// Gives the note under this key another time, from now on. Returns false if there is none.
    ///
    /// # Errors
    /// Those of [`set`](Self::set).
    pub fn keep_for(&self, key: impl Into<String>, time: Duration) -> Result<bool, QueueError> {
        let change = Change::Keep(self.until(time));
        Ok(self.change(key.into(), change)?.1.is_some())
    }

    /// Adds to the number under this key, which is 0 while there is none, and returns the sum.
    /// However many threads and jobs add side by side, none is lost. A note that has a time keeps
    /// it.
    ///
    /// # Errors
    /// [`QueueError::Store`] with [`Error::Counter`] if the value is no whole number of 64 bits, or
    /// the sum is none; otherwise those of [`set`](Self::set).
    pub fn add(&self, key: impl Into<String>, by: i64) -> Result<i64, QueueError> {
        let (_, new) = self.change(key.into(), Change::Add(by))?;
        Ok(new.and_then(|noted| noted.value.as_i64()).unwrap_or(by))
    }

    /// Removes the note under this key. Returns false if there is none.
    ///
    /// # Errors
    /// Those of [`set`](Self::set).
    pub fn remove(&self, key: impl Into<String>) -> Result<bool, QueueError> {
        Ok(self.change(key.into(), Change::Remove)?.0.is_some())
    }

    /// Lists notes by their keys, in ascending order: from the first one behind the key `from`, and
    /// so many at most. One that cannot be read hides no other one ([`Note::damaged`]).
    ///
    /// # Errors
    /// [`QueueError::Store`] when the database fails.
    pub fn list(&self, from: Option<&str>, limit: usize) -> Result<Vec<Note>, QueueError> {
        let state = self.queue.inner();
        let prefix = place(&self.kind, "");
        let mut range = KeyRange::prefix(&state.keys.mark(Mark::Note, &prefix));
        if let Some(from) = from {
            range.from = state.keys.mark(Mark::Note, &place(&self.kind, from));
            range.from.push(0);
        }
        let wall = state.moment().wall;
        let mut notes = Vec::new();
        for pair in self.queue.store().kv().rows(&state.rows, range, Order::Ascending) {
            if notes.len() == limit {
                break;
            }
            let (key, bytes) = pair.map_err(Error::from)?;
            let Some(of) = super::keys::note_of(&key) else { continue };
            let (noted, damaged) = match state.decode_note(of, &bytes) {
                Ok(noted) => (noted, None),
                Err(error) => (Noted { until: 0, value: Value::Null }, Some(error.report())),
            };
            if !noted.is_over(wall) {
                let key = of.get(prefix.len()..).unwrap_or_default().to_owned();
                let expires_at = (noted.until > 0).then(|| time(noted.until));
                notes.push(Note { key, value: noted.value, expires_at, damaged });
            }
        }
        Ok(notes)
    }

    /// Returns the time at which a note goes away that is kept for so long.
    fn until(&self, time: Duration) -> u64 {
        after(self.queue.inner().moment().wall, time).unwrap_or(LATEST).max(1)
    }

    /// Makes a change, and returns the note of before and the one of now.
    fn change(&self, key: String, change: Change) -> Result<(Option<Noted>, Option<Noted>), QueueError> {
        check(&key, &change)?;
        let of = place(&self.kind, &key);
        call(self.queue.store(), self.queue.inner(), "change a note", move |step| {
            let notes = step.change_note(&of, &change)?;
            step.keep_house(SOME)?;
            Ok(notes)
        })
    }
}

fn check(key: &str, change: &Change) -> Result<(), crate::base::config::ConfigError> {
    check_key(key)?;
    match change {
        Change::Set(value, _) => check_text(value.to_string().as_bytes()),
        _ => Ok(()),
    }
}

impl Effects {
    /// Adds to a number among the [`Notes`] of a kind of jobs, in this atomic write: so a job
    /// counts exactly once. Additions side by side lose nothing.
    ///
    /// Only the write shows that the note is no whole number, or that the sum is too large. Then
    /// the write fails with [`Error::Counter`]. A job of a queue is dead, since no attempt mends
    /// that. A stream saves nothing more until somebody sets or removes the note, and says so in
    /// its status.
    ///
    /// # Errors
    /// [`Error::Config`] for a key that does not have 1 to 255 bytes; otherwise those of
    /// [`enqueue`](Self::enqueue).
    pub fn add_note(&mut self, notes: &Notes, key: impl AsRef<str>, by: i64) -> Result<(), Error> {
        self.change_note(notes, key.as_ref(), Change::Add(by))
    }

    /// Sets a value among the [`Notes`] of a kind of jobs, in this atomic write. It stays until it
    /// is removed.
    ///
    /// # Errors
    /// Those of [`add_note`](Self::add_note), and [`Error::Config`] for a value of more than 64
    /// KiB.
    pub fn set_note(&mut self, notes: &Notes, key: impl AsRef<str>, value: impl Into<Value>) -> Result<(), Error> {
        self.change_note(notes, key.as_ref(), Change::Set(value.into(), 0))
    }

    fn change_note(&mut self, notes: &Notes, key: &str, change: Change) -> Result<(), Error> {
        if let Err(config) = check(key, &change) {
            return Err(self.refuse_config(config));
        }
        let op = encode_change(&place(&notes.kind, key), &change);
        self.admit(notes.queue.store(), "queue", notes.queue.name(), op.len())?;
        self.changes.refusable_op(notes.queue.inner().clone(), op);
        Ok(())
    }
}

/// The first byte of the operation of a note. That of a push begins with a number below 2^63, or
/// with the highest one.
const NOTE: u8 = 0x80;

/// The operation of a change of a note: the byte 128, the length of the note's place (4 bytes) and
/// that place, `+` and a number (8 bytes) or `=` and a value. It is never stored.
pub(super) fn encode_change(of: &str, change: &Change) -> Vec<u8> {
    let mut op = vec![NOTE];
    op.extend_from_slice(&(of.len() as u32).to_be_bytes());
    op.extend_from_slice(of.as_bytes());
    match change {
        Change::Add(by) => {
            op.push(b'+');
            op.extend_from_slice(&by.to_be_bytes());
        }
        Change::Set(value, _) => {
            op.push(b'=');
            op.extend_from_slice(value.to_string().as_bytes());
        }
        Change::Keep(_) | Change::Remove => {}
    }
    op
}

/// Reads the operation of a change of a note; `None`: it is another one.
pub(super) fn decode_change(op: &[u8]) -> Option<(String, Change)> {
    let (length, rest) = op.strip_prefix(&[NOTE])?.split_first_chunk::<4>()?;
    let (of, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    let change = match rest.split_first()? {
        (b'+', by) => Change::Add(i64::from_be_bytes(by.try_into().ok()?)),
        (b'=', value) => Change::Set(from_json(value).ok()?, 0),
        _ => return None,
    };
    Some((std::str::from_utf8(of).ok()?.to_owned(), change))
}

impl fmt::Debug for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notes").field("queue", &self.queue.name()).field("kind", &self.kind).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::keys::List;
    use crate::queue::{Clock, QueueOptions};
    use crate::store::Store;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_of_a_note_stay_as_they_are() {
        let of = place("kind", "key");
        assert_eq!(of, "04kindkey");
        let noted = Noted { until: 258, value: serde_json::json!({"a": 1}) };
        let bytes = noted.encode("q", &of);
        assert_eq!(bytes[..bytes.len() - SUM], *b"\x01\0\0\0\0\0\0\x01\x02{\"a\":1}");
        assert_eq!(Noted::decode("q", &of, &bytes), Ok(noted));
        assert!(Noted::decode("q", "04kindkez", &bytes).is_err());
    }

    #[test]
    fn the_operation_of_a_note_is_read_as_it_was_made_and_is_never_taken_for_a_push() {
        for change in [Change::Add(-3), Change::Set("x".into(), 0)] {
            let op = encode_change("04kindkey", &change);
            assert_eq!(decode_change(&op), Some(("04kindkey".to_owned(), change)));
        }
        for made in [0, 1, u64::MAX >> 1, u64::MAX] {
            assert_eq!(decode_change(&[&made.to_be_bytes()[..], &[0; 40]].concat()), None);
        }
    }

    #[test]
    fn a_note_whose_time_is_over_is_deleted_with_its_entry() {
        let clock = Clock::manual(SystemTime::UNIX_EPOCH + Duration::from_secs(1000));
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default().clock(clock.clone())).unwrap();
        let (notes, keys) = (queue.notes("k").unwrap(), queue.inner().keys);
        let stored = || {
            let marks = KeyRange::prefix(&keys.mark(Mark::Note, ""));
            let list = KeyRange { from: keys.entries_from(List::Marks, 0), to: Some(keys.entries_end(List::Marks)) };
            [(&queue.inner().rows, marks), (&queue.inner().entries, list)]
                .map(|(family, range)| queue.store().kv().rows(family, range, Order::Ascending).count())
        };
        notes.set("stays", 1).unwrap();
        for key in ["a", "b", "c", "d"] {
            notes.set_for(key, 1, Duration::from_secs(5)).unwrap();
        }
        notes.add("a", 1).unwrap();
        notes.keep_for("b", Duration::from_secs(9)).unwrap();
        notes.set("c", 2).unwrap();
        assert_eq!(stored(), [5, 3]);
        clock.advance(Duration::from_secs(5));
        queue.push(crate::queue::NewJob::new("k", &1).unwrap()).unwrap();
        assert_eq!(stored(), [3, 1], "a and d have gone");
        clock.advance(Duration::from_secs(4));
        notes.add("stays", 1).unwrap();
        assert_eq!(stored(), [2, 0], "b too, by a change of another note");
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Noted::decode("q", "04kindkey", &bytes);
            let _ = decode_change(&[&[NOTE], &bytes[..]].concat());
        }
    }
}
