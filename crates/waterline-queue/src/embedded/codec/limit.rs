//! The stored record of a limit, and its bytes.

use crate::rules::bucket::Bucket;
use waterline::seam::{Fields, Kind};

/// The checksum covers the limit's name as the record's place.
pub(crate) const SEAL: Kind = Kind { label: "queue.limit", versions: &[1] };

/// The first byte of an entry: a job, or a key that waits for its first job.
pub(crate) const JOB: u8 = b'j';

pub(crate) const KEY: u8 = b'k';

const CALLED: u8 = 1;

const BUCKET: u8 = 2;

const WAITS: u8 = 4;

/// The state of a limit. An idle one has no record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitRecord {
    /// The opening of the queue since which running jobs count. Jobs of an earlier one do not run.
    pub(crate) epoch: u64,
    pub(crate) running: u64,
    /// The bounds of the log of held jobs: the first index that may have an entry, and the end.
    pub(crate) next: u64,
    pub(crate) end: u64,
    /// The number of entries of that log that are not stale.
    pub(crate) held: u64,
    /// Whether it is in the freed log.
    pub(crate) called: bool,
    /// The time of its entry in the list of refills; 0: it has none.
    pub(crate) timer: u64,
    pub(crate) bucket: Option<Bucket>,
    /// The limit of a kind that the first held job waits for, too, and the place in its log.
    pub(crate) waits: Option<(String, u64)>,
}

impl LimitRecord {
    /// Returns its bytes: flags (1 byte: called 1, has a bucket 2, waits for another limit 4), the
    /// opening, the running jobs, the bounds of the log, the held jobs, the time of the timer (8
    /// bytes each); the level and the parts of a token (16 each) and the time of the bucket (8);
    /// the place at the other limit (8), the length of its name (2), and its name.
    pub(crate) fn encode(&self, queue: &str, name: &str) -> Vec<u8> {
        let flags = [(self.called, CALLED), (self.bucket.is_some(), BUCKET), (self.waits.is_some(), WAITS)];
        let numbers = [self.epoch, self.running, self.next, self.end, self.held, self.timer];
        let record = SEAL.begin(1 + 6 * 8 + 40).flags(&flags).numbers(numbers);
        let record = record.optional(self.bucket, |record, Bucket { level, unit, since }| {
            record.bytes(&level.to_be_bytes()).bytes(&unit.to_be_bytes()).number(since)
        });
        let record = record.optional(self.waits.as_ref(), |record, (name, place)| record.number(*place).text(name));
        record.seal(queue, name)
    }

    pub(crate) fn decode(queue: &str, name: &str, bytes: &[u8]) -> Result<Self, String> {
        SEAL.open(queue, name, bytes)?.all("limit", Self::read)
    }

    fn read(rest: &mut Fields<'_>) -> Option<Self> {
        let flags = rest.byte()?;
        let has = |flag: u8| flags & flag != 0;
        let mut record = Self { called: has(CALLED), ..Self::default() };
        let Self { epoch, running, next, end, held, timer, .. } = &mut record;
        for number in [epoch, running, next, end, held, timer] {
            *number = rest.number()?;
        }
        record.bucket = rest.optional(has(BUCKET), |rest| {
            let (level, unit) = (i128::from_be_bytes(rest.take()?), u128::from_be_bytes(rest.take()?));
            Some(Bucket { level, unit, since: rest.number()? })
        })?;
        record.waits = rest.optional(has(WAITS), |rest| {
            let place = rest.number()?;
            Some((rest.text()?, place))
        })?;
        let is_sound = record.next <= record.end && record.held <= record.end - record.next;
        (flags <= CALLED + BUCKET + WAITS && is_sound).then_some(record)
    }
}
