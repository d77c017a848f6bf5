//! Lists the consumers that have a progress in a store.

use super::life::{self, wall_time};
use super::{Halt, Life, Owned, ParkedRecords, Saved, reads};
use crate::base::advice::{Advice, Verdict};
use crate::base::{Error, Index, error::is_halt_of_job};
use crate::store::{Store, keys};
use std::time::SystemTime;

/// A consumer with a progress in a [`Store`], as listed by [`Store::consumers`].
///
/// With `serde`, its times are in milliseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ConsumerInfo {
    /// The name of the progress: see [`Store::progress`].
    pub name: String,
    /// The saved watermark; `None` if there is none yet.
    pub last_processed: Option<Index>,
    /// The lowest undone index, which is known without a watermark, too, if later jobs are done;
    /// `None` if nothing is done.
    pub next: Option<Index>,
    /// The number of jobs that are done above the watermark.
    pub done_ahead: u64,
    /// The number of its parked jobs: see [`Store::parked`].
    pub parked: u64,
    /// The time of the watermark's last move, by the wall clock; up to a second too early. `None`
    /// if it has not moved since the store was first opened with a version that stores the time.
    pub moved_at: Option<SystemTime>,
    /// True while a consumer has the name, and after a process crashed with it. `None` for
    /// consumers that do not count crashes: see
    /// [`Builder::max_crashes`](crate::Builder::max_crashes).
    pub life_open: Option<bool>,
    /// The failure that last halted a consumer with this name. It stays, so check its time.
    pub last_halt: Option<LastHalt>,
    /// The log of this store that the last consumer with this name has read, since its first save.
    /// `None` for another source, or if it is not known.
    pub log: Option<String>,
    /// The tables and logs that belong to it: see [`Builder::owns`](crate::Builder::owns).
    pub owns: Vec<Owned>,
    /// Why a record of the progress cannot be read. Then only the values that were read are set.
    pub unreadable: Option<String>,
}

/// The failure that halted a consumer, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastHalt {
    /// The index at which it halted.
    pub index: Index,
    /// The failure, with its causes.
    pub error: String,
    /// The time, by the wall clock.
    pub at: SystemTime,
}

impl LastHalt {
    /// True if the consumer halted because this job failed for good, or crashed its process.
    ///
    /// Then it helps to skip the job, unlike after a failure of the source, for example.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, Retry, Store};
    ///
    /// let store = Store::in_memory();
    /// let jobs: MemoryJobs<_> = (0..3).collect();
    /// let consumer = Consumer::builder(jobs, store.progress("blocks"))
    ///     .retry(Retry::none())
    ///     .start(|job| if job.index == 1 { Err("no such price".into()) } else { Ok(()) })?;
    /// assert!(consumer.join().is_err());
    /// let halt = store.consumers()?[0].last_halt.clone().expect("it halted");
    /// assert!(halt.index == 1 && halt.is_of_job());
    /// # Ok::<(), waterline::Error>(())
    /// ```
    #[must_use]
    pub fn is_of_job(&self) -> bool {
        is_halt_of_job(self.index, &self.error)
    }
}

impl ConsumerInfo {
    /// Creates a consumer's entry from what an engine has loaded, with all records.
    ///
    /// It is empty but for the name if nothing is saved. An engine that knows the time of the
    /// watermark's last move sets it.
    ///
    /// ```
    /// use waterline::{ConsumerInfo, Saved};
    ///
    /// let info = ConsumerInfo::of("blocks", Some(&Saved::new(Some(6), 7, vec![9..=12])));
    /// assert_eq!((info.last_processed, info.next, info.done_ahead), (Some(6), Some(7), 4));
    /// ```
    #[must_use]
    pub fn of(name: &str, saved: Option<&Saved>) -> Self {
        let none = Self { name: name.to_owned(), ..Self::default() };
        let Some(saved) = saved else { return none };
        let records = (saved.records.clone(), saved.parked.clone());
        let checked = saved.check().map_err(|reason| Error::Corrupt { name: name.to_owned(), reason });
        let (jobs, life) = match checked.and_then(|()| super::load_records(records, true, name)) {
            Ok(earlier) => earlier.map(|earlier| (earlier.jobs, earlier.life)).unwrap_or_default(),
            Err(error) => return Self { unreadable: Some(error.to_string()), ..none },
        };
        Self {
            last_processed: saved.last_processed,
            next: Some(saved.next),
            done_ahead: count(saved),
            parked: jobs.iter().filter(|job| !job.pending).count() as u64,
            life_open: life.as_ref().filter(|life| life.opened > 0).map(|life| life.open),
            last_halt: life.and_then(|life| life.halted).map(LastHalt::from),
            ..none
        }
    }

    /// Returns the verdict on the consumer: the worst of [`advice`](Self::advice).
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, Retry, Store, Verdict};
    ///
    /// let (store, jobs) = (Store::in_memory(), (0..3).collect::<MemoryJobs<_>>());
    /// let consumer = Consumer::builder(jobs, store.progress("blocks")).retry(Retry::none());
    /// assert!(consumer.start(|_| Err("no such price".into()))?.join().is_err());
    /// assert_eq!(store.consumers()?[0].verdict(), Verdict::NeedsYou);
    /// # Ok::<(), waterline::Error>(())
    /// ```
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        Advice::worst(&self.advice())
    }

    /// Returns what the records prove: a halt or damage that is in the way, then the parked jobs.
    /// For what a running consumer waits for, see its [`Status`](crate::Status).
    #[must_use]
    pub fn advice(&self) -> Vec<Advice> {
        [Some(self.standing()), Advice::parked(self.parked)].into_iter().flatten().collect()
    }

    /// Returns the last halt, unless a later life has done its job.
    #[must_use]
    pub fn standing_halt(&self) -> Option<&LastHalt> {
        self.last_halt.as_ref().filter(|halt| self.next.is_none_or(|next| next <= halt.index))
    }

    fn standing(&self) -> Advice {
        let (reason, verdict, sentence, help) = if let Some(reason) = &self.unreadable {
            let sentence = format!("the progress cannot be read: {reason}");
            ("damaged", Verdict::NeedsYou, sentence, "Restore a backup, or remove the progress.")
        } else if let Some(halt) = self.standing_halt() {
            let sentence = format!("the consumer halted at {}: {}", halt.index, halt.error);
            ("halted", Verdict::NeedsYou, sentence, "Remove the cause and start the consumer again.")
        } else {
            let sentence = match self.life_open {
                Some(false) => "the last life of the consumer has ended",
                _ => "only its process knows what the consumer waits for",
            };
            let help = "This is what is saved. The process that runs it knows more.";
            ("saved", Verdict::Waits, sentence.to_owned(), help)
        };
        Advice { reason, verdict, sentence, help }
    }
}

/// The number of jobs that are done above the watermark.
fn count(saved: &Saved) -> u64 {
    saved.done.iter().map(|run| (run.end() - run.start()).saturating_add(1)).sum()
}

impl Store {
    /// Lists the consumers that have saved something in this store, in the order of their names.
    ///
    /// It shows the saved state of each, running or not, and takes no name. A damaged progress is
    /// listed with the reason, and hides no other one. It reads only progress records.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, Store};
    ///
    /// let (store, jobs) = (Store::in_memory(), (0..3).collect::<MemoryJobs<_>>());
    /// Consumer::builder(jobs, store.progress("blocks")).stop_at(2).start(|_| Ok(()))?.join()?;
    /// let consumers = store.consumers()?;
    /// assert_eq!((consumers[0].name.as_str(), consumers[0].last_processed), ("blocks", Some(2)));
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Progress`] and [`Error::Store`] if the database fails.
    pub fn consumers(&self) -> Result<Vec<ConsumerInfo>, Error> {
        let mut consumers = Vec::new();
        for pair in self.kv().scan(self.system(), keys::PAGE) {
            let (key, _) = pair?;
            let name = String::from_utf8_lossy(&key[keys::PAGE.len()..]).into_owned();
            let mut info = ConsumerInfo { name, ..ConsumerInfo::default() };
            match self.fill(&mut info) {
                Ok(true) => consumers.push(info),
                // It was just removed.
                Ok(false) => {}
                Err(error @ Error::Corrupt { .. }) => {
                    consumers.push(ConsumerInfo { unreadable: Some(error.to_string()), ..info });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(consumers)
    }

    /// Fills in what is saved, the watermark first: another record may be damaged. False if there
    /// is none.
    fn fill(&self, info: &mut ConsumerInfo) -> Result<bool, Error> {
        let name = info.name.clone();
        let Some(loaded) = self.progress(name.as_str()).load()? else { return Ok(false) };
        info.last_processed = loaded.last_processed;
        let saved = Saved::new(loaded.last_processed, loaded.next, loaded.done).in_order();
        (info.next, info.done_ahead) = (Some(saved.next), count(&saved));
        let life = Life::load(self, &name)?;
        let parked = ParkedRecords::of(self, &name)?.load(self)?;
        info.parked = parked.iter().filter(|job| !job.pending).count() as u64;
        info.moved_at = life::load_moved(self, &name)?.map(wall_time);
        info.log = reads::load(self, &name)?;
        info.owns = self.owned_by(&name)?;
        info.life_open = life.as_ref().filter(|life| life.opened > 0).map(|life| life.open);
        info.last_halt = life.and_then(|life| life.halted).map(LastHalt::from);
        Ok(true)
    }
}

impl From<Halt> for LastHalt {
    fn from(halt: Halt) -> Self {
        Self { index: halt.index, error: halt.text, at: wall_time(halt.at) }
    }
}
