//! The bytes of the records beside rows: marks, last ticks, progress, notes, and metadata.

use crate::rules::notes::{Change, Noted};
use crate::types::job::{JobId, millis};
use crate::types::json::from_json;
use crate::types::meta::Meta;
use crate::types::progress::JobProgress;
use waterline::seam::{Fields, Kind, Writer};

pub(crate) const MARK: Kind = Kind { label: "queue.mark", versions: &[1] };

pub(crate) const PERIODIC: Kind = Kind { label: "queue.periodic", versions: &[1] };

pub(crate) const NOTE: Kind = Kind { label: "queue.note", versions: &[1] };

pub(crate) const PROGRESS: Kind = Kind { label: "queue.progress", versions: &[1] };

pub(crate) const META: Kind = Kind { label: "queue.meta", versions: &[1] };

/// A mark: a unique job, the last successful run, or the newest root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marked {
    /// The token of the run, or the time of the root.
    pub(crate) number: u64,
    /// When the mark expires, in milliseconds since 1970; 0: with its job.
    pub(crate) until: u64,
    /// When it was made.
    pub(crate) since: u64,
    /// The id of the unique job.
    pub(crate) id: String,
}

impl Marked {
    pub(crate) fn encode(&self, queue: &str, of: &str) -> Vec<u8> {
        let mark = MARK.begin(3 * 8 + self.id.len()).numbers([self.number, self.until, self.since]);
        mark.bytes(self.id.as_bytes()).seal(queue, of)
    }

    pub(crate) fn decode(queue: &str, of: &str, bytes: &[u8]) -> Result<Self, String> {
        MARK.open(queue, of, bytes)?.all("mark", |rest| {
            let (number, until, since) = (rest.number()?, rest.number()?, rest.number()?);
            Some(Self { number, until, since, id: rest.last_text()? })
        })
    }
}

/// The last tick of a periodic job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Last {
    /// The time of the tick, in milliseconds since 1970, or that of the registration.
    pub(crate) tick: u64,
    /// How many ticks made no job because the last run had not ended.
    pub(crate) skipped: u64,
    /// The id of the last job that a tick made; empty: there was none.
    pub(crate) run: JobId,
}

impl Last {
    pub(crate) fn encode(&self, queue: &str, name: &str) -> Vec<u8> {
        let last = PERIODIC.begin(2 * 8 + self.run.len()).numbers([self.tick, self.skipped]);
        last.bytes(self.run.as_bytes()).seal(queue, name)
    }

    pub(crate) fn decode(queue: &str, name: &str, bytes: &[u8]) -> Result<Self, String> {
        PERIODIC.open(queue, name, bytes)?.all("record of a periodic job", |rest| {
            Some(Self { tick: rest.number()?, skipped: rest.number()?, run: rest.last_text()? })
        })
    }
}

impl JobProgress {
    pub(crate) fn encode(&self, queue: &str, id: &str) -> Vec<u8> {
        let progress = PROGRESS.begin(2 * 8 + self.note.len()).number(self.fraction.to_bits());
        progress.number(millis(self.at).unwrap_or(0)).bytes(self.note.as_bytes()).seal(queue, id)
    }

    pub(crate) fn decode(queue: &str, id: &str, bytes: &[u8]) -> Result<Self, String> {
        PROGRESS.open(queue, id, bytes)?.all("progress", |rest| {
            let (fraction, wall) = (f64::from_bits(rest.number()?), rest.number()?);
            Self::new(fraction, &rest.last_text()?, wall).ok()
        })
    }
}

impl Noted {
    pub(crate) fn encode(&self, queue: &str, of: &str) -> Vec<u8> {
        let value = self.value.to_string();
        NOTE.begin(2 * 8 + value.len()).numbers([self.until, self.since]).bytes(value.as_bytes()).seal(queue, of)
    }

    pub(crate) fn decode(queue: &str, of: &str, bytes: &[u8]) -> Result<Self, String> {
        NOTE.open(queue, of, bytes)?.all("note", |rest| {
            let (until, since) = (rest.number()?, rest.number()?);
            Some(Self { until, since, value: from_json(rest.last_bytes()).ok()? })
        })
    }
}

pub(crate) fn encode_meta(queue: &str, id: &str, text: &[u8]) -> Vec<u8> {
    META.begin(text.len()).bytes(text).seal(queue, id)
}

pub(crate) fn decode_meta(queue: &str, id: &str, bytes: &[u8]) -> Result<Meta, String> {
    let text = META.open(queue, id, bytes)?.rest;
    serde_json::from_slice(text).map_err(|error| format!("it is no object of JSON: {error}"))
}

/// The first byte of the operation of a note. That of a push begins with a number below 2^63, or
/// with the highest one.
const CHANGE: u8 = 0x80;

/// Returns the operation of a change of a note, which is never stored: the byte 128, the length of
/// the note's place (4 bytes), that place, and `+` and a number (8 bytes) or `=` and a value.
pub(crate) fn encode_change(of: &str, change: &Change) -> Vec<u8> {
    let op = Writer::operation(0).byte(CHANGE).count(of.len() as u32).bytes(of.as_bytes());
    let op = match change {
        Change::Add(by) => op.byte(b'+').bytes(&by.to_be_bytes()),
        Change::Set(value, _) => op.byte(b'=').bytes(value.to_string().as_bytes()),
        Change::Keep(_) | Change::Remove => op,
    };
    op.bytes
}

/// Reads the operation of a change of a note; `None`: it is another one.
pub(crate) fn decode_change(op: &[u8]) -> Option<(String, Change)> {
    let mut rest = Fields::of(op.strip_prefix(&[CHANGE])?);
    let length = rest.count()?;
    let of = rest.text_of(length as usize)?;
    let change = match rest.byte()? {
        b'+' => Change::Add(i64::from_be_bytes(rest.rest.try_into().ok()?)),
        b'=' => Change::Set(from_json(rest.rest).ok()?, 0),
        _ => return None,
    };
    Some((of, change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn note_operations_round_trip_and_are_no_pushes() {
        for change in [Change::Add(-3), Change::Set("x".into(), 0)] {
            let op = encode_change("04kindkey", &change);
            assert_eq!(decode_change(&op), Some(("04kindkey".to_owned(), change)));
        }
        for made in [0, 1, u64::MAX >> 1, u64::MAX] {
            assert_eq!(decode_change(&[&made.to_be_bytes()[..], &[0; 40]].concat()), None);
        }
    }

    proptest! {
        #[test]
        fn any_operation_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode_change(&[&[CHANGE], &bytes[..]].concat());
        }
    }
}
