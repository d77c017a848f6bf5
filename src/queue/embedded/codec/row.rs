//! The bytes of a row. The page `storage` describes them.

use crate::base::retry::{RETRY_BYTES, Retry};
use crate::commit::sealed::{Fields, Kind, SUM};
use crate::queue::words::job::{JobState, Priority, Retention};
use crate::queue::words::row::{Extras, NO_EXTRAS, Row};
use std::time::Duration;

/// Version 2 has [`Extras`]. A row without them is written as version 1.
pub(crate) const SEAL: Kind = Kind { label: "queue.job", versions: &[1, 2] };

/// The longest text of an error that is kept, in bytes. (`describe` cuts a text there.)
const FIXED: usize = 3 + 2 * 4 + 4 * 8;

const RESUBMIT: u8 = 1;

const DATA: u8 = 2;

const RETRY: u8 = 4;

const RETENTION: u8 = 8;

impl Row {
    pub(crate) fn encode(&self, queue: &str, id: &str) -> Vec<u8> {
        let extras = self.extras.as_deref().filter(|extras| **extras != NO_EXTRAS);
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
}
