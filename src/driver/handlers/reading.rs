//! The driver's side of reading: what to fetch, who carries it out, and what comes of it.
//!
//! The reader carries out a fetch. While it only supervises and the source is quick, the worker
//! that would otherwise wait for the jobs reads them itself.

mod gaps;
mod taken_in;

use crate::base::time::{self, Now};
use crate::base::{BoxError, Error, Index, caught::Caught, guard::drop_guarded, sync::Arc};
use crate::driver::calls::{InVain, after};
use crate::driver::handlers::keys::with_keys;
use crate::driver::reading::{Bounding, Caller, Surplus};
use crate::driver::{Driver, core::Core, failed_jobs::Unread, watching::is_caught_up};
use crate::observe::{Event, EventKind};
use crate::reader::{Ask, Beyond, Due, Fetched, Look, Order, Outcome, ReadPort, ReadRuns, Then};
use crate::source::Gate;
use crate::window::Window;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// The most back-offs that end in one critical section, so that it stays below a millisecond.
const PIECE: usize = 1024;

impl Core {
    fn truncated(&mut self, next: Index, first: Index, now: &Now) -> Option<BoxError> {
        let error = Error::Truncated { next, first };
        let mut at = self.ctx(now);
        at.never_reaches(next);
        at.halt(next, error.to_string(), error, "")
    }

    /// Makes jobs due whose back-off is over, in order of their ends. True if there are more.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        self.reading.supervises = false;
        self.reading.end_pause(now, &mut self.window);
        (0..PIECE).all(|_| self.failed_jobs.expire(now, &mut self.window))
    }

    /// Returns what the reader does next. `look`: whether a look at the source is due.
    pub(crate) fn order(&mut self, now: &Now, look: Due) -> Order {
        if self.window.is_stopping() || self.window.has_ended() {
            return Order::End;
        }
        if std::mem::take(&mut self.reading.note) {
            return Order::Note;
        }
        // Known work, such as a retry to read, mostly goes before a look: the head may take long.
        self.reading.look_waits = look == Due::WhenIdle && self.reading.has_unread(&self.window);
        if look != Due::No && !self.reading.look_waits {
            self.looking(now.get());
            return Order::Look;
        }
        if let Some(run) = self.reading.take_fetch(now.get()) {
            let Some(reads) = &self.reading.reads else { return Order::Read(run) };
            return Order::Start(reads.ask(run));
        }
        self.reading.supervises = true;
        self.workers.supervised_from(now.of_machine());
        let reads = self.reading.reads.as_ref().and_then(|reads| reads.deadline(self.window.has_due()));
        let due = self.failed_jobs.failures.next_due();
        Order::Wait(due.into_iter().chain(self.reading.read_again).chain(reads).min())
    }

    /// Supervises the workers for the reader. Returns the time until the next look, if any.
    pub(crate) fn supervise(&mut self, now: &Now) -> Option<Duration> {
        let unread = self.reading.waits();
        let work = unread || self.running.has_work(&self.window, &self.failed_jobs.failures, now.get());
        let sight = self.workers.look(self.window.limits().max_processing, now.of_machine(), work);
        // Workers that do not cope seem to be busy with long jobs, so the reader reads.
        self.out.reader |= unread && !sight.cope;
        self.reading.supervises = sight.look_again.is_some();
        sight.look_again
    }

    /// Takes the fetch that this worker carries out itself, if there is one.
    #[inline]
    pub(crate) fn begin_reading(&mut self, now: &Now) -> Option<(Arc<dyn ReadRuns>, Ask)> {
        if !self.reading.is_for_workers(&self.workers, &self.window) {
            return None;
        }
        let runs = self.reading.runs.clone()?;
        let run = self.reading.take_fetch(now.get())?;
        self.workers.reads(true);
        Some((runs, run))
    }

    /// Takes in what a worker read. After a failed read, the reader asks again after the pause.
    pub(crate) fn end_reading(&mut self, fetched: Fetched, now: &Now) -> Surplus {
        self.workers.reads(false);
        let surplus = self.fetched(fetched, now);
        self.out.reader |= self.reading.note;
        surplus
    }

    /// Notes that the source is about to be asked for its gate.
    pub(crate) fn asking(&mut self, now: Instant) {
        // From here on the reader does not supervise, however long the call takes.
        self.reading.supervises = false;
        self.reading.look = Some(now);
    }

    /// Notes that the source is about to be asked for its head and its gate.
    fn looking(&mut self, now: Instant) {
        self.asking(now);
        if self.reading.bounding == Bounding::Wanted {
            self.reading.bounding = Bounding::Looking;
        }
    }

    /// Takes the gate after a look at the gate alone. Returns whether it lets through more than the
    /// source is known to have.
    pub(crate) fn gated(&mut self, gate: Gate) -> Beyond {
        self.reading.look = None;
        let beyond_head = |window: &Window| window.head().is_none_or(|head| !window.is_gated(head + 1));
        let was_beyond = self.window.head().is_some() && beyond_head(&self.window);
        self.failed_jobs.set_gate(gate.open_below(), &mut self.window);
        match beyond_head(&self.window) {
            false => Beyond::No,
            true if was_beyond => Beyond::Still,
            true => Beyond::Newly,
        }
    }

    pub(crate) fn looked(&mut self, head: Option<Index>, gate: Gate) {
        self.reading.look = None;
        self.reading.seen = true;
        (self.reading.look_error, self.reading.look_again) = (None, None);
        self.reading.looks = InVain::default();
        self.reading.calls.returned();
        self.reading.calls.answered();
        self.window.handle_head(head);
        self.failed_jobs.set_gate(gate.open_below(), &mut self.window);
        if self.reading.bounding == Bounding::Looking {
            self.reading.bounding = Bounding::No;
            match head {
                Some(head) => self.stop_at(head),
                None => self.window.handle_stop(),
            }
        }
    }

    /// Returns what several reads have brought, if that is what the fetch under way waits for.
    fn delivered(&self, now: Instant) -> Option<Fetched> {
        self.reading.reads.as_ref()?.deliver(self.window.has_due(), now)
    }

    /// Takes in failures of calls that were made again by themselves.
    fn tell_failures(&mut self, failures: &[(Index, Fetched)], now: &Now) {
        for (index, Fetched { then, .. }) in failures {
            self.reading.calls.failed_beside(matches!(then, Then::Failed(_)));
            self.tell_unread(*index, then, Duration::ZERO, now);
        }
    }

    /// Takes in the result of the fetch under way. Returns late jobs and used values, to drop.
    pub(crate) fn fetched(&mut self, fetched: Fetched, now: &Now) -> Surplus {
        let asked = self.reading.fetch.map_or(self.window.lowest_undone(), |run| run.first);
        let again = self.window.fetches_again();
        let next = fetched.next(asked);
        let brought = !fetched.is_empty();
        let Fetched { mut jobs, steps, weights, keys, then, quick, failures, .. } = fetched;
        self.tell_failures(&failures, now);
        if let Then::NotYet = then {
            self.reading.fetch = None;
            self.window.handle_fetched(0);
            return Surplus { jobs, error: None, failures };
        }
        self.reading.quick = quick;
        self.reading.call = None;
        let then = self.without_redriven(then);
        let outcome = Outcome::from(&then);
        let was_sound = brought || self.reading.calls.is_sound();
        let unread_again = self.reading.fetch.filter(|run| again && next <= run.last).map(|_| next);
        let pause = self.count_read(outcome, brought, (again, unread_again), now);
        self.tell_unread(next, &then, pause, now);
        let (unread, error) = match then {
            Then::Unasked | Then::NotYet => (None, None),
            Then::Missing => (Some(Unread::Missing), None),
            Then::Truncated { next, first } => (Some(Unread::Missing), self.truncated(next, first, now)),
            Then::Failed(failure) => (Some(Unread::Failed(failure.text)), Some(failure.error)),
        };
        let over = self.window.is_stopping() || self.window.has_ended();
        let Some(run) = self.reading.fetch.take().filter(|_| !over) else { return Surplus { jobs, error, failures } };
        self.reading.prefetch.learn(jobs.len(), weights.total());
        // With gaps, the window is told of each part as it is taken in.
        let count = if steps.is_empty() { jobs.len() as u64 } else { 0 };
        let mut behind = Vec::new();
        match (again, steps.is_empty()) {
            (true, true) => behind = self.take_in_again(run.first, &mut *jobs, with_keys(weights, keys)),
            (true, false) => {
                behind = self.take_in_again_with_gaps(run, &mut *jobs, &steps, with_keys(weights, keys), now);
            }
            (false, true) => self.take_in_new(run.first, &mut *jobs, weights, keys, now),
            (false, false) => {
                self.take_in_new_with_gaps(run.first, &mut *jobs, &steps, with_keys(weights, keys), now);
            }
        }
        match outcome {
            Outcome::Good => self.window.handle_fetched(count),
            Outcome::Missing => self.window.handle_missing(count),
            // It is read again at once.
            Outcome::Failed if !again && pause.is_zero() => self.window.handle_fetched(count),
            Outcome::Failed => self.window.handle_unreadable(count),
        }
        self.wait_behind(behind);
        if again {
            self.wait_for_again(next..=run.last, unread, pause, was_sound, now);
        } else {
            self.wait_for_new(unread, pause, now);
        }
        let (failed_jobs, mut at) = self.failed_jobs(now);
        if outcome == Outcome::Missing && again {
            failed_jobs.withdraw(next, &mut at);
        }
        if outcome != Outcome::Good {
            failed_jobs.suspect_not_read(next, &mut at);
        }
        self.hold_turn();
        self.reading.fit_prefetch(&mut self.window);
        Surplus { jobs, error, failures }
    }

    /// Counts a read. `again`: whether it was for failed jobs, and the first of them that it did
    /// not bring. Returns the pause before the rest is read again.
    fn count_read(&mut self, outcome: Outcome, brought: bool, again: (bool, Option<Index>), now: &Now) -> Duration {
        let Self { reading, failed_jobs, .. } = self;
        let (calls, mut other) = (&mut reading.calls, InVain::default());
        calls.returned();
        let kind = match again {
            (false, _) => &mut reading.news,
            (true, unread) => unread.and_then(|index| failed_jobs.failures.in_vain(index)).unwrap_or(&mut other),
        };
        if brought {
            calls.answered();
        }
        // Failed jobs start over with their counts when they are taken in.
        if brought && !again.0 {
            *kind = InVain::default();
        }
        match outcome {
            Outcome::Good => Duration::ZERO,
            Outcome::Missing => calls.miss(kind, now),
            Outcome::Failed => calls.fail(kind, now),
        }
    }

    /// Tells of the first job that could not be read.
    fn tell_unread(&mut self, next: Index, then: &Then, pause: Duration, now: &Now) {
        let kind = match then {
            Then::Unasked | Then::NotYet | Then::Truncated { .. } => return,
            Then::Missing => EventKind::Missing,
            Then::Failed(_) => EventKind::SourceFailed,
        };
        let calls = self.reading.calls.numbers(Some(after(pause, now.get())), now);
        let event = Event { source: Some(calls), ..Event::new(kind, next) };
        self.out.tell(&if let Then::Failed(failure) = then { event.error(&failure.text) } else { event }, now);
    }

    /// A parked job that the source has lost for good halts nothing.
    fn without_redriven(&self, then: Then) -> Then {
        match then {
            Then::Truncated { next, .. } if self.window.is_redriven(next) => Then::Missing,
            then => then,
        }
    }

    /// Waits before the first unread new job is read again. No pause means no wait.
    fn wait_for_new(&mut self, unread: Option<Unread>, pause: Duration, now: &Now) {
        let waits = unread.is_some() && !pause.is_zero();
        self.reading.unread = unread.filter(|_| waits);
        self.reading.read_again = waits.then(|| after(pause, now.get()));
        self.reading.note |= waits;
    }

    /// Waits before the failed job is read again at which the source stopped.
    ///
    /// If the source was sound before, this job waits alone, and the rest of the run goes first.
    /// Otherwise the rest waits too: a source that is down is not asked for each of them.
    fn wait_for_again(
        &mut self,
        rest: RangeInclusive<Index>,
        unread: Option<Unread>,
        pause: Duration,
        was_sound: bool,
        now: &Now,
    ) {
        let Some(unread) = unread.filter(|_| !rest.is_empty()) else { return };
        let (next, failed) = (*rest.start(), matches!(unread, Unread::Failed(_)));
        for index in rest.skip(1).filter(|_| failed) {
            if was_sound {
                self.window.handle_due(index);
            } else {
                self.failed_jobs.failures.not_read(index, unread.clone(), pause, now.get());
            }
        }
        self.failed_jobs.failures.not_read(next, unread, pause, now.get());
        self.reading.note |= !failed;
        self.out.reader = true;
    }

    /// Notes that the source could not be asked for its head. Returns when it is asked again.
    fn look_failed(&mut self, error: &str, now: &Now) -> Option<Instant> {
        let reading = &mut self.reading;
        reading.look = None;
        reading.calls.returned();
        let pause = reading.calls.fail(&mut reading.looks, now);
        let again = after(pause, now.get());
        // A status does not show a retry without a pause.
        reading.look_error = (!pause.is_zero()).then(|| error.to_owned());
        reading.look_again = Some(again);
        if reading.bounding == Bounding::Looking {
            reading.bounding = Bounding::Wanted;
        }
        let source = Some(reading.calls.numbers(Some(again), now));
        let event = Event { source, ..Event::new(EventKind::SourceFailed, self.window.lowest_undone()) };
        self.out.tell(&event.error(error), now);
        Some(again)
    }

    /// True if the watermark waits for what a look may bring: a job, or an open gate.
    fn waits_for_look(&self) -> bool {
        is_caught_up(&self.window) || self.failed_jobs.quarantine.is_gated(self.window.lowest_undone())
    }

    /// Notes that a look at the source begins. Returns what [`stir`](Self::stir) returns.
    pub(super) fn stir_for_look(&mut self, now: Instant) -> bool {
        // A source that fails or waits has stalled since it first did.
        let fails = self.reading.look_error.is_some();
        if !fails && self.reading.waits_for.is_none() && is_caught_up(&self.window) {
            self.watching.stalls.restart(now);
        }
        self.stir(now)
    }

    /// Notes the head that a look found. Returns true if the stall watcher has to be woken for it.
    pub(super) fn note_head(&mut self, now: &Now) -> bool {
        self.out.is_observed() && self.watching.note_head(&self.window, now)
    }
}

impl ReadPort for Driver {
    fn order(&self, fetched: Option<Fetched>, now: &Now, look: Due) -> Order {
        let mut core = self.core.lock();
        let mut surplus = fetched.map(|fetched| core.fetched(fetched, now));
        while core.expire(now.get()) {
            // Other threads need the lock, too.
            core.bump();
        }
        // Failed jobs that are due go before what several reads have brought.
        if let Some(fetched) = core.delivered(now.get()) {
            surplus = Some(core.fetched(fetched, now));
        }
        let wakes = core.drain(now);
        let order = core.order(now, look);
        let watch = matches!(order, Order::Look) && core.stir_for_look(now.get());
        drop(core);
        self.carry_out(wakes);
        if watch {
            self.spawn_watch();
        }
        surplus.into_iter().for_each(Surplus::drop_guarded);
        order
    }

    fn supervise(&self, now: &Now) -> Option<Duration> {
        let asked = time::now();
        let mut core = self.core.lock();
        core.workers.visited(time::now() - asked);
        let again = core.supervise(now);
        self.settle(core, now);
        again
    }

    fn looked(&self, Look { head, gate, waits_for }: Look) -> bool {
        self.step(|core, now| {
            let (before, waited) = (core.window.head(), core.waits_for_look());
            core.looked(head, gate);
            core.reading.waits_for = waits_for;
            if core.note_head(now) {
                self.stall.notify_all();
            }
            if waited && !core.waits_for_look() {
                core.watching.stalls.moved(now);
            }
            core.window.head() != before
        })
    }

    fn asking(&self, now: Instant) {
        let mut core = self.core.lock();
        let watch = core.stir_for_look(now);
        core.asking(now);
        drop(core);
        if watch {
            self.spawn_watch();
        }
    }

    fn gated(&self, gate: Gate) -> Beyond {
        self.step(|core, now| {
            let waited = core.waits_for_look();
            let more = core.gated(gate);
            if waited && !core.waits_for_look() {
                core.watching.stalls.moved(now);
            }
            more
        })
    }

    fn reads_itself(&self) -> bool {
        self.step(|core, now| core.reading.caller(&core.workers, &core.window, now) == Caller::Reader)
    }

    #[cfg(feature = "tokio")]
    fn as_own_thread(&self, work: &mut dyn FnMut()) {
        let _own = self.threads.enter();
        work();
    }

    fn look_failed(&self, failure: Caught) -> Option<Instant> {
        let again = self.step(|core, now| core.look_failed(&failure.text, now));
        drop_guarded(failure.error);
        again
    }
}

#[cfg(test)]
mod tests;
