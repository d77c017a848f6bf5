//! The rules for gaps, and for [`Jobs::read_sparse`] of each source.

use super::known::{ANSWERS, FINAL, Known, at_index, first};
use crate::base::Index;
use crate::source::{Item, Jobs, Sparse};
use crate::testing::{Answer, Checked, ask, insist};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;

const SAYS: &str = "read_sparse() says something of an index from first() to head()";
const ORDER: &str = "read_sparse() says jobs in order, within the run, and no more than it is asked for";
const AGREES: &str = "read_sparse() says what at_index() has";
const GAP: &str = "a gap never becomes a job";

/// How many jobs the suite walks over at most.
const WALKED: usize = 1_000;

/// The answer to a read: its items, and the lowest index about which nothing was reported.
type ReadAnswer<T> = (Vec<Item<T>>, Index);

/// Reads a run. Returns `None` if the source refuses it, since its start was removed.
fn read<J: Jobs>(jobs: &J, run: RangeInclusive<Index>, most: usize) -> Checked<Option<ReadAnswer<J::Job>>> {
    let call = || format!("read_sparse({run:?}, {most})");
    let start = *run.start();
    let mut read = Sparse::within(start, *run.end(), most);
    match ask(|| jobs.read_sparse(run.clone(), most, &mut read)) {
        Answer::Good(()) => {}
        Answer::Failed(_) if start < first(jobs)? => return Ok(None),
        failed => failed.good(ANSWERS, call)?,
    }
    let next = read.next();
    let (jobs, steps, _, fault) = read.into_parts();
    insist(fault.is_none(), ORDER, || {
        format!("{}: {}", call(), fault.iter().map(ToString::to_string).collect::<String>())
    })?;
    Ok(Some((Sparse::of(start, jobs, steps).into_iter().collect(), next)))
}

/// Returns the jobs from `first` to `head`, and the gaps between them.
pub(super) fn walk<J: Jobs>(jobs: &J, first: Index, head: Option<Index>) -> Checked<Known<J::Job>> {
    let mut known = Known { first, head, jobs: BTreeMap::new(), gaps: Some(Vec::new()) };
    let Some(head) = head else { return Ok(known) };
    let mut next = first;
    while next <= head && known.jobs.len() < WALKED {
        let Some((items, after)) = read(jobs, next..=head, WALKED)? else { break };
        insist(after > next, SAYS, || {
            format!("read_sparse({next}..={head}, {WALKED}) says nothing, head() is {head}")
        })?;
        next = after;
        for item in items {
            match item {
                Item::Job(index, job) => _ = known.jobs.insert(index, job),
                Item::None(gap) => known.gaps.get_or_insert_default().push(gap),
            }
        }
    }
    Ok(known)
}

/// Compares reads of the whole source and of its parts with `at_index`.
pub(super) fn check_sparse<J: Jobs<Job: PartialEq + fmt::Debug>>(jobs: &J, known: &Known<J::Job>) -> Checked {
    let Some(head) = known.head.filter(|head| known.first <= *head) else { return Ok(()) };
    let mut chance = fastrand::Rng::with_seed(7);
    let edges = known.gaps.iter().flatten().flat_map(|gap| [gap.start().saturating_sub(1), *gap.start(), *gap.end()]);
    let mut starts: Vec<_> = edges.take(100).filter(|start| (known.first..=head).contains(start)).collect();
    starts.extend([known.first, head]);
    starts.extend((0..50).map(|_| chance.u64(known.first..=head)));
    let mut empty = BTreeSet::new();
    for start in starts {
        for (length, most) in [(1, 1), (2, 1), (64, 64), (64, 3), (1 << 40, 10)] {
            let end = start.saturating_add(length - 1).min(head);
            check_read(jobs, start..=end, most, known, &mut empty)?;
        }
    }
    Ok(())
}

/// Checks one read. `empty` are the indices at which `at_index` returned no job; it has returned
/// all known jobs. A call may be expensive, so none is made twice.
fn check_read<J: Jobs<Job: PartialEq + fmt::Debug>>(
    jobs: &J,
    run: RangeInclusive<Index>,
    most: usize,
    known: &Known<J::Job>,
    empty: &mut BTreeSet<Index>,
) -> Checked {
    let call = || format!("read_sparse({run:?}, {most})");
    let Some((items, next)) = read(jobs, run.clone(), most)? else { return Ok(()) };
    insist(next > *run.start(), SAYS, || format!("{} says nothing", call()))?;
    for item in items {
        match item {
            Item::Job(index, job) => {
                let was = known.jobs.get(&index);
                if was.is_none_or(|was| *was != job) {
                    let there = at_index(jobs, index)?;
                    insist(there.as_ref() == Some(&job), AGREES, || {
                        format!("{} shows {job:?} at {index}, and at_index({index}) is {there:?}", call())
                    })?;
                }
                insist(was.is_none_or(|was| *was == job), FINAL, || {
                    format!("{} shows {job:?} at {index}, and it was {was:?}", call())
                })?;
            }
            Item::None(gap) => {
                let (first, last) = (*gap.start(), *gap.end());
                for index in [first, first + (last - first) / 2, last] {
                    if empty.contains(&index) {
                        continue;
                    }
                    let there = at_index(jobs, index)?;
                    insist(there.is_none(), AGREES, || {
                        format!("{} says that nothing is at {index}, and at_index({index}) is {there:?}", call())
                    })?;
                    empty.insert(index);
                }
                check_gap(&gap, known)?;
            }
        }
    }
    Ok(())
}

/// Checks that no known job is in this gap.
fn check_gap<T: fmt::Debug>(gap: &RangeInclusive<Index>, known: &Known<T>) -> Checked {
    let job = known.jobs.range(gap.clone()).next();
    insist(job.is_none(), GAP, || format!("nothing was said to be at {gap:?}, where {job:?} is"))
}

/// Checks that no earlier gap has a job now.
pub(super) fn check_gaps_stay<T: fmt::Debug>(before: &Known<T>, now: &Known<T>) -> Checked {
    before.gaps.iter().flatten().try_for_each(|gap| check_gap(gap, now))
}
