//! Notes: values that all jobs of a kind share.

use crate::embedded::codec::side_records::encode_change;
use crate::handle::Queue;
use crate::push_with::refuse;
use crate::rules::notes::{Change, Noted, check, place};
use crate::types::error::QueueError;
use crate::types::job::{LATEST, after, check_kind, time};
use serde_json::Value;
use std::fmt;
use std::time::{Duration, SystemTime};
use waterline::{Effects, Error};

/// The notes of a kind of jobs, from [`Queue::notes`]: values that these jobs share.
///
/// They stay when the jobs have gone: for example the state of a service that all of them call, a
/// count, or where the next job goes on. A clone is the same notes.
///
/// A note is a JSON value under a key of 1 to 255 bytes, and has 64 KiB at most. It stays until it
/// is removed, or expires by the wall clock: it is never seen again then, and later calls delete
/// it.
///
/// Each change is one atomic write. Use them in handlers, beside them, or in the write of a job's
/// end ([`add_with`](Self::add_with), [`set_with`](Self::set_with)). For many values use a
/// [`Table`](waterline::Table).
///
/// ```
/// use std::time::Duration;
/// use waterline::Store;
/// use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner};
///
/// let queue = Queue::open(&Store::in_memory(), "images", QueueOptions::default())?;
/// queue.push_all([NewJob::new("thumbnail", "cat")?, NewJob::new("thumbnail", "dog")?])?;
/// let notes = queue.notes("thumbnail")?;
/// let shared = notes.clone();
/// Runner::builder(&queue)
///     .max_processing(1)
///     .on_transactional("thumbnail", move |_job, name: String, effects| {
///         shared.set_for("last", name, Duration::from_secs(3600))?;
///         shared.add_with(effects, "made", 1)?;         // with the end of the job, or not at all
///         Ok(Outcome::Done)
///     })
///     .drain(DrainLimits::default())?;
/// assert_eq!((notes.get("made")?, notes.get("last")?), (Some(2.into()), Some("dog".into())));
/// # Ok::<(), waterline_queue::QueueError>(())
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
    /// When it expires; `None`: never.
    pub expires_at: Option<SystemTime>,
    /// Why it cannot be read. Its value is `null` then: set it, or remove it.
    pub damaged: Option<String>,
}

impl Queue {
    /// Returns the notes of a kind of jobs (1 to 255 bytes), which may have no jobs.
    ///
    /// # Errors
    /// [`QueueError::Config`] for an invalid kind.
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

    /// Returns the value under this key; `None` if there is none, or it has expired.
    ///
    /// # Errors
    /// [`QueueError::Store`] with [`Error::Corrupt`] for a note that cannot be read, and with
    /// [`Error::Store`] when the database fails.
    pub fn get(&self, key: impl AsRef<str>) -> Result<Option<Value>, QueueError> {
        let of = place(&self.kind, key.as_ref());
        let noted = self.queue.engine.noted(self.queue.number, &of)?;
        let wall = self.queue.moment().wall;
        Ok(noted.filter(|noted| !noted.is_over(wall)).map(|noted| noted.value))
    }

    /// Sets the value under this key, without an expiry even if the one before had one.
    ///
    /// # Errors
    /// [`QueueError::Config`] for a key that does not have 1 to 255 bytes, and for a value that has
    /// more than 64 KiB or is nested too deeply, [`QueueError::Store`] when the database fails.
    /// Nothing is changed then.
    pub fn set(&self, key: impl Into<String>, value: impl Into<Value>) -> Result<(), QueueError> {
        self.change(key.into(), Change::Set(value.into(), 0)).map(drop)
    }

    /// Sets the value under this key for some time, rounded up to milliseconds, to the year 9999 at
    /// most.
    ///
    /// # Errors
    /// The same as [`set`](Self::set).
    pub fn set_for(&self, key: impl Into<String>, value: impl Into<Value>, time: Duration) -> Result<(), QueueError> {
        self.change(key.into(), Change::Set(value.into(), self.until(time))).map(drop)
    }

    /// Lets the note under this key expire after this time. Returns false if there is none.
    ///
    /// # Errors
    /// The same as [`set`](Self::set).
    pub fn keep_for(&self, key: impl Into<String>, time: Duration) -> Result<bool, QueueError> {
        let change = Change::Keep(self.until(time));
        Ok(self.change(key.into(), change)?.1.is_some())
    }

    /// Adds to the number under this key, 0 if there is none, and returns the sum.
    ///
    /// Concurrent additions lose nothing. A note that expires keeps its time.
    ///
    /// # Errors
    /// [`QueueError::Store`] with [`Error::Counter`] if the value or the sum is not a 64-bit
    /// integer; otherwise the same as [`set`](Self::set).
    pub fn add(&self, key: impl Into<String>, by: i64) -> Result<i64, QueueError> {
        let (_, new) = self.change(key.into(), Change::Add(by))?;
        Ok(new.and_then(|noted| noted.value.as_i64()).unwrap_or(by))
    }

    /// Removes the note under this key. Returns false if there is none.
    ///
    /// # Errors
    /// The same as [`set`](Self::set).
    pub fn remove(&self, key: impl Into<String>) -> Result<bool, QueueError> {
        Ok(self.change(key.into(), Change::Remove)?.0.is_some())
    }

    /// Lists at most `limit` notes in ascending order of their keys, after the key `from`. One that
    /// cannot be read hides no other one ([`Note::damaged`]).
    ///
    /// # Errors
    /// [`QueueError::Store`] when the database fails.
    pub fn list(&self, from: Option<&str>, limit: usize) -> Result<Vec<Note>, QueueError> {
        let prefix = place(&self.kind, "");
        let behind = from.map(|from| place(&self.kind, from));
        let notes = self.queue.engine.notes(self.queue.number, &prefix, behind.as_deref(), limit)?;
        let note = |(of, noted): (String, Result<Noted, String>)| {
            let (noted, damaged) = match noted {
                Ok(noted) => (noted, None),
                Err(reason) => (Noted { until: 0, since: 0, value: Value::Null }, Some(reason)),
            };
            let key = of.get(prefix.len()..).unwrap_or_default().to_owned();
            let expires_at = (noted.until > 0).then(|| time(noted.until));
            Note { key, value: noted.value, expires_at, damaged }
        };
        Ok(notes.into_iter().map(note).collect())
    }

    /// Returns when a note expires that is kept for this time.
    fn until(&self, time: Duration) -> u64 {
        after(self.queue.moment().wall, time).unwrap_or(LATEST).max(1)
    }

    /// Makes a change, and returns the note before and after it.
    fn change(&self, key: String, change: Change) -> Result<(Option<Noted>, Option<Noted>), QueueError> {
        check(&key, &change)?;
        let of = place(&self.kind, &key);
        self.queue.engine.note(self.queue.number, &of, change)
    }
}

impl Notes {
    /// Adds to the number under this key, in an atomic write: so a job counts exactly once.
    /// Concurrent additions lose nothing.
    ///
    /// Only the write shows that the note is no integer, or that the sum is too large, and then
    /// fails with [`Error::Counter`]. A job of a queue is dead then, since no attempt can succeed.
    /// A stream saves nothing more until the note is set or removed, and says so in its status.
    ///
    /// # Errors
    /// [`Error::Config`] for a key without 1 to 255 bytes; otherwise as [`Queue::push_with`].
    pub fn add_with(&self, effects: &mut Effects, key: impl AsRef<str>, by: i64) -> Result<(), Error> {
        self.change_with(effects, key.as_ref(), Change::Add(by))
    }

    /// Sets the value under this key, in an atomic write. It stays until it is removed.
    ///
    /// # Errors
    /// The same as [`add_with`](Self::add_with), and [`Error::Config`] above 64 KiB.
    pub fn set_with(&self, effects: &mut Effects, key: impl AsRef<str>, value: impl Into<Value>) -> Result<(), Error> {
        self.change_with(effects, key.as_ref(), Change::Set(value.into(), 0))
    }

    fn change_with(&self, effects: &mut Effects, key: &str, change: Change) -> Result<(), Error> {
        if let Err(config) = check(key, &change) {
            return Err(refuse(effects, config));
        }
        self.queue.ask(effects, encode_change(&place(&self.kind, key), &change))
    }
}

impl fmt::Debug for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notes").field("queue", &self.queue.name()).field("kind", &self.kind).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::keys::{List, Mark};
    use crate::{Clock, QueueOptions};
    use waterline::Store;
    use waterline::seam;
    use waterline::seam::{KeyRange, Order};

    #[test]
    fn an_expired_note_is_deleted_with_its_entry() {
        let clock = Clock::manual(SystemTime::UNIX_EPOCH + Duration::from_secs(1000));
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default().clock(clock.clone())).unwrap();
        let (notes, keys) = (queue.notes("k").unwrap(), queue.state_of().keys);
        let stored = || {
            let marks = KeyRange::prefix(&keys.mark(Mark::Note, ""));
            let list = KeyRange { from: keys.entries_from(List::Marks, 0), to: Some(keys.entries_end(List::Marks)) };
            [(&queue.state_of().rows, marks), (&queue.state_of().entries, list)]
                .map(|(family, range)| seam::kv(queue.store()).rows(family, range, Order::Ascending).count())
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
        queue.push(crate::types::new_job::NewJob::new("k", &1).unwrap()).unwrap();
        assert_eq!(stored(), [3, 1], "a and d have gone");
        clock.advance(Duration::from_secs(4));
        notes.add("stays", 1).unwrap();
        assert_eq!(stored(), [2, 0], "b too, by a change of another note");
    }
}
