//! The stored record of a limit, and its bytes.

use crate::commit::sealed::{Fields, Kind, SUM};
use crate::queue::rules::bucket::Bucket;

/// The place of a record is its name.
pub(crate) const SEAL: Kind = Kind { label: "queue.limit", versions: &[1] };

/// The first byte of an entry: a job, or a key that waits for its first job.
pub(crate) const JOB: u8 = b'j';

pub(crate) const KEY: u8 = b'k';

const CALLED: u8 = 1;

const BUCKET: u8 = 2;

const WAITS: u8 = 4;

/// The state of a limit. One that nobody needs has no record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// The opening of the queue since which jobs count as running. Those of an earlier one run no
    /// more.
    pub(crate) epoch: u64,
    pub(crate) running: u64,
    /// The bounds of the log of held jobs: the first index that may have an entry, and one past the
    /// last.
    pub(crate) next: u64,
    pub(crate) end: u64,
    /// The entries of that log which live.
    pub(crate) held: u64,
    /// True if it is in the log of limits with a place.
    pub(crate) called: bool,
    /// The time of its entry in the list of refills; 0: it has none.
    pub(crate) timer: u64,
    pub(crate) bucket: Option<Bucket>,
    /// The limit of a kind for which the first held job waits too, and the place in its log.
    pub(crate) waits: Option<(String, u64)>,
}

impl Record {
    /// Appends: flags (1 byte: called 1, has a bucket 2, waits for another limit 4), the opening,
    /// the running jobs, the bounds of the log, the held jobs, the time of the timer (8 bytes
    /// each); the level and the parts of a token (16 each) and the time of the bucket (8); the
    /// place at the other limit (8), the length of its name (2), and its name.
    pub(crate) fn encode(&self, queue: &str, name: &str) -> Vec<u8> {
        let mut bytes = SEAL.begin(2 + 6 * 8 + 40 + SUM);
        let flags = [(self.called, CALLED), (self.bucket.is_some(), BUCKET), (self.waits.is_some(), WAITS)];
        bytes.push(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum());
        let numbers = [self.epoch, self.running, self.next, self.end, self.held, self.timer];
        numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_be_bytes()));
        if let Some(Bucket { level, unit, since }) = self.bucket {
            bytes.extend_from_slice(&level.to_be_bytes());
            bytes.extend_from_slice(&unit.to_be_bytes());
            bytes.extend_from_slice(&since.to_be_bytes());
        }
        if let Some((name, place)) = &self.waits {
            bytes.extend_from_slice(&place.to_be_bytes());
            bytes.extend_from_slice(&(name.len() as u16).to_be_bytes());
            bytes.extend_from_slice(name.as_bytes());
        }
        SEAL.close(queue, name.as_bytes(), &mut bytes);
        bytes
    }

    pub(crate) fn decode(queue: &str, name: &str, bytes: &[u8]) -> Result<Self, String> {
        let body = SEAL.open(queue, name.as_bytes(), bytes)?.body;
        Self::of_body(body).ok_or_else(|| "its fields are no limit".to_owned())
    }

    fn of_body(body: &[u8]) -> Option<Self> {
        let mut rest = Fields(body);
        let [flags] = rest.take()?;
        let has = |flag: u8| flags & flag != 0;
        let mut record = Self { called: has(CALLED), ..Self::default() };
        let Self { epoch, running, next, end, held, timer, .. } = &mut record;
        for number in [epoch, running, next, end, held, timer] {
            *number = rest.number()?;
        }
        if has(BUCKET) {
            let (level, unit) = (i128::from_be_bytes(rest.take()?), u128::from_be_bytes(rest.take()?));
            record.bucket = Some(Bucket { level, unit, since: rest.number()? });
        }
        if has(WAITS) {
            let place = rest.number()?;
            record.waits = Some((rest.text()?, place));
        }
        let is_sound = record.next <= record.end && record.held <= record.end - record.next;
        (flags <= CALLED + BUCKET + WAITS && rest.0.is_empty() && is_sound).then_some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> Record {
        let bucket = Some(Bucket { level: -5, unit: 1_000_000_000, since: 1_700_000_000_000 });
        let waits = Some(("tmail".to_owned(), 9));
        Record { epoch: 3, running: 2, next: 10, end: 14, held: 3, called: true, timer: 7, bucket, waits }
    }

    #[test]
    fn a_record_has_the_bytes_that_its_page_says() {
        let number = |number: u64| number.to_be_bytes().to_vec();
        let mut body = vec![1, 7];
        body.extend([3, 2, 10, 14, 3, 7].into_iter().flat_map(number));
        body.extend([255; 15]);
        body.push(251);
        body.extend([0; 8]);
        body.extend(number(1_000_000_000));
        body.extend(number(1_700_000_000_000));
        body.extend(number(9));
        body.extend([0, 5]);
        body.extend(b"tmail");
        let bytes = record().encode("q", "kann");
        assert_eq!(bytes[..bytes.len() - SUM], body);
        assert_eq!(Record::decode("q", "kann", &bytes), Ok(record()));
        assert!(Record::decode("q", "kbob", &bytes).is_err() && Record::decode("p", "kann", &bytes).is_err());
        assert_eq!(Record::default().encode("q", "kann").len(), 54);
    }

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let mut sealed = SEAL.begin(0);
            sealed.extend(bytes);
            SEAL.close("q", b"kann", &mut sealed);
            if let Ok(record) = Record::decode("q", "kann", &sealed) {
                prop_assert_eq!(record.encode("q", "kann"), sealed);
            }
        }
    }
}
