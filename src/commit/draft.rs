//! The batch being made: records of intents, staged states of participants, and sums of counters.

use crate::base::sync::{Arc, RwLock};
use crate::base::{BoxError, Error, error::StoreError};
use crate::commit::changes::{Changes, Op, Refused};
use crate::commit::counter_cache::{At, Cell, Cells, CounterCache};
use crate::commit::overlay::{Overlay, OverlayMark};
use crate::commit::participant::{Participant, Tails, TailsMark};
use crate::commit::{adds::Add, counter, refusal::Refusal, statements::Manner};
#[cfg(any(test, feature = "seam"))]
use crate::kv::batch::Batch;
use crate::kv::batch::{FamilyId, RowChange};
use crate::kv::{Family, Kv, statement::NotCommitted};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

mod refused;

/// The batch being made, which is written atomically.
pub struct Draft<'a> {
    kv: &'a dyn Kv,
    overlay: Overlay<'a>,
    tails: Tails,
    cells: Cells,
    /// True once `cells` contains the counters that were cached before this batch.
    has_known: bool,
    /// The highest keys of the families that were emptied. They can be forgotten, too.
    highest: HashMap<FamilyId, Highest>,
    /// How many records were read for counters and for the ends of families.
    #[cfg(test)]
    pub(super) looked_at: usize,
}

/// A state of a draft that [`go_back`](Draft::go_back) restores.
pub struct DraftMark {
    batch: OverlayMark,
    tails: TailsMark,
    cells: u64,
}

/// The counters whose sums must still be put, each with its first add.
type Owed<'c> = Vec<(At, Add<'c>)>;

/// The highest key that a family has or had at some point in the batch.
#[derive(Default)]
struct Highest {
    key: Option<Vec<u8>>,
    /// The position in the batch up to which records were read.
    until: usize,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(kv: &'a dyn Kv, rows: &'a RwLock<CounterCache>, manner: Manner) -> Self {
        Self {
            kv,
            overlay: Overlay::new(kv, rows, manner),
            tails: Tails::default(),
            cells: Cells::default(),
            has_known: false,
            highest: HashMap::new(),
            #[cfg(test)]
            looked_at: 0,
        }
    }

    #[cfg(any(test, feature = "seam"))]
    pub(crate) fn batch(&self) -> &Batch {
        self.overlay.batch()
    }

    /// True if the draft has any record or participant.
    #[cfg(feature = "seam")]
    pub fn is_touched(&self) -> bool {
        !self.batch().is_empty() || !self.tails.is_empty()
    }

    /// Marks the current state. A mark copies nothing.
    pub fn mark(&mut self) -> DraftMark {
        DraftMark { batch: self.overlay.mark(), tails: self.tails.mark(), cells: self.cells.version() }
    }

    /// Undoes everything after the mark.
    pub fn go_back(&mut self, mark: DraftMark) {
        self.overlay.go_back(mark.batch);
        self.tails.go_back(mark.tails);
        if self.cells.version() != mark.cells {
            self.cells.clear();
        }
        self.highest.clear();
    }

    /// Lets the participants add the records of their new states, and writes the batch. Call it
    /// last.
    pub(super) fn write(&mut self, synced: bool) -> Result<(), NotCommitted> {
        self.tails.close(&mut self.overlay).map_err(NotCommitted::Store)?;
        if !self.has_known {
            self.overlay.note_rows();
        }
        let written = self.overlay.write(synced);
        // After a failure it is unknown what is stored, so all counters are read again.
        if self.has_known && written.is_ok() {
            self.overlay.shut_rows().keep(std::mem::take(&mut self.cells));
        }
        written
    }

    /// Returns the staged states for publication after the write, and unlocks rows.
    pub(super) fn into_tails(self) -> Tails {
        self.tails
    }

    /// Returns a participant's staged state, for changes by its own intents, and the batch.
    pub fn part<P: Participant>(
        &mut self,
        participant: &Arc<P>,
    ) -> Result<(&mut P::Staged, &mut Overlay<'a>), BoxError> {
        Ok((self.tails.staged(participant)?, &mut self.overlay))
    }

    /// Puts a key of our own that is no counter.
    pub(crate) fn put(&mut self, family: FamilyId, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.overlay.put(family, &[key], &[value])
    }

    /// Appends the changes of jobs, in order. Refused operations are made in another order if one
    /// works.
    ///
    /// A job with an add or an operation that cannot be made is refused, and then nothing is
    /// appended at all: remove the changes of the refused jobs, which are in ascending order, and
    /// append the rest again. If the change belongs to no job, the error is the reason.
    ///
    /// Changes that were requested before a table was replaced go to where it is now.
    pub fn append(&mut self, all: &[Changes]) -> Result<Vec<Refused>, BoxError> {
        if all.iter().any(|changes| changes.generation() != 0) {
            let prefixes = self.overlay.prefixes();
            if all.iter().any(|changes| changes.are_behind(&prefixes)) {
                let renewed = all.iter().map(|changes| changes.renewed(&prefixes)).collect::<Result<Vec<_>, _>>()?;
                return self.append_here(&renewed);
            }
        }
        self.append_here(all)
    }

    fn append_here(&mut self, all: &[Changes]) -> Result<Vec<Refused>, BoxError> {
        let before = all.iter().any(Changes::may_be_refused).then(|| self.mark());
        if before.is_some() && self.overlay.statements().manner.careful {
            return self.append_what_can_be(all);
        }
        let Err(error) = self.append_all(all) else { return Ok(Vec::new()) };
        let Some(before) = before else { return Err(error) };
        match Refusal::reason(error) {
            Err(error) if !matches!(error.downcast_ref(), Some(Error::Counter { .. })) => Err(error),
            _ => {
                self.go_back(before);
                self.append_what_can_be(all)
            }
        }
    }

    /// Appends the changes of jobs. It looks up all counters at once, as that may scan the batch.
    fn append_all(&mut self, all: &[Changes]) -> Result<(), BoxError> {
        let (places, mut owed) = (self.learn(all.iter().flat_map(Changes::adds))?, Owed::new());
        let mut places = places.into_iter();
        for changes in all {
            changes.ops().iter().try_for_each(|op| self.make(op))?;
            self.append_rest(changes, &mut places, &mut owed)?;
        }
        Ok(self.put_owed(owed)?)
    }

    fn make(&mut self, op: &Op) -> Result<(), BoxError> {
        self.tails.any(&op.participant).apply(&op.bytes, &mut self.overlay)
    }

    /// Appends everything but the operations; the sums come after the records of all jobs. `places`
    /// are the positions of the added counters.
    fn append_rest<'c>(
        &mut self,
        changes: &'c Changes,
        places: &mut impl Iterator<Item = At>,
        owed: &mut Owed<'c>,
    ) -> Result<(), BoxError> {
        if !self.cells.is_empty() {
            let mut adds = changes.adds().peekable();
            for (number, record) in (0..).zip(changes.records().records()) {
                while let Some(add) = adds.next_if(|add| add.after <= number) {
                    self.add(add, places, owed)?;
                }
                self.cells.note(record, |_, _| ());
            }
            adds.try_for_each(|add| self.add(add, places, owed))?;
        }
        Ok(self.append_records(changes)?)
    }

    /// Appends the records of jobs unchanged, except that a range without an end gets one.
    fn append_records(&mut self, changes: &Changes) -> Result<(), StoreError> {
        if changes.emptied().is_empty() {
            self.overlay.append(changes.records());
            return Ok(());
        }
        for record in changes.records().records() {
            match record {
                RowChange::Put { family, key, value } => self.overlay.put(family, &[key], &[value])?,
                RowChange::Delete { family, key } => self.overlay.delete(family, &[key])?,
                RowChange::DeleteRange { family, from, to: [] } => {
                    let emptied = changes.emptied().iter().find(|emptied| emptied.id == family);
                    if let Some(end) = emptied.map(|family| self.end_of(family)).transpose()?.flatten() {
                        self.overlay.delete_range(family, from, &end)?;
                    }
                }
                RowChange::DeleteRange { family, from, to } => self.overlay.delete_range(family, from, to)?,
            }
        }
        Ok(())
    }

    /// Returns the lowest key above all keys of this family in the database and the batch; `None`
    /// if it has none. No other thread puts a key from here on until all is written.
    ///
    /// It reads each record once, however often the family is emptied.
    fn end_of(&mut self, family: &Family) -> Result<Option<Vec<u8>>, StoreError> {
        self.overlay.shut_rows();
        let highest = match self.highest.entry(family.id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Highest { key: self.kv.last(family, b"")?, until: 0 }),
        };
        for (_, record) in self.overlay.batch().records_from(highest.until) {
            #[cfg(test)]
            {
                self.looked_at += 1;
            }
            if let RowChange::Put { family: other, key, .. } = record
                && other == family.id
                && highest.key.as_deref().is_none_or(|highest| highest < key)
            {
                highest.key = Some(key.to_vec());
            }
        }
        highest.until = self.overlay.batch().len();
        Ok(highest.key.as_ref().map(|key| [&key[..], &[0]].concat()))
    }

    /// Looks up the counters that are not cached, in the batch or the database. Returns their
    /// positions.
    fn learn<'c>(&mut self, adds: impl Iterator<Item = Add<'c>>) -> Result<Vec<At>, BoxError> {
        let (mut places, mut looks) = (Vec::new(), false);
        for Add { counters, key, .. } in adds {
            let known = self.overlay.shut_rows();
            if !std::mem::replace(&mut self.has_known, true) {
                self.cells = known.take();
                looks = true;
            }
            places.push(match self.cells.find(counters.family.id, key) {
                Some(at) => at,
                None => {
                    looks = true;
                    let stored = self.kv.get(&counters.family, key)?;
                    self.cells.enter(&counters.family, key, stored.as_deref())
                }
            });
        }
        if looks {
            for record in self.overlay.batch().records() {
                #[cfg(test)]
                {
                    self.looked_at += 1;
                }
                self.cells.note(record, |_, _| ());
            }
        }
        Ok(places)
    }

    #[inline]
    fn add<'c>(
        &mut self,
        add: Add<'c>,
        places: &mut impl Iterator<Item = At>,
        owed: &mut Owed<'c>,
    ) -> Result<(), Error> {
        let Some(at) = places.next() else { return Ok(()) };
        let cell = self.cells.get(at).plus(&add)?;
        if !self.cells.set(at, cell).is_owed {
            owed.push((at, add));
        }
        Ok(())
    }

    /// Puts the sums of these counters after all records. One last changed by a record needs none.
    fn put_owed(&mut self, owed: Owed<'_>) -> Result<(), StoreError> {
        for (at, Add { counters, key, .. }) in owed {
            let cell = self.cells.get(at);
            if let Cell { value: Ok(count), is_owed: true } = cell {
                self.overlay.put(counters.family.id, &[key], &[&counter::encode(count)])?;
                self.cells.set(at, Cell { is_owed: false, ..cell });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
