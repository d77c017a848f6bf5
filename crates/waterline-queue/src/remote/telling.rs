//! What follows from the answers to a call: waiters are told, and leases lost to others are marked.

use super::leases::Lost;
use super::opened::Opened;
use super::queues::Remote;
use super::server::Server;
use crate::types::events::Event;
use crate::types::job::JobState;
use std::collections::HashSet;
use std::time::Instant;

impl<S: Server> Remote<S> {
    /// Tells waiters what has happened, and that there were `untold` other changes, and wakes them.
    pub(super) fn tell(&self, queue: &Opened, told: Vec<Event>, untold: u64) {
        if told.is_empty() && untold == 0 {
            return;
        }
        queue.forget_peek();
        queue.shared.told(told, untold);
        queue.wake_all();
        if untold > 0 {
            self.watch(queue, true);
        }
    }

    /// Records jobs that are gone or taken by others, by the answers to a call sent at `called`.
    pub(super) fn note_lost<'t>(&self, queue: &Opened, told: impl Iterator<Item = &'t Event>, called: Instant) -> Lost {
        let lost = told.filter_map(|happened| match happened {
            Event::Seen { id, state, .. } if *state != Some(JobState::Running) => Some(&**id),
            _ => None,
        });
        let lost: HashSet<_> = lost.collect();
        if lost.is_empty() { Lost::default() } else { self.leases.lose(queue.number, &lost, called) }
    }
}
