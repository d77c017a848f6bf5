//! The bytes of a row. The page `storage` describes them.

use crate::embedded::codec::retry::{self, RETRY_BYTES};
use crate::types::job::{JobState, Priority, Retention};
use crate::types::row::{Extras, NO_EXTRAS, Row};
use std::time::Duration;
use waterline::seam::{Fields, Kind, Writer};

/// A row without [`Extras`] has version 1, the short form. Version 2 has them.
pub(crate) const SEAL: Kind = Kind { label: "queue.job", versions: &[1, 2] };

/// The length of the fields that each row has before its texts.
const FIXED: usize = 3 + 2 * 4 + 4 * 8;

const RESUBMIT: u8 = 1;

const DATA: u8 = 2;

const RETRY: u8 = 4;

const RETENTION: u8 = 8;

const NAMED: u8 = 16;

const RESUBMITTED: u8 = 32;

const ALL: u8 = 63;

impl Row {
    pub(crate) fn encode(&self, queue: &str, id: &str) -> Vec<u8> {
        let extras = self.extras.as_deref().filter(|extras| **extras != NO_EXTRAS);
        let version = if extras.is_some() { 2 } else { 1 };
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
            (self.named, NAMED),
            (self.resubmitted > 0, RESUBMITTED),
        ];
        let room = 64 + FIXED + self.kind.len() + self.error.len();
        let row = SEAL.begin_as(version, room).byte(self.state as u8).byte(self.priority as u8).flags(&flags);
        let row = row.count(self.failures).count(self.crashes);
        let row = row.numbers([self.pushed, self.due, self.since, self.place]);
        let row = row.optional(self.resubmit, Writer::number);
        let row = row.optional(Some(self.resubmitted).filter(|since| *since > 0), Writer::number);
        let row = row.optional(retention, Writer::number);
        let row = row.optional(self.retry, |row, retry| row.bytes(&retry::to_bytes(&retry)));
        let row = row.optional(extras, |row, extras| extras.write(row));
        row.short_text(&self.kind).bytes(self.error.as_bytes()).seal(queue, id)
    }

    pub(crate) fn decode(queue: &str, id: &str, bytes: &[u8]) -> Result<Self, String> {
        SEAL.open(queue, id, bytes)?.all("row of a job", Self::read)
    }

    fn read(rest: &mut Fields<'_>) -> Option<Self> {
        let (state, priority) = (rest.one_of(&JobState::ALL)?, rest.one_of(&Priority::ALL)?);
        let flags = rest.byte()?;
        let has = |flag: u8| flags & flag != 0;
        if flags > ALL {
            return None;
        }
        let (failures, crashes) = (rest.count()?, rest.count()?);
        let (pushed, due, since, place) = (rest.number()?, rest.number()?, rest.number()?, rest.number()?);
        let resubmit = rest.optional(has(RESUBMIT), Fields::number)?;
        let resubmitted = rest.optional(has(RESUBMITTED), |rest| rest.number().filter(|since| *since > 0))?;
        let retention = rest.optional(has(RETENTION), Fields::number)?;
        let retention = retention.map(|millis| match millis {
            0 => Retention::Drop,
            u64::MAX => Retention::Keep,
            millis => Retention::For(Duration::from_millis(millis)),
        });
        let retry = rest.optional(has(RETRY), |rest| retry::of_bytes(&rest.take::<RETRY_BYTES>()?))?;
        let extras = rest.optional(rest.version > 1, Extras::read)?.map(Box::new);
        let kind = rest.short_text().filter(|kind| !kind.is_empty())?;
        let (has_data, error) = (has(DATA), rest.last_text()?);
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
            named: has(NAMED),
            since,
            place,
            resubmit,
            resubmitted: resubmitted.unwrap_or(0),
            has_data,
            error,
            extras,
        })
    }
}
