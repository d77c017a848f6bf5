//! The progress in the embedded store.

use super::ledger::{Entry, Ledger, Loaded};
use super::life::{self, Life};
use super::parked::{Earlier, IN_USE, LiveNames, ParkedRecord, ParkedRecords};
use super::{
    Checkpoint, DoneAhead, LiveParking, NOT_ACQUIRED, Progress, SaveBackend, SaveError, SavePort, Saved, Snapshot,
    format, history::History, reads,
};
use crate::base::sync::{Arc, Mutex};
use crate::base::{BoxError, Error, Index, config::check_name};
use crate::commit::{changes::Changes, draft::Draft, intent::Intent};
use crate::kv::batch::{Batch, FamilyId};
use crate::store::{Ids, NameGuard, Owned, Store, owned};
use std::sync::Weak;
use std::time::Duration;

/// The progress of one consumer in a [`Store`], from [`Store::progress`].
///
/// It keeps the watermark and all jobs that are done above it, even without a watermark, and the
/// next life runs none of these jobs. A save lists the jobs that finished since the previous one:
/// about 3 bytes per job that finished out of order, and 24 bytes for the save itself. The saves of
/// all consumers of a store share batches. The store's writer thread writes them, so no job waits
/// for a save. If that thread gets no core in time, a worker writes the batch between two jobs,
/// unless it must be flushed.
///
/// ```
/// use waterline::{Consumer, Error, MemoryJobs, Store};
///
/// let (store, jobs) = (Store::in_memory(), (0..3).collect::<MemoryJobs<_>>());
/// // Job 1 fails once job 2 is done, and that is the end of this life.
/// let (done, wait) = std::sync::mpsc::channel();
/// let wait = std::sync::Mutex::new(wait);
/// let first = Consumer::builder(jobs.clone(), store.progress("p")).max_processing(3).start(move |job| match job.index {
///     1 => Ok(wait.lock().unwrap().recv().map_err(|_| "no")?).and(Err("no".into())),
///     2 => Ok(done.send(())?),
///     _ => Ok(()),
/// })?;
/// assert!(matches!(first.join(), Err(Error::Job { index: 1, .. })));
/// assert_eq!(store.progress("p").last_processed()?, Some(0));
///
/// let second = Consumer::builder(jobs, store.progress("p")).stop_at(2).start(|job| Ok(assert_eq!(job.index, 1)))?;
/// second.join()?;
/// assert_eq!(store.progress("p").last_processed()?, Some(2));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct StoreProgress {
    store: Store,
    name: String,
    acquired: Option<OpenLedger>,
}

/// The state of a progress that has its name.
#[derive(Debug)]
struct OpenLedger {
    ledger: Arc<Mutex<Ledger>>,
    _name: NameGuard,
}

/// Everything that is stored of a progress, to be removed. It holds the name until it is dropped.
pub(crate) struct Removal {
    /// The changes that remove it.
    pub(crate) changes: Changes,
    _name: NameGuard,
}

impl Store {
    /// Returns the progress of the consumer with this name. The start refuses a name that does not
    /// have 1 to 255 bytes.
    ///
    /// If nothing is saved under this name, the consumer starts with the first job. With
    /// [`StoreOptions::create(false)`](crate::StoreOptions::create) it does not start.
    pub fn progress(&self, name: impl Into<String>) -> StoreProgress {
        StoreProgress { store: self.clone(), name: name.into(), acquired: None }
    }
}

impl StoreProgress {
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the name of this progress.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the saved watermark, or `None` if there is none. It does not take the name.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for an unreadable value, [`Error::Progress`] if the database fails.
    pub fn last_processed(&self) -> Result<Option<Index>, Error> {
        check_name("progress", &self.name)?;
        Ok(self.load()?.and_then(|loaded| loaded.last_processed))
    }

    /// Deletes everything that is saved under this name, readable or not.
    ///
    /// This is the watermark, the list of jobs done above it, the records of parked jobs and the
    /// [history](Self::history). The next consumer with this name starts anew. To move the
    /// watermark and keep the rest, see [`seek`](Self::seek).
    ///
    /// The effects of its jobs stay, also in what [belongs](crate::Builder::owns) to it, so a
    /// transactional consumer repeats them: every counter doubles.
    /// [`remove_with`](Self::remove_with) removes both in one write.
    ///
    /// # Errors
    /// [`Error::InUse`] while a consumer has the name, [`Error::ReadOnly`] if the store is
    /// read-only, [`Error::Store`] if the database fails.
    pub fn remove(self) -> Result<(), Error> {
        let removal = self.removal()?;
        Ok(self.store.write_records(removal.changes.records())?)
    }

    /// Takes the name, and returns the changes that remove everything under it.
    pub(crate) fn removal(&self) -> Result<Removal, Error> {
        check_name("progress", &self.name)?;
        self.store.writable()?;
        let name = self.store.reserve(&self.name)?;
        let (family, mut changes) = (self.store.system().id, Changes::default());
        changes.delete(family, &[&format::page_key(&self.name)])?;
        // An unreadable page's id is not trusted, so that no deltas of another progress are
        // deleted.
        if let Ok(Some(Loaded { ledger, .. })) = self.load()
            && let Some(id) = ledger.id()
        {
            for pair in self.store.kv().scan(self.store.system(), &format::delta_prefix(id)) {
                changes.delete(family, &[&pair?.0])?;
            }
        }
        changes.delete(family, &[&life::key(&self.name)])?;
        changes.delete(family, &[&life::moved_key(&self.name)])?;
        changes.delete(family, &[&reads::key(&self.name)])?;
        changes.delete(family, &[&owned::key(&self.name)])?;
        ParkedRecords::of(&self.store, &self.name)?.remove_all(&mut changes)?;
        History::of(&self.store, &self.name).remove_all(&self.store, &mut changes)?;
        Ok(Removal { changes, _name: name })
    }

    /// Reads the stored records. As a consumer may write meanwhile, the page must be the same
    /// before and after the deltas are read.
    pub(super) fn load(&self) -> Result<Option<Loaded>, Error> {
        let failed = |e: crate::base::error::StoreError| Error::Progress { source: e.into() };
        let kv = self.store.kv();
        let page = || kv.get(self.store.system(), &format::page_key(&self.name)).map_err(failed);
        let mut before = page()?;
        loop {
            let Some(bytes) = before else { return Ok(None) };
            let id = format::id_of(&bytes);
            let deltas = id.map(|id| kv.scan(self.store.system(), &format::delta_prefix(id)));
            let loaded = Ledger::load(&self.name, &bytes, deltas.into_iter().flatten());
            let after = page()?;
            if after.as_ref() == Some(&bytes) {
                return loaded.map(Some);
            }
            before = after;
        }
    }

    /// Reads the stored records for a caller that has the name and may write. The runs of the done
    /// jobs are in the order of the saves.
    pub(super) fn load_ledger(&self) -> Result<(Ledger, Option<Saved>), Error> {
        match self.load()? {
            Some(Loaded { ledger, last_processed, next, done }) => {
                Ok((ledger, Some(Saved::new(last_processed, next, done))))
            }
            None if self.store.creates() => Ok((Ledger::empty(&self.name), None)),
            None => self.store.not_found("progress", &self.name),
        }
    }

    /// Returns the access to the store's writer, once the name is taken.
    pub(super) fn writer(&self) -> Option<Arc<dyn SaveBackend>> {
        let ledger = self.acquired.as_ref()?.ledger.clone();
        Some(Arc::new(StoreSaveBackend { store: self.store.clone(), name: self.name.clone(), ledger }))
    }

    /// Takes the name and loads everything that is done, with runs in the order of the saves: a
    /// window takes any order, and there may be very many.
    pub(super) fn acquire_loaded(&mut self) -> Result<Option<Saved>, Error> {
        check_name("progress", &self.name)?;
        self.store.writable()?;
        let name = self.store.reserve(&self.name)?;
        let (ledger, saved) = self.load_ledger()?;
        self.store.writer().start().map_err(|source| Error::Spawn { source })?;
        self.acquired = Some(OpenLedger { ledger: Arc::new(Mutex::new(ledger)), _name: name });
        Ok(saved)
    }

    /// Writes everything that is done as a page.
    fn save_page(&self, snapshot: &Snapshot) -> Result<(), BoxError> {
        self.store.writable()?;
        let Some(acquired) = &self.acquired else { return Err(NOT_ACQUIRED.into()) };
        let mut ledger = acquired.ledger.lock();
        let mut batch = Batch::default();
        let entry = enter(&mut ledger, snapshot, self.store.ids())?;
        batch.put(self.store.system().id, &[&entry.put.0], &[&entry.put.1])?;
        self.store.write_batch(&batch)?;
        ledger.written(&entry);
        Ok(())
    }

    /// Returns the records of single jobs and of the previous life.
    pub(super) fn load_earlier(&self) -> Result<Earlier, Error> {
        let place = ParkedRecords::of(self.store(), self.name())?;
        let jobs = place.load(self.store())?;
        Ok(Earlier { place, jobs, life: Life::load(self.store(), self.name())? })
    }

    /// Writes the records that open a life, in one write.
    pub(super) fn open_life<'a>(
        &self,
        life: &Life,
        suspects: impl Iterator<Item = &'a ParkedRecord>,
        passed: &[Index],
    ) -> Result<(), Error> {
        let (place, mut changes) = (ParkedRecords::of(self.store(), self.name())?, Changes::default());
        let (key, value) = life.entry(self.name());
        changes.put(self.store().system().id, &[&key], &value)?;
        for suspect in suspects {
            place.put(suspect, &mut changes)?;
        }
        for index in passed {
            place.remove(*index, &mut changes)?;
        }
        Ok(self.store().write_records(changes.records())?)
    }

    /// Notes in the first save which log (of which store) the consumer reads, if that has changed.
    pub(super) fn note_log(&self, log: Option<(&str, usize)>) -> Result<(), Error> {
        let Some(acquired) = &self.acquired else { return Ok(()) };
        let log = log.filter(|(_, store)| *store == self.store.home().address).map_or("", |(log, _)| log);
        if reads::load(&self.store, &self.name)?.as_deref().unwrap_or_default() != log {
            acquired.ledger.lock().set_reads(log.to_owned());
        }
        Ok(())
    }

    /// Stores what belongs to the progress, if that has changed.
    pub(super) fn note_owned(&self, owns: &[Owned]) -> Result<(), Error> {
        // An unreadable list is replaced.
        if self.store.owned_by(&self.name).is_ok_and(|stored| stored == owns) {
            return Ok(());
        }
        let ((key, value), mut batch) = (owned::entry(&self.name, owns), Batch::default());
        batch.put(self.store.system().id, &[&key], &[&value])?;
        Ok(self.store.write_batch(&batch)?)
    }

    /// Notes in the store that jobs may be parked from now on.
    pub(super) fn note_parking(&self) -> Result<(), Error> {
        self.store().note_in_use(IN_USE)
    }
}

impl Progress for StoreProgress {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        Ok(self.acquire_all()?.and_then(|saved| saved.last_processed).map(Checkpoint::new))
    }

    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
        let last = checkpoint.last_processed;
        let next = last.checked_add(1).ok_or("the last index is never a job")?;
        let ahead = DoneAhead::All { first: 0, words: Vec::new() };
        self.save_page(&Snapshot { last_processed: Some(last), next, ahead, life: None, batch: None })
    }

    fn keeps_done_ahead(&self) -> bool {
        true
    }

    fn acquire_all(&mut self) -> Result<Option<Saved>, Error> {
        Ok(self.acquire_loaded()?.map(Saved::in_order))
    }

    fn save_all(&mut self, saved: &Saved) -> Result<(), SaveError> {
        Ok(self.save_page(&Snapshot::try_from(saved)?)?)
    }

    fn label(&self) -> Option<String> {
        Some(self.name.clone())
    }
}

pub(super) fn enter(ledger: &mut Ledger, snapshot: &Snapshot, ids: &Ids) -> Result<Entry, BoxError> {
    take_id(ledger, ids)?;
    Ok(ledger.entry(snapshot).ok_or("a page has to say all that is done")?)
}

/// Assigns a number to a progress that has none.
fn take_id(ledger: &mut Ledger, ids: &Ids) -> Result<(), Error> {
    if ledger.id().is_none() {
        ledger.set_id(ids.try_next()?);
    }
    Ok(())
}

/// A consumer's access to the store's writer.
struct StoreSaveBackend {
    store: Store,
    name: String,
    ledger: Arc<Mutex<Ledger>>,
}

impl SaveBackend for StoreSaveBackend {
    fn save(&self, port: Arc<dyn SavePort>, hurry: bool) {
        // Takes a number now, before a statement begins a transaction. The save retries a failure.
        if self.store.kv().takes_sql()
            && let Some(mut ledger) = self.ledger.try_lock()
        {
            let _tried_again = take_id(&mut ledger, self.store.ids());
        }
        let intent = CommitIntent {
            system: self.store.system().id,
            ids: self.store.ids().clone(),
            synced: self.store.is_synced(),
            ledger: self.ledger.clone(),
            port,
            entry: Mutex::new(None),
            effects: Mutex::default(),
        };
        self.store.writer().submit(Box::new(intent), hurry);
    }

    fn hurry(&self) {
        self.store.writer().hurry();
    }

    fn takes_help(&self) -> bool {
        // A flush would keep the thread from its jobs for longer than the save is overdue.
        !self.store.is_synced()
    }

    fn help(&self) {
        self.store.writer().help();
    }

    fn meet(&self, consumer: Weak<dyn LiveParking>) {
        self.store.extension::<LiveNames>().meet(&self.name, consumer);
    }
}

/// One save of one consumer, until it is written or abandoned. It keeps no store: the writer thread
/// may drop the intent last, and a store that it drops would wait for that very thread.
struct CommitIntent {
    system: FamilyId,
    ids: Arc<Ids>,
    synced: bool,
    ledger: Arc<Mutex<Ledger>>,
    port: Arc<dyn SavePort>,
    /// The record that is being written.
    entry: Mutex<Option<Entry>>,
    /// The effects of the finished jobs, until they are written.
    effects: Mutex<Vec<Changes>>,
}

impl Intent for CommitIntent {
    fn resolve(&self, draft: &mut Draft<'_>) -> Result<bool, BoxError> {
        let (mut ledger, mut effects) = (self.ledger.lock(), self.effects.lock());
        let all = ledger.wants_page();
        let Some(mut snapshot) = self.port.snapshot(all, &mut effects) else { return Ok(false) };
        // A number needs a separate write, before a job's statement begins a transaction.
        take_id(&mut ledger, &self.ids)?;
        let (mut from, mut to) = (0, effects.len());
        while from < to {
            let refused = draft.append(&effects[from..to])?;
            if refused.is_empty() {
                // Other jobs have finished while some were refused.
                (from, to) = (to, effects.len());
                continue;
            }
            // A job's effects stay here exactly as long as it counts as done, even if something
            // fails later: a save has both or neither.
            let jobs: Vec<_> = refused.iter().map(|job| job.index).collect();
            effects[from..to].iter_mut().for_each(|changes| changes.take_out(&jobs));
            let Some(without) = self.port.refused(refused, all, &mut effects) else { return Ok(false) };
            snapshot = without;
        }
        let mut entry = enter(&mut ledger, &snapshot, &self.ids)?;
        draft.put(self.system, &entry.put.0, &entry.put.1)?;
        if let Some((key, value)) = ledger.note_move(&mut entry, snapshot.next, self.port.wall()) {
            draft.put(self.system, &key, &value)?;
        }
        if let Some((key, value)) = ledger.note_reads(&mut entry) {
            draft.put(self.system, &key, &value)?;
        }
        if let Some(life) = &snapshot.life {
            let (key, value) = life.entry(ledger.name());
            draft.put(self.system, &key, &value)?;
        }
        *self.entry.lock() = Some(entry);
        Ok(true)
    }

    fn synced(&self) -> bool {
        self.synced
    }

    fn written(&self) {
        drop(std::mem::take(&mut *self.effects.lock()));
        if let Some(entry) = self.entry.lock().take() {
            self.ledger.lock().written(&entry);
        }
        self.port.saved();
    }

    fn failed(&self, error: BoxError) -> Option<Duration> {
        self.port.save_failed(error)
    }
}

#[cfg(test)]
mod tests;
