//! The jobs of a runner: those of a queue, which is a group of one, or those of a group.

use crate::base::clock::{Clock, Moment};
use crate::base::error::Error;
use crate::base::sync::Arc;
use crate::queue::group::members::Members;
use crate::queue::handle::Queue;
use crate::queue::runner::outcome::Unknown;
use crate::queue::runner::running::Running;
use crate::queue::waits::bell::Takes;
use crate::queue::waits::losses::Runs;
use crate::queue::words::error::QueueError;
use std::any::Any;
use std::sync::Weak;
use std::time::Instant;

/// The queues whose jobs a runner runs. They have one clock.
#[derive(Clone)]
pub(super) struct Source(pub(super) Arc<Members>);

impl Source {
    pub(super) fn first(&self) -> &Queue {
        self.0.queue(0)
    }

    pub(super) fn queues(&self) -> Vec<&Queue> {
        self.0.queues().collect()
    }

    /// Returns the name of the queue; of a group, that of its first one.
    pub(super) fn name(&self) -> &str {
        self.first().name()
    }

    pub(super) fn clock(&self) -> &Clock {
        self.first().clock()
    }

    /// True unless the last write of a queue has failed.
    pub(super) fn works(&self) -> bool {
        self.0.queues().all(|queue| !queue.shared.is_failing())
    }

    pub(super) fn moment(&self) -> Moment {
        self.first().moment()
    }

    /// Returns the queue with this number, and its place.
    pub(super) fn by_number(&self, number: u32) -> (usize, &Queue) {
        let found = self.0.queues().enumerate().find(|(_, queue)| queue.number == number);
        found.unwrap_or_else(|| (0, self.first()))
    }

    pub(super) fn place_of(&self, job: &Running) -> usize {
        self.by_number(job.flight().0).0
    }

    pub(super) fn is_one(&self) -> bool {
        self.0.is_one()
    }

    /// Returns how many writes a runner has under way at once, if that is bounded. A group claims
    /// one job in each.
    pub(super) fn writes_at_once(&self) -> Option<usize> {
        let most = self.first().engine.turns_at_once()?;
        Some(if self.is_one() { most } else { 4 * most })
    }

    // The right to run.

    /// Takes the right to run the queues, with so many slots for all of them.
    pub(super) fn take_names(&self, slots: usize) -> Result<Box<dyn Any + Send>, QueueError> {
        let mut names = Vec::new();
        for queue in self.0.queues() {
            let name = queue.shared.take_runner(slots);
            names.push(name.ok_or_else(|| Error::InUse { name: queue.name().to_owned() })?);
        }
        Ok(Box::new(names))
    }

    /// Tells the queues which kinds have a handler, and what becomes of the others.
    pub(super) fn note_handlers<'a>(&self, kinds: impl Iterator<Item = &'a String> + Clone, unknown: Unknown) {
        let snooze = if let Unknown::Snooze(time) = unknown { Some(time) } else { None };
        self.0.queues().for_each(|queue| queue.shared.note_handlers(kinds.clone(), snooze));
    }

    /// Makes the queues tell this runner of the jobs that it loses.
    pub(super) fn tell_losses_to(&self, runner: &Weak<dyn Runs>) {
        self.0.queues().for_each(|queue| queue.shared.losses.begin(queue.number, runner.clone()));
    }

    pub(super) fn set_slots(&self, slots: usize) {
        self.0.queues().for_each(|queue| queue.shared.set_slots(slots));
    }

    /// Notes the gate that is closed. Returns true if that is another one than before.
    pub(super) fn note_gate(&self, gate: Option<&str>) -> bool {
        self.0.queues().fold(false, |is_new, queue| queue.shared.note_gate(gate) | is_new)
    }

    // Claims.

    /// Returns the queue that the next claim takes from; `None`: no queue of the group has a job.
    pub(super) fn choose(&self) -> Option<&Queue> {
        if self.0.is_one() {
            return Some(self.first());
        }
        let (aside, _) = self.0.aside();
        self.0.choose(&aside).map(|choice| self.0.queue(choice.place))
    }

    /// True if a claim may find a job now.
    pub(super) fn is_ready(&self) -> bool {
        self.0.have_ready(&self.0.aside().0)
    }

    /// True if a claim that found nothing leaves work in other queues.
    pub(super) fn has_more(&self) -> bool {
        // Somebody has to mend a queue that is left aside, as it is with a single one.
        !self.0.is_one() && (self.0.have_work() || self.0.aside().1.is_some())
    }

    /// True if limits hold each ready job of the queues, or some of them while nothing else is
    /// ready.
    pub(super) fn are_limited(&self) -> bool {
        self.0.queues().any(|queue| queue.glance().is_limited)
    }

    pub(super) fn are_paused(&self) -> bool {
        self.0.queues().all(|queue| queue.glance().is_paused)
    }

    /// Leaves a queue of a group aside for a while, since a record of it cannot be read: the others
    /// go on. False: there is no other one.
    pub(super) fn set_aside(&self, error: &QueueError) -> bool {
        let QueueError::Store(Error::Corrupt { name, .. }) = error else { return false };
        let is_aside = !self.0.is_one() && self.0.set_aside(name);
        if is_aside {
            let error = error.report();
            tracing::warn!(target: "waterline", queue = name, error, "a record cannot be read; the other queues of the group go on");
        }
        is_aside
    }

    /// Does what time has brought, for a runner that claims nothing.
    pub(super) fn tidy(&self) -> Result<(), QueueError> {
        match self.0.tidy() {
            Err(error) if self.set_aside(&error) => Ok(()),
            tidied => tidied,
        }
    }

    // Waiting.

    pub(super) fn news(&self) -> u64 {
        self.0.bell().news()
    }

    /// Sleeps until there is news, until time brings something, or until the deadline. True: there
    /// is something to do that time has brought.
    pub(super) fn sleep(&self, news: u64, deadline: Option<Instant>, takes: Takes) -> bool {
        let (aside, until) = self.0.aside();
        let deadline = deadline.into_iter().chain(until).min();
        // The only queue was just looked at, and more than what it had is news.
        let looked: &[usize] = if self.0.is_one() { &[0] } else { &[] };
        self.0.sleep(news, deadline, takes, looked, &aside)
    }

    pub(super) fn ring(&self) {
        self.0.bell().ring_all();
    }

    pub(super) fn slot_is_free(&self) {
        self.0.bell().slot_is_free();
    }

    pub(super) fn pass_on(&self) {
        self.0.pass_on();
    }
}
