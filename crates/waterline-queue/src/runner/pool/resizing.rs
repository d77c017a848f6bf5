//! Changing how many jobs run at once, and the threads for them, while the runner runs.

use crate::runner::pool::line::Turn;
use crate::runner::pool::{Pool, State};
use std::sync::Arc;

impl Pool {
    /// Sets how many jobs are in flight at most. Surplus threads end when they have no job.
    pub(in crate::runner) fn resize(self: &Arc<Self>, max_processing: usize) {
        let is_first_full = {
            let mut state = self.state.lock();
            state.slots.max_processing = max_processing;
            self.source().set_slots(max_processing);
            self.is_first_full(&mut state)
        };
        if is_first_full {
            self.spawn_watch();
        }
        // All threads may be in handlers, so none looks for a job that may start now.
        self.grow();
        self.source().ring();
    }

    /// Takes a thread out of the line. Returns true if it ends: then it is counted out in the same
    /// critical section, so that no other thread relies on it to look for a job.
    pub(super) fn leave_line(&self, turn: &Turn) -> bool {
        let mut state = self.state.lock();
        state.slots.in_line -= 1;
        let ends = match turn {
            Turn::End => true,
            // More jobs may be allowed by now.
            Turn::Leave => state.has_too_many(),
            Turn::Job(_) | Turn::Claim(_) => false,
        };
        state.slots.threads -= usize::from(ends);
        ends
    }

    pub(super) fn has_too_many(&self) -> bool {
        self.state.lock().has_too_many()
    }
}

impl State {
    /// True if a thread in the line may end. More jobs may be in flight than are allowed now. There
    /// is a thread for each, so that one is left in the line for the ends of deferred jobs.
    fn has_too_many(&self) -> bool {
        !self.drain.ending && self.slots.threads > self.slots.needed()
    }
}

#[cfg(test)]
mod tests {
    use crate::handle::Queue;
    use crate::runner::handle::Runner;
    use crate::runner::outcome::Outcome;
    use crate::types::new_job::NewJob;
    use crate::types::options::QueueOptions;
    use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
    use std::time::{Duration, Instant};
    use waterline::Store;

    /// Longer than anything here takes; only a failing test waits this long.
    const LONG: Duration = Duration::from_secs(60);

    /// A runner of long jobs of the kind `k`: each reports its start, and ends by a channel.
    fn runner(jobs: usize, max_processing: usize) -> (Queue, Runner, Receiver<()>, Sender<()>) {
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap();
        let ((begun, begins), (end, ends)) = (unbounded(), bounded(0));
        let builder = Runner::builder(&queue).on("k", move |_, ()| {
            begun.send(()).unwrap();
            ends.recv()?;
            Ok(Outcome::Done)
        });
        let runner = builder.max_processing(max_processing).start().unwrap();
        queue.push_all((0..jobs).map(|_| NewJob::new("k", &()).unwrap())).unwrap();
        (queue, runner, begins, end)
    }

    /// Waits until the pool counts this many threads, and the others have ended.
    #[track_caller]
    fn until_threads(runner: &Runner, wanted: usize) {
        let (pool, until) = (runner.pool.as_ref().unwrap(), Instant::now() + LONG);
        let threads = || {
            let watchers = watchers(runner);
            (pool.state.lock().slots.threads, pool.threads.running() - watchers)
        };
        while threads() != (wanted, wanted) {
            assert!(Instant::now() < until, "{:?} threads, and not {wanted}", threads());
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// A test beside this one may subscribe to the log, so that a thread watches.
    fn watchers(runner: &Runner) -> usize {
        usize::from(runner.pool.as_ref().unwrap().state.lock().slots.is_watched)
    }

    #[test]
    fn surplus_threads_end_when_idle_and_return_with_slots() {
        let (queue, runner, begins, end) = runner(6, 6);
        (0..6).for_each(|_| begins.recv_timeout(LONG).unwrap());
        runner.set_max_processing(2).unwrap();
        // Each thread that leaves joins the one before it, which has to have ended.
        for left in [5, 4, 3, 2, 2, 2] {
            end.send_timeout((), LONG).unwrap();
            until_threads(&runner, left);
        }
        assert!(runner.pool.as_ref().unwrap().threads.unjoined() <= 3 + watchers(&runner));
        runner.set_max_processing(5).unwrap();
        queue.push_all((0..5).map(|_| NewJob::new("k", &()).unwrap())).unwrap();
        (0..5).for_each(|_| begins.recv_timeout(LONG).unwrap());
        until_threads(&runner, 5);
        (0..5).for_each(|_| end.send_timeout((), LONG).unwrap());
        runner.stop().unwrap();
        assert_eq!(queue.counts().finished, 11);
    }

    #[test]
    fn a_busy_runner_starts_more_jobs_once_it_may() {
        let (queue, runner, begins, end) = runner(3, 1);
        begins.recv_timeout(LONG).unwrap();
        until_threads(&runner, 1);
        runner.set_max_processing(3).unwrap();
        (0..2).for_each(|_| begins.recv_timeout(LONG).unwrap());
        (0..3).for_each(|_| end.send_timeout((), LONG).unwrap());
        runner.stop().unwrap();
        assert_eq!(queue.counts().finished, 3);
    }
}
