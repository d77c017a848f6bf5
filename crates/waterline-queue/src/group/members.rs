//! The queues that a group claims from, and the threads that wait for their jobs.
//!
//! What is ready is not remembered here: each choice looks at the states of the queues in memory.

use crate::engine::Claimed;
use crate::handle::Queue;
use crate::notify::bell::{Bell, Takes};
use crate::rules::fair::{Draw, Rule};
use crate::types::error::QueueError;
use crate::types::wanted::Wanted;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use waterline::Clock;
use waterline::seam::{Called, ClockExt, Moment};

/// How long a runner claims nothing from a queue with an unreadable record.
const ASIDE: Duration = Duration::from_secs(1);

pub(crate) struct Members {
    list: Vec<Queue>,
    bell: Arc<Bell>,
    rule: Rule,
    seed: u64,
    turns: AtomicU64,
    /// The indexes of the queues that a runner has set aside, and until when.
    aside: Mutex<Vec<(usize, Instant)>>,
}

/// The queue to claim from next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) place: usize,
    /// True if no job is due, so the claim takes one that is due later.
    pub(crate) is_early: bool,
}

impl Members {
    /// Makes the claims from one queue. Its threads share the bell with its other claimers.
    pub(crate) fn of_one(queue: Queue) -> Self {
        let bell = queue.shared.bell.clone();
        let (turns, aside) = (AtomicU64::new(0), Mutex::default());
        Self { list: vec![queue], bell, rule: Rule::Shuffle, seed: 0, turns, aside }
    }

    pub(crate) fn is_one(&self) -> bool {
        self.list.len() == 1
    }

    /// Makes the claims from these queues. `turn` is the number of the first choice.
    pub(super) fn new(queues: Vec<Queue>, rule: Rule, turn: u64) -> Self {
        let (bell, seed) = (Arc::new(Bell::default()), queues[0].moment().chance);
        queues.iter().for_each(|queue| queue.shared.hang(&bell));
        Self { list: queues, bell, rule, seed: seed.to_bits(), turns: AtomicU64::new(turn), aside: Mutex::default() }
    }

    pub(crate) fn queue(&self, place: usize) -> &Queue {
        &self.list[place]
    }

    pub(crate) fn queues(&self) -> impl Iterator<Item = &Queue> {
        self.list.iter()
    }

    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    fn clock(&self) -> &Clock {
        self.queue(0).clock()
    }

    fn moment(&self) -> Moment {
        self.clock().moment()
    }

    // The choice.

    /// Chooses the queue for the next claim of a job of these kinds, except those in `without`.
    /// `None`: no other one has a job.
    pub(crate) fn choose(&self, without: &[usize], kinds: Option<&[String]>) -> Option<Choice> {
        let at = self.moment();
        let others = (0..self.list.len()).filter(|place| !without.contains(place));
        let ready: Vec<_> = others.filter(|place| has_work(&self.list[*place], kinds)).collect();
        let turn = if ready.len() > 1 { self.turns.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let place = self.rule.choose(&ready, Draw::new(self.seed, turn), |place| {
            let queue = &self.list[place];
            at.wall.saturating_sub(queue.engine.oldest_of(queue.number, kinds))
        });
        place.map(|place| Choice { place, is_early: false })
    }

    /// Chooses the queue for a claim of a job that is due by this future time.
    pub(super) fn choose_early(&self, without: &[usize], due_by: Option<u64>) -> Option<Choice> {
        let due_by = due_by.filter(|due_by| *due_by >= self.moment().wall)?;
        let others = (0..self.list.len()).filter(|place| !without.contains(place));
        let front = |place: usize| (self.list[place].peek(), place);
        let early = others.map(front).filter(|(peek, _)| !peek.is_paused && peek.due <= due_by);
        let first = early.map(|(peek, place)| (peek.due, place)).min();
        first.map(|(_, place)| Choice { place, is_early: true })
    }

    /// Claims a job of the chosen queue.
    pub(super) fn claim(&self, choice: Choice, wanted: &Wanted) -> Result<Option<Claimed>, QueueError> {
        let wall = self.moment().wall;
        let due_by = wanted.due_by.filter(|due_by| choice.is_early || *due_by < wall);
        let claimed = self.queue(choice.place).claim(&Wanted { due_by, kinds: wanted.kinds.clone() });
        if matches!(claimed, Ok(Some(_))) {
            self.pass_on(wanted.kinds.as_deref());
        }
        claimed
    }

    /// True if a claim from a queue outside `without` may find a job of these kinds.
    pub(crate) fn have_ready(&self, without: &[usize], kinds: Option<&[String]>) -> bool {
        let others = (0..self.list.len()).filter(|place| !without.contains(place));
        others.into_iter().any(|place| self.list[place].peek_for(kinds).is_ready())
    }

    /// True if a claim from a queue outside `without` has something to do.
    pub(crate) fn have_work(&self, without: &[usize], kinds: Option<&[String]>) -> bool {
        let mut others = (0..self.list.len()).filter(|place| !without.contains(place));
        others.any(|place| has_work(&self.list[place], kinds))
    }

    // Waiting.

    /// Sleeps until there is news of a queue, until maintenance is due, or until the deadline.
    ///
    /// The caller has looked for jobs of its kinds in the queues of `looked`, and ignores those of
    /// `aside`. Returns true if maintenance is due now.
    pub(crate) fn sleep(
        &self,
        news: u64,
        deadline: Option<Instant>,
        (takes, kinds): (Takes, Option<&[String]>),
        looked: &[usize],
        aside: &[usize],
    ) -> bool {
        let at = self.moment();
        let mut pause = deadline.map(|deadline| deadline.saturating_duration_since(at.now));
        for place in (0..self.list.len()).filter(|place| !aside.contains(place)) {
            let peek = self.list[place].peek_for(kinds);
            let (is_ready, next) = (peek.is_ready(), peek.next_change);
            if is_ready && takes != Takes::Nothing && !looked.contains(&place) {
                return false;
            }
            if next.is_some_and(|next| next.is_zero()) {
                return true;
            }
            pause = pause.into_iter().chain(next).min();
        }
        if !pause.is_some_and(|pause| pause.is_zero()) {
            self.bell.sleep(news, self.clock().deadline(at.after(pause)), takes);
        }
        false
    }

    /// Wakes one waiting thread if more jobs of these kinds are ready than the caller takes.
    pub(crate) fn pass_on(&self, kinds: Option<&[String]>) {
        if self.bell.is_awaited() && self.have_ready(&[], kinds) {
            let mut called = Called::default();
            self.bell.ring(1, &mut called);
            called.wake();
        }
    }

    /// Runs due maintenance of the queues, for a runner that claims nothing.
    pub(crate) fn tidy(&self) -> Result<(), QueueError> {
        let (aside, _) = self.aside();
        for queue in (0..self.list.len()).filter(|place| !aside.contains(place)).map(|place| self.queue(place)) {
            if self.is_one() || queue.peek().is_due() {
                queue.tidy()?;
            }
        }
        Ok(())
    }

    // Queues with an unreadable record.

    /// Sets the queue with this name aside for a while. Returns false if there is none.
    pub(crate) fn set_aside(&self, name: &str) -> bool {
        let Some(place) = self.list.iter().position(|queue| queue.name() == name) else { return false };
        self.aside.lock().extend(self.moment().now.checked_add(ASIDE).map(|until| (place, until)));
        true
    }

    /// Returns the indexes of the queues that are set aside, and when the first one returns.
    pub(crate) fn aside(&self) -> (Vec<usize>, Option<Instant>) {
        let mut aside = self.aside.lock();
        if !aside.is_empty() {
            let now = self.moment().now;
            aside.retain(|(_, until)| *until > now);
        }
        (aside.iter().map(|(place, _)| *place).collect(), aside.iter().map(|(_, until)| *until).min())
    }
}

/// True if a claim may find a job, or maintenance is due.
fn has_work(queue: &Queue, kinds: Option<&[String]>) -> bool {
    let peek = queue.peek_for(kinds);
    peek.is_ready() || peek.is_due()
}
