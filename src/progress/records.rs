//! Records for engines: small rows that an engine keeps beside its saves, for parked jobs, counted
//! crashes and the life of a consumer.
//!
//! | key | value |
//! |---|---|
//! | `p` + index (8 bytes, big-endian) | the record of a job that is parked, failed, or may have started |
//! | `l` | the record of the consumer's life |
//!
//! The values are as in a store, but the checksum has no name: the engine knows the rows' owner.

use super::life::Life;
use super::parked::{Earlier, NO_NAME, Parked, ParkedRecord, ParkedRecords, index_of, job_key};
use crate::base::{Error, Index};
use crate::commit::changes::Changes;
use crate::kv::batch;
use std::collections::BTreeMap;

/// The key of a life's record.
const LIFE: [u8; 1] = *b"l";

/// A small row that an engine keeps for a consumer.
///
/// It is of a parked job, of a job whose attempts and crashes count, or of the consumer's life. Its
/// bytes are opaque to the engine, and guarded by a checksum.
///
/// A save has the rows that changed, in [`Saved::records`](crate::Saved::records). The engine puts
/// or removes them in the same transaction, and returns all of them from
/// [`acquire_all`](crate::Progress::acquire_all). A key has at most 9 bytes, and a value rarely
/// more than 4 KiB. A consumer that neither parks jobs nor counts crashes has no records.
///
/// ```
/// use std::collections::BTreeMap;
/// use waterline::Record;
///
/// fn keep(rows: &mut BTreeMap<Vec<u8>, Vec<u8>>, records: &[Record]) {
///     for record in records {
///         match &record.value {
///             Some(value) => rows.insert(record.key.clone(), value.clone()),
///             None => rows.remove(&record.key),
///         };
///     }
/// }
/// let mut rows = BTreeMap::new();
/// keep(&mut rows, &[Record::new(b"a", Some(b"1")), Record::new(b"b", Some(b"2"))]);
/// keep(&mut rows, &[Record::new(b"a", None)]);
/// assert_eq!(rows.len(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The key of the row among the rows of this consumer.
    pub key: Vec<u8>,
    /// The new value of the row, or `None` to remove it.
    pub value: Option<Vec<u8>>,
}

impl Record {
    /// Creates a record from a row that an engine has loaded.
    #[must_use]
    pub fn new(key: &[u8], value: Option<&[u8]>) -> Self {
        Self { key: key.to_vec(), value: value.map(<[u8]>::to_vec) }
    }

    /// Returns the parked job, if this is the record of one, for a list that people read. To give
    /// up a parked job while no consumer has the name, delete the row with this key.
    #[must_use]
    pub fn parked(&self) -> Option<Parked> {
        let job = self.job()?.ok()?;
        (!job.pending).then(|| Parked::from(job))
    }

    /// Returns this record with a request to run the job again; `None` if it is not parked.
    ///
    /// An engine stores it in place of the old one, for a call such as
    /// [`Store::redrive`](crate::Store::redrive). To notify a consumer that has the name, call
    /// [`Tenure::redrive`](crate::Tenure::redrive).
    #[must_use]
    pub fn redriven(&self) -> Option<Self> {
        let job = self.job()?.ok().filter(|job| !job.pending)?;
        // An explicit redrive is a fresh start for a job that has crashed its process.
        let wanted = ParkedRecord { wanted: true, crashes: 0, ..job };
        Some(Self { key: self.key.clone(), value: Some(wanted.encode(NO_NAME)) })
    }

    /// Decodes the record of a job; `None` for any other record.
    fn job(&self) -> Option<Result<ParkedRecord, String>> {
        let (index, value) = (index_of(&self.key)?, self.value.as_ref()?);
        Some(ParkedRecord::decode(NO_NAME, index, value))
    }
}

/// The records of a save, by key: the last change of a row counts.
#[derive(Default)]
pub(crate) struct NewRecords(BTreeMap<Vec<u8>, Option<Vec<u8>>>);

impl NewRecords {
    /// Adds changes whose records were made for an engine.
    pub(crate) fn take(&mut self, changes: &Changes) {
        for record in changes.records().records() {
            match record {
                batch::RowChange::Put { key, value, .. } => self.0.insert(key.to_vec(), Some(value.to_vec())),
                batch::RowChange::Delete { key, .. } => self.0.insert(key.to_vec(), None),
                batch::RowChange::DeleteRange { .. } => {
                    debug_assert!(false, "an engine gets single records");
                    continue;
                }
            };
        }
    }

    pub(crate) fn put_life(&mut self, life: &Life) {
        let (_, value) = life.entry(NO_NAME);
        self.0.insert(LIFE.to_vec(), Some(value));
    }

    pub(crate) fn put_job(&mut self, job: &ParkedRecord) {
        self.0.insert(job_key(job.index), Some(job.encode(NO_NAME)));
    }

    pub(crate) fn remove_job(&mut self, index: Index) {
        self.0.insert(job_key(index), None);
    }

    /// Lists the records of a save, and the jobs that they park.
    pub(crate) fn list(self) -> (Vec<Record>, Vec<Parked>) {
        let records: Vec<_> = self.0.into_iter().map(|(key, value)| Record { key, value }).collect();
        // A parked job that runs again was listed when it was parked.
        let jobs = records.iter().filter_map(|record| record.job()?.ok());
        let parked = jobs.filter(|job| !job.pending && !job.started).map(Parked::from).collect();
        (records, parked)
    }
}

/// Decodes the records that an engine returned; `None` without any, unless `asked`.
pub(crate) fn load(
    (records, parked): (Vec<Record>, Vec<Parked>),
    asked: bool,
    name: &str,
) -> Result<Option<Earlier>, Error> {
    if records.is_empty() && parked.is_empty() && !asked {
        return Ok(None);
    }
    let mut earlier = Earlier { place: ParkedRecords::of_engine(), jobs: Vec::new(), life: None };
    if records.is_empty() {
        earlier.jobs.extend(parked.into_iter().map(ParkedRecord::from));
    }
    let corrupt = |record: &Record, reason: &str| Error::Corrupt {
        name: name.to_owned(),
        reason: format!("the record with the key {:?}: {reason}", record.key.escape_ascii().to_string()),
    };
    for record in &records {
        let value = record.value.as_deref().ok_or_else(|| corrupt(record, "it has no value"))?;
        match record.job() {
            Some(job) => earlier.jobs.push(job.map_err(|reason| corrupt(record, &reason))?),
            None if record.key == LIFE => {
                earlier.life = Some(Life::decode(NO_NAME, value).map_err(|reason| corrupt(record, &reason))?);
            }
            None => return Err(corrupt(record, "no record has such a key")),
        }
    }
    earlier.jobs.sort_unstable_by_key(|job| job.index);
    if let Some(twice) = earlier.jobs.windows(2).find(|pair| pair[0].index == pair[1].index) {
        return Err(corrupt(&Record { key: job_key(twice[0].index), value: None }, "it is there twice"));
    }
    Ok(Some(earlier))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Saved;

    fn job(index: Index, pending: bool) -> ParkedRecord {
        let error = "refused".to_owned();
        ParkedRecord { index, attempts: 2, crashes: 1, error, first_failed: 1, pending, ..ParkedRecord::default() }
    }

    /// Loads the records of a save.
    fn load(saved: &mut Saved, asked: bool, name: &str) -> Result<Option<Earlier>, Error> {
        super::load((std::mem::take(&mut saved.records), std::mem::take(&mut saved.parked)), asked, name)
    }

    fn listed(records: NewRecords) -> Saved {
        let mut saved = Saved::new(None, 0, Vec::new());
        (saved.records, saved.parked) = records.list();
        saved
    }

    #[test]
    fn records_of_an_engine_read_back() {
        let life = Life { open: true, width: 9, ..Life::default() };
        let mut records = NewRecords::default();
        [job(7, false), job(3, true)].iter().for_each(|job| records.put_job(job));
        records.put_life(&life);
        let mut saved = listed(records);
        assert_eq!(saved.parked.iter().map(|parked| parked.index).collect::<Vec<_>>(), [7], "job 3 is not parked");
        let keys: Vec<_> = saved.records.iter().map(|record| record.key.clone()).collect();
        assert_eq!(keys, [b"l".to_vec(), b"p\0\0\0\0\0\0\0\x03".to_vec(), b"p\0\0\0\0\0\0\0\x07".to_vec()]);
        assert_eq!(saved.records.iter().filter_map(Record::parked).map(|parked| parked.attempts).sum::<u32>(), 2);
        saved.records.reverse();
        let earlier = load(&mut saved, false, "p").unwrap().unwrap();
        assert_eq!((earlier.jobs, earlier.life), (vec![job(3, true), job(7, false)], Some(life)));
        assert!(load(&mut saved, false, "p").unwrap().is_none() && load(&mut saved, true, "p").unwrap().is_some());
    }

    #[test]
    fn an_engine_gets_the_last_change_of_a_row() {
        let (place, mut changes) = (ParkedRecords::of_engine(), Changes::default());
        place.put(&job(7, false), &mut changes).unwrap();
        place.remove(7, &mut changes).unwrap();
        place.remove(8, &mut changes).unwrap();
        place.put(&job(8, false), &mut changes).unwrap();
        let mut records = NewRecords::default();
        records.take(&changes);
        let saved = listed(records);
        let kept: Vec<_> = saved.records.iter().map(|record| record.value.is_some()).collect();
        assert_eq!((kept, saved.parked.len()), (vec![false, true], 1));
    }

    #[test]
    fn jobs_listed_as_parked_need_no_records() {
        let parked = Parked::from(job(7, false));
        let mut saved = Saved { parked: vec![parked.clone()], ..Saved::new(None, 0, Vec::new()) };
        let earlier = load(&mut saved, false, "p").unwrap().unwrap();
        assert_eq!(earlier.jobs.into_iter().map(Parked::from).collect::<Vec<_>>(), [parked]);
    }

    #[test]
    fn promise_08_any_flipped_bit_of_an_engines_record_is_corrupt() {
        let mut records = NewRecords::default();
        records.put_job(&job(7, false));
        records.put_life(&Life::default());
        let whole = listed(records).records;
        for at in 0..whole.len() {
            let length = whole[at].value.as_ref().map_or(0, Vec::len);
            for bit in 0..(whole[at].key.len() + length) * 8 {
                let mut records = whole.clone();
                let Record { key, value: Some(value) } = &mut records[at] else { panic!("it has a value") };
                let byte = if bit / 8 < key.len() { &mut key[bit / 8] } else { &mut value[bit / 8 - key.len()] };
                *byte ^= 1 << (bit % 8);
                let mut saved = Saved { records, ..Saved::new(None, 0, Vec::new()) };
                let loaded = load(&mut saved, true, "p");
                assert!(matches!(loaded, Err(Error::Corrupt { .. })), "bit {bit} of {at}");
            }
        }
    }
}
