//! The records of marks: something that is remembered of jobs, and found by its own key.

use crate::commit::sealed::{Fields, Kind, SUM};

pub(crate) const SEAL: Kind = Kind { label: "queue.mark", versions: &[1] };

/// A mark: a unique job, the last run that succeeded, or the newest root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marked {
    /// The token of the run, or the time of the root.
    pub(crate) number: u64,
    /// The time at which the mark goes away, in milliseconds since 1970; 0: when its job says so.
    pub(crate) until: u64,
    /// The id of the unique job.
    pub(crate) id: String,
}

impl Marked {
    pub(crate) fn encode(&self, queue: &str, of: &str) -> Vec<u8> {
        let mut bytes = SEAL.begin(1 + 2 * 8 + self.id.len() + SUM);
        [self.number, self.until].iter().for_each(|number| bytes.extend_from_slice(&number.to_be_bytes()));
        bytes.extend_from_slice(self.id.as_bytes());
        SEAL.close(queue, of.as_bytes(), &mut bytes);
        bytes
    }

    pub(crate) fn decode(queue: &str, of: &str, bytes: &[u8]) -> Result<Self, String> {
        let mut rest = Fields(SEAL.open(queue, of.as_bytes(), bytes)?.body);
        let mut read = || Some(Self { number: rest.number()?, until: rest.number()?, id: text(rest.0)? });
        read().ok_or_else(|| "its fields are no mark".to_owned())
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}
