//! Changes as bytes, in the exact encoding of RocksDB's `WriteBatch`: records that one part has
//! prepared are appended to a batch, and go to the database, as they are.

use crate::base::error::StoreError;
use std::fmt;

/// Eight bytes of sequence number, which RocksDB sets, and a little-endian count of four.
const HEADER: usize = 12;

/// RocksDB's tags. Records of the default family have no family id.
const DELETE: u8 = 0x00;
const PUT: u8 = 0x01;
const FAMILY_DELETE: u8 = 0x04;
const FAMILY_PUT: u8 = 0x05;
const FAMILY_DELETE_RANGE: u8 = 0x0e;
const DELETE_RANGE: u8 = 0x0f;

/// A column family's number in its database. A family that is recreated has another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FamilyId(pub u32);

/// One change, read from bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RowChange<'a> {
    Put {
        family: FamilyId,
        key: &'a [u8],
        value: &'a [u8],
    },
    Delete {
        family: FamilyId,
        key: &'a [u8],
    },
    /// Deletes the keys from `from` on and below `to`.
    ///
    /// In the changes of a job, an empty `to` stands for the end of the family. No database can
    /// express that, so the draft replaces it with the key that ends the family at that time.
    DeleteRange {
        family: FamilyId,
        from: &'a [u8],
        to: &'a [u8],
    },
}

impl RowChange<'_> {
    pub(crate) fn family(&self) -> FamilyId {
        match self {
            Self::Put { family, .. } | Self::Delete { family, .. } | Self::DeleteRange { family, .. } => *family,
        }
    }
}

/// Records without a header: the changes of one job, or of many.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Records {
    bytes: Vec<u8>,
    count: u32,
}

/// Some builds do not use all of these.
#[cfg_attr(not(test), allow(dead_code))]
impl Records {
    /// Sets a value. Key and value are passed in parts, so that a prefix costs no allocation.
    ///
    /// # Errors
    /// Refuses more than [`LARGEST`] bytes of key and value together; then nothing is added.
    pub fn put(&mut self, family: FamilyId, key: &[&[u8]], value: &[&[u8]]) -> Result<(), StoreError> {
        let (key_length, value_length) = (length(key)?, length(value)?);
        if key_length + value_length > LARGEST {
            length(&[key, value].concat())?;
        }
        self.tag(family, PUT, FAMILY_PUT);
        self.text(key_length, key);
        self.text(value_length, value);
        Ok(())
    }

    pub(crate) fn delete(&mut self, family: FamilyId, key: &[&[u8]]) -> Result<(), StoreError> {
        let key_length = length(key)?;
        self.tag(family, DELETE, FAMILY_DELETE);
        self.text(key_length, key);
        Ok(())
    }

    pub(crate) fn delete_range(&mut self, family: FamilyId, from: &[u8], to: &[u8]) -> Result<(), StoreError> {
        let (from_length, to_length) = (length(&[from])?, length(&[to])?);
        self.tag(family, DELETE_RANGE, FAMILY_DELETE_RANGE);
        self.text(from_length, &[from]);
        self.text(to_length, &[to]);
        Ok(())
    }

    pub(crate) fn append(&mut self, records: &Records) {
        self.bytes.extend_from_slice(&records.bytes);
        // If the count overflows, so do the bytes, and `Batch::checked` refuses them.
        self.count = self.count.saturating_add(records.count);
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Removes all records and keeps the capacity.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = RowChange<'_>> {
        RecordReader(&self.bytes)
    }

    /// Keeps only the records for whose number, counted from 0, `keep` returns true.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        let all = std::mem::take(self);
        let mut reader = RecordReader(&all.bytes);
        for number in 0.. {
            let rest = reader.0;
            if reader.record().is_none() {
                break;
            }
            if keep(number) {
                self.bytes.extend_from_slice(&rest[..rest.len() - reader.0.len()]);
                self.count += 1;
            }
        }
    }

    fn tag(&mut self, family: FamilyId, default: u8, other: u8) {
        self.count = self.count.saturating_add(1);
        match family {
            FamilyId(0) => self.bytes.push(default),
            FamilyId(id) => {
                self.bytes.push(other);
                self.varint(id);
            }
        }
    }

    fn text(&mut self, length: u32, parts: &[&[u8]]) {
        self.varint(length);
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
    }

    /// Seven bits per byte, the lowest first; the highest bit says that more follow.
    fn varint(&mut self, mut number: u32) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.records()).finish()
    }
}

/// The most bytes of a key and its value together. SQLite limits a row to a billion, and a store
/// may move from one engine to another.
pub(crate) const LARGEST: u32 = 999_000_000;

/// Returns the length of all parts together, unless it is too long for a row.
fn length(parts: &[&[u8]]) -> Result<u32, StoreError> {
    let length = parts.iter().map(|part| part.len() as u64).sum::<u64>();
    let fits = u32::try_from(length).ok().filter(|length| *length <= LARGEST);
    fits.ok_or_else(|| too_large(&format!("{length} bytes are too many for one key and its value"), "999 MB"))
}

fn too_large(reason: &str, limit: &str) -> StoreError {
    StoreError::new("write".to_owned(), format!("{reason}: {limit} is the limit").into())
}

/// Changes that are written together, with their header.
#[derive(Clone, PartialEq, Eq)]
pub struct Batch {
    /// Its first bytes are the header, whose count is kept up to date.
    records: Records,
}

/// A state of a [`Batch`] that [`truncate`](Batch::truncate) restores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BatchMark {
    /// The length of the batch when the mark was made.
    pub(crate) length: usize,
    count: u32,
}

#[cfg_attr(not(test), allow(dead_code))]
impl Batch {
    /// Sets a value, as [`Records::put`] does.
    pub(crate) fn put(&mut self, family: FamilyId, key: &[&[u8]], value: &[&[u8]]) -> Result<(), StoreError> {
        let put = self.records.put(family, key, value);
        self.recount();
        put
    }

    /// Removes a key, as [`Records::delete`] does.
    pub(crate) fn delete(&mut self, family: FamilyId, key: &[&[u8]]) -> Result<(), StoreError> {
        let deleted = self.records.delete(family, key);
        self.recount();
        deleted
    }

    /// Removes a range, as [`Records::delete_range`] does.
    pub(crate) fn delete_range(&mut self, family: FamilyId, from: &[u8], to: &[u8]) -> Result<(), StoreError> {
        let deleted = self.records.delete_range(family, from, to);
        self.recount();
        deleted
    }

    pub(crate) fn append(&mut self, records: &Records) {
        self.records.append(records);
        self.recount();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the length in bytes, with the header.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn mark(&self) -> BatchMark {
        BatchMark { length: self.len(), count: self.records.count }
    }

    /// Removes everything that was added after the mark was made.
    pub(crate) fn truncate(&mut self, mark: BatchMark) {
        debug_assert!(mark.length <= self.len() && mark.count <= self.records.count, "the mark lies ahead");
        self.records.bytes.truncate(mark.length);
        self.records.count = mark.count;
        self.recount();
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = RowChange<'_>> {
        RecordReader(&self.records.bytes[HEADER..])
    }

    /// Returns the records from this position on (0, or that of a record), each with its position.
    /// Records that are added later get higher positions; all end at [`len`](Self::len).
    pub(crate) fn records_from(&self, position: usize) -> impl Iterator<Item = (usize, RowChange<'_>)> {
        let bytes = &self.records.bytes;
        let mut reader = RecordReader(bytes.get(position.max(HEADER)..).unwrap_or_default());
        std::iter::from_fn(move || Some((bytes.len() - reader.0.len(), reader.next()?)))
    }

    pub(crate) fn count(&self) -> u32 {
        self.records.count
    }

    /// Returns the bytes that RocksDB reads.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.records.bytes
    }

    /// Returns the bytes, unless they are too many for a database.
    ///
    /// # Errors
    /// Refuses 4 GiB or more. (Below that the count is exact: a record has at least two bytes.)
    pub(crate) fn checked(&self) -> Result<&[u8], StoreError> {
        match u32::try_from(self.len()) {
            Ok(_) => Ok(self.bytes()),
            Err(_) => Err(too_large(&format!("{} bytes are too many for one batch", self.len()), "4 GiB")),
        }
    }

    fn recount(&mut self) {
        self.records.bytes[8..HEADER].copy_from_slice(&self.records.count.to_le_bytes());
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self { records: Records { bytes: vec![0; HEADER], count: 0 } }
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.records()).finish()
    }
}

/// The records in a batch's bytes, up to the first invalid one.
#[cfg(any(test, feature = "rocksdb"))]
pub(crate) fn records(bytes: &[u8]) -> impl Iterator<Item = RowChange<'_>> {
    RecordReader(bytes.get(HEADER..).unwrap_or_default())
}

/// The unread bytes. Reading ends at an invalid record, which then shows in the count.
struct RecordReader<'a>(&'a [u8]);

impl<'a> RecordReader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn varint(&mut self) -> Option<u32> {
        let mut number = 0u64;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return u32::try_from(number).ok();
            }
        }
        None
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(text)
    }

    fn record(&mut self) -> Option<RowChange<'a>> {
        let tag = self.byte()?;
        let family = FamilyId(match tag {
            PUT | DELETE | DELETE_RANGE => 0,
            FAMILY_PUT | FAMILY_DELETE | FAMILY_DELETE_RANGE => self.varint()?,
            _ => return None,
        });
        let key = self.text()?;
        Some(match tag {
            PUT | FAMILY_PUT => RowChange::Put { family, key, value: self.text()? },
            DELETE_RANGE | FAMILY_DELETE_RANGE => RowChange::DeleteRange { family, from: key, to: self.text()? },
            _ => RowChange::Delete { family, key },
        })
    }
}

impl<'a> Iterator for RecordReader<'a> {
    type Item = RowChange<'a>;

    fn next(&mut self) -> Option<RowChange<'a>> {
        let record = self.record();
        if record.is_none() {
            self.0 = &[];
        }
        record
    }
}

#[cfg(test)]
mod tests;
