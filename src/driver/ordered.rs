//! Whose turn it is at the sink: always the lowest job that is not done, whoever finished it.
//!
//! Nobody is given a turn while the consumer is paused, nor once it stops. After a pause a thread of the pool takes it up as
//! soon as a slot is free, since no job may be left whose report could do so.

use super::Driver;
use super::core::Core;
use super::flights::Flight;
use crate::base::guard::drop_guarded;
use crate::base::index::Index;
use crate::commit::changes::Changes;
use crate::run::Turn;
use crate::run::ordered::SinkDesk;
use crate::run::worker::Report;

impl<T: Send + 'static> Core<T> {
    /// A job has its result, and no longer holds its slot. Whose turn it is, if nobody hands results to the sink.
    fn set_aside(&mut self, token: usize) -> Option<Turn> {
        let Flight { index, attempt, .. } = self.flights.end(token).filter(|_| !self.abandoned)?;
        self.window.handle_set_aside(index);
        self.aside.attempts.insert(index, attempt);
        // It will have no turn, so the watermark never passes it.
        self.rouse_waiters |= self.window.is_stopping();
        if self.aside.sinking { None } else { self.take_up() }
    }

    /// The job whose turn it is holds a slot again: that of the one which was reported or set aside in this very moment, or
    /// one that is free.
    fn take_up(&mut self) -> Option<Turn> {
        let index: Index = self.window.lowest_undone();
        (self.aside.sinking, self.aside.held) = (false, false);
        if self.abandoned || self.window.is_stopping() || self.window.has_ended() {
            return None;
        }
        if self.window.is_paused() {
            self.aside.held = self.aside.has(index);
            return None;
        }
        let attempt = self.aside.attempts.remove(&index)?;
        self.aside.sinking = true;
        self.window.handle_taken_up();
        let flight = Flight { index, attempt, started: coarsetime::Instant::now() };
        Some(Turn { index, token: self.flights.begin(flight) })
    }

    /// Whether a turn that a pause has held up could be taken up by a thread of the pool.
    #[inline]
    pub(super) fn has_turn(&self) -> bool {
        self.aside.held && self.may_resume_turn()
    }

    #[cold]
    fn may_resume_turn(&self) -> bool {
        let window = &self.window;
        let starts = !window.is_paused() && !window.is_stopping() && !window.has_ended();
        starts && window.in_flight() < window.limits().max_processing
    }

    /// That turn, for a thread of the pool that asks.
    #[inline]
    pub(super) fn resume_turn(&mut self) -> Option<Turn> {
        if self.has_turn() { self.take_up() } else { None }
    }
}

impl<T: Send + 'static> SinkDesk for Driver<T> {
    fn set_aside(&self, token: usize) -> Option<Turn> {
        let mut core = self.core.lock();
        let turn = core.set_aside(token);
        self.settle(core);
        turn
    }

    fn taken(&self, mut report: Report) -> Option<Turn> {
        self.confirm(&mut report);
        let mut core = self.core.lock();
        let surplus = core.report(report.token, report.outcome, &mut Changes::default());
        let turn = core.take_up();
        self.settle(core);
        drop_guarded(surplus);
        turn
    }
}
