//! A progress that takes the name of another one: everything that is stored under the first is
//! written under the second, whose own goes.

use super::embedded::{Removal, StoreProgress, enter};
use super::history::History;
use super::ledger::{Ledger, Loaded};
use super::life::{self, Life};
use super::parked::ParkedRecords;
use super::{Saved, Snapshot, reads};
use crate::base::{BoxError, Error};
use crate::commit::changes::Changes;
use crate::store::{Owned, Store, owned};

/// Two progresses, whose names are taken until this is dropped.
pub(crate) struct Replacement {
    from: StoreProgress,
    to: StoreProgress,
    removals: [Removal; 2],
    saved: Saved,
    /// What belongs to each.
    pub(crate) owned: [Vec<Owned>; 2],
}

impl Replacement {
    /// Takes both names; `None` if nothing is saved under the first.
    pub(crate) fn begin(store: &Store, [from, to]: [&str; 2]) -> Result<Option<Self>, Error> {
        let (from, to) = (store.progress(from), store.progress(to));
        let removals = [from.removal()?, to.removal()?];
        let Some(Loaded { last_processed, next, done, .. }) = from.load()? else { return Ok(None) };
        let saved = Saved::new(last_processed, next, done).in_order();
        let owned = [store.owned_by(from.name())?, store.owned_by(to.name())?];
        Ok(Some(Self { from, to, removals, saved, owned }))
    }

    pub(crate) fn names(&self) -> [&str; 2] {
        [self.from.name(), self.to.name()]
    }

    /// Adds everything to the changes. The log that the consumer reads gets the name that this
    /// returns for it.
    pub(crate) fn write(&self, log: impl Fn(String) -> String, changes: &mut Changes) -> Result<(), Error> {
        let Self { from, to, removals, saved, owned } = self;
        let (store, name, system) = (to.store(), to.name(), to.store().system().id);
        removals.iter().for_each(|removal| changes.extend(&removal.changes));
        let failed = |source: BoxError| Error::Progress { source };
        let snapshot = Snapshot::try_from(saved).map_err(failed)?;
        let page = enter(&mut Ledger::empty(name), &snapshot, store.ids()).map_err(failed)?.put;
        let life = Life::load(store, from.name())?.map(|life| life.entry(name));
        let moved = life::load_moved(store, from.name())?.map(|at| life::moved_entry(name, at));
        let reads = reads::load(store, from.name())?.map(|read| reads::entry(name, &log(read)));
        // The parts keep the names that the second progress has given them.
        let owns = Some(owned::entry(name, &owned[1])).filter(|_| !owned[1].is_empty());
        for (key, value) in [Some(page), life, moved, reads, owns].into_iter().flatten() {
            changes.put(system, &[&key], &value)?;
        }
        let parked = ParkedRecords::of(store, name)?;
        for job in ParkedRecords::of(store, from.name())?.load(store)? {
            parked.put(&job, changes)?;
        }
        History::of(store, name).put_all(&History::of(store, from.name()).load(store)?, changes)
    }
}

/// Lists the consumers of this store that have last read a log of it, with the log.
pub(crate) fn readers(store: &Store) -> Result<Vec<(String, String)>, Error> {
    let mut readers = Vec::new();
    for pair in store.kv().scan(store.system(), crate::store::keys::READS) {
        let (key, _) = pair?;
        let name = String::from_utf8_lossy(&key[crate::store::keys::READS.len()..]).into_owned();
        if let Some(log) = reads::load(store, &name)? {
            readers.push((name, log));
        }
    }
    Ok(readers)
}
