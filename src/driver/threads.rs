//! The consumer's own threads: how they are started, counted, and let go.

use super::Driver;
use super::own::Own;
use crate::error::{Error, describe, drop_guarded};
use crate::pool::work;
use crate::sync::{Arc, Mutex};
use crossbeam_channel::{RecvTimeoutError, bounded};
use std::sync::Weak;
use std::thread::JoinHandle;
use std::time::Instant;

impl<T: Send + 'static> Driver<T> {
    /// Starts a thread of the consumer's own, which `stop` awaits.
    pub(crate) fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        self.core.lock().present += 1;
        self.spawn_present(name, run)
    }

    /// Starts a thread that is counted as present already.
    pub(super) fn spawn_present(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let (me, owner) = (self.me.clone(), self.owner);
        // Held until the thread is on the list, so that `stop` finds it there however short it lives.
        let mut threads = self.threads.lock();
        // Threads come and go with the limits. Those that went are joined by the new one, since what is left of them, the
        // destructors of the user's thread-locals, is to be over when `stop` returns, and may take its time.
        let crowded = threads.len() == threads.capacity();
        let mut gone: Vec<JoinHandle<()>> = Vec::new();
        if crowded {
            (gone, *threads) = std::mem::take(&mut *threads).into_iter().partition(JoinHandle::is_finished);
        }
        let last = self.expect_thread();
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            last.stay();
            Own::enter_for_good(owner);
            let _leaving = Leaving(me);
            run();
            join_all(gone);
        });
        match spawned {
            Ok(handle) => {
                threads.push(handle);
                Ok(())
            }
            Err(source) => {
                drop(threads);
                self.leave();
                Err(Error::Spawn { source })
            }
        }
    }

    /// Starts the first thread of the pool, so that a consumer which started can run.
    pub(crate) fn spawn_first_worker(&self) -> Result<(), Error> {
        let mut core = self.core.lock();
        core.workers.threads += 1;
        core.present += 1;
        drop(core);
        self.spawn_worker()
    }

    fn spawn_worker(&self) -> Result<(), Error> {
        let runner = self.core.lock().runner.clone();
        let (me, stopping) = (self.me.clone(), self.stopping.clone());
        self.spawn_present("wl-worker", move || {
            stopping.ask_here();
            if let (Some(runner), Some(me)) = (runner, me.upgrade()) {
                me.core.lock().workers.waking = false;
                work(&*me, &*runner);
                drop_guarded(runner);
            }
        })
    }

    pub(super) fn spawn_another_worker(&self) {
        if let Err(error) = self.spawn_worker() {
            let mut core = self.core.lock();
            core.workers.refused(Instant::now());
            core.tell_of_refusal(&error);
            // Meanwhile others may have fallen asleep, and nobody was woken for what came then.
            self.settle(core);
        }
    }

    /// Drops what the end leaves behind, if it has come: on one of our own threads, so that a destructor which stops this
    /// consumer does not wait for itself.
    pub(super) fn clear_up(&self) {
        let mut core = self.core.lock();
        if core.window.has_ended() {
            let garbage = core.garbage.take();
            drop(core);
            let saves = self.saves.lock().take();
            drop_guarded(saves);
            drop_guarded(garbage);
        }
    }

    /// A thread of ours panicked: whatever it was about to report never comes.
    fn give_up(&self) {
        let mut core = self.core.lock();
        let index = core.window.lowest_undone();
        let surplus = core.halt(index, Error::Thread.to_string(), Error::Thread, "");
        let (_, callback) = core.abandon();
        self.settle(core);
        drop_guarded(surplus);
        drop_guarded(callback);
    }

    /// A thread, or the consumer itself, is gone; the last one to go frees the name.
    pub(super) fn leave(&self) {
        let mut core = self.core.lock();
        core.present -= 1;
        let claim = core.released();
        let unheard = if core.present == 0 { core.error.take() } else { None };
        self.someone_left(&core);
        drop(core);
        self.changed.notify_all();
        drop_guarded(claim);
        if let Some(error) = unheard {
            tracing::error!(error = describe(&error), "a consumer ended with an error after it was let go");
            drop_guarded(error);
        }
    }
}

/// A panic was seen to by the thread itself.
pub(super) fn join_all(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("one of the consumer's threads panicked");
        }
    }
}

/// The same, but not beyond this time; whether all have ended. As no thread can be joined with a limit, another one does that.
pub(super) fn join_until(threads: Vec<JoinHandle<()>>, deadline: Instant) -> bool {
    let threads = Arc::new(Mutex::new(threads));
    let (ended, all_ended) = bounded::<()>(0);
    let joined = {
        let threads = threads.clone();
        move || {
            let threads = std::mem::take(&mut *threads.lock());
            join_all(threads);
            drop(ended);
        }
    };
    let Ok(joiner) = std::thread::Builder::new().name("wl-stop".to_owned()).spawn(joined) else {
        let threads = std::mem::take(&mut *threads.lock());
        join_all(threads);
        return true;
    };
    let in_time = all_ended.recv_deadline(deadline) == Err(RecvTimeoutError::Disconnected);
    if in_time {
        join_all(vec![joiner]);
    }
    in_time
}

/// Counts a thread out, also when it panicked.
struct Leaving<T: Send + 'static>(Weak<Driver<T>>);

impl<T: Send + 'static> Drop for Leaving<T> {
    fn drop(&mut self) {
        let Some(driver) = self.0.upgrade() else { return };
        if std::thread::panicking() {
            driver.give_up();
        }
        driver.clear_up();
        driver.leave();
    }
}
