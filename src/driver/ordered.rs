//! Whose turn it is at the sink: always the lowest job that is not done, whoever finished it.

use super::Driver;
use super::core::Core;
use super::flights::Flight;
use crate::error::drop_guarded;
use crate::index::Index;
use crate::kv::changes::Changes;
use crate::ordered::{SinkDesk, Turn};
use crate::worker::Report;

impl<T: Send + 'static> Core<T> {
    /// A job has its result, and no longer holds its slot. Whose turn it is, if nobody hands results to the sink.
    fn set_aside(&mut self, token: usize) -> Option<Turn> {
        let Flight { index, attempt, .. } = self.flights.end(token).filter(|_| !self.abandoned)?;
        self.window.handle_set_aside(index);
        self.aside.insert(index, attempt);
        if self.sinking { None } else { self.take_up() }
    }

    /// The job whose turn it is holds a slot again: that of the one which was reported or set aside in this very moment.
    fn take_up(&mut self) -> Option<Turn> {
        let index: Index = self.window.lowest_undone();
        let attempt = if self.abandoned { None } else { self.aside.remove(&index) };
        self.sinking = attempt.is_some();
        let flight = Flight { index, attempt: attempt?, started: coarsetime::Instant::now() };
        self.window.handle_taken_up();
        Some(Turn { index, token: self.flights.begin(flight) })
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
