//! The changes of jobs: records as bytes, additions to counters, and operations of participants.

use crate::base::{Error, Index, error::StoreError, structure::shows, sync::Arc};
use crate::commit::adds::{Add, AddList};
use crate::commit::participant::AnyParticipant;
use crate::commit::prefixes::{Look, Prefixes};
use crate::kv::batch::{FamilyId, Records, RowChange};
use crate::kv::{Family, prefix_end};
use std::ops::Range;

/// The changes of one job, or of several jobs in order.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    records: Records,
    /// The generation of the prefixes of its tables; 0 if it has no row of a table.
    generation: u64,
    /// The adds, boxed: a job without adds moves and checks only one word.
    adds: Option<Box<Adds>>,
    ops: Vec<Op>,
    /// The approximate memory of the adds, the operations and the jobs.
    added: usize,
}

/// The store that changes are meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    pub address: usize,
    pub takes_sql: bool,
}

/// Additions to counters, and other rare changes.
#[derive(Clone, Debug, Default)]
struct Adds {
    list: AddList,
    /// True if an operation may be refused.
    refusable: bool,
    /// The jobs of these adds and operations. If one fails, its job's changes are removed.
    jobs: Vec<Asker>,
    /// The families that a record empties. Their ends are looked up when the batch is made.
    emptied: Vec<Family>,
}

/// An operation, whose bytes only its participant can read. It is applied when the batch is made.
#[derive(Clone)]
pub(super) struct Op {
    pub(super) participant: Arc<dyn AnyParticipant>,
    pub(super) bytes: Vec<u8>,
}

/// A job that adds to counters, or has operations that may be refused: the writer decides.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    pub(crate) index: Index,
    pub(crate) attempt: u32,
    /// The numbers of its records. Its adds begin where those of the previous job end.
    pub(crate) records: Range<u32>,
    adds_end: u32,
    ops: Range<u32>,
}

/// A job with an add or an operation that cannot be made. None of its changes is written.
#[derive(Debug)]
pub struct Refused {
    pub(crate) index: Index,
    /// The attempt that asked for it.
    pub(crate) attempt: u32,
    pub error: Error,
}

impl Refused {
    pub(super) fn new(job: &Asker, error: Error) -> Self {
        Self { index: job.index, attempt: job.attempt, error }
    }
}

/// Numbers of records, adds and operations.
type Lengths = (u32, u32, u32);

impl Changes {
    pub(crate) fn put(&mut self, family: FamilyId, key: &[&[u8]], value: &[u8]) -> Result<(), StoreError> {
        self.records.put(family, key, &[value])
    }

    pub(crate) fn delete(&mut self, family: FamilyId, key: &[&[u8]]) -> Result<(), StoreError> {
        self.records.delete(family, key)
    }

    pub(crate) fn clear_prefix(&mut self, family: &Family, prefix: &[u8]) -> Result<(), StoreError> {
        let end = prefix_end(prefix).unwrap_or_default();
        self.records.delete_range(family.id, prefix, &end)?;
        if end.is_empty() {
            self.empties(family);
        }
        Ok(())
    }

    /// Notes that a record reaches to the end of this family.
    fn empties(&mut self, family: &Family) {
        let emptied = &mut self.adds.get_or_insert_default().emptied;
        if !emptied.contains(family) {
            emptied.push(family.clone());
        }
    }

    /// Lists the families to whose end a record reaches, or a removed record reached.
    pub(crate) fn emptied(&self) -> &[Family] {
        self.adds.as_ref().map_or(&[], |adds| &adds.emptied)
    }

    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Takes changes of this generation from now on; 0 stands for any. Returns false if there are
    /// some of another one.
    #[inline]
    pub(crate) fn is_in(&mut self, generation: u64) -> bool {
        if self.generation == 0 {
            self.generation = generation;
        }
        generation == 0 || self.generation == generation
    }

    /// True if a table has been replaced since these changes were requested.
    #[inline]
    pub(crate) fn are_behind(&self, prefixes: &Prefixes) -> bool {
        self.generation != 0 && self.generation != prefixes.generation()
    }

    /// Returns the same changes with the prefixes that their tables have now.
    pub(crate) fn renewed(&self, prefixes: &Prefixes) -> Result<Self, StoreError> {
        prefixes.since(self.generation, |generation, now| {
            let mut renewed = Self { generation, records: self.records_in(now)?, ..self.clone() };
            if let Some(adds) = &mut renewed.adds {
                adds.list = adds.list.in_places(now);
            }
            Ok(renewed)
        })
    }

    fn records_in(&self, now: Look<'_>) -> Result<Records, StoreError> {
        let mut records = Records::default();
        for record in self.records.records() {
            match record {
                RowChange::Put { family, key, value } => {
                    let (length, prefix) = now(family, key).unwrap_or_default();
                    records.put(family, &[prefix, &key[length..]], &[value])?;
                }
                RowChange::Delete { family, key } => {
                    let (length, prefix) = now(family, key).unwrap_or_default();
                    records.delete(family, &[prefix, &key[length..]])?;
                }
                // A whole table.
                RowChange::DeleteRange { family, from, to } => match now(family, from) {
                    Some((_, prefix)) => {
                        records.delete_range(family, prefix, &prefix_end(prefix).unwrap_or_default())?;
                    }
                    None => records.delete_range(family, from, to)?,
                },
            }
        }
        Ok(records)
    }

    /// Adds to a counter of this table, whose key is the table's part and the user's part.
    pub(crate) fn add(&mut self, table: (&Family, &Arc<str>), key: [&[u8]; 2], by: i64) {
        self.added += Add::size(key[0].len() + key[1].len());
        let after = self.records.count();
        self.adds.get_or_insert_default().list.push(after, table, key, by);
    }

    /// Adds an operation of a participant of this store that is never refused.
    pub(crate) fn op(&mut self, participant: Arc<dyn AnyParticipant>, bytes: Vec<u8>) {
        let op = Op { participant, bytes };
        self.added += op.len();
        self.ops.push(op);
    }

    /// Adds an operation that its participant may refuse when the batch is made.
    pub(crate) fn refusable_op(&mut self, participant: Arc<dyn AnyParticipant>, bytes: Vec<u8>) {
        self.adds.get_or_insert_default().refusable = true;
        self.op(participant, bytes);
    }

    /// True if a change may be refused when the batch is made.
    #[inline]
    pub(crate) fn may_be_refused(&self) -> bool {
        self.adds.as_ref().is_some_and(|adds| adds.refusable || !adds.list.is_empty())
    }

    /// Notes the job of all these changes, which belong to no other one.
    pub(crate) fn sign(&mut self, index: Index, attempt: u32) {
        if self.may_be_refused() {
            self.sign_from((0, 0, 0), index, attempt);
        }
    }

    /// Notes the job whose changes came after these counts, so that it can be named and removed.
    #[inline]
    fn sign_from(&mut self, (records, _, ops): Lengths, index: Index, attempt: u32) {
        let ends = self.ends();
        let adder = Asker { index, attempt, records: records..ends.0, adds_end: ends.1, ops: ops..ends.2 };
        self.added += size_of::<Asker>();
        self.adds.get_or_insert_default().jobs.push(adder);
    }

    /// Counts the records, adds and operations. The bound on effects keeps each far below 2^32.
    #[inline]
    fn ends(&self) -> Lengths {
        (self.records.count(), self.count_adds() as u32, self.ops.len() as u32)
    }

    /// Returns the approximate memory of the changes, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.records.len() + self.added
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.count_adds() == 0 && self.ops.is_empty()
    }

    pub(crate) fn records(&self) -> &Records {
        &self.records
    }

    #[inline]
    pub(crate) fn count_adds(&self) -> usize {
        self.adds.as_ref().map_or(0, |adds| adds.list.len())
    }

    pub(crate) fn adds(&self) -> impl Iterator<Item = Add<'_>> {
        self.adds_of(0..self.count_adds())
    }

    pub(crate) fn adds_of(&self, numbers: Range<usize>) -> impl Iterator<Item = Add<'_>> {
        self.adds.iter().flat_map(move |adds| adds.list.of(numbers.clone()))
    }

    /// Lists the noted jobs in order, each with the numbers of its adds.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = (&Asker, Range<usize>)> {
        let mut from = 0;
        self.adds.iter().flat_map(|adds| &adds.jobs).map(move |job| {
            let start = std::mem::replace(&mut from, job.adds_end as usize);
            (job, start..from)
        })
    }

    pub(super) fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Lists the operations in order: those of each noted job, and those in between.
    pub(super) fn ops_by_job(&self) -> Vec<(Option<&Asker>, &[Op])> {
        let (mut lists, mut from) = (Vec::new(), 0);
        for job in self.adds.iter().flat_map(|adds| &adds.jobs) {
            let own = job.ops.start as usize..job.ops.end as usize;
            lists.extend([(None, &self.ops[from..own.start]), (Some(job), &self.ops[own.clone()])]);
            from = own.end;
        }
        lists.push((None, &self.ops[from..]));
        lists.retain(|(_, ops)| !ops.is_empty());
        lists
    }

    /// Moves the changes of a job's attempt to the end of these.
    pub(crate) fn append(&mut self, more: &mut Changes, index: Index, attempt: u32) {
        let (before, is_in_one) = (self.ends(), self.is_in(std::mem::take(&mut more.generation)));
        debug_assert!(is_in_one, "they are of one generation");
        self.ops.append(&mut more.ops);
        self.added += std::mem::take(&mut more.added);
        self.records.append(&more.records);
        more.records.clear();
        if let Some(more) = &mut more.adds {
            more.emptied.drain(..).for_each(|family| self.empties(&family));
        }
        if let Some(more) = more.adds.as_mut().filter(|more| more.refusable || !more.list.is_empty()) {
            debug_assert!(more.jobs.is_empty(), "they are of one job");
            let all = self.adds.get_or_insert_default();
            all.refusable |= std::mem::take(&mut more.refusable);
            all.list.append(&mut more.list, before.0);
            self.sign_from(before, index, attempt);
        }
    }

    /// Appends the records of `others`, which have nothing else.
    pub(crate) fn extend(&mut self, others: &Changes) {
        debug_assert!(others.adds.is_none() && others.ops.is_empty(), "they have more than records");
        self.records.append(&others.records);
    }

    /// Removes all changes of these jobs, which are in ascending order.
    pub(crate) fn take_out(&mut self, refused: &[Index]) {
        let Some(all) = &mut self.adds else { return };
        let (mut records, mut adds, mut ops) = (Gone::default(), Gone::default(), Gone::default());
        let mut from = 0;
        all.jobs.retain(|job| {
            let own = std::mem::replace(&mut from, job.adds_end)..job.adds_end;
            let keep = refused.binary_search(&job.index).is_err();
            if !keep {
                records.add(&job.records);
                adds.add(&own);
                ops.add(&job.ops);
            }
            keep
        });
        for job in &mut all.jobs {
            job.records = records.shift_range(&job.records);
            job.adds_end = adds.shift(job.adds_end);
            job.ops = ops.shift_range(&job.ops);
        }
        self.records.retain(|number| !records.has(number));
        all.list.retain(|number| !adds.has(number), |after| records.shift(after));
        let mut number = 0..;
        self.ops.retain(|_| number.next().is_some_and(|number| !ops.has(number)));
        self.added =
            all.jobs.len() * size_of::<Asker>() + all.list.size() + self.ops.iter().map(Op::len).sum::<usize>();
    }

    /// Removes all changes and keeps the capacity.
    pub(crate) fn clear(&mut self) {
        self.records.clear();
        self.generation = 0;
        if let Some(adds) = &mut self.adds {
            adds.list.clear();
            adds.refusable = false;
            adds.jobs.clear();
            adds.emptied.clear();
        }
        self.ops.clear();
        self.added = 0;
    }
}

impl Op {
    /// The approximate memory, in bytes.
    fn len(&self) -> usize {
        size_of::<Self>() + self.bytes.len()
    }
}

shows!(Op, of: bytes = of.bytes.len());

/// The numbers of the entries to remove from a list: ascending ranges, each with the count before.
#[derive(Default)]
struct Gone(Vec<(Range<u32>, u32)>);

impl Gone {
    fn add(&mut self, range: &Range<u32>) {
        if !range.is_empty() {
            let before = self.0.last().map_or(0, |(last, before)| before + last.len() as u32);
            self.0.push((range.clone(), before));
        }
    }

    fn has(&self, number: u32) -> bool {
        let at = self.0.partition_point(|(range, _)| range.end <= number);
        self.0.get(at).is_some_and(|(range, _)| range.contains(&number))
    }

    /// Returns the new number of the entry: how many entries below it stay.
    fn shift(&self, number: u32) -> u32 {
        let at = self.0.partition_point(|(range, _)| range.start < number);
        let gone = self.0[..at].last().map_or(0, |(last, before)| before + (last.end.min(number) - last.start));
        number - gone
    }

    fn shift_range(&self, range: &Range<u32>) -> Range<u32> {
        self.shift(range.start)..self.shift(range.end)
    }
}
