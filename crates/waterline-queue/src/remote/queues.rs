//! The queues of one server, and what this process has in memory for all of them.

use super::answers::{Answer, happened, untold};
use super::leases::Leases;
use super::opened::Opened;
use super::presence::Own;
use super::server::{Runs, Server};
use super::watch::Watching;
use crate::engine::{Held, QueueNo};
use crate::notify::shared::{OpenQueues, Shared};
use crate::types::job::Counts;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The engine of the queues on a server.
pub struct Remote<S> {
    pub(super) server: S,
    pub(super) open: OpenQueues,
    pub(super) queues: RwLock<BTreeMap<QueueNo, Arc<Opened>>>,
    pub(super) leases: Arc<Leases>,
    /// The last counts of each queue, and when they came.
    pub(super) counted: Mutex<BTreeMap<QueueNo, (Instant, Counts)>>,
    pub(super) watching: Arc<Watching>,
    pub(super) own: Arc<Own>,
    pub(super) me: Weak<Self>,
}

/// Keep-alive guard of an open queue.
pub(super) struct Keep<S> {
    pub(super) queues: Weak<Remote<S>>,
    pub(super) number: QueueNo,
}

impl<S> Drop for Keep<S> {
    fn drop(&mut self) {
        let Some(queues) = self.queues.upgrade() else { return };
        let mut open = queues.queues.write();
        // It may have been opened again meanwhile.
        let closed = open.get(&self.number).is_some_and(|queue| queue.keep.strong_count() == 0);
        let closed = if closed { open.remove(&self.number) } else { None };
        drop(open);
        drop(closed);
    }
}

impl<S: Server> Remote<S> {
    pub fn new(server: S) -> Arc<Self> {
        let own = Arc::new(Own::new(server.worker()));
        Arc::new_cyclic(|me| Self {
            server,
            open: OpenQueues::default(),
            queues: RwLock::default(),
            leases: Arc::default(),
            counted: Mutex::default(),
            watching: Arc::default(),
            own,
            me: me.clone(),
        })
    }

    pub fn server(&self) -> &S {
        &self.server
    }

    pub(super) fn of(&self, queue: QueueNo) -> Arc<Opened> {
        let queues = self.queues.read();
        let Some(opened) = queues.get(&queue) else { unreachable!("a queue is open while a call asks for it") };
        Arc::clone(opened)
    }

    // For calls of one server alone: ends and pushes in a transaction of the user's.

    pub fn shared(&self, queue: QueueNo) -> Arc<Shared> {
        Arc::clone(&self.of(queue).shared)
    }

    pub fn lease(&self, queue: QueueNo) -> Duration {
        self.of(queue).lease()
    }

    /// Returns the time of a clock that a test has set.
    pub fn clock(&self, queue: QueueNo) -> Option<u64> {
        self.of(queue).clock()
    }

    pub fn runs<'j>(&self, jobs: impl IntoIterator<Item = &'j Held>) -> Runs {
        self.leases.runs(jobs.into_iter())
    }

    /// Forgets a lease, since its job has ended or is lost.
    pub fn forget(&self, job: &Held) {
        self.leases.remove(job);
    }

    /// Notes that the end of a job was sent without an answer.
    pub fn doubt(&self, job: &Held) {
        self.leases.doubt(std::iter::once(job));
    }

    /// Tells waiters what has happened, by these answers.
    pub fn tell_of(&self, queue: QueueNo, answers: &[Answer]) {
        self.tell(&self.of(queue), happened(answers), untold(answers));
    }
}
