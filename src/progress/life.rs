//! The record of a consumer's life: its state, its end, and which jobs it may have started.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | the flags: 1 the life is open, 2 jobs up to an index are recorded before they start, 4 it halted |
//! | 8 | the time at which it began, in milliseconds since 1970, as all times here |
//! | 8 | the time at which it ended; 0 while it is open |
//! | 8 | the width of its window |
//! | 8 | the last index that is recorded before it starts; 0 if there is none |
//! | 8, 8 | the index at which a life halted, and the time; 0 if none did |
//! | the rest | the text of that halt |
//!
//! Beside it is the time of the watermark's last move, stored with saves at most once a second.

use crate::base::{Error, Index, error::boundary, time::millis};
use crate::commit::sealed::Kind;
use crate::store::{Store, keys};
use std::time::{Duration, SystemTime};

pub(super) const SEAL: Kind = Kind { label: "life", versions: &[1] };
const FIXED: usize = 1 + 6 * 8;

const OPEN: u8 = 1;
const CAREFUL: u8 = 2;
const HALTED: u8 = 4;

/// The longest stored text of a halt, in bytes.
const MAX_TEXT: usize = 4096;

/// The life of a consumer, as recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Life {
    /// True from the write before its first job to its last save. A life found open has crashed.
    pub(crate) open: bool,
    pub(crate) opened: u64,
    pub(crate) ended: u64,
    /// The width of the window: no job above the watermark plus this number has started.
    pub(crate) width: u64,
    /// The last index that is recorded before it starts, since an earlier life has crashed.
    pub(crate) careful: Option<Index>,
    /// The halt of this life, or of an earlier one.
    pub(crate) halted: Option<Halt>,
}

/// The failure that halted a life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Halt {
    pub(crate) index: Index,
    pub(crate) at: u64,
    pub(crate) text: String,
}

impl Life {
    pub(super) fn encode(&self, name: &str) -> Vec<u8> {
        let text = self.halted.as_ref().map_or("", |halt| &halt.text[..boundary(&halt.text, MAX_TEXT)]);
        let flags = [(self.open, OPEN), (self.careful.is_some(), CAREFUL), (self.halted.is_some(), HALTED)];
        let (index, at) = self.halted.as_ref().map_or((0, 0), |halt| (halt.index, halt.at));
        let numbers = [self.opened, self.ended, self.width, self.careful.unwrap_or(0), index, at];
        SEAL.begin(FIXED + text.len()).flags(&flags).numbers(numbers).bytes(text.as_bytes()).seal(name, "")
    }

    pub(super) fn decode(name: &str, bytes: &[u8]) -> Result<Self, String> {
        let mut rest = SEAL.open(name, "", bytes)?;
        let mut fixed = || {
            let flags = rest.byte()?;
            let flag = |flag: u8| flags & flag != 0;
            let (opened, ended, width) = (rest.number()?, rest.number()?, rest.number()?);
            let careful = Some(rest.number()?).filter(|_| flag(CAREFUL));
            let halted = Halt { index: rest.number()?, at: rest.number()?, text: String::new() };
            let halted = Some(halted).filter(|_| flag(HALTED));
            Some(Self { open: flag(OPEN), opened, ended, width, careful, halted })
        };
        let mut life = fixed().ok_or("it is too short")?;
        let text = rest.last_text().ok_or("the text of its halt is no text")?;
        life.halted.iter_mut().for_each(|halt| halt.text.clone_from(&text));
        Ok(life)
    }

    pub(super) fn entry(&self, name: &str) -> (Vec<u8>, Vec<u8>) {
        (key(name), self.encode(name))
    }

    pub(super) fn load(store: &Store, name: &str) -> Result<Option<Self>, Error> {
        let Some(bytes) = store.kv().get(store.system(), &key(name))? else { return Ok(None) };
        let corrupt =
            |reason| Error::Corrupt { name: name.to_owned(), reason: format!("the record of its life: {reason}") };
        Self::decode(name, &bytes).map(Some).map_err(corrupt)
    }
}

/// Converts a stored time, in milliseconds since 1970.
pub(super) fn wall_time(millis: u64) -> SystemTime {
    // A time beyond the clock's range was never written.
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Converts a time to milliseconds since 1970.
pub(super) fn stored_time(time: SystemTime) -> u64 {
    millis(time).unwrap_or(u64::MAX)
}

/// The time of the watermark's last move, in milliseconds since 1970.
pub(super) const MOVED: Kind = Kind { label: "moved", versions: &[1] };

pub(super) fn moved_entry(name: &str, at: u64) -> (Vec<u8>, Vec<u8>) {
    (moved_key(name), MOVED.begin(8).number(at).seal(name, ""))
}

/// Reads the time of the watermark's last move, if it is known.
pub(super) fn load_moved(store: &Store, name: &str) -> Result<Option<u64>, Error> {
    let Some(bytes) = store.kv().get(store.system(), &moved_key(name))? else { return Ok(None) };
    decode_moved(name, &bytes).map(Some).map_err(|reason| Error::Corrupt { name: name.to_owned(), reason })
}

pub(super) fn decode_moved(name: &str, bytes: &[u8]) -> Result<u64, String> {
    let fields = MOVED.open(name, "", bytes).map_err(|why| format!("the time of its last move: {why}"))?;
    let time = fields.rest.try_into().map_err(|_| "the time of its last move is no time")?;
    Ok(u64::from_be_bytes(time))
}

pub(super) fn moved_key(name: &str) -> Vec<u8> {
    keys::key(keys::MOVED, name.as_bytes())
}

pub(super) fn key(name: &str) -> Vec<u8> {
    keys::key(keys::LIFE, name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_two_letters() {
        let text = "é".repeat(MAX_TEXT);
        let life = Life { halted: Some(Halt { index: 1, at: 2, text }), ..Life::default() };
        let read = Life::decode("p", &life.encode("p")).unwrap();
        assert_eq!(read.halted.map(|halt| halt.text), Some("é".repeat(MAX_TEXT / 2)));
    }
}
