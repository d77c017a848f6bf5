//! The stored row of a job, and its bytes. The page `storage` describes them.

use crate::base::retry::{RETRY_BYTES, Retry};
use crate::commit::sealed::{Kind, SUM};
use crate::queue::extras::{self, Extras};
use crate::queue::job::{JobState, Priority, Retention};
use std::time::Duration;

/// Version 2 has [`Extras`]. A row without them is written as version 1.
pub(crate) const SEAL: Kind = Kind { label: "queue.job", versions: &[1, 2] };

/// The longest text of an error that is kept, in bytes. (`describe` cuts a text there.)
const FIXED: usize = 3 + 2 * 4 + 4 * 8;

const RESUBMIT: u8 = 1;
const DATA: u8 = 2;
const RETRY: u8 = 4;
const RETENTION: u8 = 8;

/// The row of a job. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) state: JobState,
    pub(crate) priority: Priority,
    pub(crate) kind: String,
    pub(crate) retry: Option<Retry>,
    pub(crate) retention: Option<Retention>,
    /// The attempts that failed.
    pub(crate) failures: u32,
    pub(crate) crashes: u32,
    pub(crate) pushed: u64,
    /// The time from which it may run; 0: from the push on.
    pub(crate) due: u64,
    /// The time at which it came into its state.
    pub(crate) since: u64,
    /// Its place, by its state: the index in the ready log, the token of the lease, or the time at
    /// which the row goes away. A scheduled job is at its `due`.
    pub(crate) place: u64,
    /// It is to run again from this time on, when the run that goes on has succeeded.
    pub(crate) resubmit: Option<u64>,
    /// True if there is a record of data.
    pub(crate) has_data: bool,
    /// The text of the last failure.
    pub(crate) error: String,
    /// Settings that few jobs have.
    pub(crate) extras: Option<Box<Extras>>,
}

impl Row {
    pub(crate) fn encode(&self, queue: &str, id: &str) -> Vec<u8> {
        let extras = self.extras.as_deref().filter(|extras| **extras != extras::NONE);
        let version = if extras.is_some() { 2 } else { 1 };
        let mut bytes = SEAL.begin_as(version, 1 + FIXED + 64 + self.kind.len() + self.error.len() + SUM);
        let retention = self.retention.map(|retention| match retention {
            Retention::Drop => 0,
            Retention::For(time) if time.is_zero() => 0,
            Retention::For(time) => u64::try_from(time.as_millis()).unwrap_or(u64::MAX - 1).clamp(1, u64::MAX - 1),
            Retention::Keep => u64::MAX,
        });
        let flags = [
            (self.resubmit.is_some(), RESUBMIT),
            (self.has_data, DATA),
            (self.retry.is_some(), RETRY),
            (retention.is_some(), RETENTION),
        ];
        let flags = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum();
        bytes.extend_from_slice(&[self.state as u8, self.priority as u8, flags]);
        [self.failures, self.crashes].iter().for_each(|count| bytes.extend_from_slice(&count.to_be_bytes()));
        let numbers = [self.pushed, self.due, self.since, self.place];
        let more = [self.resubmit, retention];
        numbers.iter().chain(more.iter().flatten()).for_each(|number| bytes.extend_from_slice(&number.to_be_bytes()));
        if let Some(retry) = &self.retry {
            bytes.extend_from_slice(&retry.to_bytes());
        }
        if let Some(extras) = extras {
            extras.encode(&mut bytes);
        }
        bytes.push(self.kind.len() as u8);
        bytes.extend_from_slice(self.kind.as_bytes());
        bytes.extend_from_slice(self.error.as_bytes());
        SEAL.close(queue, id.as_bytes(), &mut bytes);
        bytes
    }

    pub(crate) fn decode(queue: &str, id: &str, bytes: &[u8]) -> Result<Self, String> {
        let record = SEAL.open(queue, id.as_bytes(), bytes)?;
        Self::of_body(record.body, record.version > 1).ok_or_else(|| "its fields are no row of a job".to_owned())
    }

    fn of_body(body: &[u8], has_extras: bool) -> Option<Self> {
        let mut rest = Fields(body);
        let [state, priority, flags] = rest.take::<3>()?;
        let state = *JobState::ALL.get(usize::from(state))?;
        let priority = *Priority::ALL.get(usize::from(priority))?;
        let has = |flag: u8| flags & flag != 0;
        if flags > RESUBMIT + DATA + RETRY + RETENTION {
            return None;
        }
        let (failures, crashes) = (u32::from_be_bytes(rest.take()?), u32::from_be_bytes(rest.take()?));
        let (pushed, due, since, place) = (rest.number()?, rest.number()?, rest.number()?, rest.number()?);
        let resubmit = if has(RESUBMIT) { Some(rest.number()?) } else { None };
        let retention = if has(RETENTION) { Some(rest.number()?) } else { None };
        let retention = retention.map(|millis| match millis {
            0 => Retention::Drop,
            u64::MAX => Retention::Keep,
            millis => Retention::For(Duration::from_millis(millis)),
        });
        let retry = if has(RETRY) { Some(Retry::of_bytes(&rest.take::<RETRY_BYTES>()?)?) } else { None };
        let extras = if has_extras { Some(Box::new(Extras::decode(&mut rest)?)) } else { None };
        let [length] = rest.take::<1>()?;
        let (kind, error) = rest.0.split_at_checked(usize::from(length))?;
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
        let (kind, error) = (text(kind).filter(|kind| !kind.is_empty())?, text(error)?);
        let has_data = has(DATA);
        Some(Self {
            state,
            priority,
            kind,
            retry,
            retention,
            failures,
            crashes,
            pushed,
            due,
            since,
            place,
            resubmit,
            has_data,
            error,
            extras,
        })
    }

    /// Returns what an entry says of a job whose row cannot be read. Its other records may be
    /// there.
    pub(crate) fn unreadable(priority: Priority, place: u64, held: Option<String>) -> Self {
        Self {
            state: JobState::Damaged,
            priority,
            kind: String::new(),
            retry: None,
            retention: None,
            failures: 0,
            crashes: 0,
            pushed: 0,
            due: 0,
            since: 0,
            place,
            resubmit: None,
            has_data: true,
            error: String::new(),
            extras: Some(Box::new(Extras { held, has_meta: true, has_progress: true, ..extras::NONE.clone() })),
        }
    }

    /// Returns its extras, to be read.
    pub(crate) fn extras(&self) -> &Extras {
        self.extras.as_deref().unwrap_or(&extras::NONE)
    }

    /// True if the job is at this place of a ready log. Otherwise the entry there is stale.
    pub(crate) fn is_at(&self, lane: usize, index: u64) -> bool {
        let is_there = self.state == JobState::Ready && self.place == index && self.priority as usize == lane;
        is_there && self.extras().held.is_none()
    }

    /// True if this limit holds the job, at this place of its log.
    pub(crate) fn is_held(&self, limit: &str, index: u64) -> bool {
        self.state == JobState::Ready && self.place == index && self.extras().held.as_deref() == Some(limit)
    }

    /// Notes that the job comes into its state: no limit holds it, no runner that stops runs it,
    /// and once it has ended it is to run alone no more.
    pub(crate) fn clear_state(&mut self) {
        if let Some(extras) = &mut self.extras {
            (extras.held, extras.is_stopping) = (None, false);
            extras.is_suspect &= !self.state.is_ended();
            if **extras == extras::NONE {
                self.extras = None;
            }
        }
    }

    /// Returns its extras, to be changed.
    pub(crate) fn extras_mut(&mut self) -> &mut Extras {
        self.extras.get_or_insert_with(|| Box::new(extras::NONE.clone()))
    }
}

/// The rest of the bytes of a record.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    /// Reads a text: its length in 2 bytes, and its bytes.
    pub(super) fn text(&mut self) -> Option<String> {
        let length = u16::from_be_bytes(self.take()?);
        let (text, rest) = self.0.split_at_checked(usize::from(length))?;
        self.0 = rest;
        std::str::from_utf8(text).ok().map(str::to_owned)
    }
}
