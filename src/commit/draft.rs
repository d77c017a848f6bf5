//! The batch in the making: the records that intents add to it, the tails of its participants, and
//! the sums of its counters.

use crate::base::error::{Error, StoreError};
use crate::base::index::BoxError;
use crate::base::sync::{Arc, RwLock};
use crate::commit::changes::{Add, Changes, Op, Refused};
use crate::commit::counter;
use crate::commit::overlay::{Overlay, OverlayMark};
use crate::commit::participant::{Participant, Refusal, Tails, TailsMark};
use crate::commit::statements::Manner;
use crate::kv::batch::{Batch, FamilyId, Record};
use crate::kv::statement::NotCommitted;
use crate::kv::{Family, Kv};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

mod refused;

/// The batch in the making, which is written as one.
pub(crate) struct Draft<'a> {
    kv: &'a dyn Kv,
    overlay: Overlay<'a>,
    tails: Tails,
    cells: Cells,
    /// The highest keys of the families that were emptied. They can be forgotten too.
    highest: HashMap<FamilyId, Highest>,
    /// The number of records that were looked at for counters, and for the ends of families.
    #[cfg(test)]
    pub(super) looked_at: usize,
}

/// A state to which a draft can go back.
pub(crate) struct DraftMark {
    batch: OverlayMark,
    tails: TailsMark,
}

/// The counters that were looked up, by family and key. They can be forgotten at any time: the
/// batch and the database say the same.
type Cells = HashMap<FamilyId, HashMap<Vec<u8>, Cell>>;

/// The highest key that a family has, or had at some time in the batch.
#[derive(Default)]
struct Highest {
    key: Option<Vec<u8>>,
    /// The position in the batch up to which its records were looked at.
    until: usize,
}

/// The value of a counter after everything in the batch.
#[derive(Clone, Debug)]
enum Cell {
    /// The bytes, as they are stored or put.
    Stored(Option<Vec<u8>>),
    Counted(i64),
}

impl Cell {
    /// Returns the count after this addition.
    #[inline]
    fn plus(&self, add: &Add) -> Result<i64, Error> {
        let key = || &add.key[add.prefix..];
        let count = match self {
            Self::Counted(count) => *count,
            Self::Stored(bytes) => counter::read(&add.table, key(), bytes.as_deref())?,
        };
        count.checked_add(add.by).ok_or_else(|| counter::full(&add.table, key(), count, add.by))
    }
}

/// A counter that is not known yet: the family to look it up in, and its value if the batch has it.
type Sought<'a> = (&'a Family, Option<Cell>);

impl<'a> Draft<'a> {
    pub(crate) fn new(kv: &'a dyn Kv, rows: &'a RwLock<()>, manner: Manner) -> Self {
        Self {
            kv,
            overlay: Overlay::new(kv, rows, manner),
            tails: Tails::default(),
            cells: HashMap::new(),
            highest: HashMap::new(),
            #[cfg(test)]
            looked_at: 0,
        }
    }

    /// Returns the batch as it is so far.
    pub(crate) fn batch(&self) -> &Batch {
        self.overlay.batch()
    }

    /// True if anybody has something in it.
    pub(crate) fn is_touched(&self) -> bool {
        !self.batch().is_empty() || !self.tails.is_empty()
    }

    /// Marks the state of now. A mark copies nothing.
    pub(crate) fn mark(&mut self) -> DraftMark {
        DraftMark { batch: self.overlay.mark(), tails: self.tails.mark() }
    }

    /// Takes back everything that came after the mark.
    pub(crate) fn go_back(&mut self, mark: DraftMark) {
        self.overlay.go_back(mark.batch);
        self.tails.go_back(mark.tails);
        self.cells.clear();
        self.highest.clear();
    }

    /// Lets the participants add the records of their new states, and writes the batch. Nothing
    /// comes after that.
    pub(super) fn write(&mut self, synced: bool) -> Result<(), NotCommitted> {
        self.tails.close(&mut self.overlay).map_err(NotCommitted::Store)?;
        self.overlay.write(synced)
    }

    /// Hands over the tails of the participants once all is written, and lets others change rows
    /// again.
    pub(super) fn into_tails(self) -> Tails {
        self.tails
    }

    /// Returns the tail of a participant, which an intent of that participant may change, and the
    /// batch for its records.
    pub(crate) fn part<P: Participant>(
        &mut self,
        participant: &Arc<P>,
    ) -> Result<(&mut P::Tail, &mut Overlay<'a>), BoxError> {
        Ok((self.tails.tail(participant)?, &mut self.overlay))
    }

    /// Puts a key of our own, which is no counter.
    pub(crate) fn put(&mut self, family: FamilyId, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.overlay.put(family, &[key], &[value])
    }

    /// Appends the changes of jobs, in their order. Operations that are refused in this order are
    /// made in another one, if there is one that works.
    ///
    /// A job with an add or an operation that cannot be made is refused. Then nothing at all is
    /// appended: take the changes of the refused jobs, which are in ascending order, out, and
    /// append the rest again. If the change belongs to no job, the error is the reason.
    pub(crate) fn append(&mut self, all: &[Changes]) -> Result<Vec<Refused>, BoxError> {
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

    /// Appends the changes of jobs. It looks up all counters at once, since each look-up goes
    /// through the whole batch.
    fn append_all(&mut self, all: &[Changes]) -> Result<(), BoxError> {
        self.learn(all.iter().flat_map(Changes::adds))?;
        for changes in all {
            changes.ops().iter().try_for_each(|op| self.make(op))?;
            self.append_rest(changes)?;
        }
        Ok(())
    }

    fn make(&mut self, op: &Op) -> Result<(), BoxError> {
        self.tails.any(&op.participant).apply(&op.bytes, &mut self.overlay)
    }

    /// Appends everything but the operations.
    fn append_rest(&mut self, changes: &Changes) -> Result<(), BoxError> {
        if changes.adds().is_empty() && self.cells.is_empty() {
            return Ok(self.append_records(changes)?);
        }
        let mut adds = changes.adds().iter().peekable();
        for (number, record) in (0..).zip(changes.records().records()) {
            while let Some(add) = adds.next_if(|add| add.after <= number) {
                self.add(add)?;
            }
            self.note(record);
        }
        adds.try_for_each(|add| self.add(add))?;
        self.append_records(changes)?;
        Ok(self.put_counters(changes.adds())?)
    }

    /// Appends the records of jobs, as they are, except that a range with no end gets one.
    fn append_records(&mut self, changes: &Changes) -> Result<(), StoreError> {
        if changes.emptied().is_empty() {
            self.overlay.append(changes.records());
            return Ok(());
        }
        for record in changes.records().records() {
            match record {
                Record::Put { family, key, value } => self.overlay.put(family, &[key], &[value])?,
                Record::Delete { family, key } => self.overlay.delete(family, &[key])?,
                Record::DeleteRange { family, from, to: [] } => {
                    let emptied = changes.emptied().iter().find(|emptied| emptied.id == family);
                    if let Some(end) = emptied.map(|family| self.end_of(family)).transpose()?.flatten() {
                        self.overlay.delete_range(family, from, &end)?;
                    }
                }
                Record::DeleteRange { family, from, to } => self.overlay.delete_range(family, from, to)?,
            }
        }
        Ok(())
    }

    /// Returns the lowest key above every key that the database and the batch have in this family;
    /// `None` if there is no key. From here on nobody else puts one, until all is written.
    ///
    /// It looks at each record once, however often the family is emptied.
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
            if let Record::Put { family: other, key, .. } = record
                && other == family.id
                && highest.key.as_deref().is_none_or(|highest| highest < key)
            {
                highest.key = Some(key.to_vec());
            }
        }
        highest.until = self.overlay.batch().len();
        Ok(highest.key.as_ref().map(|key| [&key[..], &[0]].concat()))
    }

    /// Looks up the values of these counters in the batch so far, or else in the database.
    fn learn<'c>(&mut self, adds: impl Iterator<Item = &'c Add>) -> Result<(), BoxError> {
        let mut new: HashMap<FamilyId, HashMap<&[u8], Sought<'_>>> = HashMap::new();
        for Add { family, key, .. } in adds {
            self.overlay.shut_rows();
            if !self.cells.get(&family.id).is_some_and(|cells| cells.contains_key(key)) {
                new.entry(family.id).or_default().insert(key, (family, None));
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        for record in self.overlay.batch().records() {
            #[cfg(test)]
            {
                self.looked_at += 1;
            }
            let Some(new) = new.get_mut(&record.family()) else { continue };
            match touched(record) {
                Touched::Row(_, key, value) => {
                    if let Some((_, cell)) = new.get_mut(key) {
                        *cell = Some(Cell::Stored(value.map(<[u8]>::to_vec)));
                    }
                }
                Touched::Range(range) => {
                    let cleared = new.iter_mut().filter(|(key, _)| range.has(key));
                    cleared.for_each(|(_, (_, cell))| *cell = Some(Cell::Stored(None)));
                }
            }
        }
        for (id, new) in new {
            let cells = self.cells.entry(id).or_default();
            for (key, (family, put)) in new {
                let cell = put.map_or_else(|| self.kv.get(family, key).map(Cell::Stored), Ok)?;
                cells.insert(key.to_vec(), cell);
            }
        }
        Ok(())
    }

    fn add(&mut self, add: &Add) -> Result<(), Error> {
        if let Some(cell) = cell(&mut self.cells, add.family.id, &add.key) {
            *cell = Cell::Counted(cell.plus(add)?);
        }
        Ok(())
    }

    /// Notes the value that a record sets: other jobs may add to a counter under the same key.
    fn note(&mut self, record: Record<'_>) {
        match touched(record) {
            Touched::Row(family, key, value) => {
                if let Some(cell) = cell(&mut self.cells, family, key) {
                    *cell = Cell::Stored(value.map(<[u8]>::to_vec));
                }
            }
            Touched::Range(range) => {
                let cells = self.cells.get_mut(&range.family).into_iter().flatten();
                cells.filter(|(key, _)| range.has(key)).for_each(|(_, cell)| *cell = Cell::Stored(None));
            }
        }
    }

    /// Puts the sums of these counters behind all records. A counter whose last change was a record
    /// needs no sum.
    fn put_counters(&mut self, adds: &[Add]) -> Result<(), StoreError> {
        let mut put = HashSet::new();
        for Add { family, key, .. } in adds {
            if let Some(Cell::Counted(count)) = cell(&mut self.cells, family.id, key)
                && put.insert((family.id, key))
            {
                self.overlay.put(family.id, &[key], &[&counter::encode(*count)])?;
            }
        }
        Ok(())
    }
}

fn cell<'a>(cells: &'a mut Cells, family: FamilyId, key: &[u8]) -> Option<&'a mut Cell> {
    cells.get_mut(&family)?.get_mut(key)
}

/// The rows that a record changes.
enum Touched<'a> {
    /// A family, a key, and the value that the record sets, if any.
    Row(FamilyId, &'a [u8], Option<&'a [u8]>),
    Range(Cleared<'a>),
}

/// Keys that a record deletes: from the first one on, and below the second one. An empty second key
/// is no end.
struct Cleared<'a> {
    family: FamilyId,
    from: &'a [u8],
    to: &'a [u8],
}

impl Cleared<'_> {
    fn has(&self, key: &[u8]) -> bool {
        self.from <= key && (self.to.is_empty() || key < self.to)
    }
}

fn touched(record: Record<'_>) -> Touched<'_> {
    match record {
        Record::Put { family, key, value } => Touched::Row(family, key, Some(value)),
        Record::Delete { family, key } => Touched::Row(family, key, None),
        Record::DeleteRange { family, from, to } => Touched::Range(Cleared { family, from, to }),
    }
}

#[cfg(test)]
mod tests;
