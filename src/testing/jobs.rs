//! The suite that checks a source.

use super::{Checked, PATIENCE, insist};
use crate::base::{Index, sync::Arc};
use crate::source::Jobs;
use std::fmt;
use std::time::Duration;

mod known;
mod rules;
mod sparse;
mod watched;

use known::Known;
use rules::{check_quiet, check_unchanged, read_equals};

/// How many jobs a new source has.
const SOME: u64 = 100;

/// How many jobs are added at a time.
const MORE: u64 = 7;

const GROWS: &str = "head() moves by what was added";

type Make<'a, J> = Box<dyn Fn(u64) -> J + 'a>;
type Change<'a, J> = Box<dyn Fn(&J, u64) + 'a>;

/// Checks that a source keeps the rules of [`Jobs`], or panics with the broken rule and the index.
///
/// The suite compares jobs, so make them differ. Nothing else may change the source. The rules:
///
/// * A healthy source answers, with no error and no panic, up to [`Index::MAX`]. Its answers stay
///   the same until something changes.
/// * `first()` is at most `head()` + 1, every index from `first()` to `head()` is there, and
///   nothing is beyond. Below `first()` there is no job (`None`, or an error), or the one that
///   always was there.
/// * An index never changes its job: however often it is read, after jobs were added, and after
///   others were removed.
/// * `read` appends the jobs of `at_index`, in index order, and keeps what the vector has already.
///   It appends no more than was requested, nothing from the first missing index on, and at least
///   one job if the first one is there.
/// * An empty source has no head and no job.
/// * `head()` moves by what was added. Removing jobs moves `first()` and leaves `head()` where it
///   is.
/// * `read_sparse` agrees with `at_index`: jobs in order, within the run, and no more than
///   requested. It reports something about the first index. Only with [`sparse`](Self::sparse)
///   there may be gaps, and a gap never becomes a job.
/// * A source that took the [`Wakeup`](crate::Wakeup) rings every consumer when a job appears.
/// * Calls from several threads agree, and so do calls through an `Arc`.
/// * A [`Consumer`](crate::Consumer) on it handles each job once, also with several
///   [reads at once](crate::Builder::max_reading).
///
/// ```
/// use waterline::testing::JobsSuite;
/// use waterline::{BoxError, Index, Jobs, MemoryJobs};
///
/// /// The lines of a text, numbered from 0.
/// struct Lines(Vec<String>);
///
/// impl Jobs for Lines {
///     type Job = String;
///     fn head(&self) -> Result<Option<Index>, BoxError> {
///         Ok((self.0.len() as Index).checked_sub(1))
///     }
///     fn at_index(&self, index: Index) -> Result<Option<String>, BoxError> {
///         Ok(usize::try_from(index).ok().and_then(|at| self.0.get(at).cloned()))
///     }
/// }
///
/// JobsSuite::new(|n| Lines((0..n).map(|i| format!("line {i}")).collect())).run();
///
/// // A source that grows.
/// JobsSuite::new(|n| (0..n).collect())
///     .extend(|jobs: &MemoryJobs<u64>, n| (0..n).for_each(|i| _ = jobs.push(1_000 + i)))
///     .run();
/// ```
#[must_use = "nothing is checked before `run`"]
pub struct JobsSuite<'a, J> {
    make: Make<'a, J>,
    /// True if the suite chooses how many jobs a source is created with.
    sized: bool,
    /// True if the indices may have gaps.
    sparse: bool,
    extend: Option<Change<'a, J>>,
    prune: Option<Change<'a, J>>,
    patience: Duration,
}

impl<'a, J: Jobs<Job: PartialEq + fmt::Debug>> JobsSuite<'a, J> {
    /// Creates a suite for the sources that `make` returns.
    ///
    /// `make` gets the number of jobs, 0 or a hundred. A new source must share nothing with earlier
    /// ones.
    pub fn new(make: impl Fn(u64) -> J + 'a) -> Self {
        Self { make: Box::new(make), sized: true, sparse: false, extend: None, prune: None, patience: PATIENCE }
    }

    /// Creates a suite for a source whose length the test cannot choose: a fixture, or an endless
    /// source.
    ///
    /// It must not be empty.
    pub fn fixed(make: impl Fn() -> J + 'a) -> Self {
        Self { sized: false, ..Self::new(move |_| make()) }
    }

    /// Also checks the rules of growing and ringing. `extend` adds this many jobs.
    pub fn extend(mut self, extend: impl Fn(&J, u64) + 'a) -> Self {
        self.extend = Some(Box::new(extend));
        self
    }

    /// Allows gaps, and checks their rules: see [`Jobs::read_sparse`].
    ///
    /// Then `make` returns a source with that many jobs, wherever they are. `head()` moves by at
    /// least what was added, and no job is added where a gap was.
    ///
    /// ```
    /// use std::ops::RangeInclusive;
    /// use waterline::testing::JobsSuite;
    /// use waterline::{BoxError, Index, Jobs, Sparse};
    ///
    /// /// So many jobs, at every third index.
    /// struct Thirds(u64);
    ///
    /// impl Jobs for Thirds {
    ///     type Job = Index;
    ///     fn head(&self) -> Result<Option<Index>, BoxError> {
    ///         Ok((self.0 * 3).checked_sub(3))
    ///     }
    ///     fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
    ///         Ok((index % 3 == 0 && index / 3 < self.0).then_some(index))
    ///     }
    ///     fn read_sparse(
    ///         &self,
    ///         run: RangeInclusive<Index>,
    ///         most: usize,
    ///         into: &mut Sparse<Index>,
    ///     ) -> Result<(), BoxError> {
    ///         let all = (0..self.0).map(|job| job * 3);
    ///         all.filter(|index| run.contains(index)).take(most).for_each(|index| into.job(index, index));
    ///         // The next job is two indices away.
    ///         if into.next() % 3 > 0 {
    ///             into.none_through(into.next().next_multiple_of(3) - 1);
    ///         }
    ///         Ok(())
    ///     }
    /// }
    ///
    /// JobsSuite::new(Thirds).sparse().run();
    /// ```
    pub fn sparse(mut self) -> Self {
        self.sparse = true;
        self
    }

    /// Also checks the rules of removing. `prune` removes every job below an index.
    pub fn prune(mut self, prune: impl Fn(&J, Index) + 'a) -> Self {
        self.prune = Some(Box::new(prune));
        self
    }

    /// Sets how long a call, a ring or a consumer may take. Default: 20 seconds.
    pub fn patience(mut self, limit: Duration) -> Self {
        self.patience = limit;
        self
    }

    /// Checks every rule.
    ///
    /// # Panics
    /// If a rule is broken.
    #[track_caller]
    pub fn run(&self) {
        if let Err(broken) = self.check() {
            panic!("{} does not keep the rules of Jobs: {broken}", std::any::type_name::<J>());
        }
    }

    fn check(&self) -> Checked {
        let known = self.full()?;
        if self.sized {
            self.empty()?;
        }
        self.growing()?;
        self.pruned()?;
        for reads in [1, 4] {
            watched::consumed(&self.made(SOME), &known, reads, self.patience)?;
        }
        if let Some(extend) = &self.extend {
            for count in [SOME, 0].into_iter().filter(|count| self.sized || *count > 0) {
                let jobs = self.made(count);
                watched::rung(&jobs, &|jobs| extend(jobs, 1), self.patience)?;
            }
        }
        Ok(())
    }

    fn made(&self, count: u64) -> Arc<J> {
        Arc::new((self.make)(count))
    }

    fn has(&self, known: &Known<J::Job>, count: u64, rule: &'static str) -> Checked {
        let there = match &known.gaps {
            Some(_) => known.jobs.len() as u64,
            None => known.head.map_or(0, |head| (head - known.first).saturating_add(1)),
        };
        insist(!self.sized || there == count, rule, || {
            format!("it should have {count} jobs and has {there}, from {} to {:?}", known.first, known.head)
        })
    }

    fn full(&self) -> Checked<Known<J::Job>> {
        let jobs = self.made(SOME);
        let known = check_quiet(&*jobs, None, self.sparse)?;
        self.has(&known, SOME, "the source has the jobs that it was made with")?;
        insist(known.head.is_some(), "a source of this suite is not empty", || "head() is None".to_owned())?;
        let shared = check_quiet(&jobs, Some(&known), self.sparse)?;
        insist((shared.first, shared.head) == (known.first, known.head), "calls through an Arc agree", || {
            format!("{:?} and {:?} differ", (shared.first, shared.head), (known.first, known.head))
        })?;
        watched::from_threads(&jobs, &known, self.patience)?;
        Ok(known)
    }

    fn empty(&self) -> Checked {
        const EMPTY: &str = "an empty source has no head and no job";
        let jobs = self.made(0);
        let head = known::head(&*jobs)?;
        insist(head.is_none(), EMPTY, || format!("head() is {head:?}"))?;
        check_quiet(&*jobs, None, self.sparse)?;
        let Some(extend) = &self.extend else { return Ok(()) };
        extend(&jobs, MORE);
        let known = check_quiet(&*jobs, None, self.sparse)?;
        self.has(&known, MORE, GROWS)
    }

    fn growing(&self) -> Checked {
        let Some(extend) = &self.extend else { return Ok(()) };
        let jobs = self.made(SOME);
        let mut before = check_quiet(&*jobs, None, self.sparse)?;
        for more in [1, MORE] {
            extend(&jobs, more);
            let expected = before.head.map(|head| head.saturating_add(more));
            let head = known::head(&*jobs)?;
            insist(head == expected || self.sparse && head > expected, GROWS, || {
                format!("{more} more: {:?} became {head:?}", before.head)
            })?;
            let now = check_quiet(&*jobs, Some(&before), self.sparse)?;
            insist(now.first == before.first, GROWS, || format!("first(): {} became {}", before.first, now.first))?;
            check_unchanged(&before, &now)?;
            before = now;
        }
        Ok(())
    }

    fn pruned(&self) -> Checked {
        const PRUNED: &str = "removing jobs moves first(), and leaves head() where it is";
        let Some(prune) = &self.prune else { return Ok(()) };
        let jobs = self.made(SOME);
        let before = check_quiet(&*jobs, None, self.sparse)?;
        let Some(head) = before.head else { return Ok(()) };
        let steps = [1, 10, SOME - 1, SOME].map(|step| before.first.saturating_add(step).min(head + 1));
        for first in steps {
            prune(&jobs, first);
            let now = check_quiet(&*jobs, Some(&before), self.sparse)?;
            // Between the jobs it may begin anywhere.
            let lowest = before.jobs.keys().find(|index| **index >= first).copied().unwrap_or(head + 1);
            let begins = now.first == first || self.sparse && now.first <= lowest;
            insist(begins && now.head == before.head, PRUNED, || {
                format!("below {first} removed: it goes from {} to {:?}, and went to {head}", now.first, now.head)
            })?;
            check_unchanged(&before, &now)?;
            read_equals(&*jobs, before.first..=before.first, Some(&before))?;
        }
        let Some(extend) = &self.extend else { return Ok(()) };
        extend(&jobs, MORE);
        let now = check_quiet(&*jobs, Some(&before), self.sparse)?;
        let grown = Some(head.saturating_add(MORE));
        insist(now.head == grown || self.sparse && now.head > grown, "an emptied source goes on counting", || {
            format!("its last job was {head}, and after {MORE} more its head is {:?}", now.head)
        })
    }
}

impl<J> fmt::Debug for JobsSuite<'_, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobsSuite").field("patience", &self.patience).finish_non_exhaustive()
    }
}
