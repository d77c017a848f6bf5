//! The turns of suspects: one of them at a time runs alone, once nothing else is in flight.

use super::Alone;
use crate::base::caught::Failure;
use crate::base::error::Error;
use crate::base::index::{BoxError, Index};
use crate::base::time::Now;
use crate::driver::core::Core;
use crate::driver::failures::Failed;
use crate::observe::{Event, Kind};

impl Core {
    /// Lets the next suspect run alone, once nothing is in flight.
    pub(super) fn give_turn(&mut self, now: &Now) {
        let (in_flight, paused) = (self.window.in_flight(), self.window.is_paused());
        let (turn_held, writes) = (self.running.aside.held, self.has_to_write());
        let Some(care) = self.care() else { return };
        // The count of the next one and the end of the last one are one save. In order, the sink
        // may have a turn between them.
        let settles = matches!(care.alone, Alone::Settling(_)) && !care.in_order;
        if (care.alone == Alone::No || settles) && !paused {
            // A window that was narrowed since it started may have to move first.
            let Some(index) = self.next_turn() else { return };
            let Some(care) = self.care() else { return };
            care.alone = Alone::Draining(index);
            self.window.handle_alone(Some(index));
        }
        let Some(care) = self.care() else { return };
        let Alone::Draining(index) = care.alone else { return };
        // A result that waits for its turn at the sink, or for a transaction, would be in flight
        // beside it.
        if in_flight > 0 || turn_held || writes || care.asked.is_some() {
            return;
        }
        let max = care.max_crashes;
        let crashes = self.parking.as_ref().and_then(|parking| parking.crashes(index)).unwrap_or(0);
        if crashes >= max {
            self.no_longer_alone(index);
            return self.crashed(index, crashes, now);
        }
        if let Some(care) = self.care() {
            (care.alone, care.turn_begun) = (Alone::Counting(index), Some(now.get()));
        }
        let count =
            format!("if the process dies now, that is death {} of {max} for which the job is to blame", crashes + 1);
        self.tell(&Event::new(Kind::RunsAlone, index).error(&count), now);
        self.ask_for_records(crashes + 1, None, vec![index]);
    }

    /// Takes the lowest suspect that awaits its turn and that the window lets start.
    fn next_turn(&mut self) -> Option<Index> {
        let care = self.parking.as_mut()?.care.as_deref_mut()?;
        let (window, undone) = (&self.window, self.window.lowest_undone());
        // The sink takes results in order, so a job above would not run alone from end to end.
        let in_order = |index| !care.in_order || index == undone || window.is_redriven(index);
        let mut turns = care.turns.iter().copied();
        let index = turns.find(|index| window.reaches(*index) && in_order(*index))?;
        care.turns.remove(&index).then_some(index)
    }

    /// The window was narrowed: a suspect that it no longer lets start awaits its turn once more.
    pub(in crate::driver) fn put_off_turn(&mut self) {
        let Some(index) = self.alone().filter(|index| !self.window.reaches(*index)) else { return };
        // It may be read already. Then it starts as soon as anything may.
        let runs = self.care().is_some_and(|care| matches!(care.alone, Alone::Running(_)));
        if runs && !self.window.handle_put_back(index) {
            return;
        }
        let asked = self.care().and_then(|care| care.asked.as_mut());
        asked.into_iter().for_each(|asked| asked.due.retain(|due| *due != index));
        self.release_alone();
        self.care().into_iter().for_each(|care| _ = care.turns.insert(index));
    }

    /// A suspect has killed its process too often.
    fn crashed(&mut self, index: Index, crashes: u32, now: &Now) {
        if let Some(care) = self.care() {
            care.suspects.remove(&index);
        }
        let failure = Failure::from(BoxError::from(Error::Crashed { index, crashes }));
        if self.window.handle_withdrawn(index) {
            self.failures.forget_redriven(index);
            return self.redrive_refused(index, 0, &failure.text, now);
        }
        let attempt = self.failures.waiting(index).map_or(0, |failed: &Failed| failed.attempt);
        // The errors are of this crate, so they may be dropped within the lock.
        if let Err(failure) = self.park(index, attempt, failure, now) {
            self.forget_attempts(index);
            self.ending.unreachable_from = self.ending.unreachable_from.min(index);
            self.waiting.rouse = true;
            let text = format!("{}{}", failure.text, self.why_not_parked());
            drop(self.halt(index, text, Error::Crashed { index, crashes }, "", now));
        }
        self.failures.forget(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::base::retry::Retry;
    use crate::base::time;
    use crate::commit::changes::Changes;
    use crate::driver::care::Recovered;
    use crate::progress::{ParkedRecord, load_earlier};
    use crate::reader::{Due, Fetched, Order, Payloads, Then, Weights};
    use crate::source::Steps;
    use crate::window::{Limits, Window};
    use std::collections::BTreeSet;
    use std::time::{Duration, Instant};

    const SAVE: Duration = Duration::from_millis(5);
    const JOBS: Index = 100;

    /// A life after two deaths, on a clock of its own: only saves take time.
    struct Life {
        core: Core,
        now: Instant,
        /// The end of the save under way.
        saved_at: Option<Instant>,
        others: BTreeSet<Index>,
        /// The attempts of suspects.
        attempts: u32,
        /// Makes the error of a suspect.
        error: fn() -> BoxError,
    }

    impl Life {
        /// The jobs below this one are suspects. They fail, and are due again at once.
        fn new(suspects: Index, error: fn() -> BoxError) -> Self {
            let mut window = Window::begin(0, Limits { max_processing: 2, max_search_ahead: 1000 });
            window.handle_head(Some(JOBS - 1));
            let waiting = window.restore_waiting(0..suspects);
            let earlier = load_earlier(&mut Store::in_memory().progress("p"), true).unwrap().unwrap();
            let record = |index| ParkedRecord { index, pending: true, suspect: true, ..ParkedRecord::default() };
            let place = Recovered::new(earlier.place, waiting.iter().copied().map(record).collect(), Some(9));
            let recovered = Recovered { waiting, careful: Some((1000, false)), max_crashes: Some(2), ..place };
            let mut core = Core::new(window, Retry::fixed(Duration::ZERO), usize::MAX, time::now());
            core.go_on(recovered).unwrap();
            core.workers.threads = 2;
            Self { core, now: time::now(), saved_at: None, others: BTreeSet::new(), attempts: 0, error }
        }

        /// Makes the next step of one of the threads. False if nothing is left to do now.
        fn step(&mut self) -> bool {
            let now = Now::at(self.now);
            let core = &mut self.core;
            core.expire(self.now);
            if self.saved_at.take_if(|at| *at <= self.now).is_some() {
                core.saved(&now);
            }
            if core.drain(&now).save {
                core.snapshot(false, &mut Vec::new()).unwrap();
                self.saved_at = Some(self.now + SAVE);
            }
            if let Order::Read(run) = core.order(&Now::at(self.now), Due::No) {
                let jobs = run.most();
                let weights = Weights::equal(jobs, 1);
                let then = Then::Unasked;
                let (jobs, steps) = (<dyn Payloads>::new(vec![(); jobs]), Steps::default());
                core.fetched(Fetched { jobs, steps, weights, then, quick: false, ended: self.now }, &now);
                return true;
            }
            let Some(run) = core.hand_out(&now) else { return false };
            core.job::<()>(run);
            let fails = core.is_suspect(run.index);
            let outcome = if fails { Err(Failure::boxed((self.error)())) } else { Ok(()) };
            core.report(run.token, outcome, &mut Changes::default(), &now);
            if fails {
                self.attempts += 1;
            } else {
                self.others.insert(run.index);
            }
            true
        }
    }

    #[test]
    fn suspects_that_fail_again_and_again_without_a_pause_starve_no_other_job() {
        let errors: [fn() -> BoxError; 2] = [|| "refused".into(), || crate::Failure::defer(Duration::ZERO).into()];
        for (suspects, error) in [1, 2, 20].into_iter().flat_map(|suspects| errors.map(|error| (suspects, error))) {
            let mut life = Life::new(suspects, error);
            let others = (JOBS - suspects) as usize;
            while life.others.len() < others {
                let (ran, attempts) = (life.others.len(), life.attempts);
                assert!(attempts < 100, "{ran} others ran beside {attempts} attempts of {suspects}: {}", error());
                while life.step() {}
                let next = life.saved_at.into_iter().chain(life.core.failures.next_due()).min();
                life.now = life.now.max(next.expect("a suspect waits"));
            }
            assert!(life.attempts > 0, "the suspects are tried beside the others");
        }
    }
}
