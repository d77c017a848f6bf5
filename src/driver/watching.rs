//! How long the watermark has not moved, and the measurements for observers.

use super::outbox::Outbox;
use crate::base::{Index, time::Now};
use crate::observe::{EventKind, behind::Behind};
use crate::threads::ThreadRegistry;
use crate::window::Window;
use std::time::{Duration, Instant};

pub(crate) struct Watching {
    pub(crate) stalls: Stalls,
    pub(super) measuring: Measuring,
}

#[derive(Debug, Default)]
pub(super) struct Measuring {
    behind: Behind,
    pub(super) last: Option<Instant>,
    /// The head at the last measurement.
    head: Option<Index>,
    /// True if the last measurement found nothing left to do, until a new job or head comes.
    pub(super) idle: bool,
}

impl Watching {
    pub(super) fn new(now: Instant) -> Self {
        Self { stalls: Stalls::new(now), measuring: Measuring::default() }
    }

    /// Notes that something begins that may stall. If it returns true, the caller has to start the
    /// stall watcher, which already counts as present.
    pub(super) fn stir(&mut self, window: &Window, out: &Outbox, registry: &mut ThreadRegistry, now: Instant) -> bool {
        self.stalls.stirred = true;
        let wanted = EventKind::Stalled.is_heard() || out.observers.is_some();
        if self.stalls.watched || window.has_ended() || !wanted {
            return false;
        }
        self.stalls.restart(now);
        self.stalls.watched = true;
        registry.count_in();
        true
    }

    /// Notes the head that a look found. Returns true if the stall watcher has to be woken for it.
    pub(super) fn note_head(&mut self, window: &Window, now: &Now) -> bool {
        let head = window.head();
        self.measuring.behind.shows(head, window.lowest_unprocessed(), now.get());
        // The first measurement may come before the first look.
        let is_news = moves(window) || head != self.measuring.head;
        is_news && std::mem::take(&mut self.measuring.idle)
    }

    /// Returns how long the oldest unprocessed job has been waiting.
    pub(super) fn lag(&mut self, window: &Window, now: &Now) -> Duration {
        self.measuring.behind.elapsed(window.lowest_unprocessed(), now.get())
    }

    pub(super) fn measured(&mut self, window: &Window, now: &Now) {
        self.measuring.last = Some(now.get());
        self.measuring.head = window.head();
    }
}

/// True if a measured number may change without a new job.
pub(super) fn moves(window: &Window) -> bool {
    let is_behind = window.head().is_some_and(|head| head >= window.lowest_unprocessed());
    is_behind || window.in_flight() > 0 || window.done_ahead() > 0 || window.has_parked_work()
}

/// True if everything is processed that the source is known to have.
pub(super) fn is_caught_up(window: &Window) -> bool {
    let (next, head) = (window.lowest_undone(), window.head());
    let ahead_of_source = window.last_processed().is_some_and(|last| head.is_none_or(|head| head < last));
    head.is_none_or(|head| head < next) && !ahead_of_source
}

/// How long the watermark may stand still before a line reports it; doubles with each line.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Stalls {
    pub(crate) patience: Duration,
    /// The user's alarms; each rings once in a stall.
    alarms: Vec<Alarm>,
    /// When the watermark last moved, or work came.
    pub(super) since: Instant,
    /// The number of lines about this stall.
    told: u32,
    /// True if something that may stall has begun since the last look.
    pub(super) stirred: bool,
    /// True while the stall watcher exists.
    pub(super) watched: bool,
    /// True if the stall watcher has to write lines for a thread that must not.
    pub(super) tells: bool,
}

/// A user's alarm.
#[derive(Debug)]
struct Alarm {
    after: Duration,
    /// True if it has rung in this stall.
    rung: bool,
}

/// What to report now about a stall.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StallReport {
    pub(super) line: bool,
    /// The numbers of the alarms that ring now.
    pub(super) alarms: Vec<usize>,
}

impl Stalls {
    pub(super) fn new(now: Instant) -> Self {
        let patience = PATIENCE;
        Self { patience, alarms: Vec::new(), since: now, told: 0, stirred: false, watched: false, tells: false }
    }

    /// Adds an alarm for stalls of each of these lengths.
    pub(crate) fn add_alarms(&mut self, after: impl IntoIterator<Item = Duration>) {
        self.alarms.extend(after.into_iter().map(|after| Alarm { after, rung: false }));
    }

    pub(super) fn restart(&mut self, now: Instant) {
        (self.since, self.told) = (now, 0);
        self.alarms.iter_mut().for_each(|alarm| alarm.rung = false);
    }

    /// Notes that the watermark moved or awaited work came. Reads the clock only for a watcher.
    pub(super) fn moved(&mut self, now: &Now) {
        if self.watched {
            self.restart(now.get());
        }
    }

    /// Returns when the next line or alarm is due, if nothing moves until then.
    pub(super) fn due(&self) -> Instant {
        // An alarm beyond the end of the clock never rings.
        let silent = self.alarms.iter().filter(|alarm| !alarm.rung);
        silent.filter_map(|alarm| self.since.checked_add(alarm.after)).fold(self.line_due(), Instant::min)
    }

    fn line_due(&self) -> Instant {
        let patience = self.patience.saturating_mul(1_u32.checked_shl(self.told).unwrap_or(u32::MAX));
        // Beyond the end of the clock, this is computed anew in a day.
        self.since.checked_add(patience).unwrap_or_else(|| self.since + Duration::from_secs(86_400))
    }

    /// Returns the pause between two looks while nothing may stall.
    pub(super) fn pause(&self) -> Duration {
        self.alarms.iter().map(|alarm| alarm.after).fold(self.patience, Duration::min)
    }

    /// Returns what is due now, and notes that it is reported.
    pub(super) fn tell(&mut self, now: Instant) -> StallReport {
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
        StallReport { line, alarms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn each_alarm_rings_once_for_each_stall() {
        let now = Instant::now();
        let mut stalls = Stalls::new(now);
        stalls.add_alarms([after(25), after(1), Duration::MAX]);
        assert_eq!((stalls.due(), stalls.pause()), (now + after(1), after(1)));
        let said = |line, alarms: &[usize]| StallReport { line, alarms: alarms.to_vec() };
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
