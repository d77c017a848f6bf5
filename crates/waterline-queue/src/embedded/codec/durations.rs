//! The bytes of the durations of a kind.

use crate::types::durations::{Durations, from_nanos, nanos};
use waterline::seam::Kind;

/// A key, and the bytes to be stored there.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

pub(crate) const SEAL: Kind = Kind { label: "queue.durations", versions: &[1] };

/// The stored durations of a kind, as the page `storage` describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DurationsRecord {
    pub(crate) durations: Durations,
    /// The time of the record, in milliseconds since 1970.
    pub(crate) at: u64,
}

impl DurationsRecord {
    pub(crate) fn encode(&self, queue: &str, kind: &str) -> Vec<u8> {
        let Durations { count, mean, last } = self.durations;
        SEAL.begin(4 * 8).numbers([count, nanos(mean), nanos(last), self.at]).seal(queue, kind)
    }

    pub(crate) fn decode(queue: &str, kind: &str, bytes: &[u8]) -> Result<Self, String> {
        SEAL.open(queue, kind, bytes)?.all("durations", |rest| {
            let (count, mean, last) = (rest.number()?, from_nanos(rest.number()?), from_nanos(rest.number()?));
            Some(Self { durations: Durations { count, mean, last }, at: rest.number()? })
        })
    }
}
