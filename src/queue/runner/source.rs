//! The jobs of a runner: those of a queue, or those of a group.

use crate::base::clock::{Clock, Moment};
use crate::base::error::Error;
use crate::base::sync::Arc;
use crate::queue::group::members::Members;
use crate::queue::handle::Queue;
use crate::queue::runner::running::Running;
use crate::queue::waits::bell::Takes;
use crate::queue::words::error::QueueError;
use crate::store::Store;
use std::any::Any;
use std::time::Instant;

/// The queue, or the queues, whose jobs a runner runs. Those of a group have one clock.
#[derive(Clone)]
pub(super) enum Source {
    Queue(Queue),
    Group(Arc<Members>),
}

impl Source {
    /// Returns the only queue, or the first one.
    fn first(&self) -> &Queue {
        match self {
            Self::Queue(queue) => queue,
            Self::Group(members) => members.queue(0),
        }
    }

    pub(super) fn queues(&self) -> Vec<&Queue> {
        match self {
            Self::Queue(queue) => vec![queue],
            Self::Group(members) => members.queues().collect(),
        }
    }

    /// Returns the name of the queue; of a group, that of its first one.
    pub(super) fn name(&self) -> &str {
        self.first().name()
    }

    pub(super) fn store(&self) -> &Store {
        self.first().store()
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.first().inner().options.clock
    }

    /// True if the last write of each queue has succeeded.
    pub(super) fn works(&self) -> bool {
        self.queues().iter().all(|queue| queue.inner().look(|live| live.failing.is_none()))
    }

    pub(super) fn moment(&self) -> Moment {
        self.clock().moment()
    }

    /// Returns the queue with this number, and its place.
    pub(super) fn by_number(&self, number: u32) -> (usize, &Queue) {
        match self {
            Self::Queue(queue) => (0, queue),
            Self::Group(members) => {
                let found = members.queues().enumerate().find(|(_, queue)| queue.inner().keys.0 == number);
                found.unwrap_or_else(|| (0, members.queue(0)))
            }
        }
    }

    pub(super) fn place_of(&self, job: &Running) -> usize {
        self.by_number(job.flight().0).0
    }

    // The right to run.

    /// Takes the right to run the queues, with so many slots for all of them.
    pub(super) fn take_names(&self, slots: usize) -> Result<Box<dyn Any + Send>, QueueError> {
        let mut names = Vec::new();
        for queue in self.queues() {
            let name = queue.inner().take_runner(slots);
            names.push(name.ok_or_else(|| Error::InUse { name: queue.name().to_owned() })?);
        }
        Ok(Box::new(names))
    }

    pub(super) fn set_slots(&self, slots: usize) {
        self.queues().iter().for_each(|queue| queue.inner().set_slots(slots));
    }

    /// Notes the gate that is closed. Returns true if that is another one than before.
    pub(super) fn note_gate(&self, gate: Option<&str>) -> bool {
        self.queues().iter().fold(false, |is_new, queue| queue.inner().note_gate(gate) | is_new)
    }

    // Claims.

    /// Returns the queue that the next claim takes from; `None`: no queue of the group has a job.
    pub(super) fn choose(&self) -> Result<Option<&Queue>, QueueError> {
        let Self::Group(members) = self else { return Ok(Some(self.first())) };
        let (aside, _) = members.aside();
        let queue = members.choose(&aside, None).map(|choice| members.queue(choice.place));
        queue.map_or(Ok(()), Queue::take_back_silent)?;
        Ok(queue)
    }

    /// Takes back the jobs whose workers were silent for too long. A group does it when it chooses.
    pub(super) fn take_back_silent(&self) -> Result<(), QueueError> {
        if let Self::Queue(queue) = self { queue.take_back_silent() } else { Ok(()) }
    }

    /// Returns the number of entries that a claim may find now; of a group, 1 if there is any.
    pub(super) fn ready(&self) -> u64 {
        match self {
            Self::Queue(queue) => {
                let wall = self.moment().wall;
                queue
                    .inner()
                    .look(|live| if live.head.is_paused(wall) || live.gate.is_full(wall) { 0 } else { live.ready() })
            }
            Self::Group(members) => u64::from(members.have_ready(&members.aside().0)),
        }
    }

    /// True if a claim that found nothing leaves work in other queues.
    pub(super) fn has_more(&self) -> bool {
        match self {
            Self::Queue(_) => false,
            // Somebody has to mend a queue that is left aside, as it is with a single one.
            Self::Group(members) => members.have_work() || members.aside().1.is_some(),
        }
    }

    /// True if limits hold each ready job of the queues, or some of them while nothing else is
    /// ready.
    pub(super) fn are_limited(&self) -> bool {
        let wall = self.moment().wall;
        let is_limited = |queue: &&Queue| queue.inner().look(|live| live.is_limited(wall));
        self.queues().iter().any(is_limited)
    }

    pub(super) fn are_paused(&self) -> bool {
        let wall = self.moment().wall;
        self.queues().iter().all(|queue| queue.inner().look(|live| live.head.is_paused(wall)))
    }

    /// Leaves a queue of a group aside for a while, since a record of it cannot be read: the others
    /// go on. False: there is no other one.
    pub(super) fn set_aside(&self, error: &QueueError) -> bool {
        let (Self::Group(members), QueueError::Store(Error::Corrupt { name, .. })) = (self, error) else {
            return false;
        };
        let is_aside = members.set_aside(name);
        if is_aside {
            let error = error.report();
            tracing::warn!(target: "waterline", queue = name, error, "a record cannot be read; the other queues of the group go on");
        }
        is_aside
    }

    /// Does what time has brought, for a runner that claims nothing.
    pub(super) fn tidy(&self) -> Result<(), QueueError> {
        match self {
            Self::Queue(queue) => queue.tidy(),
            Self::Group(members) => match members.tidy() {
                Err(error) if self.set_aside(&error) => Ok(()),
                tidied => tidied,
            },
        }
    }

    // Waiting.

    pub(super) fn news(&self) -> u64 {
        match self {
            Self::Queue(queue) => queue.inner().news(),
            Self::Group(members) => members.bell().news(),
        }
    }

    pub(super) fn sleep(&self, news: u64, deadline: Option<Instant>, takes: Takes) -> bool {
        match self {
            Self::Queue(queue) => queue.inner().sleep(news, deadline, takes),
            Self::Group(members) => {
                let (aside, until) = members.aside();
                let deadline = deadline.into_iter().chain(until).min();
                members.sleep(news, deadline, takes, &[], &aside)
            }
        }
    }

    /// Makes every thread that waits look again.
    pub(super) fn ring(&self) {
        match self {
            Self::Queue(queue) => queue.inner().ring(),
            Self::Group(members) => members.bell().ring_all(),
        }
    }

    pub(super) fn slot_is_free(&self) {
        match self {
            Self::Queue(queue) => queue.inner().slot_is_free(),
            Self::Group(members) => members.bell().slot_is_free(),
        }
    }

    /// Wakes one thread that waits, since there is more than the caller takes.
    pub(super) fn pass_on(&self) {
        match self {
            Self::Queue(queue) => queue.inner().pass_on(),
            Self::Group(members) => members.pass_on(),
        }
    }
}
