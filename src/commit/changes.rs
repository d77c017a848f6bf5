//! What jobs want changed, until it is written: records as bytes, and what is to be added to counters.

use crate::base::error::{Error, StoreError};
use crate::base::index::Index;
use crate::base::sync::Arc;
use crate::kv::Family;
use crate::kv::batch::{FamilyId, Records};
use crate::log::state::LogState;
use std::ops::Range;

/// What one job, or many in order, want changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    records: Records,
    /// Kept apart, so that those who add nothing move and look at no more than one word.
    adds: Option<Box<Adds>>,
    pushes: Vec<Push>,
    /// What the adds, the pushes and the jobs take.
    added: usize,
}

/// Additions to counters.
#[derive(Clone, Debug, Default)]
struct Adds {
    list: Vec<Add>,
    /// The jobs that they are of, and what else of the changes is theirs: an add that cannot be
    /// made fails its job.
    jobs: Vec<Adder>,
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
    /// Which records, adds and pushes are its own, by their numbers. Its adds begin where those of
    /// the job before it end.
    pub(crate) records: Range<u32>,
    adds_end: u32,
    pushes: Range<u32>,
}

/// Jobs whose adds cannot be made, so that nothing of what they want is written.
#[derive(Debug)]
pub(crate) struct Refused {
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

/// Numbers of records, adds and pushes.
type Ends = (u32, u32, u32);

impl Changes {
    pub(crate) fn put(&mut self, family: FamilyId, key: &[&[u8]], value: &[u8]) -> Result<(), StoreError> {
        self.records.put(family, key, &[value])
    }

    pub(crate) fn delete(&mut self, family: FamilyId, key: &[&[u8]]) -> Result<(), StoreError> {
        self.records.delete(family, key)
    }

    pub(crate) fn add(&mut self, add: Add) {
        self.added += add.len();
        let after = self.records.count();
        self.adds.get_or_insert_default().list.push(Add { after, ..add });
    }

    pub(crate) fn push(&mut self, log: Arc<LogState>, family: FamilyId, value: Vec<u8>) {
        let push = Push { log, family, value };
        self.added += push.len();
        self.pushes.push(push);
    }

    /// Notes the job whose changes all of these are. Nothing may have been appended to them.
    pub(crate) fn sign(&mut self, index: Index, attempt: u32) {
        if !self.adds().is_empty() {
            self.sign_from((0, 0, 0), index, attempt);
        }
    }

    /// Notes the job whose changes came since there were so many, so that it can be named, and its
    /// changes taken out, should one of its adds not be possible.
    #[inline]
    fn sign_from(&mut self, (records, _, pushes): Ends, index: Index, attempt: u32) {
        let ends = self.ends();
        let adder = Adder { index, attempt, records: records..ends.0, adds_end: ends.1, pushes: pushes..ends.2 };
        self.added += size_of::<Adder>();
        self.adds.get_or_insert_default().jobs.push(adder);
    }

    /// Counts the records, adds and pushes. The bound on effects keeps the numbers far below 2^32.
    #[inline]
    fn ends(&self) -> Ends {
        (self.records.count(), self.adds().len() as u32, self.pushes.len() as u32)
    }

    /// In bytes of memory, about.
    pub(crate) fn len(&self) -> usize {
        self.records.len() + self.added
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.adds().is_empty() && self.pushes.is_empty()
    }

    pub(crate) fn records(&self) -> &Records {
        &self.records
    }

    #[inline]
    pub(crate) fn adds(&self) -> &[Add] {
        self.adds.as_ref().map_or(&[], |adds| &adds.list)
    }

    /// Lists the jobs that add to counters, in their order, each with its adds.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = (&Adder, &[Add])> {
        let mut from = 0;
        self.adds.iter().flat_map(|adds| &adds.jobs).map(move |job| {
            let start = std::mem::replace(&mut from, job.adds_end as usize);
            (job, &self.adds()[start..from])
        })
    }

    pub(crate) fn pushes(&self) -> impl Iterator<Item = (&Arc<LogState>, FamilyId, &[u8])> {
        self.pushes.iter().map(|push| (&push.log, push.family, &push.value[..]))
    }

    /// Moves what an attempt of a job wants behind what is there.
    pub(crate) fn append(&mut self, more: &mut Changes, index: Index, attempt: u32) {
        let before = self.ends();
        self.pushes.append(&mut more.pushes);
        self.added += std::mem::take(&mut more.added);
        self.records.append(&more.records);
        more.records.clear();
        if let Some(more) = more.adds.as_mut().filter(|more| !more.list.is_empty()) {
            debug_assert!(more.jobs.is_empty(), "they are of one job");
            let all = &mut self.adds.get_or_insert_default().list;
            all.extend(more.list.drain(..).map(|add| Add { after: before.0 + add.after, ..add }));
            self.sign_from(before, index, attempt);
        }
    }

    /// Takes out all that these jobs want, which are in ascending order.
    pub(crate) fn take_out(&mut self, refused: &[Index]) {
        let Some(all) = &mut self.adds else { return };
        let (mut records, mut adds, mut pushes) = (Gone::default(), Gone::default(), Gone::default());
        let mut from = 0;
        all.jobs.retain(|job| {
            let own = std::mem::replace(&mut from, job.adds_end)..job.adds_end;
            let keep = refused.binary_search(&job.index).is_err();
            if !keep {
                records.add(&job.records);
                adds.add(&own);
                pushes.add(&job.pushes);
            }
            keep
        });
        for job in &mut all.jobs {
            job.records = records.shift_range(&job.records);
            job.adds_end = adds.shift(job.adds_end);
            job.pushes = pushes.shift_range(&job.pushes);
        }
        self.records.retain(|number| !records.has(number));
        let mut number = 0..;
        all.list.retain_mut(|add| {
            add.after = records.shift(add.after);
            number.next().is_some_and(|number| !adds.has(number))
        });
        let mut number = 0..;
        self.pushes.retain(|_| number.next().is_some_and(|number| !pushes.has(number)));
        self.added = all.jobs.len() * size_of::<Adder>()
            + all.list.iter().map(Add::len).sum::<usize>()
            + self.pushes.iter().map(Push::len).sum::<usize>();
    }

    /// Empties it, and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.records.clear();
        if let Some(adds) = &mut self.adds {
            adds.list.clear();
            adds.jobs.clear();
        }
        self.pushes.clear();
        self.added = 0;
    }
}

impl Add {
    /// The memory that it takes, in bytes, about.
    fn len(&self) -> usize {
        size_of::<Self>() + self.key.len()
    }
}

impl Push {
    /// The memory that it takes, in bytes, about.
    fn len(&self) -> usize {
        size_of::<Self>() + self.value.len()
    }
}

/// Numbers of a list that are taken out: ascending ranges, and with each how many numbers the
/// ranges before it have.
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

    /// Counts the numbers below this one that stay.
    fn shift(&self, number: u32) -> u32 {
        let at = self.0.partition_point(|(range, _)| range.start < number);
        let gone = self.0[..at].last().map_or(0, |(last, before)| before + (last.end.min(number) - last.start));
        number - gone
    }

    fn shift_range(&self, range: &Range<u32>) -> Range<u32> {
        self.shift(range.start)..self.shift(range.end)
    }
}
