//! The time since which the watermark stands still, the times at which a line says so, and those of
//! the calls that the user wants.

use crate::base::time::Now;
use std::time::{Duration, Instant};

/// The time for which the watermark stands still before that is said. It is said again after twice
/// as long.
const PATIENCE: Duration = Duration::from_secs(10);

/// The state of the watch over the watermark.
#[derive(Debug)]
pub(crate) struct Stalls {
    pub(crate) patience: Duration,
    /// The calls that the user wants, each once for a stall.
    alarms: Vec<Alarm>,
    /// The time at which the watermark moved, or work came.
    pub(super) since: Instant,
    /// The number of times that a line said it since then.
    told: u32,
    /// True if something that may stall has begun since the last look.
    pub(super) stirred: bool,
    /// True while there is a thread that watches.
    pub(super) watched: bool,
    /// True if that thread is to write the lines that another thread should not.
    pub(super) tells: bool,
}

/// A call of the user's for a stall of this length.
#[derive(Debug)]
struct Alarm {
    after: Duration,
    /// True if it has been called for this stall.
    rung: bool,
}

/// The duties of the moment in which a stall has lasted long enough for some of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) line: bool,
    /// The numbers of the alarms that ring now.
    pub(super) alarms: Vec<usize>,
}

impl Stalls {
    pub(super) fn new(now: Instant) -> Self {
        let patience = PATIENCE;
        Self { patience, alarms: Vec::new(), since: now, told: 0, stirred: false, watched: false, tells: false }
    }

    /// Adds an alarm for each of these lengths of a stall.
    pub(crate) fn add_alarms(&mut self, after: impl IntoIterator<Item = Duration>) {
        self.alarms.extend(after.into_iter().map(|after| Alarm { after, rung: false }));
    }

    pub(super) fn restart(&mut self, now: Instant) {
        (self.since, self.told) = (now, 0);
        self.alarms.iter_mut().for_each(|alarm| alarm.rung = false);
    }

    /// Notes that the watermark moved, or that the work came that it waited for. The clock is read
    /// only if a thread watches.
    pub(super) fn moved(&mut self, now: &Now) {
        if self.watched {
            self.restart(now.get());
        }
    }

    /// Returns the time of the next line or alarm, if nothing moves until then.
    pub(super) fn due(&self) -> Instant {
        // An alarm beyond the end of the clock never rings.
        let silent = self.alarms.iter().filter(|alarm| !alarm.rung);
        silent.filter_map(|alarm| self.since.checked_add(alarm.after)).fold(self.line_due(), Instant::min)
    }

    fn line_due(&self) -> Instant {
        let patience = self.patience.saturating_mul(1_u32.checked_shl(self.told).unwrap_or(u32::MAX));
        // Beyond the clock's end: in a day that is computed anew.
        self.since.checked_add(patience).unwrap_or_else(|| self.since + Duration::from_secs(86_400))
    }

    /// Returns the pause between two looks, while nothing may stall.
    pub(super) fn pause(&self) -> Duration {
        self.alarms.iter().map(|alarm| alarm.after).fold(self.patience, Duration::min)
    }

    /// Returns the duties of this moment, and notes that they are carried out. The next line is due
    /// after twice as much time.
    pub(super) fn tell(&mut self, now: Instant) -> Said {
        let line = self.line_due() <= now;
        while self.told < 31 && self.line_due() <= now {
            self.told += 1;
        }
        let since = self.since;
        let rings = |alarm: &mut Alarm| {
            let is_due = since.checked_add(alarm.after).is_some_and(|due| due <= now);
            is_due && !std::mem::replace(&mut alarm.rung, true)
        };
        let alarms = self.alarms.iter_mut().enumerate().filter_map(|(at, alarm)| rings(alarm).then_some(at)).collect();
        Said { line, alarms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn each_alarm_rings_once_at_its_own_time_until_the_watermark_moves() {
        let now = Instant::now();
        let mut stalls = Stalls::new(now);
        stalls.add_alarms([after(25), after(1), Duration::MAX]);
        assert_eq!((stalls.due(), stalls.pause()), (now + after(1), after(1)));
        let said = |line, alarms: &[usize]| Said { line, alarms: alarms.to_vec() };
        assert_eq!(stalls.tell(now), said(false, &[]));
        assert_eq!((stalls.tell(now + after(1)), stalls.due()), (said(false, &[1]), now + after(10)));
        assert_eq!((stalls.tell(now + after(10)), stalls.due()), (said(true, &[]), now + after(20)));
        assert_eq!((stalls.tell(now + after(20)), stalls.due()), (said(true, &[]), now + after(25)));
        assert_eq!((stalls.tell(now + after(25)), stalls.due()), (said(false, &[0]), now + after(40)));
        assert_eq!(stalls.tell(now + after(86_400 * 365)), said(true, &[]), "the last one never rings");
        stalls.restart(now + after(100));
        assert_eq!(stalls.due(), now + after(101), "the next stall");
        assert_eq!(stalls.tell(now + after(130)), said(true, &[0, 1]), "a thread that slept says all of it");
    }
}
