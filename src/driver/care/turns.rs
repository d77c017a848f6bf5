//! The turns of suspects: one of them at a time runs alone, once nothing else is in flight.

use super::Alone;
use crate::base::error::Error;
use crate::base::guard::Failure;
use crate::base::index::{BoxError, Index};
use crate::base::time::Now;
use crate::driver::core::Core;
use crate::driver::failures::Failed;
use crate::observe::{Event, Kind};

impl<T: Send + 'static> Core<T> {
    /// Lets the next suspect run alone, once nothing is in flight.
    pub(super) fn give_turn(&mut self, now: &Now) {
        let (in_flight, paused) = (self.window.in_flight(), self.window.is_paused());
        let turn_held = self.running.aside.held;
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
        // A result that waits for its turn at the sink would be in flight beside it.
        if in_flight > 0 || turn_held || care.asked.is_some() {
            return;
        }
        let max = care.max_crashes;
        let crashes = self.parking.as_ref().and_then(|parking| parking.crashes(index)).unwrap_or(0);
        if crashes >= max {
            self.no_longer_alone(index);
            return self.crashed(index, crashes, now);
        }
        if let Some(care) = self.care() {
            care.alone = Alone::Counting(index);
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
