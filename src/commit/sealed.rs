//! Sealed records: a version, a body, and a checksum of both and of whose record it is.
//!
//! Everything that is stored beside the users' bytes is a sealed record. Its last four bytes are
//! the CRC-32 of the kind's label, the owner's name, the place among the owner's records, the
//! version and the body, in this order. Label, name and place are not stored, since the key
//! contains them. So a record under a wrong key is detected like a flipped bit.
//!
//! This layout never changes, whatever later versions put into the body. So a program can tell an
//! unknown version from damage.

use std::fmt;

#[cfg(any(test, all(feature = "seam", feature = "testing")))]
pub(crate) mod checks;
mod fields;
#[cfg(any(test, all(feature = "seam", feature = "testing")))]
pub(crate) mod samples;

pub use self::fields::{Fields, Kind, SUM, Writer};

/// Why a record cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The record is shorter than any record of its kind.
    #[error("it is only {length} bytes long")]
    Short { length: usize },
    /// The record is damaged, or is under the key of another record.
    #[error("its checksum does not match")]
    Checksum,
    /// The record is intact, but this program does not know its version.
    #[error("its format is {found}, and this program knows {}", listed(.known))]
    Version { found: u8, known: &'static [u8] },
}

impl From<Unreadable> for String {
    fn from(unreadable: Unreadable) -> Self {
        unreadable.to_string()
    }
}

/// Returns a list in words: `1`, `1 and 2`, `1, 2 and 3`.
pub(crate) fn listed(items: &[impl fmt::Display]) -> String {
    let texts: Vec<String> = items.iter().map(ToString::to_string).collect();
    match texts.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => texts.concat(),
    }
}

impl Kind {
    /// Begins a record of the newest version, with capacity for a body of `room` bytes.
    pub fn begin(&self, room: usize) -> Writer {
        Writer::new(*self, self.versions.last().copied(), room)
    }

    /// Begins a record of this version: a kind may have a short form, and one with more fields.
    #[cfg(feature = "seam")]
    pub fn begin_as(&self, version: u8, room: usize) -> Writer {
        debug_assert!(self.versions.contains(&version), "a version that the kind has");
        Writer::new(*self, Some(version), room)
    }

    /// Returns the fields of a record, after a check of its checksum and version.
    pub fn open<'a>(&self, name: &str, place: impl AsRef<[u8]>, record: &'a [u8]) -> Result<Fields<'a>, Unreadable> {
        let short = Unreadable::Short { length: record.len() };
        let Some((sealed, sum)) = record.split_last_chunk::<SUM>() else { return Err(short) };
        if self.checksum(name, place.as_ref(), sealed) != *sum {
            return Err(Unreadable::Checksum);
        }
        if self.versions.is_empty() {
            return Ok(Fields::of(sealed));
        }
        let Some((version, rest)) = sealed.split_first() else { return Err(short) };
        if !self.versions.contains(version) {
            return Err(Unreadable::Version { found: *version, known: self.versions });
        }
        Ok(Fields { version: *version, rest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind { label: "kind", versions: &[3, 4] };
    const BARE: Kind = Kind { label: "", versions: &[] };

    #[test]
    fn a_record_opens_only_under_its_kind_name_and_place() {
        let record = KIND.begin(4).bytes(b"body").seal("name", "7");
        assert_eq!(&record[..5], b"\x04body");
        assert_eq!(KIND.open("name", b"7", &record), Ok(Fields { version: 4, rest: b"body" }));
        let other = Kind { label: "other", ..KIND };
        for opened in
            [other.open("name", b"7", &record), KIND.open("nam", b"7", &record), KIND.open("name", b"8", &record)]
        {
            assert_eq!(opened, Err(Unreadable::Checksum));
        }
        let bare = BARE.begin(4).bytes(b"body").seal("", "");
        assert_eq!(bare.len(), 8);
        assert_eq!(BARE.open("", b"", &bare), Ok(Fields::of(b"body")));
        let nothing = KIND.checksum("name", b"", b"");
        assert_eq!(KIND.open("name", b"", &nothing), Err(Unreadable::Short { length: 4 }), "it has no version");
    }
}
