//! Turns at the sink. The next turn belongs to the lowest undone job, whichever thread has finished
//! it.
//!
//! While the consumer is paused or stopping, there are no turns. After a pause, a worker takes the
//! turn as soon as a slot is free, since there may be no job left whose report could do so. The
//! same holds after the lowest undone job was parked: its report brought no result.

use crate::base::{Index, time::Now};
use crate::driver::{core::Core, flights::Flight};
use crate::run::Delivery;

impl Core {
    /// Sets a job aside that has its result. Returns the job whose turn it is, if no thread is at
    /// the sink.
    pub(super) fn set_aside(&mut self, token: usize, now: &Now) -> Option<Delivery> {
        let redriven = self.redriven_turn(token);
        if redriven.is_some() {
            return redriven;
        }
        if self.running.aside.sinking {
            self.end_with_result(token);
            return None;
        }
        let lowest = self.window.lowest_undone();
        if self.running.flights.get(token).is_some_and(|flight| flight.index == lowest) && self.gives_turns() {
            // It stays in flight, as most often.
            let attempt = self.running.flights.end(token)?.attempt;
            return Some(self.begin_turn(lowest, attempt, now));
        }
        if self.end_with_result(token) { self.take_up(now) } else { None }
    }

    /// True if the consumer neither pauses nor ends.
    fn gives_turns(&self) -> bool {
        let window = &self.window;
        let stands = window.is_paused() || window.is_stopping() || window.has_ended();
        !stands && !self.ending.abandoned && !self.failed_jobs.quarantine.is_settling()
    }

    fn begin_turn(&mut self, index: Index, attempt: u32, now: &Now) -> Delivery {
        (self.running.aside.sinking, self.running.aside.held) = (true, false);
        let token = self.running.flights.begin(Flight::new(index, attempt, attempt > 1, now.coarse()));
        self.running.flights.leave_timeout(token);
        Delivery { index, token }
    }

    /// Does the same, and leaves the turn to a worker.
    #[cfg(feature = "tokio")]
    pub(super) fn leave_turn(&mut self, token: usize) {
        if let Some(turn) = self.redriven_turn(token) {
            self.running.aside.redriven.push(turn);
        } else if self.end_with_result(token) {
            self.running.aside.hold(self.window.lowest_undone());
        }
    }

    /// A redriven job is outside of the order: it waits for no turn, keeps its slot, and no turn
    /// follows.
    fn redriven_turn(&mut self, token: usize) -> Option<Delivery> {
        let flight = self.running.flights.get(token).filter(|_| !self.ending.abandoned)?;
        let index = Some(flight.index).filter(|index| self.window.is_redriven(*index))?;
        self.running.flights.leave_timeout(token);
        Some(Delivery { index, token })
    }

    /// Ends an attempt whose result waits for its turn, which frees its slot. Returns false if it
    /// no longer counts.
    fn end_with_result(&mut self, token: usize) -> bool {
        let flight = self.running.flights.end(token).filter(|_| !self.ending.abandoned);
        let Some(Flight { index, attempt, .. }) = flight else { return false };
        self.window.handle_set_aside(index);
        self.running.aside.attempts.insert(index, attempt);
        // A stopping consumer gives no turn to this job, so the watermark never passes it.
        self.out.waiters |= self.window.is_stopping();
        true
    }

    /// True if the result of this job is at the sink, and a turn follows. (None follows a redriven
    /// one.)
    #[inline]
    pub(super) fn has_its_turn(&self, index: Index) -> bool {
        self.running.aside.sinking && index == self.window.lowest_undone() && !self.window.is_redriven(index)
    }

    /// Puts the job whose turn it is back in flight, into a free slot or the one freed in this
    /// critical section, so `max_processing` holds.
    pub(super) fn take_up(&mut self, now: &Now) -> Option<Delivery> {
        let index: Index = self.window.lowest_undone();
        (self.running.aside.sinking, self.running.aside.held) = (false, false);
        if self.ending.abandoned || self.window.is_stopping() || self.window.has_ended() {
            return None;
        }
        if self.window.is_paused() || self.failed_jobs.quarantine.is_settling() {
            self.running.aside.held = self.running.aside.has(index);
            return None;
        }
        let attempt = self.running.aside.attempts.remove(&index)?;
        self.window.handle_taken_up();
        Some(self.begin_turn(index, attempt, now))
    }

    /// Takes up a turn that no thread has, for a worker that asks.
    #[inline]
    pub(super) fn resume_turn(&mut self, now: &Now) -> Option<Delivery> {
        if !self.has_turn() {
            return None;
        }
        self.running.aside.redriven.pop().or_else(|| self.take_up(now))
    }
}
