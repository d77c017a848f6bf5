//! The average durations, in memory.

use crate::types::durations::Durations;
use crate::types::run_times::RunTimes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// How much time passes between two records of a kind.
const STORE_EVERY: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(crate) struct Averages(Mutex<HashMap<String, Average>>);

#[derive(Default)]
struct Average {
    durations: Durations,
    /// How long the attempts of this process took.
    times: RunTimes,
    /// When this process wrote the last record.
    stored: Option<Instant>,
}

impl Averages {
    pub(crate) fn new(stored: HashMap<String, Durations>) -> Self {
        let average = |(kind, durations)| (kind, Average { durations, ..Average::default() });
        Self(Mutex::new(stored.into_iter().map(average).collect()))
    }

    fn change<R>(&self, kind: &str, change: impl FnOnce(&mut Average) -> R) -> R {
        let mut averages = self.0.lock();
        match averages.get_mut(kind) {
            Some(average) => change(average),
            None => change(averages.entry(kind.to_owned()).or_default()),
        }
    }

    pub(crate) fn add(&self, kind: &str, took: Duration) {
        self.change(kind, |average| {
            average.durations = average.durations.with(took);
            average.times.add(took);
        });
    }

    /// Returns the durations to store with the end of this attempt, if a record is due now.
    pub(crate) fn due(&self, kind: &str, took: Duration, now: Instant) -> Option<Durations> {
        self.change(kind, |average| {
            if average.stored.is_some_and(|stored| now.saturating_duration_since(stored) < STORE_EVERY) {
                return None;
            }
            average.stored = Some(now);
            Some(average.durations.with(took))
        })
    }

    /// Returns the durations of all kinds, without attempts whose end is being written.
    pub(crate) fn all(&self) -> BTreeMap<String, Durations> {
        let averages = self.0.lock();
        let durations = averages.iter().map(|(kind, average)| (kind.clone(), average.durations));
        durations.filter(|(_, durations)| durations.count > 0).collect()
    }

    /// Returns the distribution for each kind with an attempt in this process.
    pub(crate) fn run_times(&self) -> BTreeMap<String, RunTimes> {
        let averages = self.0.lock();
        let times = averages.iter().map(|(kind, average)| (kind.clone(), average.times.clone()));
        times.filter(|(_, times)| times.count() > 0).collect()
    }

    /// Returns the expected duration of an attempt; `None` for a kind without any so far.
    pub(crate) fn expected(&self, kind: &str) -> Option<Duration> {
        let durations = self.0.lock().get(kind).map(|average| average.durations)?;
        (durations.count > 0).then_some(durations.mean)
    }
}
