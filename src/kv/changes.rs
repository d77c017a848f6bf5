//! What jobs want changed, until it is written: records as bytes, and what is to be added to counters.

use super::Family;
use super::batch::{FamilyId, Records};
use crate::error::{Error, StoreError};
use crate::index::Index;
use crate::log::state::LogState;
use crate::sync::Arc;
use std::ops::Range;

/// What one job, or many in order, want changed.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    records: Records,
    adds: Vec<Add>,
    pushes: Vec<Push>,
    /// The jobs that have adds, and what of all this is theirs: an add that cannot be made fails its job.
    jobs: Vec<Adder>,
    /// What the adds, the pushes and the jobs take.
    added: usize,
}

/// An item for a log. It gets its index when it is written.
#[derive(Clone, Debug)]
struct Push {
    log: Arc<LogState>,
    family: FamilyId,
    value: Vec<u8>,
}

/// A job that adds to counters.
#[derive(Clone, Debug)]
pub(crate) struct Adder {
    pub(crate) index: Index,
    pub(crate) attempt: u32,
    /// Which records, adds and pushes are its own, by their numbers.
    pub(crate) records: Range<u32>,
    adds: Range<u32>,
    pushes: Range<u32>,
}

/// Jobs whose adds cannot be made, so that nothing of what they want is written.
#[derive(Debug)]
pub struct Refused {
    /// All of them, in ascending order.
    pub(crate) jobs: Vec<Index>,
    /// The lowest of them, and which attempt it was that wants this.
    pub(crate) lowest: Index,
    pub(crate) attempt: u32,
    /// Why that one is refused.
    pub(crate) error: Error,
}

/// An addition to a counter. It is made when it is written, since only then is it known what to add to.
#[derive(Clone, Debug)]
pub(crate) struct Add {
    /// How many records go before it.
    pub(crate) after: u32,
    pub(crate) family: Family,
    pub(crate) key: Vec<u8>,
    pub(crate) by: i64,
    /// The table's name, and how much of the key it takes, to say which one it is should it be none.
    pub(crate) table: Arc<str>,
    pub(crate) prefix: usize,
}

impl Changes {
    pub(crate) fn put(&mut self, family: FamilyId, key: &[&[u8]], value: &[u8]) -> Result<(), StoreError> {
        self.records.put(family, key, &[value])
    }

    pub(crate) fn delete(&mut self, family: FamilyId, key: &[&[u8]]) -> Result<(), StoreError> {
        self.records.delete(family, key)
    }

    pub(crate) fn add(&mut self, add: Add) {
        self.added += add.len();
        self.adds.push(Add { after: self.records.count(), ..add });
    }

    pub(crate) fn push(&mut self, log: Arc<LogState>, family: FamilyId, value: Vec<u8>) {
        let push = Push { log, family, value };
        self.added += push.len();
        self.pushes.push(push);
    }

    /// Says whose they are, so that the job can be named and taken out should one of its adds not be possible. One that adds
    /// nothing is never looked for.
    pub(crate) fn sign(&mut self, index: Index, attempt: u32) {
        if !self.adds.is_empty() {
            debug_assert!(self.jobs.is_empty(), "they are of one job");
            let (records, adds, pushes) = self.ends();
            self.added += size_of::<Adder>();
            self.jobs.push(Adder { index, attempt, records: 0..records, adds: 0..adds, pushes: 0..pushes });
        }
    }

    /// How many records, adds and pushes there are: fewer than bytes, whose bound lies far below 4 GiB.
    fn ends(&self) -> (u32, u32, u32) {
        (self.records.count(), self.adds.len() as u32, self.pushes.len() as u32)
    }

    /// In bytes of memory, about.
    pub(crate) fn len(&self) -> usize {
        self.records.len() + self.added
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.adds.is_empty() && self.pushes.is_empty()
    }

    pub(crate) fn records(&self) -> &Records {
        &self.records
    }

    pub(crate) fn adds(&self) -> &[Add] {
        &self.adds
    }

    /// Those that add to counters, in their order, and what they add.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = (&Adder, &[Add])> {
        self.jobs.iter().map(|job| (job, &self.adds[job.adds.start as usize..job.adds.end as usize]))
    }

    pub(crate) fn pushes(&self) -> impl Iterator<Item = (&Arc<LogState>, FamilyId, &[u8])> {
        self.pushes.iter().map(|push| (&push.log, push.family, &push.value[..]))
    }

    /// Moves all of these behind those that are there.
    pub(crate) fn append(&mut self, more: &mut Changes) {
        let (records, adds, pushes) = self.ends();
        let behind = |range: Range<u32>, before: u32| before + range.start..before + range.end;
        self.jobs.extend(more.jobs.drain(..).map(|job| Adder {
            records: behind(job.records, records),
            adds: behind(job.adds, adds),
            pushes: behind(job.pushes, pushes),
            ..job
        }));
        self.adds.extend(more.adds.drain(..).map(|add| Add { after: records + add.after, ..add }));
        self.pushes.append(&mut more.pushes);
        self.added += std::mem::take(&mut more.added);
        self.records.append(&more.records);
        more.records.clear();
    }

    /// Takes out all that these jobs want, which are in ascending order.
    pub(crate) fn take_out(&mut self, refused: &[Index]) {
        let (mut records, mut adds, mut pushes) = (Gone::default(), Gone::default(), Gone::default());
        self.jobs.retain(|job| {
            let keep = refused.binary_search(&job.index).is_err();
            if !keep {
                records.add(&job.records);
                adds.add(&job.adds);
                pushes.add(&job.pushes);
            }
            keep
        });
        for job in &mut self.jobs {
            job.records = records.shift_range(&job.records);
            job.adds = adds.shift_range(&job.adds);
            job.pushes = pushes.shift_range(&job.pushes);
        }
        self.records.retain(|number| !records.has(number));
        let mut number = 0..;
        self.adds.retain_mut(|add| {
            add.after = records.shift(add.after);
            number.next().is_some_and(|number| !adds.has(number))
        });
        let mut number = 0..;
        self.pushes.retain(|_| number.next().is_some_and(|number| !pushes.has(number)));
        self.added = self.jobs.len() * size_of::<Adder>()
            + self.adds.iter().map(Add::len).sum::<usize>()
            + self.pushes.iter().map(Push::len).sum::<usize>();
    }

    /// Empties it, and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.records.clear();
        self.adds.clear();
        self.pushes.clear();
        self.jobs.clear();
        self.added = 0;
    }
}

impl Add {
    /// In bytes of memory, about.
    fn len(&self) -> usize {
        size_of::<Self>() + self.key.len()
    }
}

impl Push {
    /// In bytes of memory, about.
    fn len(&self) -> usize {
        size_of::<Self>() + self.value.len()
    }
}

/// Numbers of a list that are taken out: ascending ranges, and with each how many numbers the ranges before it have.
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

    /// How many of those below this number stay.
    fn shift(&self, number: u32) -> u32 {
        let at = self.0.partition_point(|(range, _)| range.start < number);
        let gone = self.0[..at].last().map_or(0, |(last, before)| before + (last.end.min(number) - last.start));
        number - gone
    }

    fn shift_range(&self, range: &Range<u32>) -> Range<u32> {
        self.shift(range.start)..self.shift(range.end)
    }
}
