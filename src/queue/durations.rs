//! The durations of attempts: for each kind of jobs an average, in memory and in a small record.
//!
//! The record is written in a batch that ends an attempt anyway, and seldom: no job costs a write
//! more. A crash loses what was not stored, so the average is a hint and no count.

use super::Queue;
use super::keys::{Keys, id_of_row};
use super::row::Fields;
use super::state::QueueState;
use super::step::Step;
use crate::base::error::{Error, StoreError};
use crate::base::sync::Mutex;
use crate::commit::sealed::{Kind, SUM};
use crate::kv::{Family, Kv};
use crate::queue::job::after;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// The weight of the average beside the newest duration. An average of this kind is on the whole as
/// old as the plain mean of twice as many durations.
const SPAN: u64 = 50;

/// The time between two records of a kind.
const STORE_EVERY: Duration = Duration::from_secs(10);

/// The time after which a stored average says nothing about the jobs of today.
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

pub(crate) const SEAL: Kind = Kind { label: "queue.durations", versions: &[1] };

/// The durations of the attempts of one kind that succeeded in a
/// [`Runner`](crate::queue::Runner), from [`Queue::durations`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Durations {
    /// The number of attempts that are in the average.
    pub count: u64,
    /// The average of about the last 100 attempts: the newer ones count for more.
    pub mean: Duration,
    /// The duration of the last attempt.
    pub last: Duration,
}

impl Durations {
    /// Adds an attempt.
    fn with(self, took: Duration) -> Self {
        let count = self.count.saturating_add(1);
        let parts = u128::from(count.min(SPAN));
        let sum = self.mean.as_nanos().saturating_mul(parts - 1).saturating_add(took.as_nanos());
        Self { count, mean: from_nanos(u64::try_from(sum / parts).unwrap_or(u64::MAX)), last: took }
    }
}

fn from_nanos(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The stored durations of a kind: see the page `storage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    durations: Durations,
    /// The time of the record, in milliseconds since 1970.
    at: u64,
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

/// The durations of all kinds of a queue.
#[derive(Default)]
pub(super) struct Averages(Mutex<HashMap<String, Average>>);

#[derive(Default)]
struct Average {
    durations: Durations,
    /// The time of the last record of this process.
    stored: Option<Instant>,
}

/// A key, and the bytes to be stored there.
pub(super) type Pair = (Vec<u8>, Vec<u8>);

impl Averages {
    /// Reads what is stored. Returns the keys of the records that are too old. One that is damaged
    /// is left out, and written over in time: no job depends on it.
    pub(super) fn load(
        kv: &dyn Kv,
        queue: &str,
        keys: Keys,
        rows: &Family,
        wall: u64,
    ) -> Result<(Self, Vec<Vec<u8>>), Error> {
        let (mut averages, mut old) = (HashMap::new(), Vec::new());
        for pair in kv.scan(rows, &keys.all_durations()) {
            let (key, bytes) = pair?;
            let Some(kind) = id_of_row(&key) else { continue };
            match Record::decode(queue, kind, &bytes) {
                Ok(record) if after(record.at, KEPT_FOR).is_some_and(|until| until <= wall) => old.push(key),
                Ok(Record { durations, .. }) => {
                    averages.insert(kind.to_owned(), Average { durations, stored: None });
                }
                Err(reason) => {
                    tracing::warn!(target: "waterline", queue, kind, reason, "the durations of a kind of jobs cannot be read, so they are counted anew");
                }
            }
        }
        Ok((Self(Mutex::new(averages)), old))
    }

    /// Changes the average of a kind.
    fn change<R>(&self, kind: &str, change: impl FnOnce(&mut Average) -> R) -> R {
        let mut averages = self.0.lock();
        match averages.get_mut(kind) {
            Some(average) => change(average),
            None => change(averages.entry(kind.to_owned()).or_default()),
        }
    }

    /// Adds an attempt.
    pub(super) fn add(&self, kind: &str, took: Duration) {
        self.change(kind, |average| average.durations = average.durations.with(took));
    }

    /// Returns the durations to be stored with the end of this attempt, if a record is due now.
    fn due(&self, kind: &str, took: Duration, now: Instant) -> Option<Durations> {
        self.change(kind, |average| {
            if average.stored.is_some_and(|stored| now.saturating_duration_since(stored) < STORE_EVERY) {
                return None;
            }
            average.stored = Some(now);
            Some(average.durations.with(took))
        })
    }

    /// Returns the duration to be expected of an attempt; `None` for a kind without any so far.
    pub(super) fn expected(&self, kind: &str) -> Option<Duration> {
        let durations = self.0.lock().get(kind).map(|average| average.durations)?;
        (durations.count > 0).then_some(durations.mean)
    }
}

impl QueueState {
    /// Returns the record of durations to be stored with the end of an attempt that began then.
    /// Mostly there is none.
    pub(super) fn durations_due(&self, kind: &str, begun: Instant, took: Duration) -> Option<Pair> {
        let durations = self.averages.due(kind, took, begun.checked_add(took)?)?;
        let record = Record { durations, at: self.moment().wall };
        Some((self.keys.durations(kind), record.encode(&self.name, kind)))
    }
}

impl Step<'_, '_> {
    /// Stores these records beside the ends of this batch.
    pub(super) fn store_durations<'p>(&mut self, records: impl Iterator<Item = &'p Pair>) -> Result<(), StoreError> {
        for (key, record) in records {
            self.wrote = true;
            self.batch.put(self.queue.rows.id, &[key], &[record])?;
        }
        Ok(())
    }
}

impl Queue {
    /// Returns how long the attempts of each kind take that succeed in a
    /// [`Runner`](crate::queue::Runner), from the claim to the answer of the handler. It reads
    /// nothing of the store. A kind that has never succeeded is missing.
    ///
    /// The averages survive a restart but for the last 10 seconds: they are stored with the end of
    /// a job, at most so often, and cost no write. After 30 days without a success they are gone.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline::queue::{Limits, NewJob, Outcome, Queue, QueueOptions, Runner};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
    /// queue.push_all([NewJob::new("welcome", "ann")?, NewJob::new("welcome", "bob")?])?;
    /// Runner::builder(&queue).on("welcome", |_job, _to: String| Ok(Outcome::Done)).drain(Limits::default())?;
    /// for (kind, durations) in queue.durations() {
    ///     println!("{kind}: {:?}", durations.mean);
    /// }
    /// assert_eq!(queue.durations()["welcome"].count, 2);
    /// # Ok::<(), waterline::queue::QueueError>(())
    /// ```
    #[must_use]
    pub fn durations(&self) -> BTreeMap<String, Durations> {
        let averages = self.inner().averages.0.lock();
        let durations = averages.iter().map(|(kind, average)| (kind.clone(), average.durations));
        // An attempt whose end is being written is not in them yet.
        durations.filter(|(_, durations)| durations.count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(seconds: impl IntoIterator<Item = u64>) -> Durations {
        let add = |durations: Durations, seconds| durations.with(Duration::from_secs(seconds));
        seconds.into_iter().fold(Durations::default(), add)
    }

    #[test]
    fn the_mean_is_a_plain_one_at_first_and_follows_the_last_hundred_later() {
        let first = seconds([1, 2, 3, 6]);
        assert_eq!((first.count, first.mean, first.last), (4, Duration::from_secs(3), Duration::from_secs(6)));
        let moved = seconds((0..1_000).map(|_| 1).chain((0..100).map(|_| 101)));
        assert!((80..95).contains(&moved.mean.as_secs()), "{moved:?}");
        assert_eq!(seconds([5; 10_000]).mean, Duration::from_secs(5));
    }

    proptest! {
        #[test]
        fn a_mean_lies_between_the_shortest_and_the_longest(took in proptest::collection::vec(any::<u64>(), 1..200)) {
            let durations = took.iter().fold(Durations::default(), |sum, took| sum.with(from_nanos(*took)));
            let (least, most) = (took.iter().min().unwrap(), took.iter().max().unwrap());
            // Each division rounds down.
            let slack = took.len() as u64;
            prop_assert!((least.saturating_sub(slack)..=*most).contains(&nanos(durations.mean)));
        }

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
