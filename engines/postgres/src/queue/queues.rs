//! The queues of one database, and what this process has in memory for all of them.

use super::idle::Idle;
use super::leases::Leases;
use super::opened::Opened;
use super::presence::Own;
use super::watch::Watching;
use crate::connection::Connection;
use crate::store::PgStore;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Instant;
use waterline_queue::engine_api::{Counts, OpenQueues, QueueNo};

pub(super) struct Queues {
    pub(super) store: PgStore,
    pub(super) open: OpenQueues,
    pub(super) queues: RwLock<BTreeMap<QueueNo, Arc<Opened>>>,
    /// A pooler gives the calls sessions of another isolation level than they need.
    pub(super) says_level: AtomicBool,
    pub(super) idle: Idle<Connection>,
    pub(super) leases: Arc<Leases>,
    /// The last counts of each queue, and when they came.
    pub(super) counted: Mutex<BTreeMap<QueueNo, (Instant, Counts)>>,
    pub(super) watching: Arc<Watching>,
    pub(super) own: Arc<Own>,
    pub(super) me: Weak<Self>,
}

/// Keep-alive guard of an open queue.
pub(super) struct Keep {
    pub(super) queues: Weak<Queues>,
    pub(super) number: QueueNo,
}

impl Drop for Keep {
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

impl PgStore {
    /// Returns the job queues of this database. Each open one holds the store.
    pub(super) fn queues(&self) -> Arc<Queues> {
        self.queues_or(|| Queues::new(self.clone()))
    }
}

impl Queues {
    fn new(store: PgStore) -> Arc<Self> {
        let (open, queues) = (OpenQueues::default(), RwLock::default());
        let idle = Idle::new(store.options().idle);
        let own = Arc::new(Own::new(&store.options().holder));
        Arc::new_cyclic(|me| Self {
            store,
            open,
            queues,
            says_level: AtomicBool::default(),
            idle,
            leases: Arc::default(),
            counted: Mutex::default(),
            watching: Default::default(),
            own,
            me: me.clone(),
        })
    }

    pub(super) fn of(&self, queue: QueueNo) -> Arc<Opened> {
        let queues = self.queues.read();
        let Some(opened) = queues.get(&queue) else { unreachable!("a queue is open while somebody asks for it") };
        Arc::clone(opened)
    }
}
