//! What the thread shares with those that give it work.

use crate::connection::Dial;
use crate::error::Error;
use crate::lease::LeaseClock;
use crate::options::PgOptions;
use crate::row::Mine;
use crate::sql::Sql;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Notify;
use tokio_postgres::{Client, IsolationLevel, Transaction};
use waterline::Tenure;

/// Rings the part of this process that listens to a channel.
pub(super) type OnNotify = Arc<dyn Fn() + Send + Sync>;

pub(super) struct KeeperShared {
    pub(super) dial: Dial,
    pub(super) sql: Arc<Sql>,
    pub(super) options: PgOptions,
    pub(super) work: Mutex<Work>,
    /// There is something new to do.
    pub(super) news: Notify,
    /// A lease was renewed whose consumer is held.
    pub(super) moved: Notify,
    /// The thread is to end.
    pub(super) end: Notify,
}

#[derive(Default)]
pub(super) struct Work {
    pub(super) leases: Vec<Arc<NameLease>>,
    /// Those that wait for a name.
    pub(super) waiting: Vec<(u64, String, Tenure)>,
    /// Those that wait for a notification on a channel.
    pub(super) listeners: Vec<(u64, String, OnNotify)>,
    last_key: u64,
    pub(super) ends: bool,
}

/// A name that a life of this process has.
pub(crate) struct NameLease {
    pub(crate) name: String,
    pub(crate) mine: Mine,
    pub(super) tenure: Option<Tenure>,
    pub(super) state: Mutex<LeaseState>,
}

pub(super) struct LeaseState {
    pub(super) clock: LeaseClock,
    /// Why the last renewal did not come through.
    pub(super) failed: String,
    /// True if another process may have left a wish.
    pub(super) wishes: bool,
    /// When to look for wishes even without a notification, which may be missed.
    pub(super) next_look: Instant,
}

impl NameLease {
    /// A lease that was asked for at this time.
    pub(crate) fn new(name: &str, mine: Mine, tenure: Option<Tenure>, clock: LeaseClock) -> Arc<Self> {
        let state = LeaseState { clock, failed: "no answer".to_owned(), wishes: true, next_look: Instant::now() };
        Arc::new(Self { name: name.to_owned(), mine, tenure, state: Mutex::new(state) })
    }
}

impl KeeperShared {
    pub(super) fn new(dial: Dial, sql: Arc<Sql>, options: PgOptions) -> Arc<Self> {
        let (work, news, moved, end) = (Mutex::default(), Notify::new(), Notify::new(), Notify::new());
        Arc::new(Self { dial, sql, options, work, news, moved, end })
    }

    pub(super) fn add(&self, add: impl FnOnce(&mut Work, u64)) -> u64 {
        let mut work = self.work.lock();
        work.last_key += 1;
        let key = work.last_key;
        add(&mut work, key);
        key
    }

    pub(super) fn leases(&self) -> Vec<Arc<NameLease>> {
        self.work.lock().leases.clone()
    }

    /// Records that a renewal sent at this time has come through. The thread tells the consumer, as
    /// the only one, so no such call overtakes another.
    pub(super) fn renewed(&self, lease: &NameLease, sent: Instant) {
        if lease.state.lock().clock.renewed(sent) {
            self.moved.notify_one();
        }
    }

    /// Stops renewing this lease. Returns false if it was forgotten before.
    pub(super) fn forget(&self, lease: &Arc<NameLease>) -> bool {
        let mut work = self.work.lock();
        let at = work.leases.iter().position(|other| Arc::ptr_eq(other, lease)).map(|at| work.leases.swap_remove(at));
        drop(work);
        self.news.notify_one();
        at.is_some()
    }

    pub(super) fn is_idle(&self) -> bool {
        let work = self.work.lock();
        work.leases.is_empty() && work.waiting.is_empty() && work.listeners.is_empty()
    }

    /// Begins a transaction with this crate's settings. A locked row is left for the next round: a
    /// round of all leases waits for a sixth of the TTL at most, so the others are renewed in time.
    pub(super) async fn begin<'a>(&self, client: &'a mut Client) -> Result<Transaction<'a>, Error> {
        let transaction = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).read_only(false);
        let transaction = transaction.start().await?;
        let all = self.leases().len().max(1) as f64;
        let longest = (self.options.ttl.div_f64(6.0 * all).as_millis()).max(1);
        transaction.batch_execute(&format!("{}; SET LOCAL lock_timeout = {longest}", self.sql.settings)).await?;
        Ok(transaction)
    }
}
