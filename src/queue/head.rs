//! The head of a queue: its counters and cursors, in one stored record.

use crate::commit::sealed::{Kind, SUM};
use crate::queue::row::Fields;

pub(crate) const SEAL: Kind = Kind { label: "queue.head", versions: &[1] };

/// The record with the number of a queue.
pub(crate) const NAME: Kind = Kind { label: "queue.name", versions: &[1] };

/// A ready log: its entries have the indices from `next` to `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lane {
    /// The lowest index that was not claimed.
    pub(crate) next: u64,
    pub(crate) end: u64,
    /// All entries below this index are deleted.
    pub(crate) deleted: u64,
}

/// The counters and cursors of a queue. They are written with each batch that changes one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    /// The lowest number that is in no id.
    pub(crate) next_id: u64,
    /// The token of the next lease. No token is ever used again.
    pub(crate) next_token: u64,
    /// The number of times that a process has opened the queue.
    pub(crate) epoch: u64,
    /// The number of claims.
    pub(crate) claims: u64,
    /// The time until which it is paused, in milliseconds since 1970; 0: it is not.
    pub(crate) paused_until: u64,
    /// The jobs in each state.
    pub(crate) counts: [u64; 5],
    /// The ready logs, the most urgent one first.
    pub(crate) lanes: [Lane; 4],
}

const NUMBERS: usize = 5 + 5 + 4 * 3;

impl Head {
    pub(crate) fn encode(&self, queue: &str) -> Vec<u8> {
        let mut bytes = SEAL.begin(1 + NUMBERS * 8 + SUM);
        let numbers = [self.next_id, self.next_token, self.epoch, self.claims, self.paused_until];
        let lanes = self.lanes.iter().flat_map(|lane| [lane.next, lane.end, lane.deleted]);
        for number in numbers.into_iter().chain(self.counts).chain(lanes) {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        SEAL.close(queue, &[], &mut bytes);
        bytes
    }

    pub(crate) fn decode(queue: &str, bytes: &[u8]) -> Result<Self, String> {
        let body = SEAL.open(queue, &[], bytes)?.body;
        let head = if body.len() == NUMBERS * 8 { Self::of_body(body) } else { None };
        head.filter(Self::is_sound).ok_or_else(|| "its fields are no head of a queue".to_owned())
    }

    fn of_body(body: &[u8]) -> Option<Self> {
        let mut rest = Fields(body);
        let mut head = Self::default();
        let Self { next_id, next_token, epoch, claims, paused_until, counts, lanes } = &mut head;
        let numbers = [next_id, next_token, epoch, claims, paused_until].into_iter().chain(counts);
        let lanes = lanes.iter_mut().flat_map(|lane| [&mut lane.next, &mut lane.end, &mut lane.deleted]);
        for number in numbers.chain(lanes) {
            *number = rest.number()?;
        }
        Some(head)
    }

    fn is_sound(&self) -> bool {
        self.lanes.iter().all(|lane| lane.deleted <= lane.next && lane.next <= lane.end)
    }

    pub(crate) fn is_paused(&self, wall: u64) -> bool {
        wall < self.paused_until
    }
}

/// Returns the record with the number of the queue of this name.
pub(super) fn encode_number(queue: &str, number: u32) -> Vec<u8> {
    let mut bytes = NAME.begin(1 + 4 + SUM);
    bytes.extend_from_slice(&number.to_be_bytes());
    NAME.close(queue, &[], &mut bytes);
    bytes
}

pub(super) fn decode_number(queue: &str, bytes: &[u8]) -> Result<u32, String> {
    let body = NAME.open(queue, &[], bytes)?.body;
    let number = body.try_into().map_err(|_| "its number has another length than 4 bytes".to_owned())?;
    Ok(u32::from_be_bytes(number))
}
