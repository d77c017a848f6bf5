//! The threads of the pool: how they are started, and what each does when it goes.

use super::Driver;
use crate::base::error::Error;
use crate::base::guard::drop_guarded;

impl Driver {
    /// Starts a thread of the consumer's own, which `stop` awaits.
    pub(crate) fn spawn(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> Result<(), Error> {
        self.crew.spawn(name, run)
    }

    /// Starts the first thread of the pool, so that a consumer which started can run.
    pub(crate) fn spawn_first_worker(&self) -> Result<(), Error> {
        let mut core = self.core.lock();
        core.workers.threads += 1;
        core.roster.count_in();
        drop(core);
        self.spawn_worker()
    }

    fn spawn_worker(&self) -> Result<(), Error> {
        let pool = self.core.lock().running.pool.clone();
        let (me, stopping) = (self.crew.host().clone(), self.stopping.clone());
        self.crew.spawn_counted("wl-worker", move || {
            stopping.ask_here();
            if let (Some(pool), Some(me)) = (pool, me.upgrade()) {
                me.core.lock().workers.started();
                pool.work(&me);
                drop_guarded(pool);
                // After the end the stop joins all of them.
                if !me.core.lock().window.has_ended() {
                    me.crew.join_finished();
                }
            }
        })
    }

    pub(super) fn spawn_another_worker(&self) {
        if let Err(error) = self.spawn_worker() {
            let mut core = self.core.lock();
            let now = self.clock.when_asked();
            core.workers.refused(now.of_machine());
            core.tell_of_refusal(&error, &now);
            // Meanwhile other threads may have fallen asleep, and none was woken for new work.
            self.settle(core, &now);
        }
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
        // The last worker, the reader, the saver, and whoever ended last; those that end at the
        // same time miss each other.
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
