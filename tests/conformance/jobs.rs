//! Sources that keep the rules, and sources that break one each.

use super::refusal;
use parking_lot::{Condvar, Mutex};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;
use waterline::testing::JobsSuite;
use waterline::{BoxError, Index, Jobs, MemoryJobs, Sparse, Wakeup};

/// Longer than the longest patience of a suite here.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn memory_jobs_keep_the_rules() {
    JobsSuite::new(|n| (0..n).collect())
        .extend(|jobs: &MemoryJobs<u64>, n| (0..n).for_each(|i| _ = jobs.push(1_000 + i)))
        .run();
    JobsSuite::new(|n| Arc::new((0..n).collect()))
        .extend(|jobs: &Arc<MemoryJobs<u64>>, n| (0..n).for_each(|i| _ = jobs.push(1_000 + i)))
        .run();
}

/// An endless stream with only the required methods.
struct Endless(Index);

impl Jobs for Endless {
    type Job = Index;
    fn first(&self) -> Result<Index, BoxError> {
        Ok(self.0)
    }
    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(Index::MAX - 1))
    }
    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok((self.0..Index::MAX).contains(&index).then_some(index))
    }
}

#[test]
fn endless_sources_keep_the_rules() {
    for first in [0, 1, 1 << 40, Index::MAX - 1] {
        JobsSuite::fixed(|| Endless(first)).run();
    }
}

#[test]
fn a_source_with_allowed_quirks_passes() {
    for quirk in [Nothing, BelowFails, BelowKept, ReadOneByOne, ReadFailsBelow, Unsubscribed, FromFive] {
        suite(quirk).run();
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    // Allowed quirks.
    Nothing,
    BelowFails,
    BelowKept,
    ReadOneByOne,
    ReadFailsBelow,
    Unsubscribed,
    FromFive,
    // Bugs.
    HeadTooHigh,
    HeadTooLow,
    HeadOfEmpty,
    HeadIsMax,
    HeadFails,
    HeadPanics,
    FirstTooHigh,
    FirstTooLow,
    FirstStays,
    FirstDrifts,
    Gap,
    BeyondFails,
    BeyondPanics,
    Truncates,
    Overflows,
    MaxIsAJob,
    BelowWrong,
    BelowPanics,
    Changes,
    ChangesWhenGrown,
    ChangesWhenPruned,
    MadeDiffers,
    TooFew,
    ReadClears,
    ReadPrepends,
    ReadTooMany,
    ReadEmptyRun,
    ReadReversed,
    ReadShifted,
    ReadSkips,
    ReadWithoutEnd,
    ReadPastHead,
    ReadBelow,
    ReadFails,
    ReadOverflows,
    LosesOne,
    GrowsTwice,
    EmptiedHasNoHead,
    EmptiedRestarts,
    RingsNobody,
    RingsOnce,
    RingsTheFirst,
    RingsTheLast,
    Racy,
    Hangs,
    SubscribePanics,
    ConsumerStarves,
}

use Bug::*;

/// Each bug, the rule that it breaks, and another part of the message.
const REFUSED: &[(Bug, &str, &str)] = &[
    (HeadTooHigh, "every index from first() to head() is there", "at_index(100) is None"),
    (HeadTooLow, "nothing is there beyond head()", "at_index(99) is Some"),
    (HeadOfEmpty, "an empty source has no head and no job", "Some(0)"),
    (HeadIsMax, "Index::MAX is never a job", "18446744073709551615"),
    (HeadFails, "a healthy source answers, with no error and no panic", "head() failed: no head"),
    (HeadPanics, "a healthy source answers, with no error and no panic", "head() panicked: no head"),
    (FirstTooHigh, "first() is at most head() + 1", "first() is 101, head() is Some(99)"),
    (FirstTooLow, "below first() there is no job", "at_index(0) is Some"),
    (FirstStays, "every index from first() to head() is there", "at_index(0) is None"),
    (FirstDrifts, "it says the same until something changes", "(1, Some(99))"),
    (Gap, "every index from first() to head() is there", "at_index(42) is None"),
    (BeyondFails, "a healthy source answers, with no error and no panic", "at_index(100) failed"),
    (BeyondPanics, "a healthy source answers, with no error and no panic", "at_index(100) panicked"),
    (Truncates, "nothing is there beyond head()", "at_index(4294967296) is Some"),
    (Overflows, "a healthy source answers, with no error and no panic", "at_index(18446744073709551615) panicked"),
    (MaxIsAJob, "nothing is there beyond head()", "at_index(18446744073709551615) is Some"),
    (BelowWrong, "below first() there is no job, or the one that always was there", "at_index(0) is Some(\"wrong\")"),
    (BelowPanics, "a healthy source answers, with no error and no panic", "below first(), panicked"),
    (Changes, "an index never changes its job", "at_index(0) was"),
    (ChangesWhenGrown, "an index never changes its job", "at index 0 was"),
    (ChangesWhenPruned, "an index never changes its job", "at index 1 was"),
    (MadeDiffers, "an index never changes its job", "at index 0 one source showed"),
    (TooFew, "the source has the jobs that it was made with", "100 jobs and has 99"),
    (ReadClears, "read() leaves alone what is there already", "read("),
    (ReadPrepends, "read() leaves alone what is there already", "read("),
    (ReadTooMany, "read() appends no more than it is asked for", "appended 100 jobs"),
    (ReadEmptyRun, "read() appends no more than it is asked for", "read(100..=99) appended 1 jobs"),
    (ReadReversed, "read() appends what at_index() has, in index order", "as the job at 0,"),
    (ReadShifted, "read() appends what at_index() has, in index order", "as the job at 0,"),
    (ReadSkips, "read() appends what at_index() has, in index order", "as the job at 42,"),
    (ReadWithoutEnd, "read() appends at least one job when the first one is there", "appended nothing"),
    (ReadPastHead, "read() stops at the first index that is not there", "as the job at 100,"),
    (ReadBelow, "read() stops at the first index that is not there", "as the job at 0,"),
    (ReadFails, "a healthy source answers, with no error and no panic", "failed: no such run"),
    (ReadOverflows, "a healthy source answers, with no error and no panic", "read(18446744073709551615..="),
    (LosesOne, "head() moves by what was added", "should have 7 jobs and has 6"),
    (GrowsTwice, "head() moves by what was added", "1 more: Some(99) became Some(101)"),
    (EmptiedHasNoHead, "removing jobs moves first(), and leaves head() where it is", "None"),
    (EmptiedRestarts, "an emptied source goes on counting", "its last job was 99"),
    (RingsNobody, "a source that took the Wakeup rings every consumer", "job 100 was added, and the first of two"),
    (RingsOnce, "a source that took the Wakeup rings every consumer", "job 101 was added, and the first of two"),
    (RingsTheFirst, "a source that took the Wakeup rings every consumer", "the second of two consumers"),
    (RingsTheLast, "a source that took the Wakeup rings every consumer", "the first of two consumers"),
    (Racy, "calls from several threads agree", "at index"),
    (Hangs, "calls from several threads agree", "did not return within "),
    (SubscribePanics, "a consumer on it handles each job once", "the source failed"),
    (ConsumerStarves, "a consumer on it handles each job once", "the source cannot be read at 50"),
];

#[test]
fn each_broken_rule_of_a_source_is_named() {
    let mut wrong = Vec::new();
    for (bug, rule, how) in REFUSED {
        let refused = |patience| {
            let said = refusal(*bug, || suite(*bug).patience(Duration::from_secs(patience)).run());
            let right = [*rule, *how, "does not keep the rules of Jobs: "].iter().all(|part| said.contains(part));
            if right { Ok(()) } else { Err(format!("{bug:?} should break {rule:?} with {how:?}, and: {said}")) }
        };
        // A busy machine may need more than a second, so a miss is repeated with more patience.
        wrong.extend(refused(1).or_else(|_| refused(20)).err());
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn suite<'a>(bug: Bug) -> JobsSuite<'a, Bent> {
    let made = AtomicU64::new(0);
    JobsSuite::new(move |n| Bent::new(bug, n, made.fetch_add(1, Ordering::SeqCst)))
        .extend(|jobs: &Bent, n| (0..n).for_each(|i| jobs.push(i + 1 == n)))
        .prune(Bent::prune)
}

struct Bent {
    bug: Bug,
    salt: u64,
    state: Mutex<State>,
    calls: AtomicU64,
    /// The thread that made it, which calls alone before the others do.
    maker: ThreadId,
    meeting: Mutex<Meeting>,
    met: Condvar,
}

/// The first two concurrent calls.
#[derive(Default)]
enum Meeting {
    #[default]
    Nobody,
    One,
    Two(Index),
}

#[derive(Default)]
struct State {
    first: Index,
    end: Index,
    wakeups: Vec<Wakeup>,
    subscribed: bool,
}

/// The part of a call in the meeting.
struct Met {
    /// The index of the second call, which the first takes for its own.
    first_sees: Option<Index>,
    is_second: bool,
}

impl Bent {
    fn new(bug: Bug, n: u64, number: u64) -> Self {
        let first = if bug == FromFive { 5 } else { 0 };
        let n = if bug == TooFew { n.saturating_sub(1) } else { n };
        Self {
            bug,
            salt: if bug == MadeDiffers { number } else { 0 },
            state: Mutex::new(State { first, end: first + n, ..State::default() }),
            calls: AtomicU64::new(0),
            maker: thread::current().id(),
            meeting: Mutex::default(),
            met: Condvar::new(),
        }
    }

    fn push(&self, is_last: bool) {
        let mut state = self.state.lock();
        let was_emptied = state.first == state.end && state.end > 5;
        match self.bug {
            LosesOne if is_last => {}
            EmptiedRestarts if was_emptied => {}
            GrowsTwice if state.end >= 100 => state.end += 2,
            _ => state.end += 1,
        }
        match self.bug {
            RingsNobody => {}
            RingsOnce => state.wakeups.drain(..).for_each(|wakeup| _ = wakeup.ring()),
            RingsTheFirst => state.wakeups.truncate(1),
            RingsTheLast => _ = state.wakeups.last().is_some_and(Wakeup::ring),
            _ => {}
        }
        if ![RingsNobody, RingsTheLast].contains(&self.bug) {
            state.wakeups.retain(Wakeup::ring);
        }
    }

    fn prune(&self, first: Index) {
        self.state.lock().first = first;
    }

    fn job(&self, index: Index) -> String {
        let state = self.state.lock();
        match self.bug {
            Changes => format!("call {}", self.calls.fetch_add(1, Ordering::SeqCst)),
            ChangesWhenGrown => format!("job {index} of {}", state.end.max(100)),
            ChangesWhenPruned => format!("job {index} from {}", state.first),
            _ => format!("job {index} of source {}", self.salt),
        }
    }

    /// Holds the first call of another thread than the maker's until a second one is inside, too.
    /// No other call waits, so a busy machine is as fast as an idle one.
    fn meet(&self, index: Index) -> Met {
        let nothing = Met { first_sees: None, is_second: false };
        if thread::current().id() == self.maker {
            return nothing;
        }
        let mut meeting = self.meeting.lock();
        match *meeting {
            Meeting::Nobody => {
                *meeting = Meeting::One;
                self.met.wait_while_for(&mut meeting, |meeting| matches!(meeting, Meeting::One), LONG);
                let Meeting::Two(second) = *meeting else { return nothing };
                Met { first_sees: Some(second), is_second: false }
            }
            Meeting::One => {
                *meeting = Meeting::Two(index);
                self.met.notify_all();
                Met { first_sees: None, is_second: true }
            }
            Meeting::Two(_) => nothing,
        }
    }

    fn below(&self, index: Index) -> Result<Option<String>, BoxError> {
        match self.bug {
            BelowFails => Err("it was removed".into()),
            BelowKept => Ok(Some(self.job(index))),
            BelowWrong => Ok(Some("wrong".to_owned())),
            BelowPanics => panic!("index out of bounds"),
            _ => Ok(None),
        }
    }

    fn beyond(&self, index: Index) -> Result<Option<String>, BoxError> {
        match self.bug {
            BeyondFails => Err("no such job".into()),
            BeyondPanics => panic!("index out of bounds"),
            MaxIsAJob if index == Index::MAX => Ok(Some("the last".to_owned())),
            _ => Ok(None),
        }
    }
}

impl Jobs for Bent {
    type Job = String;

    fn first(&self) -> Result<Index, BoxError> {
        let first = self.state.lock().first;
        Ok(match self.bug {
            FirstTooHigh => self.state.lock().end + 1,
            FirstTooLow => first + 3,
            FirstStays => 0,
            FirstDrifts if self.calls.fetch_add(1, Ordering::SeqCst) > 5 => first + 1,
            _ => first,
        })
    }

    fn head(&self) -> Result<Option<Index>, BoxError> {
        let state = self.state.lock();
        let head = state.end.checked_sub(1).filter(|_| state.end > 5 || self.bug != FromFive);
        match self.bug {
            HeadTooHigh => Ok(head.map(|head| head + 1)),
            HeadTooLow => Ok(head.and_then(|head| head.checked_sub(1))),
            HeadOfEmpty => Ok(Some(head.unwrap_or(0))),
            HeadIsMax => Ok(Some(Index::MAX)),
            HeadFails => Err("no head".into()),
            HeadPanics => panic!("no head"),
            EmptiedHasNoHead if state.first == state.end => Ok(None),
            _ => Ok(head),
        }
    }

    fn at_index(&self, index: Index) -> Result<Option<String>, BoxError> {
        let mut index = index;
        let State { first, end, .. } = *self.state.lock();
        match self.bug {
            Gap if index == 42 => return Ok(None),
            Truncates => index = u64::from(index as u32),
            Overflows => _ = index.checked_add(1).expect("no overflow"),
            Racy => index = self.meet(index).first_sees.unwrap_or(index),
            Hangs if self.meet(index).is_second => thread::park_timeout(LONG),
            ConsumerStarves if index == 50 && self.state.lock().subscribed => return Err("it is tired".into()),
            _ => {}
        }
        if index < first {
            self.below(index)
        } else if index >= end {
            self.beyond(index)
        } else {
            Ok(Some(self.job(index)))
        }
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<String>) -> Result<(), BoxError> {
        let State { first, end, .. } = *self.state.lock();
        let (mut start, mut last) = run.clone().into_inner();
        let kept = into.len();
        match self.bug {
            ReadClears => into.clear(),
            ReadTooMany => last = end.saturating_sub(1),
            ReadEmptyRun if run.is_empty() => into.push("one".to_owned()),
            ReadShifted => (start, last) = (start.saturating_add(1), last.saturating_add(1)),
            ReadWithoutEnd => last = last.saturating_sub(1),
            ReadBelow => start = start.max(first),
            ReadOneByOne => last = last.min(start),
            ReadFailsBelow if start < first => return Err("it was removed".into()),
            ReadFails if start >= end => return Err("no such run".into()),
            ReadOverflows => _ = last.checked_add(1).expect("no overflow"),
            _ => {}
        }
        for index in start..=last {
            let job = match self.bug {
                ReadSkips if index == 42 => continue,
                _ => self.at_index(index)?,
            };
            match job {
                Some(job) => into.push(job),
                None if self.bug == ReadPastHead && index == end => into.push("nothing".to_owned()),
                None => break,
            }
        }
        match self.bug {
            ReadReversed => into[kept..].reverse(),
            ReadPrepends => into.rotate_right(1),
            _ => {}
        }
        Ok(())
    }

    fn subscribe(&self, wakeup: Wakeup) -> bool {
        assert!(self.bug != SubscribePanics, "nobody may subscribe");
        let mut state = self.state.lock();
        state.wakeups.push(wakeup);
        state.subscribed = true;
        self.bug != Unsubscribed
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    Reversed,
    OutsideTheRun,
    MoreThanAsked,
    SaysNothing,
    HidesAJob,
    ShowsAJobInAGap,
    FillsAGap,
    Shifted,
}

/// A source with a job at every third index from 5 on.
struct Gappy {
    flaw: Option<Flaw>,
    jobs: Mutex<Vec<Index>>,
    wakeups: Mutex<Vec<Wakeup>>,
}

impl Gappy {
    fn new(flaw: Option<Flaw>, jobs: u64) -> Self {
        let jobs = Mutex::new((0..jobs).map(|job| 5 + 3 * job).collect());
        Self { flaw, jobs, wakeups: Mutex::default() }
    }

    fn extend(&self, more: u64) {
        let mut jobs = self.jobs.lock();
        for _ in 0..more {
            let last = jobs.last().map_or(2, |last| *last);
            jobs.push(last + 3);
        }
        if self.flaw == Some(Flaw::FillsAGap) && more == 7 {
            // Replaces the last job.
            jobs.pop();
            jobs.push(6);
            jobs.sort_unstable();
        }
        drop(jobs);
        self.wakeups.lock().retain(Wakeup::ring);
    }
}

impl Jobs for Gappy {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(self.jobs.lock().last().copied())
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(self.jobs.lock().binary_search(&index).is_ok().then_some(index))
    }

    fn read_sparse(&self, run: RangeInclusive<Index>, most: usize, into: &mut Sparse<Index>) -> Result<(), BoxError> {
        let (flaw, end) = (self.flaw, *run.end());
        let all = self.jobs.lock().clone();
        let taken = if flaw == Some(Flaw::MoreThanAsked) { most + 1 } else { most };
        let mut jobs: Vec<_> = all.iter().copied().filter(|index| run.contains(index)).take(taken).collect();
        let full = jobs.len() >= most;
        match flaw {
            Some(Flaw::Reversed) => jobs.reverse(),
            Some(Flaw::OutsideTheRun) if !full => jobs.extend(all.iter().copied().find(|index| *index > end)),
            Some(Flaw::SaysNothing) if run.contains(&50) => return Ok(()),
            Some(Flaw::HidesAJob) => jobs.retain(|index| *index != 50),
            Some(Flaw::ShowsAJobInAGap) if run.contains(&51) && !full => {
                jobs.push(51);
                jobs.sort_unstable();
            }
            _ => {}
        }
        let shift = u64::from(flaw == Some(Flaw::Shifted));
        jobs.into_iter().for_each(|index| into.job(index, index + shift));
        if !full && let Some(last) = all.last() {
            into.none_through(end.min(*last));
        }
        Ok(())
    }

    fn subscribe(&self, wakeup: Wakeup) -> bool {
        self.wakeups.lock().push(wakeup);
        true
    }
}

#[test]
fn sources_with_gaps_keep_the_rules_behind_adapters() {
    JobsSuite::new(|n| Gappy::new(None, n)).sparse().extend(Gappy::extend).run();
    JobsSuite::new(|n| Arc::new(Gappy::new(None, n))).sparse().extend(|jobs, n| jobs.extend(n)).run();
    JobsSuite::new(|n| if n == 0 { Gappy::new(None, 0) } else { Gappy::new(None, n + 1) }.confirmed(3)).sparse().run();
    JobsSuite::new(|n| (0..if n == 0 { 0 } else { n + 3 }).collect::<MemoryJobs<u64>>().confirmed(3)).run();
    JobsSuite::new(|n| (0..n).collect::<MemoryJobs<u64>>()).sparse().run();
}

#[test]
fn each_broken_rule_of_gaps_is_named() {
    use Flaw::*;
    for (flaw, rule) in [
        (Reversed, "jobs in order"),
        (OutsideTheRun, "within the run"),
        (MoreThanAsked, "no more than it is asked for"),
        (SaysNothing, "says something of an index"),
        (HidesAJob, "what at_index() has"),
        (ShowsAJobInAGap, "an index never changes its job"),
        (FillsAGap, "a gap never becomes a job"),
        (Shifted, "an index never changes its job"),
    ] {
        let suite = || JobsSuite::new(|n| Gappy::new(Some(flaw), n)).sparse().extend(Gappy::extend).run();
        let text = refusal(flaw, suite);
        assert!(text.contains(rule), "{flaw:?}: {text}");
    }
    let dense = refusal("a suite without gaps", || JobsSuite::new(|n| Gappy::new(None, n)).run());
    assert!(dense.contains("every index from first() to head() is there"), "{dense}");
}
