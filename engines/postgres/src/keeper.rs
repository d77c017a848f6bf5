//! The thread of a store that renews the leases of its consumers and hears notifications. It has
//! one connection while there is anything to do.

use crate::connection::Dial;
use crate::error::Error;
use crate::options::PgOptions;
use crate::sql::Sql;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use waterline::Tenure;

mod serving;
mod shared;
mod thread;
mod wishes;

pub(crate) use shared::NameLease;
use shared::{KeeperShared, OnNotify};
pub(crate) use wishes::{DISCARD, REDRIVE};

/// The thread and its work. Dropping this ends the thread.
pub(crate) struct Keeper {
    shared: Arc<KeeperShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Keeper {
    pub(crate) fn new(dial: Dial, sql: Arc<Sql>, options: PgOptions) -> Self {
        Self { shared: KeeperShared::new(dial, sql, options), thread: Mutex::new(None) }
    }

    /// Renews this lease until the answer is dropped.
    pub(crate) fn keep(&self, lease: Arc<NameLease>) -> Result<Kept, Error> {
        self.shared.work.lock().leases.push(Arc::clone(&lease));
        let kept = Kept { shared: Arc::clone(&self.shared), lease };
        self.begin()?;
        Ok(kept)
    }

    /// Lets this tenure try to take the name whenever it is released, until the answer is dropped.
    pub(crate) fn wait(&self, name: &str, tenure: Tenure) -> Result<Waiting, Error> {
        let key = self.shared.add(|work, key| work.waiting.push((key, name.to_owned(), tenure)));
        let waiting = Waiting { shared: Arc::clone(&self.shared), key };
        self.begin()?;
        Ok(waiting)
    }

    /// Rings at each notification on this channel until the answer is dropped. Also rings when the
    /// thread begins to listen, again after each loss of the connection: a notification may have
    /// been missed.
    pub(crate) fn listen(&self, channel: &str, ring: OnNotify) -> Result<Waiting, Error> {
        let key = self.shared.add(|work, key| work.listeners.push((key, channel.to_owned(), ring)));
        let waiting = Waiting { shared: Arc::clone(&self.shared), key };
        self.begin()?;
        Ok(waiting)
    }

    /// Starts the thread if it does not run, and wakes it.
    fn begin(&self) -> Result<(), Error> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let named = std::thread::Builder::new().name("wl-pg-keeper".to_owned());
            let started = named.spawn(move || thread::run(&shared));
            let advice = "allow this process more threads";
            *thread =
                Some(started.map_err(|error| Error::config(format!("no thread can be started: {error}"), advice))?);
        }
        self.shared.news.notify_one();
        Ok(())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.work.lock().ends = true;
        self.shared.end.notify_one();
        let Some(thread) = self.thread.lock().take() else { return };
        // The thread itself may drop the last consumer, and with it the store.
        if thread.thread().id() != std::thread::current().id() {
            _ = thread.join();
        }
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("runs", &self.thread.lock().is_some()).finish_non_exhaustive()
    }
}

/// A lease that is renewed until this is dropped.
pub(crate) struct Kept {
    shared: Arc<KeeperShared>,
    lease: Arc<NameLease>,
}

impl Kept {
    /// Records that a save sent at this time has renewed the lease.
    pub(crate) fn renewed(&self, sent: Instant) {
        self.shared.renewed(&self.lease, sent);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.shared.forget(&self.lease);
    }
}

/// A waiter or listener that is called until this is dropped.
pub(crate) struct Waiting {
    shared: Arc<KeeperShared>,
    key: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut work = self.shared.work.lock();
        let waiting = work.waiting.iter().position(|(key, ..)| *key == self.key).map(|at| work.waiting.swap_remove(at));
        let listener =
            work.listeners.iter().position(|(key, ..)| *key == self.key).map(|at| work.listeners.swap_remove(at));
        drop(work);
        // Dropping these may run the user's code, so not under the lock.
        drop((waiting, listener));
        self.shared.news.notify_one();
    }
}
