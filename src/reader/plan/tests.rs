//! The plan against a source that answers, fails and lacks jobs by chance, in any order.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// An answer: these jobs, all that is said below `next`, and why no more.
#[derive(Clone, Debug)]
struct Said {
    jobs: Vec<Index>,
    next: Index,
    outcome: Outcome,
    not_yet: bool,
}

impl Said {
    fn nothing(outcome: Outcome) -> Self {
        Self { jobs: Vec::new(), next: 0, outcome, not_yet: false }
    }
}

impl Answer for Said {
    fn jobs(&self) -> usize {
        self.jobs.len()
    }

    fn next(&self, first: Index) -> Index {
        self.next.max(first)
    }

    fn outcome(&self) -> Outcome {
        self.outcome
    }

    fn split_off_failure(&mut self) -> Self {
        Self::nothing(std::mem::replace(&mut self.outcome, Outcome::Good))
    }

    fn begin_at(&mut self, at: Index) -> bool {
        self.jobs.first().is_none_or(|job| *job >= at)
    }

    fn not_yet() -> Self {
        Self { not_yet: true, ..Self::nothing(Outcome::Good) }
    }
}

const HEAD: Index = 60;

/// A source and its consumer. Every `gap`-th index has a job.
struct World {
    plan: Plan<Said>,
    gap: Index,
    now: Instant,
    calls: usize,
    under_way: Vec<Ask>,
    /// The consumer's next new index, the most that it takes at a time, and what it waits for.
    front: Index,
    most: u64,
    asked: Option<Ask>,
    delivered: Vec<Index>,
    again: Vec<Index>,
}

impl World {
    fn new(calls: usize, most: u64, gap: Index) -> Self {
        let retry = Retry::fixed(Duration::from_millis(50));
        let (plan, now) = (Plan::new(calls, retry), Instant::now());
        let (under_way, delivered, again) = (Vec::new(), Vec::new(), Vec::new());
        Self { plan, gap, now, calls, under_way, front: 0, most, asked: None, delivered, again }
    }

    fn jobs(&self, run: std::ops::RangeInclusive<Index>) -> impl Iterator<Item = Index> + use<> {
        let gap = self.gap;
        run.filter(move |index| index % gap == 0 && *index <= HEAD)
    }

    fn ask(&mut self, index: Option<usize>) {
        if self.asked.is_some() {
            return;
        }
        let again = index.filter(|_| !self.delivered.is_empty()).map(|at| self.delivered[at % self.delivered.len()]);
        let ask = match again {
            Some(index) => Ask::new(index, index, 1),
            None if self.front > HEAD => return,
            None => Ask::new(self.front, HEAD, self.most.min(HEAD + 1 - self.front)),
        };
        self.plan.ask(ask);
        self.asked = Some(ask);
    }

    fn start(&mut self) {
        while let Some(call) = self.plan.next_call(self.now, None) {
            let overlaps = |other: &Ask| call.first <= other.last && other.first <= call.last;
            assert!(!self.under_way.iter().any(overlaps), "{call:?} beside {:?}", self.under_way);
            self.under_way.push(call);
        }
        assert!(self.under_way.len() <= self.calls);
        let planned: u64 = self.plan.pieces.values().map(Piece::jobs).sum();
        let rests = self.plan.pieces.len() as u64;
        assert!(planned <= self.most + rests, "{planned} jobs are read or being read");
    }

    /// Answers one of the calls, with at most this many jobs.
    fn answer(&mut self, which: usize, outcome: Outcome, most: usize) {
        if self.under_way.is_empty() {
            return;
        }
        let call = self.under_way.swap_remove(which % self.under_way.len());
        let mut jobs: Vec<_> = self.jobs(call.first..=call.last).take(call.most().min(most)).collect();
        let whole = self.jobs(call.first..=call.last).count() == jobs.len();
        // A good source reports the whole gap, even beyond the run.
        let behind = self.jobs(call.last + 1..=HEAD).next().unwrap_or(HEAD + 1);
        let next = if whole { behind } else { jobs.last().map_or(call.first, |job| job + 1) };
        let outcome =
            if next > call.last || outcome == Outcome::Good && next > call.first { Outcome::Good } else { outcome };
        let outcome = if next == call.first && outcome == Outcome::Good { Outcome::Missing } else { outcome };
        if next == call.first {
            jobs.clear();
        }
        self.plan.answered(call.first, Said { jobs, next, outcome, not_yet: false }, self.now, 0.5);
    }

    /// Takes what is delivered, which has to be what comes next.
    fn take(&mut self, again_is_due: bool) {
        let Some(ask) = self.asked else { return };
        let Some(said) = self.plan.deliver(again_is_due, self.now) else { return };
        self.asked = None;
        if said.not_yet {
            return;
        }
        if ask.first < self.front {
            assert!(said.jobs == [ask.first] || said.jobs.is_empty() && said.outcome != Outcome::Good, "{said:?}");
            self.again.extend(said.jobs);
            return;
        }
        let next = said.next(ask.first);
        let expected = (ask.first..next).filter(|index| self.jobs(*index..=*index).next().is_some());
        assert!(said.jobs.iter().copied().eq(expected), "{ask:?} {said:?}");
        assert!(next > ask.first || said.outcome != Outcome::Good);
        self.delivered.extend(said.jobs);
        self.front = next;
    }

    /// True if the consumer waits for nothing, or something will happen.
    fn goes_on(&self) -> bool {
        let again = self.plan.again.as_ref().is_some_and(|(_, piece)| matches!(piece.state, State::Answered(_)));
        let is_there = again || self.plan.other_waits(Kind::Again, false);
        self.asked.is_none()
            || is_there
            || !self.under_way.is_empty()
            || self.plan.has_call(self.now)
            || self.plan.deadline(false).is_some()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ask(Option<usize>),
    Answer(usize, Outcome, usize),
    Take(bool),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let outcome = prop_oneof![6 => Just(Outcome::Good), 2 => Just(Outcome::Failed), 1 => Just(Outcome::Missing)];
    let step = prop_oneof![
        4 => prop::option::weighted(0.2, 0..99_usize).prop_map(Step::Ask),
        8 => (0..99_usize, outcome, 0..9_usize).prop_map(|(which, outcome, most)| Step::Answer(which, outcome, most)),
        4 => any::<bool>().prop_map(Step::Take),
        1 => (0..200_u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..400)
}

proptest! {
    #[test]
    fn answers_in_any_order_go_on_in_index_order(
        steps in steps(), calls in 1..9_usize, most in 1..20_u64, gap in prop_oneof![Just(1), Just(1), Just(2), Just(7)]
    ) {
        let mut world = World::new(calls, most, gap);
        for step in steps {
            match step {
                Step::Ask(again) => world.ask(again),
                Step::Answer(which, outcome, most) => world.answer(which, outcome, most),
                Step::Take(again_is_due) => world.take(again_is_due),
                Step::Wait(ms) => world.now += Duration::from_millis(ms),
            }
            world.start();
            prop_assert!(world.goes_on());
        }
        // A source without failures answers all calls in the end.
        for _ in 0..1000 {
            world.ask(None);
            world.now += Duration::from_secs(2);
            world.start();
            world.answer(0, Outcome::Good, usize::MAX);
            world.take(false);
        }
        prop_assert!(world.delivered.iter().copied().eq(world.jobs(0..=HEAD)), "{:?}", world.delivered);
        let read: BTreeSet<_> = world.delivered.iter().collect();
        prop_assert!(world.again.iter().all(|index| read.contains(index)));
    }
}

/// Answers the call from this index on, and starts what may follow. Returns the calls under way.
fn answer(world: &mut World, first: Index, outcome: Outcome) -> Vec<Index> {
    let which = world.under_way.iter().position(|call| call.first == first).expect("it is under way");
    let most = if outcome == Outcome::Good { usize::MAX } else { 0 };
    world.answer(which, outcome, most);
    world.start();
    let mut under_way: Vec<_> = world.under_way.iter().map(|call| call.first).collect();
    under_way.sort_unstable();
    under_way
}

#[test]
fn a_failed_read_is_made_again_while_others_go_on() {
    let mut world = World::new(3, 9, 1);
    world.ask(None);
    world.start();
    assert_eq!(answer(&mut world, 1, Outcome::Failed), [0, 1, 2], "at once after its first failure");
    assert_eq!(answer(&mut world, 2, Outcome::Good), [0, 1, 3]);
    assert_eq!(answer(&mut world, 1, Outcome::Failed), [0, 3, 5], "after a pause then");
    world.now += Duration::from_millis(50);
    assert_eq!(answer(&mut world, 3, Outcome::Good), [0, 1, 5]);
    assert_eq!(answer(&mut world, 0, Outcome::Good).len(), 3);
    world.take(false);
    assert_eq!(world.delivered, [0], "job 1 is not there yet");
}

#[test]
fn an_outage_is_asked_about_by_one_call() {
    let mut world = World::new(4, 9, 1);
    world.ask(None);
    world.start();
    for first in [3, 2] {
        answer(&mut world, first, Outcome::Failed);
    }
    assert_eq!(answer(&mut world, 1, Outcome::Failed), [0, 3, 4], "nothing begins after three failures");
    assert_eq!(answer(&mut world, 4, Outcome::Failed), [0, 3]);
    assert_eq!(answer(&mut world, 3, Outcome::Failed), [0]);
    assert_eq!(answer(&mut world, 0, Outcome::Failed), [0; 0]);
    world.take(false);
    assert_eq!((world.asked, world.front), (None, 0), "the consumer hears of it, and sets the pace");
    world.ask(None);
    world.start();
    assert_eq!(world.under_way.len(), 1);
    world.now += Duration::from_millis(50);
    assert_eq!(answer(&mut world, 0, Outcome::Good).len(), 4, "all go on");
}

#[test]
fn a_call_that_is_not_wanted_any_more_keeps_its_limit() {
    let (mut plan, now) = (Plan::<Said>::new(2, Retry::fixed(Duration::from_millis(50))), Instant::now());
    let until = now + Duration::from_secs(30);
    plan.ask(Ask::new(0, HEAD, 2));
    let calls: Vec<_> = std::iter::from_fn(|| plan.next_call(now, Some(until))).map(|call| call.first).collect();
    assert_eq!(calls, [0, 1]);
    // Both were done in an earlier life.
    plan.ask(Ask::new(7, HEAD, 2));
    assert_eq!(plan.limits().collect::<Vec<_>>(), [(0, until), (1, until)]);
    assert!(plan.next_call(now, None).is_none(), "it has its slot until it returns, or is given up");
    assert!(plan.answered(0, Said::nothing(Outcome::Failed), now, 0.5).is_some());
    assert_eq!(plan.next_call(now, None).map(|call| call.first), Some(7));
}
