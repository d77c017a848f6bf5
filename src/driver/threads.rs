//! The consumer's own threads: how they are started, counted, and let go.

use super::Driver;
use super::own::Own;
use crate::base::error::{Error, describe};
use crate::base::guard::drop_guarded;
use crate::base::sync::{Arc, Mutex};
use crate::run::work;
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
                me.join_gone();
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

    /// This thread goes while the consumer goes on, and there may be no new one to join it and those that went before it: it joins
    /// the latter, so that but for one nothing is left of them.
    fn join_gone(&self) {
        if self.core.lock().window.has_ended() {
            return; // All are joined by the stop.
        }
        let gone: Vec<JoinHandle<()>>;
        {
            let mut threads = self.threads.lock();
            (gone, *threads) = std::mem::take(&mut *threads).into_iter().partition(JoinHandle::is_finished);
        }
        join_all(gone);
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

#[cfg(test)]
mod tests {
    use crate::driver::control::Control;
    use crate::{Consumer, Done, Handle, Index, MemoryJobs, MemoryProgress};
    use crossbeam_channel::unbounded;
    use std::time::{Duration, Instant};

    /// Longer than anything here takes; only a test that fails waits for it.
    const LONG: Duration = Duration::from_secs(20);

    fn keep(control: &dyn Control, kept: Duration) {
        control.with_workers(&|workers| {
            workers.keep = Some(kept);
            0
        });
    }

    fn threads(control: &dyn Control) -> usize {
        control.with_workers(&|workers| workers.threads)
    }

    fn eventually(what: &str, handle: &Handle, so: impl Fn(&dyn Control) -> bool) {
        let deadline = Instant::now() + LONG;
        while !so(&*handle.control) {
            let (threads, unjoined) = (threads(&*handle.control), handle.control.unjoined());
            assert!(Instant::now() < deadline, "waited in vain for {what}: {threads} threads, {unjoined} to be joined");
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// Half of the jobs of a burst wait for the other half, so each has a thread of its own.
    fn burst(deferred: bool) {
        const BURST: u64 = 40;
        let (jobs, (hand, handed)) = (MemoryJobs::new(), unbounded::<Option<Done>>());
        let (go, gone) = unbounded::<()>();
        let builder = Consumer::builder(jobs.clone(), MemoryProgress::new()).max_processing(BURST as usize);
        let wait = move |done| {
            let _ = hand.send(done);
            let _ = gone.recv_timeout(LONG);
        };
        let consumer = match deferred {
            true => builder.threads(BURST as usize).start_deferred(move |_, done| wait(Some(done))),
            false => builder.start(move |_| {
                wait(None);
                Ok(())
            }),
        };
        let consumer = consumer.unwrap();
        let handle = consumer.handle();
        for round in 1..=3 {
            keep(&*handle.control, LONG);
            (0..BURST).for_each(|_| assert!(jobs.push(()) < Index::MAX));
            let done: Vec<_> = (0..BURST).map(|_| handed.recv_timeout(LONG).expect("each has a thread")).collect();
            assert_eq!(threads(&*handle.control), BURST as usize);
            (0..BURST).for_each(|_| go.send(()).unwrap());
            done.into_iter().flatten().for_each(Done::complete);
            assert!(handle.wait_for(round * BURST - 1, LONG));
            keep(&*handle.control, Duration::from_millis(1));
            // Those that fell asleep before are to sleep again, for less long.
            handle.set_max_processing(BURST as usize).unwrap();
            eventually("the last thread", &handle, |control| threads(control) == 1);
        }
        // The last worker, the reader, the saver, and whoever ended last; those that end at the same time miss each other.
        eventually("the join", &handle, |control| control.unjoined() < BURST as usize);
        consumer.stop().unwrap();
    }

    #[test]
    fn the_threads_of_a_burst_end_but_for_one_and_come_again_with_the_next() {
        burst(false);
    }

    #[test]
    fn the_threads_of_a_burst_of_deferred_jobs_end_but_for_one_and_come_again_with_the_next() {
        burst(true);
    }

    #[test]
    fn no_job_is_lost_to_a_thread_that_ends_as_it_is_woken() {
        let jobs = MemoryJobs::new();
        let consumer = Consumer::builder(jobs.clone(), MemoryProgress::new())
            .max_processing(4)
            .start(|_| {
                std::thread::yield_now();
                Ok(())
            })
            .unwrap();
        let handle = consumer.handle();
        let mut rng = fastrand::Rng::with_seed(7);
        for round in 0..2000u64 {
            keep(&*handle.control, Duration::from_micros(rng.u64(..100)));
            (0..4).for_each(|_| assert!(jobs.push(()) < Index::MAX));
            assert!(handle.wait_for(4 * round + 3, LONG), "in round {round}: {:#?}", handle.status());
        }
        consumer.stop().unwrap();
    }
}
