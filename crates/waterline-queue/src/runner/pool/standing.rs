//! The thread that notices a standstill: all slots are busy, and no job ends.
//!
//! No other thread can notice it, since all of them may be in handlers. So when all slots are busy
//! for the first time, the thread `wl-watch` starts, if a subscriber wants its line or there is an
//! observer. It looks once per lease, and when the rule may apply. It uses the times of the claims,
//! and of the write of the last end, so no job costs an extra clock read.

use crate::notify::lines::is_wanted;
use crate::notify::losses::AllBusy;
use crate::rules::still::{next_line, patience};
use crate::runner::attempt::AttemptPort;
use crate::runner::outcome::QueueEvent;
use crate::runner::pool::{Pool, State};
use crate::runner::running::Running;
use crate::types::durations::Long;
use std::time::{Duration, Instant};
use tracing::Level;
use waterline::seam::{ClockExt, ClockWaits as Waits, guarded};

/// The slots of a runner, all of them busy.
struct Full {
    slots: usize,
    /// When the last job ended, or when the last slot was claimed if that was later.
    since: Instant,
    patience: Duration,
    oldest: Running,
}

/// The lines so far, for the time without an end that began at `since`.
#[derive(Default)]
struct ToldLines {
    since: Option<Instant>,
    lines: u32,
}

impl ToldLines {
    /// Returns when the next line is due; `None`: beyond the end of the clock.
    fn due(&mut self, full: &Full) -> Option<Instant> {
        if self.since.replace(full.since) != Some(full.since) {
            self.lines = 0;
        }
        full.since.checked_add(next_line(full.patience, self.lines))
    }

    /// Notes that a line is written now. It stands for those that were slept through.
    fn tell(&mut self, full: &Full, now: Instant) {
        while self.lines < u32::BITS && self.due(full).is_some_and(|due| due <= now) {
            self.lines += 1;
        }
    }
}

impl Pool {
    /// Notes that all slots are busy for the first time. If so, start the watch, without a lock.
    pub(super) fn is_first_full(&self, state: &mut State) -> bool {
        let is_full = !state.slots.is_watched && state.slots.flights.len() >= state.slots.max_processing;
        state.slots.is_watched |= is_full && (is_wanted(Level::WARN) || !self.settings.hooks.observers.is_empty());
        is_full && state.slots.is_watched
    }

    pub(super) fn spawn_watch(&self) {
        let Some(me) = self.threads.host().upgrade() else { return };
        if let Err(error) = self.threads.spawn("wl-watch", move || me.watch()) {
            // The next claim that takes the last slot retries it.
            self.state.lock().slots.is_watched = false;
            tracing::warn!(target: "waterline", queue = self.source().name(), %error, "no thread can be started that would tell if the queue stands still");
        }
    }

    /// Runs the loop of the thread.
    fn watch(&self) {
        let (clock, mut told) = (self.source().clock(), ToldLines::default());
        let mut state = self.state.lock();
        while !state.drain.over {
            let now = clock.now();
            let full = self.full(&state);
            // If all slots get busy right after this look, a standstill is at least a lease away.
            let until =
                full.as_ref().and_then(|full| told.due(full)).or_else(|| now.checked_add(self.shortest_lease()));
            match full.filter(|_| until.is_some_and(|until| until <= now)) {
                None => _ = clock.wait(&self.standing, &mut state, until),
                Some(full) => {
                    told.tell(&full, now);
                    drop(state);
                    self.tell_standstill(&full, now);
                    state = self.state.lock();
                }
            }
        }
    }

    /// Returns the slots if all are busy.
    fn full(&self, state: &State) -> Option<Full> {
        let (slots, runs) = (state.slots.max_processing, || state.slots.flights.values().map(|flight| &flight.job));
        if runs().len() < slots {
            return None;
        }
        let oldest = runs().min_by_key(|job| (job.begun(), job.flight()))?;
        let since = runs().map(Running::begun).chain(state.slots.last_end).max()?;
        let patience = runs().map(|job| {
            let shared = &job.queue().shared;
            // Its jobs are meant to run on and on.
            match shared.options.heal_after {
                Some(_) => Duration::MAX,
                None => patience(shared.options.lease, shared.averages.expected(job.kind())),
            }
        });
        Some(Full { slots, since, patience: patience.max()?, oldest: oldest.clone() })
    }

    fn shortest_lease(&self) -> Duration {
        let leases = self.source().queues().into_iter().map(|queue| queue.shared.options.lease);
        leases.min().unwrap_or_default()
    }

    fn tell_standstill(&self, Full { slots, since, oldest, .. }: &Full, now: Instant) {
        let (queue, id, kind, attempt) = (oldest.queue().name(), oldest.id(), oldest.kind(), oldest.attempt());
        let (elapsed, no_end) = (now.saturating_duration_since(oldest.begun()), now.saturating_duration_since(*since));
        // A panic of the subscriber has been reported by the panic hook.
        let _ = guarded(|| {
            let (ran, slots) = (Long(elapsed).to_string(), *slots);
            tracing::warn!(
                target: "waterline", queue, slots, id, kind, attempt, ran,
                "the queue stands still: all slots of its runner here are busy, and no job has ended for {}; find out what \
                 its oldest job waits for, and give such a call a timeout; to free the slots, start the process again",
                Long(no_end)
            );
            Ok(())
        });
        let event = QueueEvent::Stalled { queue, slots: *slots, id, kind, attempt, elapsed, no_end };
        self.hooks().tell(oldest, &event);
    }

    /// Returns the slots if all are busy, for the status.
    pub(super) fn busy_slots(&self) -> Option<AllBusy> {
        let Full { slots, since, patience, oldest } = self.full(&self.state.lock())?;
        let (id, kind) = (oldest.id().to_owned(), oldest.kind().to_owned());
        Some(AllBusy { slots, since, patience, oldest: (oldest.begun(), id), kind })
    }
}

impl Waits for Pool {
    fn clock_was_set(&self) {
        // With the lock, the thread either sleeps or has not looked yet.
        drop(self.state.lock());
        self.standing.notify_all();
    }
}
