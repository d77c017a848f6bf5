//! When to look at the source, which means asking for its head.
//!
//! A look is due when the bell rings, when the poll interval is over, and when the pause after a
//! failed look is over. While known jobs are unread, looks take at most a tenth of the time. They
//! never stop altogether: with a head that is hours old, the reported lag would be wrong.

use crate::base::{config::DEFAULT_POLL, retry::Retry};
use std::time::{Duration, Instant};

/// After a look, reading goes on for this many times as long as the look took.
const REST: u32 = 9;

/// The pauses before the next look when the bell rang during a call that brought nothing new. A
/// source may ring from within `head` or `read` itself, and any ring may be the only one for a job.
const ECHO: Retry = Retry::exponential(Duration::from_millis(1), Duration::from_millis(50));

/// Whether a look is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    No,
    /// Once no known job is unread.
    WhenIdle,
    Now,
}

pub(super) struct Looks {
    /// True if the bell rang, or nothing is known yet.
    wanted: bool,
    last: Instant,
    /// When looks will have taken no more than a tenth of the time.
    rested: Instant,
    /// When the pause after a ring during a call ends.
    paced: Option<Instant>,
    /// The number of rings during fruitless calls since a look last showed something new.
    echoes: u32,
    /// True if a job that should exist could not be read since the last look. The bell may never
    /// ring for it: the head may have gone back.
    in_vain: bool,
    /// Until when a failing source is left alone. Rings meanwhile are not forgotten.
    until: Option<Instant>,
}

impl Looks {
    pub(super) fn new(now: Instant) -> Self {
        Self { wanted: true, last: now, rested: now, paced: None, echoes: 0, in_vain: false, until: None }
    }

    /// Notes that the bell rang.
    pub(super) fn ring(&mut self) {
        self.wanted = true;
        self.paced = None;
    }

    /// Notes that the bell rang during a call that brought nothing new.
    pub(super) fn echo(&mut self, now: Instant) {
        // A ring from elsewhere may have come before, and is not paced.
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

    /// Returns when to come back if the bell does not ring; `None`: never.
    pub(super) fn next(&self, now: Instant, poll_every: Option<Duration>) -> Option<Instant> {
        // A look that is due waits only until `rested`.
        self.earliest(poll_every).map(|earliest| if earliest <= now { self.rested } else { earliest })
    }

    /// Returns when a look is due. A source that could not be looked at, or that did not have a job
    /// which should exist, is looked at again even without a ring.
    fn earliest(&self, poll_every: Option<Duration>) -> Option<Instant> {
        // An interval beyond the end of the clock never ends.
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

    /// Ends a look whose call took this long, and during which the bell may have rung.
    pub(super) fn end(&mut self, now: Instant, took: Duration, showed_new: bool, rung: bool) {
        // Beyond the end of the clock means no pause.
        self.rested = now.checked_add(took.saturating_mul(REST)).unwrap_or(now);
        if showed_new {
            self.echoes = 0;
            self.wanted |= rung;
        } else if rung {
            self.echo(now);
        }
    }

    /// Notes that a read did not bring a job that should exist.
    pub(super) fn read_in_vain(&mut self) {
        self.in_vain = true;
    }

    /// Notes that a look failed, and until when the next one waits.
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
