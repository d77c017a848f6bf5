//! The stored record of a periodic job, and its bytes. The page `storage` describes them.

use crate::commit::sealed::{Fields, Kind, SUM};
use crate::queue::words::job::JobId;

pub(crate) const SEAL: Kind = Kind { label: "queue.periodic", versions: &[1] };

/// The last tick of a periodic job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Last {
    /// The time of the tick, in milliseconds since 1970, or that of the registration.
    pub(crate) tick: u64,
    /// The number of times that a tick made no job, since the last run had not ended.
    pub(crate) skipped: u64,
    /// The id of the last job that a tick made; empty: there was none.
    pub(crate) run: JobId,
}

impl Last {
    pub(crate) fn encode(&self, queue: &str, name: &str) -> Vec<u8> {
        let mut bytes = SEAL.begin(1 + 2 * 8 + self.run.len() + SUM);
        [self.tick, self.skipped].iter().for_each(|number| bytes.extend_from_slice(&number.to_be_bytes()));
        bytes.extend_from_slice(self.run.as_bytes());
        SEAL.close(queue, name.as_bytes(), &mut bytes);
        bytes
    }

    pub(crate) fn decode(queue: &str, name: &str, bytes: &[u8]) -> Result<Self, String> {
        let mut rest = Fields(SEAL.open(queue, name.as_bytes(), bytes)?.body);
        let mut read = || {
            let (tick, skipped) = (rest.number()?, rest.number()?);
            Some(Self { tick, skipped, run: String::from_utf8(rest.0.to_vec()).ok()? })
        };
        read().ok_or_else(|| "its fields are no record of a periodic job".to_owned())
    }
}
