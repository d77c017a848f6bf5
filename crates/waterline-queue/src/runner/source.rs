//! The jobs of a runner: those of a queue, which is a group of one, or those of a group.

use crate::engine::Held;
use crate::group::members::Members;
use crate::handle::Queue;
use crate::notify::bell::Takes;
use crate::notify::losses::Runs;
use crate::runner::outcome::Unknown;
use crate::runner::running::Running;
use crate::types::error::QueueError;
use crate::types::wanted::Wanted;
use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::Instant;
use waterline::seam::Moment;
use waterline::{Clock, Error};

/// The queues whose jobs a runner runs, all with one clock, and the kinds of these jobs.
#[derive(Clone)]
pub(super) struct Source {
    members: Arc<Members>,
    /// The kinds that it takes; `None`: all.
    kinds: Option<Arc<[String]>>,
}

impl Source {
    /// Takes jobs of all kinds from these queues.
    pub(super) fn new(members: Arc<Members>) -> Self {
        Self { members, kinds: None }
    }

    /// Takes only jobs of these kinds from now on.
    pub(super) fn take_only<'a>(&mut self, kinds: impl Iterator<Item = &'a String>) {
        let mut kinds: Vec<_> = kinds.cloned().collect();
        kinds.sort_unstable();
        self.kinds = Some(kinds.into());
    }

    pub(super) fn wanted(&self) -> Wanted {
        Wanted { due_by: None, kinds: self.kinds.clone() }
    }

    pub(super) fn first(&self) -> &Queue {
        self.members.queue(0)
    }

    pub(super) fn queues(&self) -> Vec<&Queue> {
        self.members.queues().collect()
    }

    /// Returns the name of the queue, or that of the first one of a group.
    pub(super) fn name(&self) -> &str {
        self.first().name()
    }

    pub(super) fn clock(&self) -> &Clock {
        self.first().clock()
    }

    /// True unless the last write of a queue has failed.
    pub(super) fn works(&self) -> bool {
        self.members.queues().all(|queue| !queue.shared.is_failing())
    }

    pub(super) fn moment(&self) -> Moment {
        self.first().moment()
    }

    /// Returns the queue with this number, and its index.
    pub(super) fn by_number(&self, number: u32) -> (usize, &Queue) {
        let found = self.members.queues().enumerate().find(|(_, queue)| queue.number == number);
        found.unwrap_or_else(|| (0, self.first()))
    }

    pub(super) fn place_of(&self, job: &Running) -> usize {
        self.by_number(job.flight().0).0
    }

    pub(super) fn is_one(&self) -> bool {
        self.members.is_one()
    }

    /// Returns how many writes are under way at once at most. A group claims one job in each.
    pub(super) fn writes_at_once(&self) -> Option<usize> {
        let most = self.first().engine.turns_at_once()?;
        Some(if self.is_one() { most } else { 4 * most })
    }

    // The right to run.

    /// Takes the right to run the queues, with this many slots for all of them.
    pub(super) fn take_names(&self, slots: usize) -> Result<Box<dyn Any + Send>, QueueError> {
        let mut names = Vec::new();
        for queue in self.members.queues() {
            let name = queue.shared.take_runner(slots);
            names.push(name.ok_or_else(|| Error::InUse { name: queue.name().to_owned() })?);
        }
        Ok(Box::new(names))
    }

    /// Tells the queues which kinds have a handler, and what happens to the others.
    pub(super) fn note_handlers<'a>(&self, kinds: impl Iterator<Item = &'a String> + Clone, unknown: Unknown) {
        self.members.queues().for_each(|queue| queue.shared.note_handlers(kinds.clone(), unknown.fate()));
    }

    /// Makes the queues tell this runner which jobs it loses.
    pub(super) fn tell_losses_to(&self, runner: &Weak<dyn Runs>) {
        self.members.queues().for_each(|queue| queue.shared.losses.begin(queue.number, runner.clone()));
    }

    /// Tells the queues that this runner starts, and which kinds it takes.
    pub(super) fn note_begin(&self) {
        let at = self.moment().wall;
        self.members.queues().for_each(|queue| queue.shared.at_work.begin(at, self.kinds.clone()));
    }

    /// Tells the queues that this runner claims no more jobs.
    pub(super) fn note_stopping(&self) {
        self.members.queues().for_each(|queue| queue.shared.at_work.stop());
    }

    /// Notes in the database that this runner, with these jobs, is stopping.
    pub(super) fn note_stop(&self, jobs: &[Held]) -> Result<(), QueueError> {
        let queues: Vec<_> = self.members.queues().map(|queue| queue.number).collect();
        self.first().engine.note_stop(&queues, jobs)
    }

    pub(super) fn set_slots(&self, slots: usize) {
        self.members.queues().for_each(|queue| queue.shared.set_slots(slots));
    }

    /// Notes which gate is closed. Returns true if that has changed.
    pub(super) fn note_gate(&self, gate: Option<&str>) -> bool {
        self.members.queues().fold(false, |is_new, queue| queue.shared.note_gate(gate) | is_new)
    }

    // Claims.

    /// Returns the queue for the next claim, and its index; `None`: no untried one has a job.
    pub(super) fn choose(&self, tried: &[usize]) -> Option<(usize, &Queue)> {
        if self.members.is_one() {
            return Some((0, self.first()));
        }
        let choice = self.members.choose(&self.without(tried), self.kinds.as_deref());
        choice.map(|choice| (choice.place, self.members.queue(choice.place)))
    }

    /// True if a claim may find a job in another queue of the group than those that were tried.
    pub(super) fn has_others(&self, tried: &[usize]) -> bool {
        !self.members.is_one() && self.members.have_work(&self.without(tried), self.kinds.as_deref())
    }

    /// Returns the queues from which nothing is claimed now, unless maintenance is due there.
    fn without(&self, tried: &[usize]) -> Vec<usize> {
        let tried = tried.iter().filter(|place| !self.members.queue(**place).peek().is_due());
        self.members.aside().0.into_iter().chain(tried.copied()).collect()
    }

    pub(super) fn is_ready(&self) -> bool {
        self.members.have_ready(&self.members.aside().0, self.kinds.as_deref())
    }

    /// True if a claim that found nothing leaves work in other queues.
    pub(super) fn has_more(&self, tried: &[usize]) -> bool {
        // A queue that is set aside needs repair, as a single one would.
        self.has_others(tried) || !self.members.is_one() && self.members.aside().1.is_some()
    }

    /// True if limits hold all ready jobs of a queue, or some of them while nothing else is ready.
    pub(super) fn are_limited(&self) -> bool {
        self.members.queues().any(|queue| queue.peek().is_limited)
    }

    pub(super) fn are_paused(&self) -> bool {
        self.members.queues().all(|queue| queue.peek_for(self.kinds.as_deref()).is_paused)
    }

    /// Sets a queue with an unreadable record aside for a while. Returns false if it is the only
    /// one.
    pub(super) fn set_aside(&self, error: &QueueError) -> bool {
        let QueueError::Store(Error::Corrupt { name, .. }) = error else { return false };
        let is_aside = !self.members.is_one() && self.members.set_aside(name);
        if is_aside {
            let error = error.report();
            tracing::warn!(target: "waterline", queue = name, error, "a record cannot be read; the other queues of the group go on");
        }
        is_aside
    }

    /// Runs due maintenance, for a runner that claims nothing.
    pub(super) fn tidy(&self) -> Result<(), QueueError> {
        match self.members.tidy() {
            Err(error) if self.set_aside(&error) => Ok(()),
            tidied => tidied,
        }
    }

    // Waiting.

    pub(super) fn news(&self) -> u64 {
        self.members.bell().news()
    }

    /// Sleeps until there is news, until maintenance is due, or until the deadline, after these
    /// queues were tried. Returns true if maintenance is due now.
    pub(super) fn sleep(&self, news: u64, deadline: Option<Instant>, takes: Takes, tried: &[usize]) -> bool {
        let (aside, until) = self.members.aside();
        let deadline = deadline.into_iter().chain(until).min();
        // The only queue was just looked at, and anything more than it had is news.
        let looked: &[usize] = if self.members.is_one() { &[0] } else { tried };
        self.members.sleep(news, deadline, (takes, self.kinds.as_deref()), looked, &aside)
    }

    pub(super) fn ring(&self) {
        self.members.bell().ring_all();
    }

    pub(super) fn slot_is_free(&self) {
        self.members.bell().slot_is_free();
    }

    pub(super) fn pass_on(&self) {
        self.members.pass_on(self.kinds.as_deref());
    }
}
