//! Parked jobs: the records of jobs that failed for good and were passed.

use super::life::{Life, stored_time, wall_time};
use crate::base::sync::{Arc, Mutex};
use crate::base::{Error, Index, config::check_name, error::StoreError};
use crate::commit::{changes::Changes, sealed::Kind};
use crate::kv::{Family, PARKED, batch::FamilyId};
use crate::store::{Store, keys};
use std::collections::HashMap;
use std::ops::RangeBounds;
use std::sync::Weak;
use std::time::SystemTime;

/// The name in use since the first consumer that may park jobs. An older program would trim the
/// items of parked jobs from their log.
pub(super) const IN_USE: &str = "parked";

/// The stored record: the version, the flags, the attempts, the crashes, three times in
/// milliseconds since 1970, and the text of the error. Its key has the progress and the index.
pub(super) const SEAL: Kind = Kind { label: "parked", versions: &[1] };
const FIXED: usize = 1 + 4 + 4 + 3 * 8;

/// The flag of a job that the next life is to run again.
const WANTED: u8 = 1;
/// The flag of a job that is not parked: it failed and has attempts left, or it may have started.
const PENDING: u8 = 2;
/// The flag of a job that may have started since this was written.
const STARTED: u8 = 4;
/// The flag of a job that is to run alone, since an earlier life crashed while it may have run.
const SUSPECT: u8 = 8;

/// The first byte of the key of a job's record [for an engine](super::records).
const JOB: u8 = b'p';

/// A placeholder family for changes on their way to an engine. No store sees it.
const NO_FAMILY: FamilyId = FamilyId(0);

/// The name under the checksums.
pub(super) const NO_NAME: &str = "";

/// A job that failed for good and was passed by the watermark (elsewhere called a dead letter).
///
/// See [`OnExhausted::Park`](crate::OnExhausted::Park). [`Store::parked`] lists them. With `serde`,
/// its times are in milliseconds since 1970.
#[doc(alias = "dead letter")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parked {
    /// The index of the job.
    pub index: Index,
    /// The number of its attempts so far, including those of earlier lives.
    pub attempts: u32,
    /// How often its process crashed while it ran alone: see
    /// [`Builder::max_crashes`](crate::Builder::max_crashes).
    pub crashes: u32,
    /// The text of its last failure, with the causes.
    pub error: String,
    /// The time of its first failure in the life that parked it, by the wall clock.
    pub first_failed_at: SystemTime,
    /// The time of its last failure.
    pub last_failed_at: SystemTime,
    /// The time at which it was parked.
    pub parked_at: SystemTime,
    /// True if the next consumer runs it again: see [`Store::redrive`].
    pub redrive_wanted: bool,
}

/// The same as stored, with times as numbers. A job that is not parked has such a record, too, if
/// its attempts and crashes are to outlive the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParkedRecord {
    pub(crate) index: Index,
    pub(crate) attempts: u32,
    pub(crate) crashes: u32,
    pub(crate) error: String,
    /// Milliseconds since 1970, as all times here.
    pub(crate) first_failed: u64,
    pub(crate) last_failed: u64,
    pub(crate) parked: u64,
    pub(crate) wanted: bool,
    /// True if it is not parked.
    pub(crate) pending: bool,
    /// True if it may have started since this was written.
    pub(crate) started: bool,
    /// True if it is to run alone.
    pub(crate) suspect: bool,
}

impl From<ParkedRecord> for Parked {
    fn from(record: ParkedRecord) -> Self {
        Self {
            index: record.index,
            attempts: record.attempts,
            crashes: record.crashes,
            error: record.error,
            first_failed_at: wall_time(record.first_failed),
            last_failed_at: wall_time(record.last_failed),
            parked_at: wall_time(record.parked),
            redrive_wanted: record.wanted,
        }
    }
}

impl From<Parked> for ParkedRecord {
    fn from(parked: Parked) -> Self {
        Self {
            index: parked.index,
            attempts: parked.attempts,
            crashes: parked.crashes,
            error: parked.error,
            first_failed: stored_time(parked.first_failed_at),
            last_failed: stored_time(parked.last_failed_at),
            parked: stored_time(parked.parked_at),
            wanted: parked.redrive_wanted,
            ..Self::default()
        }
    }
}

impl ParkedRecord {
    /// Creates the record of a job that an operator skips at this time: it never failed.
    pub(super) fn by_hand(index: Index, reason: &str, wall: u64) -> Self {
        let error = format!("skipped by hand: {reason}");
        Self { index, error, first_failed: wall, last_failed: wall, parked: wall, ..Self::default() }
    }

    /// Returns what becomes of the record if all jobs from `next` on are to run as new ones.
    pub(super) fn begun_anew(self, next: Index) -> Anew {
        if self.pending {
            Anew::Goes
        } else if self.index >= next && (self.crashes > 0 || self.suspect || self.started) {
            Anew::Becomes(Self { crashes: 0, suspect: false, started: false, ..self })
        } else if !self.wanted && (self.suspect || self.started) {
            Anew::Becomes(Self { suspect: false, started: false, ..self })
        } else {
            Anew::Stays
        }
    }

    pub(super) fn encode(&self, name: &str) -> Vec<u8> {
        let flags = [(self.wanted, WANTED), (self.pending, PENDING), (self.started, STARTED), (self.suspect, SUSPECT)];
        let record = SEAL.begin(FIXED + self.error.len()).flags(&flags).count(self.attempts).count(self.crashes);
        let record = record.numbers([self.first_failed, self.last_failed, self.parked]);
        record.bytes(self.error.as_bytes()).seal(name, self.index.to_be_bytes())
    }

    pub(super) fn decode(name: &str, index: Index, bytes: &[u8]) -> Result<Self, String> {
        let mut rest = SEAL.open(name, index.to_be_bytes(), bytes)?;
        let mut fixed = || {
            let (flags, attempts, crashes) = (rest.byte()?, rest.count()?, rest.count()?);
            let flag = |flag: u8| flags & flag != 0;
            Some(Self {
                index,
                attempts,
                crashes,
                error: String::new(),
                first_failed: rest.number()?,
                last_failed: rest.number()?,
                parked: rest.number()?,
                wanted: flag(WANTED),
                pending: flag(PENDING),
                started: flag(STARTED),
                suspect: flag(SUSPECT),
            })
        };
        let record = fixed().ok_or("it is too short")?;
        Ok(Self { error: rest.last_text().ok_or("the text of its error is no text")?, ..record })
    }
}

/// What becomes of a record when jobs start anew.
pub(super) enum Anew {
    Stays,
    Goes,
    Becomes(ParkedRecord),
}

/// The records of single jobs and of the previous life, as a new life finds them.
pub(crate) struct Earlier {
    pub(crate) place: ParkedRecords,
    pub(crate) jobs: Vec<ParkedRecord>,
    pub(crate) life: Option<Life>,
}

pub(super) fn job_key(index: Index) -> Vec<u8> {
    [&[JOB][..], &index.to_be_bytes()].concat()
}

/// Returns the index in such a key; `None` for any other key.
pub(super) fn index_of(key: &[u8]) -> Option<Index> {
    let index = key.strip_prefix(&[JOB])?;
    Some(Index::from_be_bytes(index.try_into().ok()?))
}

/// Where the records of one progress are stored: in a store, or with an engine.
#[derive(Clone, Debug)]
pub(crate) struct ParkedRecords {
    /// `None` for [records for an engine](super::records).
    family: Option<Family>,
    name: String,
    prefix: Vec<u8>,
}

impl ParkedRecords {
    pub(super) fn of(store: &Store, name: &str) -> Result<Self, Error> {
        check_name("progress", name)?;
        let prefix = keys::table_prefix(name).unwrap_or_default();
        Ok(Self { family: Some(store.family(PARKED)?), name: name.to_owned(), prefix })
    }

    pub(super) fn of_engine() -> Self {
        Self { family: None, name: NO_NAME.to_owned(), prefix: Vec::new() }
    }

    fn key(&self, index: Index) -> Vec<u8> {
        if self.family.is_none() {
            return job_key(index);
        }
        [&self.prefix[..], &index.to_be_bytes()].concat()
    }

    fn id(&self) -> FamilyId {
        self.family.as_ref().map_or(NO_FAMILY, |family| family.id)
    }

    pub(crate) fn put(&self, record: &ParkedRecord, changes: &mut Changes) -> Result<(), StoreError> {
        changes.put(self.id(), &[&self.key(record.index)], &record.encode(&self.name))
    }

    pub(crate) fn remove(&self, index: Index, changes: &mut Changes) -> Result<(), StoreError> {
        changes.delete(self.id(), &[&self.key(index)])
    }

    pub(super) fn remove_all(&self, changes: &mut Changes) -> Result<(), StoreError> {
        self.family.as_ref().map_or(Ok(()), |family| changes.clear_prefix(family, &self.prefix))
    }

    /// Forgets the crashes of all jobs from `next` on, since they are to run as new ones, and the
    /// records of those that are not parked. A parked job below runs only if a redrive is wanted,
    /// even if it ran in a life that crashed.
    pub(super) fn begin_anew(&self, store: &Store, next: Index, changes: &mut Changes) -> Result<(), Error> {
        for job in self.load(store)? {
            let index = job.index;
            match job.begun_anew(next) {
                Anew::Stays => {}
                Anew::Goes => self.remove(index, changes)?,
                Anew::Becomes(new) => self.put(&new, changes)?,
            }
        }
        Ok(())
    }

    /// Reads all records, in the order of indices.
    pub(super) fn load(&self, store: &Store) -> Result<Vec<ParkedRecord>, Error> {
        let rows = self.family.iter().flat_map(|family| store.kv().scan(family, &self.prefix));
        rows.map(|pair| {
            let (key, value) = pair?;
            self.read(&key[self.prefix.len()..], &value)
        })
        .collect()
    }

    fn get(&self, store: &Store, index: Index) -> Result<ParkedRecord, Error> {
        let stored = self.family.as_ref().map(|family| store.kv().get(family, &self.key(index))).transpose()?;
        let record = stored.flatten().map(|value| self.read(&index.to_be_bytes(), &value)).transpose()?;
        let not_parked = || Error::NotParked { name: self.name.clone(), index };
        record.filter(|record| !record.pending).ok_or_else(not_parked)
    }

    fn read(&self, index: &[u8], value: &[u8]) -> Result<ParkedRecord, Error> {
        let corrupt = |reason| Error::Corrupt { name: self.name.clone(), reason };
        let index = <[u8; 8]>::try_from(index).map_err(|_| corrupt(format!("a parked job has the key {index:?}")))?;
        let index = Index::from_be_bytes(index);
        ParkedRecord::decode(&self.name, index, value)
            .map_err(|reason| corrupt(format!("the record of the parked job {index}: {reason}")))
    }
}

impl Store {
    /// Lists the parked jobs of the progress with this name, in the order of indices.
    ///
    /// A job is listed after the save that passes it. The list is read from disk, even while a
    /// consumer runs.
    ///
    /// # Errors
    /// [`Error::Config`] for a bad name, [`Error::Corrupt`] for an unreadable record,
    /// [`Error::Store`] if the database fails.
    pub fn parked(&self, name: impl AsRef<str>) -> Result<Vec<Parked>, Error> {
        let records = ParkedRecords::of(self, name.as_ref())?.load(self)?;
        Ok(records.into_iter().filter(|record| !record.pending).map(Parked::from).collect())
    }

    /// Makes the next consumer with this name run a parked job again. The watermark does not move
    /// back. While a consumer runs, use [`Handle::redrive`](crate::Handle::redrive).
    ///
    /// # Errors
    /// [`Error::NotParked`] if the job is not parked, [`Error::InUse`] while a consumer has the
    /// name, [`Error::ReadOnly`] if the store is read-only, and the errors of
    /// [`parked`](Self::parked).
    pub fn redrive(&self, name: impl AsRef<str>, index: Index) -> Result<(), Error> {
        self.writable()?;
        let records = ParkedRecords::of(self, name.as_ref())?;
        let _name = self.reserve(name.as_ref())?;
        // An explicit redrive is a fresh start for a job that has crashed its process.
        let record = ParkedRecord { wanted: true, crashes: 0, ..records.get(self, index)? };
        let mut changes = Changes::default();
        records.put(&record, &mut changes)?;
        Ok(self.write_records(changes.records())?)
    }

    /// Gives up a parked job: its record is removed, and it never runs again.
    ///
    /// A consumer may have the name. A running attempt goes on, and its failure is not kept.
    ///
    /// An unreadable record is removed, too, so that a consumer can start again. The item that a
    /// [log](crate::JobLog::trim) keeps for the job is removed with it, or at the next start of its
    /// consumer. [`discard_all`](Self::discard_all) gives up many jobs.
    ///
    /// # Errors
    /// [`Error::NotParked`] if the job is not parked, [`Error::InUse`] while a consumer that parks
    /// nothing has the name, [`Error::ReadOnly`] if the store is read-only, [`Error::Config`] and
    /// [`Error::Store`] as [`parked`](Self::parked).
    pub fn discard(&self, name: impl AsRef<str>, index: Index) -> Result<(), Error> {
        let name = name.as_ref();
        self.writable()?;
        let records = ParkedRecords::of(self, name)?;
        let _name = match (self.reserve(name), self.extension::<LiveNames>().get(name)) {
            (Err(_in_use), Some(consumer)) => {
                if !consumer.discard(index) {
                    return Err(Error::NotParked { name: name.to_owned(), index });
                }
                None
            }
            (reserved, _) => {
                let reserved = reserved?;
                match records.get(self, index) {
                    // It is unreadable for ever, and no consumer starts while it is there.
                    Err(Error::Corrupt { .. }) => {}
                    found => drop(found?),
                }
                Some(reserved)
            }
        };
        let mut changes = Changes::default();
        records.remove(index, &mut changes)?;
        Ok(self.write_records(changes.records())?)
    }

    /// Gives up all parked jobs in this range in one write, and returns how many there were. A
    /// consumer may have the name, as with [`discard`](Self::discard).
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, OnExhausted, Store};
    ///
    /// let (store, jobs) = (Store::in_memory(), (0..6).collect::<MemoryJobs<u64>>());
    /// let consumer = Consumer::builder(jobs, store.progress("p")).stop_at(5);
    /// consumer.on_exhausted(OnExhausted::Park { budget: 100 }).start(|_| Err("no".into()))?.join()?;
    /// assert_eq!(store.discard_all("p", 2..=3)?, 2);
    /// assert_eq!(store.discard_all("p", ..)?, 4);
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InUse`] while a consumer that parks nothing has the name, [`Error::ReadOnly`] if
    /// the store is read-only, [`Error::Corrupt`] for an unreadable record (discard that one
    /// alone), [`Error::Config`] and [`Error::Store`] as [`parked`](Self::parked).
    pub fn discard_all(&self, name: impl AsRef<str>, range: impl RangeBounds<Index>) -> Result<u64, Error> {
        let name = name.as_ref();
        self.writable()?;
        let records = ParkedRecords::of(self, name)?;
        let (_name, jobs) = match (self.reserve(name), self.extension::<LiveNames>().get(name)) {
            (Err(_in_use), Some(consumer)) => (None, consumer.discard_within(&|index| range.contains(&index))),
            (reserved, _) => {
                let reserved = reserved?;
                let parked = records.load(self)?.into_iter().filter(|job| !job.pending).map(|job| job.index);
                (Some(reserved), parked.filter(|index| range.contains(index)).collect())
            }
        };
        let mut changes = Changes::default();
        jobs.iter().try_for_each(|index| records.remove(*index, &mut changes))?;
        if !jobs.is_empty() {
            self.write_records(changes.records())?;
        }
        Ok(jobs.len() as u64)
    }
}

/// The consumer that has a name, for calls about its parked jobs.
pub(crate) trait LiveParking: Send + Sync {
    /// Gives up all parked jobs in this range, and returns them.
    fn discard_within(&self, range: &dyn Fn(Index) -> bool) -> Vec<Index>;
    /// Gives up a parked job. Returns false if it is not parked.
    fn discard(&self, index: Index) -> bool;
}

/// The consumers of a store that may have parked jobs, by name.
#[derive(Default)]
pub(super) struct LiveNames(Mutex<HashMap<String, Weak<dyn LiveParking>>>);

impl LiveNames {
    pub(super) fn meet(&self, name: &str, consumer: Weak<dyn LiveParking>) {
        let mut consumers = self.0.lock();
        consumers.retain(|_, consumer| consumer.strong_count() > 0);
        consumers.insert(name.to_owned(), consumer);
    }

    fn get(&self, name: &str) -> Option<Arc<dyn LiveParking>> {
        self.0.lock().get(name)?.upgrade()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intact_record_with_bad_fields_is_refused() {
        for body in [&[0; FIXED - 1][..], &[[0xff; FIXED], [0xff; FIXED]].concat()] {
            let bytes = SEAL.begin(64).bytes(body).seal("p", 7u64.to_be_bytes());
            assert!(ParkedRecord::decode("p", 7, &bytes).is_err());
        }
    }
}
