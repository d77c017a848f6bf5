//! How times move back with a wall clock that was set back. Pure: the caller passes the time.
//!
//! A time that was computed from the wall clock while it was ahead (a back-off, a pause, how long a
//! row is kept) would be too far ahead. So it moves back by as much as the clock: what had a minute
//! left still has a minute left. A time that the user named stays.

use crate::types::schedule::Schedule;
use std::time::{Duration, Instant};

/// A clock that goes back by more has been set. Threads may reach the queue in another order than
/// they have read the clock, and a time server makes small corrections.
const BACK: u64 = 1_000;

const DAY: u64 = 24 * 60 * 60 * 1_000;

/// The latest moment that a queue has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Latest {
    /// By the wall clock, in milliseconds since 1970; 0: there was none.
    wall: u64,
    /// By the monotonic clock; `None`: an earlier process has seen it.
    steady: Option<Instant>,
}

impl Latest {
    /// The last time that an earlier process has seen.
    pub(crate) fn stored(wall: u64) -> Self {
        Self { wall, steady: None }
    }

    pub(crate) fn wall(&self) -> u64 {
        self.wall
    }

    /// Notes a moment. An earlier one is ignored, unless the clock was set back.
    pub(crate) fn note(&mut self, wall: u64, now: Instant) {
        if wall >= self.wall {
            self.begin_at(wall, now);
        }
    }

    /// Starts over with a moment, since the clock was set back.
    pub(crate) fn begin_at(&mut self, wall: u64, now: Instant) {
        (self.wall, self.steady) = (wall, Some(now));
    }

    /// Does the same as [`set_back`](Self::set_back), but without a monotonic clock.
    pub(crate) fn set_back_to(&self, wall: u64) -> Option<SetBack> {
        let by = self.wall.checked_sub(wall).filter(|by| *by > BACK)?;
        Some(SetBack { to: wall, by })
    }

    /// Returns how the clock was set back since the latest moment; `None`: it was not. The
    /// monotonic clock tells what it would show otherwise. A call that was overtaken is earlier by
    /// both.
    pub(crate) fn set_back(&self, wall: u64, now: Instant) -> Option<SetBack> {
        let SetBack { to, by } = self.set_back_to(wall)?;
        let Some(steady) = self.steady else { return Some(SetBack { to, by }) };
        let millis = |passed: Duration| u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        let by = match now.checked_duration_since(steady) {
            Some(passed) => by.saturating_add(millis(passed)),
            None => by.saturating_sub(millis(steady.duration_since(now))),
        };
        (by > BACK).then_some(SetBack { to, by })
    }
}

/// A clock that was set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetBack {
    /// The time that it shows, in milliseconds since 1970.
    pub to: u64,
    /// By how many milliseconds it was set back.
    pub by: u64,
}

impl SetBack {
    /// Returns when something was written and until when it holds, adjusted to the clock now;
    /// `None`: both stay, since it was written at a past time. `u64::MAX`, which is forever, stays.
    #[must_use]
    pub fn moved(&self, written: u64, until: u64) -> Option<(u64, u64)> {
        let ahead = written.checked_sub(self.to).filter(|ahead| *ahead > 0)?;
        // One from before an earlier jump that was not noticed is further ahead.
        let by = self.by.max(ahead);
        let until = if until == u64::MAX { until } else { until.saturating_sub(by) };
        Some((written.saturating_sub(by), until))
    }

    /// Adjusts both times. Returns true if they have changed.
    pub(crate) fn move_both(&self, written: &mut u64, until: &mut u64) -> bool {
        let moved = self.moved(*written, *until);
        moved.into_iter().for_each(|(since, then)| (*written, *until) = (since, then));
        moved.is_some()
    }

    /// Adjusts the time at which something was written.
    pub(crate) fn move_one(&self, written: &mut u64) -> bool {
        self.move_both(written, &mut 0)
    }
}

/// Returns the last tick of a periodic job as it counts now.
///
/// If it is ahead, the clock was set back since. Then an interval is counted from now. A time that
/// the schedule names has had its tick, so that a small correction of the clock brings no second
/// one, unless that was another day or another tick lies between.
#[must_use]
pub fn last_tick(schedule: &Schedule, last: u64, now: u64) -> u64 {
    let Some(ahead) = last.checked_sub(now).filter(|ahead| *ahead > BACK) else { return last };
    let counts = || ahead < DAY && schedule.next(now).is_none_or(|next| next >= last);
    if schedule.names_times() && counts() { last } else { now }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::schedule::every::Every;
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;
    use waterline::seam as time;

    const HOUR: u64 = 3_600_000;

    fn millis(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    /// The latest moment of a clock that showed this, and the monotonic time.
    fn seen(wall: u64) -> (Latest, Instant) {
        let (mut latest, now) = (Latest::default(), time::now() + millis(100_000));
        latest.note(wall, now);
        (latest, now)
    }

    #[test]
    fn a_set_back_of_over_a_second_is_noticed() {
        let (mut latest, now) = seen(10_000);
        for wall in [9_500, 9_000] {
            assert_eq!(latest.set_back(wall, now), None);
            latest.note(wall, now);
        }
        assert_eq!(latest.set_back(8_999, now), Some(SetBack { to: 8_999, by: 1_001 }));
        latest.note(20_000, now);
        assert_eq!(latest.set_back(18_000, now), Some(SetBack { to: 18_000, by: 2_000 }));
    }

    #[test]
    fn the_monotonic_clock_measures_a_set_back() {
        let (latest, now) = seen(HOUR);
        assert_eq!(latest.set_back(30_000, now + millis(60_000)), Some(SetBack { to: 30_000, by: HOUR + 30_000 }));
        assert_eq!(latest.set_back(HOUR - 5_000, now - millis(5_000)), None, "it has read both clocks before");
        assert_eq!(latest.set_back(HOUR - 5_000, now - millis(500)), Some(SetBack { to: HOUR - 5_000, by: 4_500 }));
        assert_eq!(Latest::stored(HOUR).set_back(30_000, now), Some(SetBack { to: 30_000, by: HOUR - 30_000 }));
        assert_eq!(Latest::default().set_back(0, now), None, "nobody has seen any time");
        assert_eq!(latest.set_back(HOUR + 1, now + millis(9_000)), None, "nothing is ahead");
    }

    #[test]
    fn a_last_tick_ahead_counts_as_now_unless_times_are_named() {
        let (free, named): (Schedule, Schedule) = (Every::hours(1).into(), Every::hours(1).anchor(UNIX_EPOCH).into());
        let now = 5 * HOUR + HOUR / 2;
        let ticks = |last| [&free, &named].map(|schedule| last_tick(schedule, last, now));
        assert_eq!(ticks(5 * HOUR), [5 * HOUR; 2], "it has been");
        assert_eq!(ticks(now + 1_000), [now + 1_000; 2], "a little");
        assert_eq!(ticks(6 * HOUR), [now, 6 * HOUR], "no other tick lies between");
        assert_eq!(ticks(7 * HOUR), [now; 2], "one at 6");
        let daily: Schedule = Every::days(2).anchor(UNIX_EPOCH).into();
        assert_eq!(last_tick(&daily, 48 * HOUR, 25 * HOUR), 48 * HOUR);
        assert_eq!(last_tick(&daily, 48 * HOUR, 24 * HOUR), 24 * HOUR, "a day ahead");
    }

    proptest! {
        /// The true time goes on evenly. The clock is wrong by `before`, then by `wrong`, and then,
        /// after it was set back, by `after`.
        #[test]
        fn remaining_times_survive_a_set_back(
            before in 0..1_000_000i64, wrong in 0..400_000_000_000i64, after in -90_000_000..400_000_000_000i64,
            begin in 100_000_000..10_000_000_000u64, written in 0..90_000u64, seen in 0..5_000u64,
            back in 0..60_000u64, lasts in 0..100_000_000_000u64, was_right in any::<bool>(),
        ) {
            let (start, at) = (time::now(), |time: u64, wrong: i64| time.saturating_add_signed(wrong));
            let (write, see) = (begin + written, begin + written + seen);
            let back = see + back;
            let wrote = at(write, if was_right { before.min(after) } else { wrong });
            let mut latest = Latest::default();
            latest.note(at(see, wrong), start + millis(see));
            let Some(set) = latest.set_back(at(back, after), start + millis(back)) else {
                prop_assert!(at(back, after) + BACK >= at(see, wrong) || wrong - after <= BACK as i64);
                return Ok(());
            };
            prop_assert_eq!((set.to, set.by as i64), (at(back, after), wrong - after));
            let Some((since, until)) = set.moved(wrote, wrote + lasts) else {
                prop_assert!(wrote <= set.to);
                return Ok(());
            };
            prop_assert!(!was_right && since < wrote && since <= set.to);
            // What has passed since by the monotonic clock has passed.
            prop_assert_eq!(i128::from(until) - i128::from(set.to), i128::from(lasts) - i128::from(back - write));
            prop_assert_eq!(set.moved(since, until), None, "it is done once");
        }
    }

    #[test]
    fn an_endless_time_stays_and_none_is_negative() {
        let set = SetBack { to: 5_000, by: 10_000 };
        assert_eq!(set.moved(6_000, u64::MAX), Some((0, u64::MAX)));
        assert_eq!((set.moved(6_000, 7_000), set.moved(5_000, 99_000)), (Some((0, 0)), None));
        assert_eq!(SetBack { to: 5_000, by: 2_000 }.moved(9_000, 9_500), Some((5_000, 5_500)), "never ahead again");
    }
}
