//! Items that are kept for parked jobs. A trim passes them: it copies each to a row of its own, so
//! that the items are still deleted as one range. The row survives the process, and is removed when
//! no consumer has the job parked any more.

use super::bounds::{Bounds, bounds_key};
use super::kept::{index_of, key, prefix};
use super::{Codec, JobLog, state::LogState};
use crate::base::{BoxError, Error, Index, error::describe, guard::guarded, sync::Ordering};
use crate::commit::overlay::Overlay;
use crate::source::watermark::{Released, Watermark};
use std::collections::BTreeSet;
use std::ops::Range;

impl LogState {
    /// Calls this with each consumer that items are kept for or that runs on the log, until it
    /// returns true. Returns whether it did.
    fn any_consumer(&self, mut wanted: impl FnMut(&Watermark) -> bool) -> bool {
        self.with_retained(|retained| retained.iter().any(&mut wanted)) || self.any_live(wanted)
    }

    /// True if all items are to be checked, and can be: only consumers that have begun know their
    /// parked jobs, and without any consumer no check is possible.
    fn is_to_check(&self) -> bool {
        let mut some = false;
        let mut waits = |consumer: &Watermark| {
            some = true;
            consumer.next().is_none()
        };
        let unchecked = self.kept.unchecked.load(Ordering::Acquire) && self.kept.count() > 0;
        unchecked && !self.any_consumer(&mut waits) && some
    }

    /// True if there may be items to free even if no watermark has moved.
    pub(super) fn has_items_to_free(&self) -> bool {
        !self.kept.released.lock().is_empty() || self.is_to_check()
    }

    /// Returns all items that no consumer has parked, if they are to be checked. The consumer of a
    /// parked one reports its release later.
    pub(super) fn check(&self, batch: &mut Overlay<'_>) -> Result<Vec<Index>, BoxError> {
        if !self.is_to_check() {
            return Ok(Vec::new());
        }
        // A consumer that starts from here on makes the next trim check again.
        self.kept.unchecked.store(false, Ordering::Release);
        let rows = batch.scan(&self.kept.family, &prefix(self.id));
        let items = rows.map(|row| row.map(|(key, _)| index_of(&key))).collect::<Result<Vec<_>, _>>()?;
        Ok(items.into_iter().flatten().filter(|index| !self.is_parked(*index)).collect())
    }

    fn is_parked(&self, index: Index) -> bool {
        self.any_consumer(|consumer| consumer.has_parked(index))
    }

    /// Copies the items of parked jobs in a range that is about to be removed to rows of their own.
    /// Returns their number.
    pub(super) fn keep_parked(&self, range: Range<Index>, batch: &mut Overlay<'_>) -> Result<u64, BoxError> {
        // Before the parked jobs are read, so that a later release is seen to be below.
        self.kept.reached.fetch_max(range.end, Ordering::AcqRel);
        let mut parked = BTreeSet::new();
        self.any_consumer(|consumer| {
            parked.extend(consumer.parked_within(range.clone()));
            false
        });
        let mut kept = 0;
        for index in parked {
            if let Some(item) = batch.get(&self.family, &self.key(index))? {
                batch.put(self.kept.family.id, &[&key(self.id, index)], &[&item])?;
                kept += 1;
            }
        }
        Ok(kept)
    }

    /// Removes the rows of these jobs, except of those that a consumer has parked. Returns how many
    /// it removed.
    pub(super) fn free(&self, jobs: &[Index], batch: &mut Overlay<'_>) -> Result<u64, BoxError> {
        let mut freed = 0;
        for index in jobs.iter().filter(|index| !self.is_parked(**index)) {
            let key = key(self.id, *index);
            if batch.get(&self.kept.family, &key)?.is_some() {
                batch.delete(self.kept.family.id, &[&key])?;
                freed += 1;
            }
        }
        Ok(freed)
    }
}

impl<T, C> JobLog<T, C> {
    /// Returns the stored first index if it is above this one: the item was just trimmed. The
    /// database learns of a trim before the log does, in the write that also has the new bounds.
    pub(super) fn trimmed_to(&self, index: Index) -> Result<Option<Index>, Error> {
        let name = &self.state.name;
        let stored = self.store.kv().get(self.store.system(), &bounds_key(name))?;
        let first = stored.and_then(|bytes| Some(Bounds::decode(name, &bytes).ok()?.first));
        Ok(first.filter(|first| index < *first))
    }
}

impl<T, C: Codec<T>> JobLog<T, C> {
    /// Reads items below the first one that are kept for parked jobs, until one is missing.
    ///
    /// # Errors
    /// [`Error::Truncated`] if even the first one is missing.
    pub(super) fn read_kept(&self, run: Range<Index>, first: Index, into: &mut Vec<T>) -> Result<(), BoxError> {
        let start = run.start;
        for index in run {
            let key = key(self.state.id, index);
            let Some(value) = self.store.kv().get(&self.state.kept.family, &key)? else {
                let gone = Error::Truncated { next: index, first };
                return if index == start { Err(gone.into()) } else { Ok(()) };
            };
            let item = guarded(|| self.codec.decode(&value));
            into.push(item.map_err(|error| self.corrupt(index, describe(&*error)))?);
        }
        Ok(())
    }
}

impl Released for LogState {
    fn released(&self, jobs: &[Index]) {
        let reached = self.kept.reached.load(Ordering::Acquire);
        let mut released = self.kept.released.lock();
        let before = released.len();
        released.extend(jobs.iter().filter(|index| **index < reached));
        let has_more = released.len() > before;
        drop(released);
        if has_more {
            self.trim_again();
        }
    }
}
