//! The state that the lock guards: the window, and beside it all that the window must not know
//! (jobs, clocks, errors).
//!
//! Each event goes into the window and what comes out is sorted into [`Wakes`], for the driver to
//! carry out once the lock is free again.

use super::aside::Aside;
use super::effects::Effects;
use super::ending::Ending;
use super::flights::Flights;
use super::patience::Patience;
use super::prefetch::Prefetch;
use super::reach::{Reach, kept_below};
use super::stalls::Stalls;
use super::tenure::Tenancy;
use super::waiters::Waiters;
use super::wakes::Wakes;
use crate::base::error::Error;
use crate::base::guard::{Guarded, drop_guarded};
use crate::base::index::{BoxError, Index};
use crate::base::retry::Retry;
use crate::base::sync::Arc;
use crate::base::time::Now;
use crate::crew::Roster;
use crate::crew::workers::{Demand, Wake, Workers};
use crate::observe::Telling;
use crate::reader::{Fetched, Outcome, ReadRuns, Then};
use crate::run::{OnJobDone, Runner};
use crate::source::watermark::Watermark;
use crate::window::{Action, Window};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::RangeInclusive;
use std::time::Instant;

pub(crate) struct Core<T> {
    pub(crate) window: Window,
    pub(crate) retry: Retry,
    pub(super) prefetch: Prefetch<T>,
    pub(crate) flights: Flights,
    pub(crate) failed: HashMap<Index, Failed>,
    pub(super) aside: Aside,
    pub(super) timers: BinaryHeap<Reverse<(Instant, Index)>>,
    pub(crate) source: Source,
    /// The watermarks that the source's gate depends on.
    pub(crate) upstreams: Vec<Watermark>,
    pub(super) reach: Reach,
    /// The source, for workers that read for themselves.
    pub(crate) runs: Option<Arc<dyn ReadRuns<T>>>,
    announce: Option<RangeInclusive<Index>>,
    /// True if somebody wants to hear of processed jobs.
    pub(crate) announces: bool,
    /// `on_processed` is being called.
    announcing: bool,
    pub(crate) workers: Workers,
    pub(crate) counters: Counters,
    /// The error that `stop` and `join` return.
    pub(crate) error: Option<Error>,
    /// Where, and as a text, when the consumer halted.
    pub(crate) halted: Option<(Index, String)>,
    pub(super) ending: Ending,
    /// The events that are to be told.
    pub(super) telling: Telling,
    pub(crate) stalls: Stalls,
    pub(crate) save: SaveState,
    pub(crate) tenancy: Tenancy,
    /// Of the threads of the pool, with whoever saves.
    pub(super) patience: Patience,
    pub(crate) effects: Effects,
    pub(crate) runner: Option<Arc<dyn Runner<T>>>,
    pub(crate) on_job_done: Option<Arc<OnJobDone>>,
    /// The members of the crew that are there, and the guard of the progress name.
    pub(crate) roster: Roster,
    /// Threads in `wait_for`.
    pub(super) waiters: Waiters,
    /// Results are no longer counted.
    pub(crate) abandoned: bool,
    /// The watermark stays below this index whatever happens.
    pub(super) unreachable_from: Index,
    /// The reader sleeps towards a deadline that is no longer right, or has not heard that it is to
    /// end.
    pub(super) rouse_reader: bool,
    stop_told: bool,
    /// True if the index that some of the waiters wait for may never come.
    pub(super) rouse_waiters: bool,
}

/// A failed job that waits for its next attempt.
pub(crate) struct Failed {
    pub(crate) attempt: u32,
    pub(crate) due: Instant,
    pub(crate) error: String,
    /// The answer of the source when it was asked for the job again.
    pub(crate) unread: Option<Unread>,
    /// The number of times in a row that it could not be read again.
    pub(super) unreadable: u32,
}

/// Why a job could not be read.
#[derive(Clone, Debug)]
pub(crate) enum Unread {
    Missing,
    Failed(String),
}

/// Things of the user's, to be dropped without the lock.
pub(crate) struct Surplus<T> {
    pub(super) jobs: Vec<T>,
    pub(super) error: Option<BoxError>,
}

impl<T> From<Fetched<T>> for Surplus<T> {
    fn from(fetched: Fetched<T>) -> Self {
        let error = if let Then::Failed(failure) = fetched.then { Some(failure.error) } else { None };
        Self { jobs: fetched.jobs, error }
    }
}

impl<T> Surplus<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.error.is_none()
    }

    pub(crate) fn drop_guarded(self) {
        self.jobs.into_iter().for_each(drop_guarded);
        drop_guarded(self.error);
    }
}

/// The state of the source, as far as it is known.
#[derive(Default)]
pub(crate) struct Source {
    /// The fetch that is to be carried out, or is being.
    pub(super) fetch: Option<RangeInclusive<Index>>,
    /// True once the reader, or a worker, has taken it.
    pub(super) taken: bool,
    /// The outcome of a read that did not go well, for the reader to note.
    pub(super) note: Option<Outcome>,
    /// The last read took less time than waking the reader does.
    pub(crate) quick: bool,
    /// The reader has nothing to do but to see to the workers, soon and every now and then.
    pub(crate) supervises: bool,
    /// Since when somebody reads.
    pub(crate) call: Option<Instant>,
    /// Since when the reader asks for the head, or waits for its turn to, while a worker reads.
    pub(crate) look: Option<Instant>,
    /// A look is put off until no job that is known is unread.
    pub(super) look_waits: bool,
    /// True once the head was seen.
    pub(crate) seen: bool,
    pub(crate) look_error: Option<String>,
    /// The state of an end at the head, which the next look decides.
    pub(crate) bounding: Bounding,
    /// The first job that was never read could not be.
    pub(crate) unread: Option<Unread>,
}

/// The consumer is to end with what its source has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Bounding {
    #[default]
    No,
    /// Since now: a look that has begun may have seen less.
    Wanted,
    /// The source is being asked.
    Looking,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) retries: u64,
    pub(crate) saves: u64,
}

/// The save that is under way, if there is one.
#[derive(Default)]
pub(crate) struct SaveState {
    pub(super) failures: u32,
    pub(crate) error: Option<String>,
    /// The consumer only waits for this save, and it was tried again for that.
    pub(super) last_try: bool,
    pub(super) hurried: bool,
    /// Since when it is under way.
    pub(crate) since: Option<Instant>,
}

impl<T: Send + 'static> Core<T> {
    pub(crate) fn new(window: Window, retry: Retry, max_read_ahead: usize, now: Instant) -> Self {
        let mut core = Self {
            window,
            retry,
            prefetch: Prefetch::new(max_read_ahead),
            flights: Flights::default(),
            failed: HashMap::new(),
            aside: Aside::default(),
            timers: BinaryHeap::new(),
            source: Source::default(),
            upstreams: Vec::new(),
            reach: Reach::default(),
            runs: None,
            announce: None,
            announces: false,
            announcing: false,
            workers: Workers::default(),
            counters: Counters::default(),
            error: None,
            halted: None,
            ending: Ending::default(),
            telling: Telling::default(),
            stalls: Stalls::new(now),
            save: SaveState::default(),
            tenancy: Tenancy::default(),
            patience: Patience::new(false),
            effects: Effects::default(),
            runner: None,
            on_job_done: None,
            roster: Roster::default(),
            waiters: Waiters::default(),
            abandoned: false,
            unreachable_from: Index::MAX,
            rouse_reader: false,
            stop_told: false,
            rouse_waiters: false,
        };
        core.fit_prefetch();
        core
    }

    /// Polls the window until it wants nothing more.
    pub(crate) fn drain(&mut self, now: &Now) -> Wakes {
        let mut wakes = Wakes { reader: std::mem::take(&mut self.rouse_reader), ..Wakes::default() };
        if self.window.is_stopping() && !std::mem::replace(&mut self.stop_told, true) {
            wakes.reader = true;
            self.rouse_waiters = true;
            self.ending.stopping.begin();
        }
        while let Some(action) = self.window.poll() {
            self.act(action, &mut wakes, now);
        }
        if std::mem::take(&mut self.rouse_waiters) {
            wakes.called |= self.call_in_vain();
        }
        if self.source.look_waits && !self.has_unread() {
            self.source.look_waits = false;
            wakes.reader = true;
        }
        if self.save.since.is_some() {
            self.hurry_save(&mut wakes);
        }
        let demand = Demand { delivery: self.has_turn(), ..self.demand() };
        wakes.worker = self.workers.wake(demand, self.source.supervises);
        if wakes.worker == Wake::Spawn {
            self.roster.count_in();
        }
        wakes.tell = self.begin_telling();
        wakes
    }

    /// Hardly any job has one, so it is kept out of the way of those that have none.
    #[inline(never)]
    fn act(&mut self, action: Action, wakes: &mut Wakes, now: &Now) {
        match action {
            Action::Fetch(run) => {
                self.source.fetch = Some(run);
                self.source.taken = false;
                // A worker that is awake reads it for itself, or the reader finds it there when it
                // next looks.
                wakes.reader |= !self.leaves_reading_to_workers() || self.workers.awake() == 0;
            }
            Action::Save => {
                wakes.save = true;
                self.save.since = Some(now.get());
                self.patience.begin(now.get(), self.counters.done);
            }
            Action::Announce(run) => self.announce(run, wakes),
            Action::Finish => self.finish(wakes, now),
        }
    }

    fn announce(&mut self, run: RangeInclusive<Index>, wakes: &mut Wakes) {
        wakes.called |= self.waiters.call_up_to(*run.end());
        if self.announces {
            wakes.news = true;
            let start = self.announce.take().map_or(*run.start(), |earlier| *earlier.start());
            self.announce = Some(start..=*run.end());
        }
    }

    fn finish(&mut self, wakes: &mut Wakes, now: &Now) {
        wakes.ended = true;
        self.rouse_waiters = true;
        if let Some(error) = self.reach.error(&self.window).filter(|_| self.error.is_none()) {
            self.halt_for(self.window.lowest_undone(), error.to_string(), error, "", now);
        }
        self.stalls.moved(now);
        self.tell_end(now);
        // There may be very many of them, so it is left to whoever clears up to give their memory
        // back.
        let retries = (std::mem::take(&mut self.timers), std::mem::take(&mut self.failed));
        let jobs = self.prefetch.drain();
        let (runner, callback) = (Guarded::new(self.runner.take()), Guarded::new(self.on_job_done.take()));
        let source = Guarded::new(self.runs.take());
        self.roster.end(Box::new((jobs, retries, runner, callback, source)));
    }

    /// Takes the jobs that were processed since the last time, for the notifier.
    pub(crate) fn take_news(&mut self) -> Option<RangeInclusive<Index>> {
        let news = self.announce.take();
        self.announcing = news.is_some();
        news
    }

    /// True if somebody is being told of something that was saved, or is about to be told.
    pub(crate) fn is_announcing(&self) -> bool {
        self.announcing || self.announce.is_some()
    }

    /// True if the watermark can no longer reach this index.
    pub(crate) fn never(&self, index: Index) -> bool {
        let window = &self.window;
        let stopping = window.is_stopping();
        index == Index::MAX
            || window.has_ended()
            // What was done in an earlier life, or runs already, is passed beyond the end too.
            || window.ends_at().is_some_and(|last| last < index && window.unstarted_from(last.saturating_add(1)) <= index)
            || stopping && (index >= window.next() || self.failed.keys().any(|failed| *failed <= index))
            // Once it stops nobody is given a turn.
            || stopping && self.aside.has_up_to(index)
            || self.unreachable_from <= index
            || self.upstreams.iter().any(|upstream| kept_below(&self.window, index, upstream))
    }

    /// An upstream has ended, or the index to end at has changed: it may be out of reach.
    pub(super) fn end_within_reach(&mut self) {
        self.rouse_waiters |= self.reach.shorten(&mut self.window, &self.upstreams);
    }

    /// Gives up the jobs that run: they are neither awaited nor counted any longer. Returns their
    /// indices, and a callback to be dropped without the lock.
    pub(crate) fn abandon(&mut self) -> (Vec<Index>, Option<Arc<OnJobDone>>) {
        let mut running: Vec<Index> = self.flights.iter().map(|flight| flight.index).collect();
        running.sort_unstable();
        self.abandoned = true;
        self.unreachable_from = self.unreachable_from.min(running.first().copied().unwrap_or(Index::MAX));
        self.rouse_waiters = true;
        self.window.handle_abandoned();
        (running, self.on_job_done.take())
    }

    /// From now on nobody hears what was processed.
    pub(crate) fn silence(&mut self) {
        self.announces = false;
        self.announce = None;
        self.announcing = false;
    }
}

impl<T> AsRef<Roster> for Core<T> {
    fn as_ref(&self) -> &Roster {
        &self.roster
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::Limits;

    #[test]
    fn what_an_earlier_life_had_done_beyond_the_end_is_waited_for() {
        let mut window = Window::begin(0, Limits { max_processing: 1, max_search_ahead: 100 });
        window.restore([2..=4, 6..=6]);
        window.stop_at(1);
        let mut core: Core<()> = Core::new(window, Retry::none(), usize::MAX, Instant::now());
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
