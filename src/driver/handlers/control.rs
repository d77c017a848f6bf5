//! The calls of a handle and of a consumer to the driver: status, steering, stop.

#[cfg(feature = "tokio")]
use crate::base::wakers::Wakers;
use crate::base::{Error, Index, config::ConfigError, guard::drop_guarded, time};
use crate::driver::whole::CoreGuard;
use crate::driver::{Driver, core::Core, end_condition::OutOfReach, reading::Bounding};
use crate::observe::busy_key::BusyKey;
use crate::observe::status::{Ended, Status};
use crate::observe::strip::Strip;
use crate::source::watermark::Watermark;
use crate::window::Limits;
use std::time::{Duration, Instant};

/// How long `stop_within` waits for the last save once the jobs' time is over.
const LAST_SAVE: Duration = Duration::from_secs(1);

/// How long `stop_within` at least waits for threads that only announce the last save and end.
const LAST_THREADS: Duration = Duration::from_secs(1);

impl Driver {
    pub(crate) fn check(&self) {
        self.bell.look();
    }

    pub(crate) fn request_stop(&self) {
        let watch = self.step(|core, now| {
            core.window.handle_stop();
            // During the pause the jobs in flight were not watched for stalls.
            core.window.in_flight() > 0 && core.stir(now.get())
        });
        if watch {
            self.spawn_watch();
        }
    }

    /// Ends the consumer once this index is processed.
    pub(crate) fn stop_at(&self, index: Index) {
        self.step(|core, _| core.stop_at(index));
    }

    /// Ends the consumer once everything is processed that the next look at the source finds.
    pub(crate) fn stop_at_head(&self) {
        self.core.lock().reading.bounding = Bounding::Wanted;
        self.bell.look();
    }

    /// Sets what to do when an upstream has ended below the index at which to end.
    pub(crate) fn heed_ended_upstreams(&self, then: OutOfReach) {
        self.step(|core, _| {
            core.gates.reach.then = then;
            core.end_within_reach();
        });
    }

    /// True if there is an index at which to end, and it is processed.
    pub(crate) fn has_reached_its_end(&self) -> bool {
        let window = &self.core.lock().window;
        window.ends_at().is_some_and(|last| last < window.lowest_unprocessed())
    }

    pub(crate) fn upstreams(&self) -> Vec<Watermark> {
        self.core.lock().gates.upstreams.clone()
    }

    /// True on a thread of the consumer, which must not wait for its end.
    pub(crate) fn is_own_thread(&self) -> bool {
        self.threads.is_own_thread()
    }

    pub(crate) fn status(&self) -> Status {
        self.core.lock().status(&self.clock.when_asked())
    }

    pub(crate) fn busiest_key(&self) -> Option<BusyKey> {
        let (index, behind) = self.core.lock().running.keys.as_ref()?.busiest()?;
        Some(BusyKey { index, behind })
    }

    pub(crate) fn strip(&self, most: usize) -> Strip {
        self.core.lock().strip(most, &self.clock.when_asked())
    }

    pub(crate) fn watermark(&self) -> &Watermark {
        &self.watermark
    }

    pub(crate) fn size(&self) -> u64 {
        self.core.lock().window.size()
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Returns the tasks that wait until the owner could join without waiting.
    #[cfg(feature = "tokio")]
    pub(crate) fn awaited(&self) -> &Wakers {
        self.threads.awaited()
    }

    pub(crate) fn set_paused(&self, paused: bool) {
        let watch = self.step(|core, now| {
            core.tenancy.set_paused(paused, &mut core.window);
            core.watching.stalls.moved(now);
            // The observers hear of it even if nothing else happens.
            core.note_steered(now) || !paused && core.stir(now.get())
        });
        if watch {
            self.spawn_watch();
        } else {
            self.stall.notify_all();
        }
    }

    pub(crate) fn set_limits(&self, change: &dyn Fn(&mut Limits)) -> Result<(), Error> {
        let mut core = self.core.lock();
        if core.window.has_ended() {
            return Err(Error::Stopped);
        }
        let mut limits = core.window.limits();
        change(&mut limits);
        core.change_limits(limits, &self.clock.when_asked());
        core.workers.cap = None;
        self.settle(core, &self.clock.when_asked());
        // Surplus threads are asleep if they are idle.
        self.work.notify_all();
        Ok(())
    }

    /// Requests a stop without waiting. The owner no longer counts as present when this returns.
    pub(crate) fn let_go(&self) {
        self.request_stop();
        self.threads.leave_as_owner();
    }

    /// Waits for the end and every thread. The owner no longer counts as present when this returns.
    pub(crate) fn wait_end(&self, limit: Option<Duration>) -> Result<(), Error> {
        if self.threads.is_own_thread() {
            self.let_go();
            return Err(ConfigError::OwnThread.into());
        }
        // A deadline beyond the end of the clock means no deadline.
        let deadline = limit.and_then(|limit| time::now().checked_add(limit));
        let timed_out = self.wait_gone(deadline).or_else(|| self.wait_joined(deadline));
        // After a failed start there may be no thread to do this.
        let own = self.threads.enter();
        if timed_out.is_none() {
            self.threads.clear_up();
        }
        // The caller has to hear of stragglers first. The error of a halt stays in the status and
        // log.
        let error = if timed_out.is_none() { self.core.lock().ending.error.take() } else { None };
        self.threads.leave_as_owner();
        drop(own);
        match (error, timed_out) {
            (Some(error), _) => Err(*error),
            (None, Some(timed_out)) => Err(timed_out),
            (None, None) => Ok(()),
        }
    }

    /// Waits until the owner could join without waiting.
    pub(crate) fn wait_ended(&self, timeout: Duration) -> Option<Ended> {
        // A thread of its own would wait for itself.
        if self.threads.is_own_thread() {
            return None;
        }
        // Beyond the end of the clock means no deadline.
        let deadline = time::now().checked_add(timeout);
        let mut core = self.core.lock();
        core.wait_gone(&self.threads, deadline)
            .then(|| Ended { state: core.state(), error: core.ending.report.clone() })
    }

    /// Waits until only the caller is left. Abandons the running jobs at the deadline.
    fn wait_gone(&self, deadline: Option<Instant>) -> Option<Error> {
        let (mut ended, mut timed_out) = (None, false);
        let mut core = self.core.lock();
        while core.registry.has_others() || !core.window.has_ended() {
            if timed_out {
                drop(core);
                return self.wait_no_more(ended);
            }
            timed_out = core.wait_until(&self.changed, deadline);
            if core.window.has_ended() {
                ended.get_or_insert_with(time::now);
            }
        }
        None
    }

    /// Abandons the running jobs, since their time is over. The last save, its callback and the
    /// threads get a little more time. So a consumer without a running job stops in full even with
    /// a limit of zero, and nothing that hangs is awaited for ever. `ended` is when only threads
    /// were left.
    fn wait_no_more(&self, ended: Option<Instant>) -> Option<Error> {
        let (pool, (running, callback)) = self.step(|core, now| (core.running.pool.clone(), core.abandon(now)));
        self.observe_no_attempts();
        self.end_jobs(pool);
        drop_guarded(callback);
        let mut core = self.wait_while(time::now() + LAST_SAVE, |core| !core.window.has_ended());
        let (saved, until) = (core.window.has_ended(), ended.unwrap_or_else(time::now) + LAST_THREADS);
        drop(core);
        // The threads of stragglers have not ended, so wait only until the last save is announced.
        let is_left = |core: &Core| {
            if running.is_empty() && saved { core.registry.has_others() } else { core.announcing.is_under_way() }
        };
        core = self.wait_while(until, is_left);
        core.announcing.silence();
        if !running.is_empty() || saved && core.registry.has_others() {
            return Some(Error::StopTimeout { running });
        }
        (!saved).then(|| Error::Progress { source: format!("the save has not returned for {LAST_SAVE:?}").into() })
    }

    /// Waits while this condition holds, but no longer than until this time.
    fn wait_while(&self, until: Instant, so: impl Fn(&Core) -> bool) -> CoreGuard<'_> {
        let mut timed_out = false;
        let mut core = self.core.lock();
        while so(&core) && !timed_out {
            timed_out = core.wait_until(&self.changed, Some(until));
        }
        core
    }

    /// Joins threads that have no work left. A user's destructor of a thread-local may hang there,
    /// so the wait has a limit.
    fn wait_joined(&self, deadline: Option<Instant>) -> Option<Error> {
        let deadline = deadline.map(|deadline| deadline.max(time::now() + LAST_THREADS));
        if self.threads.join(deadline) { None } else { Some(Error::StopTimeout { running: Vec::new() }) }
    }
}
