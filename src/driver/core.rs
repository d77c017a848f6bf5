//! The state that the lock guards: the window, and beside it all that the window must not know
//! (jobs, clocks, errors).
//!
//! Each event goes into the window. The actions that come out are sorted into [`Wakes`], which the
//! driver carries out once the lock is free again.

use super::announcing::Announcing;
use super::ending::Ending;
use super::failures::Failures;
use super::handing_out::demand;
use super::life::KeptLife;
use super::parking::Parking;
use super::reach::Gates;
use super::reading::Reading;
use super::running::Running;
use super::saving::Saving;
use super::tenure::Tenancy;
use super::waiters::Waiting;
use super::wakes::Wakes;
use super::watching::Watching;
use crate::base::clock::Clock;
use crate::base::retry::Retry;
use crate::base::time::Now;
use crate::crew::Roster;
use crate::crew::workers::{Demand, Wake, Workers};
use crate::reader::Ask;
use crate::window::{Action, Window};
use std::time::Instant;

pub(crate) struct Core {
    pub(crate) clock: Clock,
    pub(crate) window: Window,
    pub(crate) reading: Reading,
    pub(crate) gates: Gates,
    pub(crate) failures: Failures,
    /// The parked jobs; `None` if there are none, and there will be none.
    pub(crate) parking: Option<Box<Parking>>,
    pub(crate) life: KeptLife,
    pub(crate) running: Running,
    pub(crate) saving: Saving,
    pub(crate) tenancy: Tenancy,
    pub(crate) announcing: Announcing,
    pub(super) waiting: Waiting,
    pub(super) ending: Ending,
    pub(crate) watching: Watching,
    pub(crate) workers: Workers,
    /// The members of the crew that are there, and the guard of the progress name.
    pub(crate) roster: Roster,
}

impl Core {
    pub(crate) fn new(window: Window, retry: Retry, max_read_ahead: usize, now: Instant) -> Self {
        let mut core = Self {
            clock: Clock::default(),
            window,
            reading: Reading::new(max_read_ahead),
            gates: Gates::default(),
            failures: Failures::new(retry),
            parking: None,
            life: KeptLife::default(),
            running: Running::default(),
            saving: Saving::default(),
            tenancy: Tenancy::default(),
            announcing: Announcing::default(),
            waiting: Waiting::default(),
            ending: Ending::default(),
            watching: Watching::new(now),
            workers: Workers::default(),
            roster: Roster::default(),
        };
        core.fit_prefetch();
        core
    }

    /// Polls the window until it wants nothing more.
    pub(crate) fn drain(&mut self, now: &Now) -> Wakes {
        if self.parking.is_some() {
            self.take_care(now);
        }
        self.ask_to_write();
        self.close_life(now);
        let mut wakes = Wakes { reader: std::mem::take(&mut self.reading.rouse), ..Wakes::default() };
        if self.window.is_stopping() && !std::mem::replace(&mut self.ending.told, true) {
            wakes.reader = true;
            self.waiting.rouse = true;
            self.ending.stopping.begin();
        }
        while let Some(action) = self.window.poll() {
            self.act(action, &mut wakes, now);
        }
        if std::mem::take(&mut self.waiting.rouse) {
            wakes.called |= self.call_in_vain();
        }
        if self.reading.look_waits && !self.has_unread() {
            self.reading.look_waits = false;
            wakes.reader = true;
        }
        if self.saving.under_way.since.is_some() {
            self.hurry_save(&mut wakes);
        }
        let (window, failures, has_turn) = (&self.window, &self.failures, self.has_turn());
        let batches = &mut self.running.batches;
        wakes.worker = self.workers.wake(self.reading.supervises, has_turn, || match batches {
            None => demand(window),
            Some(batches) => Demand { runnable: batches.want_thread(window, failures, || now.get()), ..demand(window) },
        });
        if wakes.worker == Wake::Spawn {
            self.roster.count_in();
        }
        wakes.tell = self.begin_telling();
        wakes
    }

    /// Carries out a rare action of the window. It is not inlined: hardly any job has one, and the
    /// other jobs should be quick.
    #[inline(never)]
    fn act(&mut self, action: Action, wakes: &mut Wakes, now: &Now) {
        match action {
            Action::Fetch(run) => {
                let (first, last) = (*run.start(), self.window.fetch_through(&run, self.source_gate()));
                self.reading.fetch = Some(Ask::new(first, last, run.end() - first + 1));
                self.reading.taken = false;
                // A worker that is awake reads the run itself, or the reader finds the fetch at its
                // next look.
                wakes.reader |= !self.leaves_reading_to_workers() || self.workers.awake() == 0;
            }
            Action::Save => {
                wakes.save = true;
                self.saving.under_way.since = Some(now.get());
                self.saving.patience.begin(now.of_machine(), self.running.counters.done);
            }
            Action::Announce(run) => self.announce(run, wakes),
            Action::Finish => self.finish(wakes, now),
        }
    }
}

impl AsRef<Roster> for Core {
    fn as_ref(&self) -> &Roster {
        &self.roster
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::Limits;

    #[test]
    fn jobs_that_an_earlier_life_had_done_beyond_the_end_are_waited_for() {
        let mut window = Window::begin(0, Limits { max_processing: 1, max_search_ahead: 100 });
        window.restore([2..=4, 6..=6]);
        window.stop_at(1);
        let mut core: Core = Core::new(window, Retry::none(), usize::MAX, Instant::now());
        assert_eq!([1, 4, 5, 6].map(|index| core.never(index)), [false, false, true, true]);
        core.window.handle_head(Some(6));
        while core.window.poll().is_some() {}
        core.window.handle_fetched(2);
        for index in 0..2 {
            assert_eq!(core.window.poll_run().map(|run| run.index), Some(index));
            assert!(core.window.handle_done(index));
        }
        assert_eq!(core.window.poll(), Some(Action::Save));
        assert_eq!(core.window.handle_saving().and_then(|save| save.last_processed), Some(4));
    }
}
