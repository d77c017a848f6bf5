//! What a handle and a consumer ask of the driver: watching, steering, and the end.

use super::Driver;
use super::core::{Bounding, Core};
use super::reach::OutOfReach;
use crate::base::config::ConfigError;
use crate::base::error::Error;
use crate::base::guard::drop_guarded;
use crate::base::index::Index;
use crate::base::sync::MutexGuard;
#[cfg(test)]
use crate::crew::workers::Workers;
use crate::observe::ended::Ended;
use crate::observe::status::Status;
use crate::source::watermark::Watermark;
use crate::window::Limits;
use std::time::{Duration, Instant};

/// How long `stop_within` waits for the last save once the jobs' time is over.
const LAST_SAVE: Duration = Duration::from_secs(1);

/// How long `stop_within` waits at least for threads that have nothing left to do but to tell `on_processed` of the last save,
/// and to end.
const LAST_THREADS: Duration = Duration::from_secs(1);

/// What a handle can do, whatever the jobs are.
pub(crate) trait Control: Send + Sync {
    fn check(&self);
    fn request_stop(&self);
    /// Ends once this index is processed.
    fn stop_at(&self, index: Index);
    /// Ends once what the source has from now on, when it is next asked, is processed.
    fn stop_at_head(&self);
    /// Says what is to be done if an upstream has ended below the index to end at.
    fn heed_ended_upstreams(&self, then: OutOfReach);
    /// True if there is an index to end at, and it is processed.
    fn has_reached_its_end(&self) -> bool;
    /// Whose watermarks its gate depends on.
    fn upstreams(&self) -> Vec<Watermark>;
    /// Whether this is one of its own threads, which must not wait for its end.
    fn is_own_thread(&self) -> bool;
    fn status(&self) -> Status;
    fn watermark(&self) -> &Watermark;
    fn size(&self) -> u64;
    fn wait_for(&self, index: Index, timeout: Duration) -> bool;
    /// Waits until its owner would not have to wait for the end.
    fn wait_ended(&self, timeout: Duration) -> Option<Ended>;
    fn set_paused(&self, paused: bool);
    fn set_limits(&self, change: &dyn Fn(&mut Limits)) -> Result<(), Error>;
    /// Asks it to stop, and waits for nothing: the consumer itself has left when this returns.
    fn let_go(&self);
    /// Waits for the end and for every thread; the consumer itself has left when this returns.
    fn wait_end(&self, limit: Option<Duration>) -> Result<(), Error>;
    #[cfg(test)]
    fn with_workers(&self, change: &dyn Fn(&mut Workers) -> usize) -> usize;
    /// Threads that were not joined.
    #[cfg(test)]
    fn unjoined(&self) -> usize;
}

impl<T: Send + 'static> Control for Driver<T> {
    fn check(&self) {
        self.bell.look();
    }

    fn request_stop(&self) {
        let mut core = self.core.lock();
        core.window.handle_stop();
        // Jobs that were in flight while it was paused were nothing to watch.
        let watch = core.window.in_flight() > 0 && core.stir(Instant::now());
        self.settle(core);
        if watch {
            self.spawn_watch();
        }
    }

    fn stop_at(&self, index: Index) {
        let mut core = self.core.lock();
        core.stop_at(index);
        self.settle(core);
    }

    fn stop_at_head(&self) {
        self.core.lock().source.bounding = Bounding::Wanted;
        self.bell.look();
    }

    fn heed_ended_upstreams(&self, then: OutOfReach) {
        let mut core = self.core.lock();
        core.reach.then = then;
        core.end_within_reach();
        self.settle(core);
    }

    fn has_reached_its_end(&self) -> bool {
        let window = &self.core.lock().window;
        window.ends_at().is_some_and(|last| last < window.lowest_unprocessed())
    }

    fn upstreams(&self) -> Vec<Watermark> {
        self.core.lock().upstreams.clone()
    }

    fn is_own_thread(&self) -> bool {
        self.crew.is_own_thread()
    }

    fn status(&self) -> Status {
        self.core.lock().status(Instant::now())
    }

    fn watermark(&self) -> &Watermark {
        &self.watermark
    }

    fn size(&self) -> u64 {
        self.core.lock().window.size()
    }

    fn wait_for(&self, index: Index, timeout: Duration) -> bool {
        // Beyond the clock's end is for ever.
        let deadline = Instant::now().checked_add(timeout);
        let mut core = self.core.lock();
        loop {
            if core.window.last_processed().is_some_and(|last| last >= index) {
                return true;
            }
            if core.never(index) || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return false;
            }
            self.wait_called(&mut core, index, deadline);
        }
    }

    fn wait_ended(&self, timeout: Duration) -> Option<Ended> {
        self.wait_everybody_gone(timeout)
    }

    fn set_paused(&self, paused: bool) {
        let mut core = self.core.lock();
        core.set_paused(paused);
        core.stalls.moved();
        let watch = !paused && core.stir(Instant::now());
        self.settle(core);
        if watch {
            self.spawn_watch();
        }
    }

    fn set_limits(&self, change: &dyn Fn(&mut Limits)) -> Result<(), Error> {
        let mut core = self.core.lock();
        if core.window.has_ended() {
            return Err(Error::Stopped);
        }
        let mut limits = core.window.limits();
        change(&mut limits);
        core.window.set_limits(limits);
        core.fit_prefetch();
        core.workers.cap = None;
        self.settle(core);
        // Threads that are now too many are asleep, if they are idle.
        self.work.notify_all();
        Ok(())
    }

    fn let_go(&self) {
        self.request_stop();
        self.crew.leave_as_owner();
    }

    fn wait_end(&self, limit: Option<Duration>) -> Result<(), Error> {
        if self.crew.is_own_thread() {
            self.let_go();
            return Err(ConfigError::OwnThread.into());
        }
        // Beyond the clock's end is for ever.
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let timed_out = self.wait_gone(deadline).or_else(|| self.wait_joined(deadline));
        // For a start that failed before there was a thread to do it.
        let own = self.crew.enter();
        if timed_out.is_none() {
            self.crew.clear_up();
        }
        // While stragglers run, that is what the caller has to know; what halted it is in the status, and is logged.
        let error = if timed_out.is_none() { self.core.lock().error.take() } else { None };
        self.crew.leave_as_owner();
        drop(own);
        match (error, timed_out) {
            (Some(error), _) => Err(error),
            (None, Some(timed_out)) => Err(timed_out),
            (None, None) => Ok(()),
        }
    }

    #[cfg(test)]
    fn with_workers(&self, change: &dyn Fn(&mut Workers) -> usize) -> usize {
        change(&mut self.core.lock().workers)
    }

    #[cfg(test)]
    fn unjoined(&self) -> usize {
        self.crew.unjoined()
    }
}

impl<T: Send + 'static> Driver<T> {
    /// Waits until nobody but the caller is left. When the deadline passes, what runs is given up.
    fn wait_gone(&self, deadline: Option<Instant>) -> Option<Error> {
        let mut ended = None;
        let mut core = self.core.lock();
        while core.roster.has_others() || !core.window.has_ended() {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                drop(core);
                return self.wait_no_more(ended);
            }
            self.wait_changed(&mut core, deadline);
            if core.window.has_ended() {
                ended.get_or_insert_with(Instant::now);
            }
        }
        None
    }

    /// The jobs' time is over: those that run are given up. What is left to do after them is given a little time of its own, so
    /// that a consumer without a job that runs is stopped in full, also by those who grant it no time; but nothing that hangs is
    /// awaited for ever. `ended` says since when there are only threads to end.
    fn wait_no_more(&self, ended: Option<Instant>) -> Option<Error> {
        let mut core = self.core.lock();
        let (running, callback) = core.abandon();
        self.settle(core);
        drop_guarded(callback);
        let mut core = self.wait_while(Instant::now() + LAST_SAVE, |core| !core.window.has_ended());
        let (saved, until) = (core.window.has_ended(), ended.unwrap_or_else(Instant::now) + LAST_THREADS);
        drop(core);
        // The threads of stragglers have not ended, so all that can be awaited is that the last save is announced.
        let is_left =
            |core: &Core<T>| if running.is_empty() && saved { core.roster.has_others() } else { core.is_announcing() };
        core = self.wait_while(until, is_left);
        core.silence();
        if !running.is_empty() || saved && core.roster.has_others() {
            return Some(Error::StopTimeout { running });
        }
        (!saved).then(|| Error::Progress { source: format!("the save has not returned for {LAST_SAVE:?}").into() })
    }

    /// Waits while this is so, but not beyond this time.
    fn wait_while(&self, until: Instant, so: impl Fn(&Core<T>) -> bool) -> MutexGuard<'_, Core<T>> {
        let mut core = self.core.lock();
        while so(&core) && Instant::now() < until {
            self.wait_changed(&mut core, Some(until));
        }
        core
    }

    /// Waits until the threads, which have nothing left to do, have ended: the destructors of the user's thread-locals run
    /// there, and one that hangs is not awaited for ever.
    fn wait_joined(&self, deadline: Option<Instant>) -> Option<Error> {
        let deadline = deadline.map(|deadline| deadline.max(Instant::now() + LAST_THREADS));
        if self.crew.join(deadline) { None } else { Some(Error::StopTimeout { running: Vec::new() }) }
    }
}
