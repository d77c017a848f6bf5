//! The bytes of the durations of a kind.

use crate::commit::sealed::{Fields, Kind, SUM};
use crate::queue::words::durations::{Durations, from_nanos, nanos};

/// A key, and the bytes to be stored there.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

pub(crate) const SEAL: Kind = Kind { label: "queue.durations", versions: &[1] };

/// The stored durations of a kind: see the page `storage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) durations: Durations,
    /// The time of the record, in milliseconds since 1970.
    pub(crate) at: u64,
}

impl Record {
    pub(crate) fn encode(&self, queue: &str, kind: &str) -> Vec<u8> {
        let Durations { count, mean, last } = self.durations;
        let mut bytes = SEAL.begin(1 + 4 * 8 + SUM);
        for number in [count, nanos(mean), nanos(last), self.at] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        SEAL.close(queue, kind.as_bytes(), &mut bytes);
        bytes
    }

    pub(crate) fn decode(queue: &str, kind: &str, bytes: &[u8]) -> Result<Self, String> {
        let body = SEAL.open(queue, kind.as_bytes(), bytes)?.body;
        let record = if body.len() == 4 * 8 { Self::of_body(body) } else { None };
        record.ok_or_else(|| "its fields are no durations".to_owned())
    }

    fn of_body(body: &[u8]) -> Option<Self> {
        let mut rest = Fields(body);
        let (count, mean, last) = (rest.number()?, from_nanos(rest.number()?), from_nanos(rest.number()?));
        Some(Self { durations: Durations { count, mean, last }, at: rest.number()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(count: u64, mean: u64, last: u64, at: u64) {
            let durations = Durations { count, mean: from_nanos(mean), last: from_nanos(last) };
            let record = Record { durations, at };
            let bytes = record.encode("q", "k");
            prop_assert_eq!(Record::decode("q", "k", &bytes), Ok(record));
            prop_assert!(Record::decode("q", "l", &bytes).is_err());
        }
    }
}
