//! The rules for a source that does not change during the check.

use super::known::{self, ANSWERS, FINAL, Known, at_index, first, head};
use super::sparse::{check_gaps_stay, check_sparse, walk};
use crate::base::Index;
use crate::source::Jobs;
use crate::testing::{Answer, Checked, ask, broken, insist};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

const STEADY: &str = "it says the same until something changes";
const FIRST: &str = "first() is at most head() + 1";
const THERE: &str = "every index from first() to head() is there";
const BEYOND: &str = "nothing is there beyond head()";
const BELOW: &str = "below first() there is no job, or the one that always was there";
const APPENDS: &str = "read() leaves alone what is there already";
const NO_MORE: &str = "read() appends no more than it is asked for";
const EQUAL: &str = "read() appends what at_index() has, in index order";
const STOPS: &str = "read() stops at the first index that is not there";
const SOMETHING: &str = "read() appends at least one job when the first one is there";

/// Up to this many jobs the suite reads each one. Of more jobs it reads the ends and a sample.
const ALL: u64 = 1_000;
const SAMPLE: u64 = 200;
/// The longest run. A consumer requests no more than max(64, 2 × `max_processing`).
const LONGEST: u64 = 128;
/// How many random runs are read.
const RUNS: u64 = 200;

/// Checks every rule of a source that does not change, and returns what it showed. `before` is what
/// it showed earlier. If `sparse` is true, there may be gaps.
pub(super) fn check_quiet<J: Jobs<Job: PartialEq + fmt::Debug>>(
    jobs: &J,
    before: Option<&Known<J::Job>>,
    sparse: bool,
) -> Checked<Known<J::Job>> {
    let (first, head) = (first(jobs)?, head(jobs)?);
    insist(first < Index::MAX && head < Some(Index::MAX), "Index::MAX is never a job", || {
        format!("first() is {first}, head() is {head:?}")
    })?;
    insist(head.is_none_or(|head| first <= head + 1), FIRST, || format!("first() is {first}, head() is {head:?}"))?;
    let mut known = Known { first, head, jobs: BTreeMap::new(), gaps: None };
    if sparse {
        known = walk(jobs, first, head)?;
    } else {
        for index in known.sample() {
            match at_index(jobs, index)? {
                Some(job) => _ = known.jobs.insert(index, job),
                None => broken(THERE, format!("at_index({index}) is None, first() is {first}, head() is {head:?}"))?,
            }
        }
    }
    for (index, job) in &known.jobs {
        let again = at_index(jobs, *index)?;
        insist(again.as_ref() == Some(job), FINAL, || format!("at_index({index}) was {job:?}, and then {again:?}"))?;
    }
    check_beyond(jobs, &known)?;
    check_below(jobs, &known, before)?;
    check_reads(jobs, &known, before)?;
    check_sparse(jobs, &known)?;
    let now = (known::first(jobs)?, known::head(jobs)?);
    insist(now == (first, head), STEADY, || {
        format!("first() and head() were {:?}, and {now:?} after jobs were read", (first, head))
    })?;
    Ok(known)
}

/// Checks that jobs shown both before and now are the same.
pub(super) fn check_unchanged<T: PartialEq + fmt::Debug>(before: &Known<T>, now: &Known<T>) -> Checked {
    check_gaps_stay(before, now)?;
    for (index, job) in &now.jobs {
        let was = before.jobs.get(index);
        insist(was.is_none_or(|was| was == job), FINAL, || {
            format!("at index {index} was {was:?}, and now is {job:?}")
        })?;
    }
    Ok(())
}

fn check_beyond<J: Jobs<Job: fmt::Debug>>(jobs: &J, known: &Known<J::Job>) -> Checked {
    let past = known.head.map_or(known.first, |head| head + 1);
    let beyond =
        [past, past.saturating_add(1), past.saturating_add(1_000), 1 << 32, 1 << 63, Index::MAX - 1, Index::MAX];
    for index in beyond.into_iter().filter(|index| *index >= past) {
        let found = at_index(jobs, index)?;
        insist(found.is_none(), BEYOND, || format!("at_index({index}) is {found:?}, head() is {:?}", known.head))?;
    }
    Ok(())
}

fn check_below<J: Jobs<Job: PartialEq + fmt::Debug>>(
    jobs: &J,
    known: &Known<J::Job>,
    before: Option<&Known<J::Job>>,
) -> Checked {
    let Some(last) = known.first.checked_sub(1) else { return Ok(()) };
    for index in [0, 1, last / 2, last.saturating_sub(1), last].into_iter().filter(|index| *index <= last) {
        match ask(|| jobs.at_index(index)) {
            Answer::Good(None) | Answer::Failed(_) => {}
            Answer::Good(found) => {
                let was = before.and_then(|before| before.jobs.get(&index));
                insist(was.is_some() && was == found.as_ref(), BELOW, || {
                    format!("at_index({index}) is {found:?} and was {was:?}, first() is {}", known.first)
                })?;
            }
            Answer::Panicked(panic) => broken(ANSWERS, format!("at_index({index}), below first(), {panic}"))?,
        }
    }
    Ok(())
}

fn check_reads<J: Jobs<Job: PartialEq + fmt::Debug>>(
    jobs: &J,
    known: &Known<J::Job>,
    before: Option<&Known<J::Job>>,
) -> Checked {
    let (first, past) = (known.first, known.head.map_or(known.first, |head| head + 1));
    let run = |start: Index, length: u64| start..=start.saturating_add(length.min(LONGEST) - 1);
    let mut runs =
        vec![Index::MAX..=Index::MAX, run(Index::MAX - 1, 2), run(Index::MAX - 63, 64), run(0, 1), run(0, 64)];
    for near in [first, first / 2 + past / 2, past] {
        for back in [0, 1, 2, 63, 64] {
            let start = near.saturating_sub(back);
            runs.extend([1, 2, 64, 65, LONGEST].map(|length| run(start, length)));
        }
    }
    // The seed is fixed, so a source that fails once fails again.
    let mut chance = fastrand::Rng::with_seed(7);
    for _ in 0..RUNS {
        let near = if chance.bool() { first } else { past.saturating_sub(ALL.min(past - first)) };
        let start = near.saturating_add(chance.u64(..=(past - first).min(ALL)));
        runs.push(run(start, chance.u64(1..=LONGEST)));
    }
    for run in runs {
        read_equals(jobs, run, before)?;
    }
    // An empty run.
    let (from, to) = (past.max(1), past.max(1) - 1);
    read_equals(jobs, from..=to, before)
}

/// Compares one run with `at_index`, job by job.
pub(super) fn read_equals<J: Jobs<Job: PartialEq + fmt::Debug>>(
    jobs: &J,
    run: RangeInclusive<Index>,
    before: Option<&Known<J::Job>>,
) -> Checked {
    let (first, head) = (first(jobs)?, head(jobs)?);
    let call = || format!("read({run:?})");
    // Something that is in the vector already, if the source has any job.
    let mine = || head.filter(|head| first <= *head).map_or(Ok(None), |head| at_index(jobs, head));
    let mut into: Vec<J::Job> = mine()?.into_iter().collect();
    let kept = into.len();
    match ask(|| jobs.read(run.clone(), &mut into)) {
        Answer::Good(()) => {}
        // The source may refuse a run from which jobs were removed.
        Answer::Failed(_) if *run.start() < first => return Ok(()),
        failed => failed.good(ANSWERS, call)?,
    }
    insist(into.len() >= kept && into.first().filter(|_| kept > 0) == mine()?.as_ref(), APPENDS, || {
        format!("{}: of {kept} job in the vector the first became {:?}", call(), into.first())
    })?;
    let asked = if run.is_empty() { 0 } else { run.end() - run.start() + 1 };
    let appended = into.drain(kept..).collect::<Vec<_>>();
    insist(appended.len() as u64 <= asked, NO_MORE, || format!("{} appended {} jobs", call(), appended.len()))?;
    if appended.is_empty() {
        let start = *run.start();
        let mut there = !run.is_empty() && start >= first && head.is_some_and(|head| start <= head);
        // A gap is no job.
        there = there && at_index(jobs, start)?.is_some();
        return insist(!there, SOMETHING, || format!("{} appended nothing", call()));
    }
    for (index, job) in run.clone().zip(appended) {
        let is_known = |known: &Known<J::Job>| known.jobs.get(&index) == Some(&job);
        match ask(|| jobs.at_index(index)) {
            Answer::Good(Some(there)) => insist(there == job, EQUAL, || {
                format!("{} appended {job:?} as the job at {index}, and at_index({index}) is {there:?}", call())
            })?,
            _ if index < first && before.is_some_and(is_known) => {}
            _ => broken(STOPS, format!("{} appended {job:?} as the job at {index}, which is not there", call()))?,
        }
    }
    Ok(())
}

impl<T> Known<T> {
    /// Returns the indices to read, in order.
    pub(super) fn sample(&self) -> Vec<Index> {
        if self.gaps.is_some() {
            return self.jobs.keys().copied().collect();
        }
        let Some(head) = self.head.filter(|head| self.first <= *head) else { return Vec::new() };
        if head - self.first < ALL {
            return (self.first..=head).collect();
        }
        let mut chance = fastrand::Rng::with_seed(5);
        let ends = (self.first..self.first + SAMPLE).chain(head - SAMPLE..=head);
        let mut sample: Vec<_> = ends.chain((0..SAMPLE).map(|_| chance.u64(self.first..=head))).collect();
        sample.sort_unstable();
        sample.dedup();
        sample
    }
}
