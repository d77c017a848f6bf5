//! The times at which the source is looked at, that is, asked for its head.
//!
//! A look is due when somebody rings, when the poll interval is over, and when the pause after a
//! look that failed is over. While jobs that are known are unread, looks take no more than a tenth
//! of the time. They do not stop altogether: a head that goes stale for hours would make the lag a
//! lie.

use crate::base::config::DEFAULT_POLL;
use crate::base::retry::Retry;
use std::time::{Duration, Instant};

/// After a look, reading goes on for so many times as long as the look took.
const REST: u32 = 9;

/// The pauses after which a source is looked at again that rang during a call which brought nothing
/// new. A source may ring from within `head` or `read` itself, and each ring may be the only one
/// for its job.
const ECHO: Retry = Retry::exponential(Duration::from_millis(1), Duration::from_millis(50));

/// The answer to the question if a look is to be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    No,
    /// Only when no job that is known is unread.
    WhenIdle,
    Now,
}

/// The times at which the source is looked at.
pub(super) struct Looks {
    /// Somebody rang, or nothing is known yet.
    wanted: bool,
    /// The time at which the last look began.
    last: Instant,
    /// From then on looks have taken a tenth of the time at most.
    rested: Instant,
    /// The end of the pause that a ring during a call has to wait for.
    paced: Option<Instant>,
    /// Rings during calls that brought nothing new, since a look last showed anything new.
    echoes: u32,
    /// Since the last look a job that should be there could not be read, and nobody may ever ring
    /// for it: the head may have gone back.
    in_vain: bool,
    /// Until then a source that cannot be looked at is left alone, however often it rings. That it
    /// rang is not forgotten.
    until: Option<Instant>,
}

impl Looks {
    pub(super) fn new(now: Instant) -> Self {
        Self { wanted: true, last: now, rested: now, paced: None, echoes: 0, in_vain: false, until: None }
    }

    /// Somebody rang.
    pub(super) fn ring(&mut self) {
        self.wanted = true;
        self.paced = None;
    }

    /// Somebody rang during a call that brought nothing new.
    pub(super) fn echo(&mut self, now: Instant) {
        // A ring from elsewhere may have come before, and waits for no pause.
        if !self.wanted || self.paced.is_some() {
            self.echoes = self.echoes.saturating_add(1);
            self.paced = ECHO.delay(self.echoes, 1.0).map(|pause| now + pause);
            self.wanted = true;
        }
    }

    pub(super) fn due(&self, now: Instant, poll_every: Option<Duration>) -> Due {
        match self.earliest(poll_every) {
            Some(earliest) if now >= earliest && now >= self.rested => Due::Now,
            Some(earliest) if now >= earliest => Due::WhenIdle,
            _ => Due::No,
        }
    }

    /// Returns the time to come back if nobody rings; `None`: never.
    pub(super) fn next(&self, now: Instant, poll_every: Option<Duration>) -> Option<Instant> {
        // One that is due by now waits for nothing but its rest.
        self.earliest(poll_every).map(|earliest| if earliest <= now { self.rested } else { earliest })
    }

    /// Returns the time at which a look is due. A source that could not be looked at, or that did
    /// not give a job which it should have, is looked at again in any case.
    fn earliest(&self, poll_every: Option<Duration>) -> Option<Instant> {
        // An interval beyond the clock's end is for ever.
        let polled = || poll_every.and_then(|every| self.last.checked_add(every));
        let in_vain = || self.in_vain.then(|| self.last + DEFAULT_POLL);
        let unrung = || polled().or_else(in_vain);
        if self.until.is_some() {
            self.until
        } else if self.wanted {
            let rung = self.paced.unwrap_or(self.last);
            Some(unrung().map_or(rung, |unrung| unrung.min(rung)))
        } else {
            unrung()
        }
    }

    pub(super) fn begin(&mut self, now: Instant) {
        *self = Self { wanted: false, last: now, paced: None, in_vain: false, until: None, ..*self };
    }

    /// A look is over whose call took so long. Somebody may have rung during it.
    pub(super) fn end(&mut self, now: Instant, took: Duration, showed_new: bool, rung: bool) {
        // A pause beyond the clock's end is as good as none.
        self.rested = now.checked_add(took.saturating_mul(REST)).unwrap_or(now);
        if showed_new {
            self.echoes = 0;
            self.wanted |= rung;
        } else if rung {
            self.echo(now);
        }
    }

    /// A read did not bring a job that should be there.
    pub(super) fn read_in_vain(&mut self) {
        self.in_vain = true;
    }

    /// A look failed, and the next one is to wait until then.
    pub(super) fn failed(&mut self, until: Option<Instant>) {
        self.until = until;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_slow_look_rests_9_times_as_long_unless_idle() {
        let begun = Instant::now();
        let mut looks = Looks::new(begun);
        assert_eq!(looks.due(begun, None), Due::Now);
        looks.begin(begun);
        let ended = begun + 100 * MS;
        looks.end(ended, 100 * MS, true, false);
        assert_eq!((looks.due(ended, None), looks.next(ended, None)), (Due::No, None));
        looks.ring();
        assert_eq!(looks.due(ended, None), Due::WhenIdle);
        assert_eq!(looks.next(ended, None), Some(ended + 900 * MS));
        assert_eq!(looks.due(ended + 900 * MS, None), Due::Now);
    }

    #[test]
    fn a_ring_during_a_vain_look_is_paced_not_dropped() {
        let now = Instant::now();
        let mut looks = Looks::new(now);
        let pauses: Vec<_> = (0..9)
            .map(|_| {
                looks.begin(now);
                looks.end(now, Duration::ZERO, false, true);
                looks.next(now, None).unwrap() - now
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 50, 50, 50].map(|pause| pause * MS));
        assert_eq!(looks.due(now + 50 * MS, None), Due::Now);
        looks.ring();
        assert_eq!(looks.due(now, None), Due::Now, "a ring from elsewhere waits for no pause");
        looks.begin(now);
        looks.end(now, Duration::ZERO, true, true);
        assert_eq!(looks.due(now, None), Due::Now, "a source that shows more is looked at again at once");
    }

    #[test]
    fn the_pause_after_a_ring_delays_no_poll() {
        let now = Instant::now();
        let mut looks = Looks::new(now);
        looks.begin(now);
        (0..9).for_each(|_| looks.end(now, Duration::ZERO, false, true));
        assert_eq!(looks.next(now, Some(3 * MS)), Some(now + 3 * MS));
    }

    #[test]
    fn a_paced_ring_delays_no_ring_from_elsewhere() {
        let now = Instant::now();
        let mut looks = Looks::new(now);
        looks.begin(now);
        looks.end(now, Duration::ZERO, false, false);
        looks.ring();
        looks.echo(now);
        assert_eq!(looks.due(now, None), Due::Now);
    }

    #[test]
    fn only_a_failed_look_delays_the_next_one() {
        let now = Instant::now();
        let mut looks = Looks::new(now);
        looks.begin(now);
        looks.failed(Some(now + 50 * MS));
        looks.end(now, Duration::ZERO, false, true);
        looks.ring();
        assert_eq!([now, now + 49 * MS, now + 50 * MS].map(|at| looks.due(at, None)), [Due::No, Due::No, Due::Now]);
        looks.begin(now + 50 * MS);
        assert_eq!(looks.next(now + 50 * MS, None), None);
        looks.read_in_vain();
        assert_eq!(looks.next(now + 50 * MS, None), Some(now + 50 * MS + DEFAULT_POLL), "nobody may ring for it");
        looks.ring();
        assert_eq!(looks.due(now + 50 * MS, None), Due::Now);
    }
}
