//! The records of queues, for fuzzers: each kind is read, and written as it was read.

use crate::embedded::codec::head::{Head, decode_number, encode_number};
use crate::embedded::codec::push::{decode_push, encode_push};
use crate::embedded::codec::side_records::{Last, Marked};
use crate::embedded::codec::{durations, entry, head, row, side_records};
use crate::types::row::Row;
use waterline::seam::SUM;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredKind {
    Row,
    Head,
    Number,
    Mark,
    Durations,
    Periodic,
    Entry,
    /// Not a record, but the operation of a push in a user's write. Only its row has a checksum.
    Push,
}

impl StoredKind {
    /// Returns the checksum of a record. `id` is the key if it is an entry. An operation has none.
    pub(crate) fn checksum(self, queue: &str, id: &str, body: &[u8]) -> Option<[u8; SUM]> {
        match self {
            Self::Row => Some(row::SEAL.checksum(queue, id.as_bytes(), body)),
            Self::Head => Some(head::SEAL.checksum(queue, &[], body)),
            Self::Mark => Some(side_records::MARK.checksum(queue, id.as_bytes(), body)),
            Self::Number => Some(head::NAME.checksum(queue, &[], body)),
            Self::Durations => Some(durations::SEAL.checksum(queue, id.as_bytes(), body)),
            Self::Periodic => Some(side_records::PERIODIC.checksum(queue, id.as_bytes(), body)),
            Self::Entry => Some(entry::SEAL.checksum(queue, id.as_bytes(), body)),
            Self::Push => None,
        }
    }

    /// Reads a record, and returns the bytes written for it. `None`: it is refused.
    pub(crate) fn rewritten(self, queue: &str, id: &str, bytes: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Row => Row::decode(queue, id, bytes).ok().map(|row| row.encode(queue, id)),
            Self::Head => Head::decode(queue, bytes).ok().map(|head| head.encode(queue)),
            Self::Number => decode_number(queue, bytes).ok().map(|number| encode_number(queue, number)),
            Self::Mark => Marked::decode(queue, id, bytes).ok().map(|marked| marked.encode(queue, id)),
            Self::Durations => {
                durations::DurationsRecord::decode(queue, id, bytes).ok().map(|record| record.encode(queue, id))
            }
            Self::Periodic => Last::decode(queue, id, bytes).ok().map(|last| last.encode(queue, id)),
            Self::Entry => {
                let read = entry::id_in(queue, id.as_bytes(), bytes).ok();
                read.map(|of| entry::encode(queue, id.as_bytes(), &of))
            }
            Self::Push => decode_push(bytes).map(|push| encode_push(&push)),
        }
    }
}
