//! The timeouts of attempts, and the thread that ends overdue ones.
//!
//! All attempts have the same timeout, so the oldest one ends first, and each look begins where the
//! last one stopped. The thread `wl-timeouts` exists only if there is a timeout. No other thread
//! could do its work: the reader may hang in the source, workers in their jobs, and the stall
//! watcher in a subscriber.
//!
//! A deferred attempt then fails. Its token may still be used, without effect, so no other attempt
//! gets it until then. Any other attempt can only be told: the task of an async one drops its
//! future and reports the failure itself.

use crate::base::time::{self, Coarse, Now};
use crate::base::{BoxError, Error, Index, caught::Caught, guard::drop_guarded};
use crate::driver::{Driver, core::Core, flights::Timer};
use crate::run::worker::Report;
use crate::threads::stopping::Overdue;
use std::time::Duration;

/// The most attempts that end in one critical section.
const AT_ONCE: usize = 64;

/// The shortest pause between two looks, long enough for the coarse clock to move on.
const TICK: Duration = Duration::from_millis(1);

/// An overdue attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lapsed {
    token: usize,
    index: Index,
    attempt: u32,
}

/// When to look next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextLook {
    /// After this pause.
    In(Duration),
    /// After one tick: a thread is about to take its next step.
    Soon,
    /// When an attempt begins.
    Called,
    /// Never: the consumer has ended.
    End,
}

impl Core {
    /// Collects at most [`AT_ONCE`] overdue attempts.
    fn look_at_timeouts(&mut self, now: Coarse, lapsed: &mut Vec<Lapsed>) -> NextLook {
        if self.window.has_ended() {
            return NextLook::End;
        }
        while lapsed.len() < AT_ONCE {
            // Abandoned attempts do not count.
            let next = self.running.flights.next_timeout().filter(|_| !self.ending.abandoned);
            let flight = next.and_then(|token| Some((token, *self.running.flights.get(token)?)));
            let Some(timeouts) = &mut self.running.flights.timeouts else { return NextLook::End };
            let Some((token, flight)) = flight else {
                timeouts.idle = true;
                return NextLook::Called;
            };
            if flight.timer == Timer::Off {
                self.running.flights.pass(token, Timer::Off);
                continue;
            }
            let elapsed: Duration = now.duration_since(flight.started).into();
            if elapsed < timeouts.after {
                return NextLook::In((timeouts.after - elapsed).max(TICK));
            }
            let flag = timeouts.flags.get(token);
            if timeouts.fails && timeouts.observed && !flag.is_some_and(Overdue::is_observed) {
                return NextLook::Soon;
            }
            flag.into_iter().for_each(Overdue::begin);
            let timer = if timeouts.fails { Timer::Failing } else { Timer::Overdue };
            self.running.flights.pass(token, timer);
            lapsed.push(Lapsed { token, index: flight.index, attempt: flight.attempt });
        }
        NextLook::In(Duration::ZERO)
    }

    /// Takes the failure of an overdue attempt, unless attempts no longer count. Returns a value to
    /// be dropped without the lock.
    fn time_out(&mut self, token: usize, failure: Caught, now: &Now) -> Option<BoxError> {
        let unheard = self.running.flights.get(token)?.timer == Timer::FailingUnheard;
        if self.ending.abandoned && !unheard {
            // Its token ends it, like that of any abandoned attempt.
            self.running.flights.set_timer(token, Timer::Off);
            return Some(failure.error);
        }
        let flight = if unheard { self.running.flights.end(token) } else { self.running.flights.end_stale(token) };
        match flight.filter(|_| !self.ending.abandoned) {
            Some(flight) => self.attempt_failed(flight, failure, now),
            None => Some(failure.error),
        }
    }

    /// True if the token of a deferred attempt may report it. A late token is given back.
    fn may_report(&mut self, token: usize) -> bool {
        let flights = &mut self.running.flights;
        match flights.get(token).map(|flight| flight.timer) {
            Some(Timer::Failing) => {
                flights.set_timer(token, Timer::FailingUnheard);
                false
            }
            // The time in `on_job_done` and the observers does not count.
            Some(_) => {
                flights.set_timer(token, Timer::Off);
                true
            }
            None => !flights.forget(token),
        }
    }
}

impl Driver {
    /// Ends overdue attempts, or tells them, until the consumer has ended.
    pub(crate) fn watch_timeouts(&self) {
        let mut lapsed = Vec::new();
        let mut core = self.core.lock();
        let Some(bell) = core.running.flights.timeouts.as_ref().map(|timeouts| timeouts.bell.clone()) else { return };
        loop {
            let look = core.look_at_timeouts(self.clock.coarse(), &mut lapsed);
            if !lapsed.is_empty() {
                drop(core);
                self.end_lapsed(&mut lapsed);
                core = self.core.lock();
                continue;
            }
            let until = match look {
                // Beyond the end of the clock means no deadline.
                NextLook::In(pause) => self.clock.now().checked_add(pause),
                NextLook::Called => None,
                NextLook::Soon => {
                    core.wait_until(&bell, Some(time::now() + TICK));
                    continue;
                }
                NextLook::End => return,
            };
            core.wait_by(&self.clock, &bell, until);
        }
    }

    fn end_lapsed(&self, lapsed: &mut Vec<Lapsed>) {
        if !self.fails_overdue {
            let pool = self.core.lock().running.pool.clone();
            for lapsed in lapsed.drain(..) {
                pool.iter().for_each(|pool| pool.overdue(lapsed.index));
            }
            return drop_guarded(pool);
        }
        let after =
            self.core.lock().running.flights.timeouts.as_ref().map_or(Duration::ZERO, |timeouts| timeouts.after);
        let fail = |Lapsed { token, index, attempt }| {
            let error = Error::AttemptTimeout { index, attempt, after };
            let report = Report { token, index, outcome: Err(Caught::boxed(Box::new(error))) };
            if self.observes {
                self.observe_end(std::iter::once(index), &report.outcome);
            }
            report
        };
        let reports: Vec<_> = lapsed.drain(..).map(fail).collect();
        let failed = reports.into_iter().filter_map(|report| Some((report.token, report.outcome.err()?)));
        // A subscriber that hangs must not delay further timeouts.
        let surplus: Vec<_> = self.step_saving(|core, now| {
            failed.filter_map(|(token, failure)| core.time_out(token, *failure, now)).collect()
        });
        drop_guarded(surplus);
    }

    /// True if the token of a deferred attempt may report it. A late token changes nothing, but
    /// until now it has kept the name in use.
    pub(super) fn may_report(&self, token: usize) -> bool {
        let mut core = self.core.lock();
        let may_report = core.may_report(token);
        let tokens = core.running.flights.tokens();
        let name = if may_report { None } else { core.registry.release_name(tokens) };
        drop(core);
        drop_guarded(name);
        may_report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::flights::{Flight, Timeouts};
    use crate::driver::samples;
    use coarsetime::Duration as Ticks;

    const AFTER: Duration = Duration::from_secs(10);

    fn core(fails: bool, observed: bool) -> Core {
        let mut core = samples::core(1000, 1000, time::now());
        core.running.flights.timeouts = Some(Timeouts::new(AFTER, fails, observed));
        core
    }

    /// Begins the attempt of a job, and returns its token.
    fn begin(core: &mut Core, index: Index, now: Coarse) -> usize {
        let token = core.running.flights.begin(Flight::new(index, 1, false, now));
        core.running.flights.timeouts.as_mut().unwrap().begin(token);
        token
    }

    /// Looks once, and returns the jobs whose timeout is over.
    fn look(core: &mut Core, now: Coarse) -> (Vec<Index>, NextLook) {
        let mut lapsed = Vec::new();
        let look = core.look_at_timeouts(now, &mut lapsed);
        (lapsed.iter().map(|lapsed| lapsed.index).collect(), look)
    }

    #[test]
    fn timeouts_end_in_turn_and_only_if_they_count() {
        let (start, mut core) = (time::coarse(), core(false, true));
        let at = |seconds: u64| start + Ticks::from_secs(seconds);
        let called = (Vec::new(), NextLook::Called);
        assert_eq!(look(&mut core, start), called);
        assert!(core.running.flights.timeouts.as_ref().is_some_and(|timeouts| timeouts.idle));
        let tokens: Vec<usize> = (0..5).map(|index| begin(&mut core, index, at(index))).collect();
        assert!(core.running.flights.timeouts.as_ref().is_some_and(|timeouts| !timeouts.idle), "it was called");
        core.running.flights.leave_timeout(tokens[1]);
        let pause =
            |look: NextLook| if let NextLook::In(pause) = look { pause.as_secs_f64().round() } else { f64::NAN };
        let (lapsed, again) = look(&mut core, at(9));
        assert_eq!((lapsed, pause(again)), (vec![], 1.0));
        let (lapsed, again) = look(&mut core, at(10));
        assert_eq!((lapsed, pause(again)), (vec![0], 2.0), "job 1 is at the sink");
        assert!(core.running.flights.end(tokens[2]).is_some());
        let (lapsed, again) = look(&mut core, at(12));
        assert_eq!((lapsed, pause(again)), (vec![], 1.0));
        assert_eq!(look(&mut core, at(99)), (vec![3, 4], NextLook::Called));
        assert_eq!(look(&mut core, at(999)), called, "each is told once");
        // The slots are reused, in another order.
        tokens.into_iter().for_each(|token| _ = core.running.flights.end(token));
        (5..8).for_each(|index| _ = begin(&mut core, index, at(index + 1000)));
        assert_eq!(look(&mut core, at(2000)), (vec![5, 6, 7], NextLook::Called));
    }

    #[test]
    fn timeouts_end_in_pieces_unless_abandoned() {
        let (start, mut core) = (time::coarse(), core(true, false));
        (0..150).for_each(|index| _ = begin(&mut core, index, start));
        let later = start + Ticks::from_secs(10);
        let looks = [(); 3].map(|()| look(&mut core, later));
        assert_eq!(looks.each_ref().map(|(lapsed, _)| lapsed.len()), [64, 64, 22]);
        assert!(looks.iter().flat_map(|(lapsed, _)| lapsed).copied().eq(0..150));
        assert_eq!(
            looks.map(|(_, look)| look),
            [NextLook::In(Duration::ZERO), NextLook::In(Duration::ZERO), NextLook::Called]
        );
        begin(&mut core, 150, start);
        core.ending.abandoned = true;
        assert_eq!(look(&mut core, later), (vec![], NextLook::Called));
    }

    #[test]
    fn observers_hear_of_an_attempt_before_it_times_out() {
        let (start, mut core) = (time::coarse(), core(true, true));
        crate::threads::stopping::Stopping::default().ask_here();
        begin(&mut core, 0, start);
        let later = start + Ticks::from_secs(11);
        assert_eq!(look(&mut core, later), (vec![], NextLook::Soon));
        Overdue::observed_here();
        assert_eq!(look(&mut core, later), (vec![0], NextLook::Called));
        assert!(crate::threads::stopping::here(), "the job is told");
        begin(&mut core, 1, start);
        assert!(!crate::threads::stopping::here(), "the next one has a flag of its own");
    }
}
