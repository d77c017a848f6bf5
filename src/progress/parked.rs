//! Parked jobs: the records of jobs that failed for good and were passed.

use super::embedded::StoreProgress;
use super::saves::LiveParking;
use crate::base::config::check_name;
use crate::base::error::{Error, StoreError};
use crate::base::index::Index;
use crate::base::sync::{Arc, Mutex};
use crate::commit::changes::Changes;
use crate::commit::sealed::{Kind, SUM};
use crate::kv::{Family, PARKED};
use crate::store::{Store, keys};
use std::collections::HashMap;
use std::sync::Weak;
use std::time::{Duration, SystemTime};

/// The name in use from the first consumer on that may park a job. An older program would trim the
/// items of parked jobs from their log.
const IN_USE: &str = "parked";

/// The stored record: the version, the flags, the attempts, three times in milliseconds since 1970,
/// and the text of the error. Its key is that of the progress, with the index behind it.
const SEAL: Kind = Kind { label: "parked", versions: &[1] };
const FIXED: usize = 1 + 4 + 3 * 8;

/// The flag of a job that the next life is to run once more.
const WANTED: u8 = 1;

/// A job that failed for good, and that the watermark has passed: see
/// [`OnExhausted::Park`](crate::OnExhausted::Park) (elsewhere called a dead letter).
/// [`Store::parked`] lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parked {
    /// The index of the job.
    pub index: Index,
    /// The number of its attempts so far, with those of earlier lives.
    pub attempts: u32,
    /// The text of its last failure, with the causes.
    pub error: String,
    /// The time of its first failure in the life that parked it, by the wall clock.
    pub first_failed_at: SystemTime,
    /// The time of its last failure.
    pub last_failed_at: SystemTime,
    /// The time at which it was parked.
    pub parked_at: SystemTime,
    /// True if the next consumer runs it once more: see [`Store::redrive`].
    pub redrive_wanted: bool,
}

/// The same with times as numbers, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParkedRecord {
    pub(crate) index: Index,
    pub(crate) attempts: u32,
    pub(crate) error: String,
    /// Milliseconds since 1970, as all times here.
    pub(crate) first_failed: u64,
    pub(crate) last_failed: u64,
    pub(crate) parked: u64,
    pub(crate) wanted: bool,
}

impl From<ParkedRecord> for Parked {
    fn from(record: ParkedRecord) -> Self {
        // A time beyond the clock's range is no time that was ever written.
        let time = |millis| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis));
        let time = |millis| time(millis).unwrap_or(SystemTime::UNIX_EPOCH);
        Self {
            index: record.index,
            attempts: record.attempts,
            error: record.error,
            first_failed_at: time(record.first_failed),
            last_failed_at: time(record.last_failed),
            parked_at: time(record.parked),
            redrive_wanted: record.wanted,
        }
    }
}

impl ParkedRecord {
    fn encode(&self, name: &str) -> Vec<u8> {
        let mut bytes = SEAL.begin(1 + FIXED + self.error.len() + SUM);
        bytes.push(if self.wanted { WANTED } else { 0 });
        bytes.extend_from_slice(&self.attempts.to_be_bytes());
        let times = [self.first_failed, self.last_failed, self.parked];
        times.iter().for_each(|time| bytes.extend_from_slice(&time.to_be_bytes()));
        bytes.extend_from_slice(self.error.as_bytes());
        SEAL.close(name, &self.index.to_be_bytes(), &mut bytes);
        bytes
    }

    fn decode(name: &str, index: Index, bytes: &[u8]) -> Result<Self, String> {
        let body = SEAL.open(name, &index.to_be_bytes(), bytes)?.body;
        let (fixed, error) = body.split_first_chunk::<FIXED>().ok_or("it is too short")?;
        let time = |at: usize| fixed[5 + 8 * at..].first_chunk().map_or(0, |time| u64::from_be_bytes(*time));
        let error = std::str::from_utf8(error).map_err(|_| "the text of its error is no text")?;
        Ok(Self {
            index,
            attempts: fixed[1..].first_chunk().map_or(0, |count| u32::from_be_bytes(*count)),
            error: error.to_owned(),
            first_failed: time(0),
            last_failed: time(1),
            parked: time(2),
            wanted: fixed[0] & WANTED != 0,
        })
    }
}

/// The place of one progress's records.
#[derive(Clone, Debug)]
pub(crate) struct ParkedRecords {
    family: Family,
    name: String,
    prefix: Vec<u8>,
}

impl ParkedRecords {
    pub(super) fn of(store: &Store, name: &str) -> Result<Self, Error> {
        check_name("progress", name)?;
        let prefix = keys::table_prefix(name).unwrap_or_default();
        Ok(Self { family: store.family(PARKED)?, name: name.to_owned(), prefix })
    }

    fn key(&self, index: Index) -> Vec<u8> {
        [&self.prefix[..], &index.to_be_bytes()].concat()
    }

    /// Writes this record with the other changes.
    pub(crate) fn put(&self, record: &ParkedRecord, changes: &mut Changes) -> Result<(), StoreError> {
        changes.put(self.family.id, &[&self.key(record.index)], &record.encode(&self.name))
    }

    /// Removes the record of this job with the other changes.
    pub(crate) fn remove(&self, index: Index, changes: &mut Changes) -> Result<(), StoreError> {
        changes.delete(self.family.id, &[&self.key(index)])
    }

    /// Removes all records with the other changes.
    pub(super) fn remove_all(&self, changes: &mut Changes) -> Result<(), StoreError> {
        changes.clear_prefix(&self.family, &self.prefix)
    }

    /// Reads all records, in the order of the indices.
    pub(super) fn load(&self, store: &Store) -> Result<Vec<ParkedRecord>, Error> {
        store
            .kv()
            .scan(&self.family, &self.prefix)
            .map(|pair| {
                let (key, value) = pair?;
                self.read(&key[self.prefix.len()..], &value)
            })
            .collect()
    }

    fn get(&self, store: &Store, index: Index) -> Result<ParkedRecord, Error> {
        match store.kv().get(&self.family, &self.key(index))? {
            Some(value) => self.read(&index.to_be_bytes(), &value),
            None => Err(Error::NotParked { name: self.name.clone(), index }),
        }
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
    /// Lists the parked jobs of the progress with this name, in the order of their indices.
    ///
    /// A job is listed from the save on that passes it. The list is read from the disk, also while
    /// a consumer runs.
    ///
    /// # Errors
    /// [`Error::Config`] for a bad name, [`Error::Corrupt`] for a record that cannot be read,
    /// [`Error::Store`] if the database fails.
    pub fn parked(&self, name: impl AsRef<str>) -> Result<Vec<Parked>, Error> {
        let records = ParkedRecords::of(self, name.as_ref())?.load(self)?;
        Ok(records.into_iter().map(Parked::from).collect())
    }

    /// Makes the next consumer with this name run a parked job once more. The watermark does not
    /// move back. While a consumer runs, use [`Handle::redrive`](crate::Handle::redrive).
    ///
    /// # Errors
    /// [`Error::NotParked`] if the job is not parked, [`Error::InUse`] while a consumer has the
    /// name, [`Error::ReadOnly`] if the store is read-only, [`Error::Config`], [`Error::Corrupt`]
    /// and [`Error::Store`] as those of [`parked`](Self::parked).
    pub fn redrive(&self, name: impl AsRef<str>, index: Index) -> Result<(), Error> {
        self.writable()?;
        let records = ParkedRecords::of(self, name.as_ref())?;
        let _name = self.reserve(name.as_ref())?;
        let record = ParkedRecord { wanted: true, ..records.get(self, index)? };
        let mut changes = Changes::default();
        records.put(&record, &mut changes)?;
        Ok(self.write_records(changes.records())?)
    }

    /// Gives a parked job up: its record is removed, and nothing runs it any more. A consumer may
    /// have the name. If it is running the job once more at this moment, that attempt goes on, and
    /// its failure is not kept.
    ///
    /// # Errors
    /// [`Error::NotParked`] if the job is not parked, [`Error::InUse`] while a consumer that parks
    /// nothing has the name, [`Error::ReadOnly`] if the store is read-only, [`Error::Config`],
    /// [`Error::Corrupt`] and [`Error::Store`] as those of [`parked`](Self::parked).
    pub fn discard(&self, name: impl AsRef<str>, index: Index) -> Result<(), Error> {
        let name = name.as_ref();
        self.writable()?;
        let records = ParkedRecords::of(self, name)?;
        let _name = match (self.reserve(name), self.kept::<LiveNames>().get(name)) {
            (Err(_in_use), Some(consumer)) => {
                if !consumer.discard(index) {
                    return Err(Error::NotParked { name: name.to_owned(), index });
                }
                None
            }
            (reserved, _) => {
                let reserved = reserved?;
                records.get(self, index)?;
                Some(reserved)
            }
        };
        let mut changes = Changes::default();
        records.remove(index, &mut changes)?;
        Ok(self.write_records(changes.records())?)
    }
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

impl StoreProgress {
    /// Returns the place of the records, and the records.
    pub(super) fn load_parked(&self) -> Result<(ParkedRecords, Vec<ParkedRecord>), Error> {
        let records = ParkedRecords::of(self.store(), self.name())?;
        let parked = records.load(self.store())?;
        Ok((records, parked))
    }

    /// Notes in the store that jobs may be parked from now on.
    pub(super) fn note_parking(&self) -> Result<(), Error> {
        self.store().note_in_use(IN_USE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> ParkedRecord {
        let error = "refused: no route".to_owned();
        ParkedRecord { index: 7, attempts: 3, error, first_failed: 1, last_failed: 2, parked: 3, wanted: true }
    }

    #[test]
    fn promise_08_any_flipped_bit_of_a_parked_jobs_record_is_refused() {
        let bytes = record().encode("p");
        assert_eq!(ParkedRecord::decode("p", 7, &bytes), Ok(record()));
        assert!(ParkedRecord::decode("q", 7, &bytes).is_err() && ParkedRecord::decode("p", 8, &bytes).is_err());
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(ParkedRecord::decode("p", 7, &flipped).is_err(), "bit {bit}");
        }
        assert!((0..bytes.len()).all(|cut| ParkedRecord::decode("p", 7, &bytes[..cut]).is_err()));
    }

    #[test]
    fn a_whole_record_that_is_too_short_or_has_no_text_is_refused() {
        for body in [&[0; FIXED - 1][..], &[[0xff; FIXED], [0xff; FIXED]].concat()] {
            let mut bytes = SEAL.begin(64);
            bytes.extend_from_slice(body);
            SEAL.close("p", &7u64.to_be_bytes(), &mut bytes);
            assert!(ParkedRecord::decode("p", 7, &bytes).is_err());
        }
    }
}
