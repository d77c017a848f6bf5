//! The record of a log: where its items begin and end. And the keys of both.

use super::codec::CodecName;
use crate::base::Index;
use crate::commit::sealed::Kind;
use crate::store::keys;

/// The first index.
const FIRST: Index = 1;

/// The stored bounds: the version, the log's number, the three indices, from version 3 on the
/// number of kept items, from version 2 on the codec's name, and the checksum.
pub(super) const SEAL: Kind = Kind { label: "log", versions: &[1, 2, 3] };

/// The short form, for a log whose items are JSON.
const OF_JSON: Kind = Kind { versions: &[1], ..SEAL };

/// The form for a log that keeps no item for a parked job.
const OF_ANY: Kind = Kind { versions: &[1, 2], ..SEAL };

/// The length of the fields that all versions have.
const FIELDS: usize = 4 + 8 + 8 + 8;

/// The record of a log, in the family of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) id: u32,
    pub(crate) first: Index,
    /// One past the head when it was written; there may be more items.
    pub(crate) end: Index,
    pub(crate) deleted: Index,
    /// The number of items below the first one that are kept for parked jobs.
    pub(crate) kept: u64,
    pub(crate) codec: CodecName,
}

impl Bounds {
    /// Returns the bounds of a log without items, which are to be JSON.
    pub(crate) fn of_a_new_log(id: u32) -> Self {
        Self { id, first: FIRST, end: FIRST, deleted: FIRST, kept: 0, codec: CodecName::json() }
    }

    pub(crate) fn encode(self, name: &str) -> Vec<u8> {
        let (kind, codec) = match self.kept {
            0 if self.codec.is_json() => (OF_JSON, ""),
            0 => (OF_ANY, self.codec.as_str()),
            _ => (SEAL, self.codec.as_str()),
        };
        let record = kind.begin(FIELDS + 8 + codec.len()).count(self.id);
        let record = record.numbers([self.first, self.end, self.deleted]);
        let record = if self.kept > 0 { record.number(self.kept) } else { record };
        record.bytes(codec.as_bytes()).seal(name, "")
    }

    /// Decodes bounds, or returns the reason why they cannot be read.
    pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<Self, String> {
        let mut fields = SEAL.open(name, "", bytes)?;
        let version = fields.version;
        let mut fixed = || {
            let (id, first, end, deleted) = (fields.count()?, fields.number()?, fields.number()?, fields.number()?);
            Some((id, first, end, deleted, if version < 3 { 0 } else { fields.number()? }))
        };
        let Some((id, first, end, deleted, kept)) = fixed() else {
            return Err(format!("it is only {} bytes long", bytes.len()));
        };
        let codec = fields.rest;
        let codec = match version {
            1 if codec.is_empty() => CodecName::json(),
            1 => return Err(format!("it is {} bytes too long", codec.len())),
            _ => std::str::from_utf8(codec)
                .ok()
                .and_then(CodecName::new)
                .ok_or_else(|| format!("{:?} is no name of a codec", codec.escape_ascii().to_string()))?,
        };
        let bounds = Self { id, first, end, deleted, kept, codec };
        if FIRST <= bounds.deleted && bounds.deleted <= bounds.first && bounds.first <= bounds.end {
            Ok(bounds)
        } else {
            Err(format!("it ends before it begins: {bounds:?}"))
        }
    }
}

pub(crate) fn bounds_key(name: &str) -> Vec<u8> {
    keys::key(keys::LOG, name.as_bytes())
}

pub(crate) fn item_key(id: u32, index: Index) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&id.to_be_bytes());
    key[4..].copy_from_slice(&index.to_be_bytes());
    key
}

pub(crate) fn index_of(key: &[u8]) -> Option<Index> {
    Some(Index::from_be_bytes(*key.get(4..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(codec: &str) -> Bounds {
        Bounds { id: 7, first: 5, end: 900, deleted: 3, kept: 0, codec: CodecName::new(codec).unwrap() }
    }

    #[test]
    fn promise_08_bounds_of_no_version_are_refused() {
        let fields = &bounds("json").encode("blocks")[1..=FIELDS];
        let decoded = |version: u8, body: &[&[u8]]| {
            let mut record = [&[version], &body.concat()[..]].concat();
            SEAL.close("blocks", &[], &mut record);
            Bounds::decode("blocks", &record)
        };
        assert_eq!(decoded(1, &[fields]), Ok(bounds("json")));
        assert_eq!(decoded(2, &[fields, b"bytes"]), Ok(bounds("bytes")));
        let two = 2_u64.to_be_bytes();
        assert_eq!(decoded(3, &[fields, &two, b"bytes"]), Ok(Bounds { kept: 2, ..bounds("bytes") }));
        let bad: [(u8, &[&[u8]], &str); 9] = [
            (1, &[fields, b"json"], "4 bytes too long"),
            (1, &[&fields[1..]], "only 32 bytes long"),
            (2, &[&fields[1..]], "only 32 bytes long"),
            (2, &[fields], "\"\" is no name of a codec"),
            (2, &[fields, &[b'x'; 33]], "is no name of a codec"),
            (2, &[fields, b"\xff"], "is no name of a codec"),
            (3, &[fields, b"bytes"], "only 38 bytes long"),
            (3, &[fields, &two], "\"\" is no name of a codec"),
            (4, &[fields, b"bytes"], "this program knows 1, 2 and 3"),
        ];
        for (version, body, reason) in bad {
            let error = decoded(version, body).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let backwards = Bounds { first: 901, ..bounds("json") };
        assert!(Bounds::decode("blocks", &backwards.encode("blocks")).is_err());
    }
}
