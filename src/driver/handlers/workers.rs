//! Starting the threads of a consumer.

use crate::base::{Error, guard::drop_guarded};
use crate::driver::Driver;

impl Driver {
    /// Starts a thread of the consumer that `stop` waits for.
    pub(crate) fn spawn(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> Result<(), Error> {
        self.threads.spawn(name, run)
    }

    /// Starts the first thread of the pool, so that a started consumer can run.
    pub(crate) fn spawn_first_worker(&self) -> Result<(), Error> {
        let mut core = self.core.lock();
        core.workers.threads += 1;
        core.registry.count_in();
        drop(core);
        self.spawn_worker()
    }

    fn spawn_worker(&self) -> Result<(), Error> {
        let pool = self.core.lock().running.pool.clone();
        let (me, stopping) = (self.threads.host().clone(), self.stopping.clone());
        self.threads.spawn_counted("wl-worker", move || {
            stopping.ask_here();
            if let (Some(pool), Some(me)) = (pool, me.upgrade()) {
                me.core.lock().workers.started();
                pool.work();
                drop_guarded(pool);
                // After the end, `stop` joins them all.
                if !me.core.lock().window.has_ended() {
                    me.threads.join_finished();
                }
            }
        })
    }

    pub(in crate::driver) fn spawn_another_worker(&self) {
        if let Err(error) = self.spawn_worker() {
            // Other threads may have fallen asleep meanwhile, and none was woken for new work.
            self.step(|core, now| {
                core.workers.refused(now.of_machine());
                core.out.tell_of_refusal(core.window.lowest_undone(), &error, now);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Consumer, Done, Index, MemoryJobs, MemoryProgress};
    use crossbeam_channel::unbounded;
    use std::time::{Duration, Instant};

    /// Longer than anything here takes; only a failing test waits this long.
    const LONG: Duration = Duration::from_secs(20);

    fn keep(driver: &Driver, kept: Duration) {
        driver.core.lock().workers.keep = Some(kept);
    }

    fn threads(driver: &Driver) -> usize {
        driver.core.lock().workers.threads
    }

    fn eventually(what: &str, driver: &Driver, so: impl Fn(&Driver) -> bool) {
        let deadline = Instant::now() + LONG;
        while !so(driver) {
            let (threads, unjoined) = (threads(driver), driver.threads.unjoined());
            assert!(Instant::now() < deadline, "waited in vain for {what}: {threads} threads, {unjoined} to be joined");
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// Half of the jobs of a burst wait for the other half, so each needs a thread of its own.
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
            keep(&handle.control, LONG);
            (0..BURST).for_each(|_| assert!(jobs.push(()) < Index::MAX));
            let done: Vec<_> = (0..BURST).map(|_| handed.recv_timeout(LONG).expect("each has a thread")).collect();
            assert_eq!(threads(&handle.control), BURST as usize);
            (0..BURST).for_each(|_| go.send(()).unwrap());
            done.into_iter().flatten().for_each(Done::complete);
            assert!(handle.wait_for(round * BURST - 1, LONG));
            keep(&handle.control, Duration::from_millis(1));
            // Threads that are already asleep have to sleep again, for the shorter time.
            handle.set_max_processing(BURST as usize).unwrap();
            eventually("the last thread", &handle.control, |driver| threads(driver) == 1);
        }
        // The last worker, the reader, the saver and the last thread to end; threads that end at
        // the same time do not join each other.
        eventually("the join", &handle.control, |driver| driver.threads.unjoined() < BURST as usize);
        consumer.stop().unwrap();
    }

    #[test]
    fn burst_threads_end_but_for_one_and_come_again() {
        burst(false);
    }

    #[test]
    fn threads_of_a_deferred_burst_end_but_for_one() {
        burst(true);
    }

    #[test]
    fn no_job_is_lost_if_a_woken_thread_ends() {
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
        for round in 0..800u64 {
            keep(&handle.control, Duration::from_micros(rng.u64(..100)));
            (0..4).for_each(|_| assert!(jobs.push(()) < Index::MAX));
            assert!(handle.wait_for(4 * round + 3, LONG), "in round {round}: {:#?}", handle.status());
        }
        consumer.stop().unwrap();
    }
}
