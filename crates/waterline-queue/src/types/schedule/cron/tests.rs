//! Cron expressions against a naive model, which looks at each minute.

use super::*;
use jiff::SignedDuration;
use proptest::prelude::*;
use std::collections::BTreeSet;

const MINUTE: SignedDuration = SignedDuration::from_secs(60);

/// The zones of the model: none, whole hours in both hemispheres, half an hour, a change at
/// midnight, a whole day that was skipped, and a summer time that is interrupted for a month.
const ZONES: [&str; 9] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Pacific/Apia",
    "Africa/Casablanca",
];

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

pub(crate) fn ticks(cron: &Cron, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
    let next = |at: &Timestamp| {
        let next = cron.next(at.as_millisecond() as u64)?;
        Some(Timestamp::from_millisecond(next as i64).unwrap()).filter(|next| *next < to)
    };
    std::iter::successors(next(&from), next).collect()
}

/// The fields of an expression, as the sets of their numbers.
#[derive(Clone, Debug)]
struct Fields {
    minutes: BTreeSet<i8>,
    hours: BTreeSet<i8>,
    days: Option<BTreeSet<i8>>,
    months: BTreeSet<i8>,
    weekdays: Option<BTreeSet<i8>>,
}

impl Fields {
    fn expression(&self) -> String {
        let list = |numbers: &BTreeSet<i8>| numbers.iter().map(i8::to_string).collect::<Vec<_>>().join(",");
        let days = |numbers: &Option<BTreeSet<i8>>| numbers.as_ref().map_or("*".to_owned(), list);
        let [minutes, hours, months] = [&self.minutes, &self.hours, &self.months].map(list);
        format!("{minutes} {hours} {} {months} {}", days(&self.days), days(&self.weekdays))
    }

    fn is_met(&self, local: DateTime) -> bool {
        let weekday = local.weekday().to_sunday_zero_offset();
        let day = match (&self.days, &self.weekdays) {
            (Some(days), Some(weekdays)) => days.contains(&local.day()) || weekdays.contains(&weekday),
            (Some(days), None) => days.contains(&local.day()),
            (None, Some(weekdays)) => weekdays.contains(&weekday),
            (None, None) => true,
        };
        let [minute, hour] =
            [(&self.minutes, local.minute()), (&self.hours, local.hour())].map(|(set, n)| set.contains(&n));
        day && minute && hour && self.months.contains(&local.month())
    }

    /// Looks at each minute after a moment.
    fn naive(&self, minutes: &[Minute], from: Timestamp) -> Vec<Timestamp> {
        let met = |local: &DateTime| local.second() == 0 && self.is_met(*local);
        let frequent =
            |hour: i8| self.minutes.len() > 1 && [1, 23].iter().any(|by| self.hours.contains(&((hour + by) % 24)));
        let passing = |minute: &&Minute| {
            met(&minute.shown) && (self.hours.len() == 24 || minute.is_repeated && frequent(minute.shown.hour()))
        };
        let mut ticks: BTreeSet<_> = minutes.iter().filter(passing).map(|minute| minute.at).collect();
        if self.hours.len() < 24 {
            // The local times in order, each with the first moment at which the clock shows it or
            // more.
            let (begin, end) = (minutes[0].shown, minutes[minutes.len() - 1].latest);
            let locals =
                std::iter::successors(Some(begin), |local| Some(*local + MINUTE)).take_while(|local| *local <= end);
            let first = |local| minutes.get(minutes.partition_point(|minute| minute.latest < local));
            ticks.extend(locals.filter(met).filter_map(first).map(|minute| minute.at));
        }
        ticks.into_iter().filter(|at| *at > from).collect()
    }
}

struct Minute {
    at: Timestamp,
    /// The time that the clock shows then, and the latest one that it has shown so far.
    shown: DateTime,
    latest: DateTime,
    /// True if the clock has shown that time or a later one before.
    is_repeated: bool,
}

/// Returns the minutes up to `to`, from a day before `from`, as the clock may go back.
fn minutes(zone: &TimeZone, from: Timestamp, to: Timestamp) -> Vec<Minute> {
    let early = from - SignedDuration::from_hours(24);
    let moments = std::iter::successors(Some(early), |at| Some(*at + MINUTE)).take_while(|at| *at < to);
    let mut latest = zone.to_datetime(early) - MINUTE;
    moments
        .map(|at| {
            let shown = zone.to_datetime(at);
            let is_repeated = shown <= latest;
            latest = latest.max(shown);
            Minute { at, shown, latest, is_repeated }
        })
        .collect()
}

fn some(numbers: std::ops::RangeInclusive<i8>, most: usize) -> impl Strategy<Value = BTreeSet<i8>> {
    proptest::collection::btree_set(numbers, 1..=most)
}

fn fields() -> impl Strategy<Value = Fields> {
    let hours = prop_oneof![Just((0..24).collect()), some(0..=4, 3), some(0..=23, 23)];
    let (days, weekdays) = (proptest::option::of(some(1..=31, 12)), proptest::option::of(some(0..=6, 4)));
    let months = prop_oneof![4 => Just((1..=12).collect()), 1 => some(1..=12, 8)];
    (some(0..=59, 4), hours, days, months, weekdays).prop_map(|(minutes, hours, days, months, weekdays)| Fields {
        minutes,
        hours,
        days,
        months,
        weekdays,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn ticks_match_the_minute_by_minute_model(
        fields in fields(), zone in proptest::sample::select(&ZONES[..]), year in 2005..2035i16, change in 0..4usize,
        before in -90..2000i64,
    ) {
        let cron = match Cron::parse(fields.expression()) {
            // A day that its months do not have.
            Err(ConfigError::Cron { fault: "never", .. }) => return Ok(()),
            cron => cron.unwrap().in_zone(zone).unwrap(),
        };
        let begin = date(year, 1, 1).at(0, 0, 0, 0).to_zoned(cron.zone.clone()).unwrap().timestamp();
        let changed = cron.zone.following(begin).nth(change).map_or(begin, |change| change.timestamp());
        let from = changed - SignedDuration::from_mins(before);
        let to = from + SignedDuration::from_hours(80);
        prop_assert_eq!(ticks(&cron, from, to), fields.naive(&minutes(&cron.zone, from, to), from), "{:?} {}", cron, from);
    }

    #[test]
    fn ticks_only_go_forward_from_any_moment(
        fields in fields(), zone in proptest::sample::select(&ZONES[..]), after in 0..4_000_000_000_000u64
    ) {
        let Ok(cron) = Cron::parse(fields.expression()) else { return Ok(()) };
        let cron = cron.in_zone(zone).unwrap();
        let mut last = after;
        for _ in 0..50 {
            let next = cron.next(last).unwrap();
            prop_assert!(next > last, "{:?} {} {}", cron, last, next);
            // Any moment between two ticks leads to the second one.
            prop_assert_eq!(cron.next(last + (next - last) / 2), Some(next));
            prop_assert_eq!(cron.next(next - 1), Some(next));
            last = next;
        }
    }
}

// The clock shows 01:01 at 05:01 and again at 06:01.
#[test]
fn no_second_tick_within_a_repeated_hour() {
    let cron = Cron::parse("1 1 * * *").unwrap().in_zone("America/New_York").unwrap();
    let (from, to) = (at("2005-10-30T06:00Z"), at("2005-11-01T00:00Z"));
    assert_eq!(ticks(&cron, from, to), [at("2005-10-31T06:01Z")]);
}

#[test]
fn a_daily_job_runs_once_per_local_day() {
    for zone in ["Europe/Berlin", "America/New_York", "Asia/Beirut", "Australia/Lord_Howe"] {
        for time in ["30 2", "0 0", "45 1", "15 2"] {
            let cron = Cron::parse(format!("{time} * * *")).unwrap().in_zone(zone).unwrap();
            let local = |at: Timestamp| cron.zone.to_datetime(at).date();
            let ticks = ticks(&cron, at("2011-06-01T00:00Z"), at("2026-06-01T00:00Z"));
            let days = ticks.windows(2).filter(|pair| local(pair[0]).tomorrow().unwrap() != local(pair[1]));
            assert_eq!(days.collect::<Vec<_>>(), Vec::<&[_]>::new(), "{cron:?}");
            assert!(ticks.len() > 5_400);
        }
    }
}

#[test]
fn hourly_jobs_follow_elapsed_time() {
    let quarters = Cron::parse("*/15 * * * *").unwrap().in_zone("Europe/Berlin").unwrap();
    for (from, to) in [("2025-03-30T00:00Z", "2025-03-30T03:00Z"), ("2025-10-26T00:00Z", "2025-10-26T03:00Z")] {
        let ticks = ticks(&quarters, at(from), at(to));
        assert_eq!(ticks.len(), 11);
        assert!(ticks.windows(2).all(|pair| pair[0] + MINUTE * 15 == pair[1]), "{ticks:?}");
    }
}

/// The fields of an expression without days, for the model.
fn fields_of(minutes: &[i8], hours: &[i8]) -> Fields {
    let set = |numbers: &[i8]| numbers.iter().copied().collect();
    Fields { minutes: set(minutes), hours: set(hours), days: None, months: (1..=12).collect(), weekdays: None }
}

/// Each way to write some minutes and hours, and the numbers that they mean.
fn table() -> Vec<(&'static str, Fields)> {
    let quarters = [0, 15, 30, 45];
    vec![
        ("*/15 0-6", fields_of(&quarters, &[0, 1, 2, 3, 4, 5, 6])),
        ("0,15,30,45 0,1,2,3,4,5,6", fields_of(&quarters, &[0, 1, 2, 3, 4, 5, 6])),
        ("0-45/15 22-23,0-1", fields_of(&quarters, &[22, 23, 0, 1])),
        ("0,30 1", fields_of(&[0, 30], &[1])),
        ("0,30 1,3", fields_of(&[0, 30], &[1, 3])),
        ("0,30 1-2", fields_of(&[0, 30], &[1, 2])),
        ("5,50 2,3", fields_of(&[5, 50], &[2, 3])),
        ("30 */2", fields_of(&[30], &[0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22])),
        ("0,30 */2", fields_of(&[0, 30], &[0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22])),
        ("30 0-6", fields_of(&[30], &[0, 1, 2, 3, 4, 5, 6])),
        ("10,40 0-22", fields_of(&[10, 40], &(0..=22).collect::<Vec<_>>())),
        ("*/20 *", fields_of(&[0, 20, 40], &(0..24).collect::<Vec<_>>())),
        ("5 */1", fields_of(&[5], &(0..24).collect::<Vec<_>>())),
    ]
}

#[test]
fn ticks_around_all_clock_changes_match_the_model() {
    let (begin, end) = (at("2010-01-01T00:00Z"), at("2020-01-01T00:00Z"));
    let (mut changes, hour, around) = (0, SignedDuration::from_hours(1), SignedDuration::from_hours(5));
    for zone in ZONES {
        let zone = TimeZoneDatabase::bundled().get(zone).unwrap();
        let crons = table().into_iter().map(|(written, fields)| {
            (Cron::parse(format!("{written} * * *")).unwrap().in_zone(zone.iana_name().unwrap()).unwrap(), fields)
        });
        let crons: Vec<_> = crons.collect();
        // The changes are found by a walk, and not by the list of the zone.
        let hours = std::iter::successors(Some(begin), |at| Some(*at + hour)).take_while(|at| *at < end);
        let changed = hours.filter(|at| zone.to_offset(*at) != zone.to_offset(*at + hour));
        for changed in changed.chain([begin]) {
            changes += 1;
            let (from, to) = (changed - around, changed + around);
            let minutes = minutes(&zone, from, to);
            for (cron, fields) in &crons {
                assert_eq!(ticks(cron, from, to), fields.naive(&minutes, from), "{cron:?} {changed}");
            }
        }
    }
    assert!(changes > 120, "{changes} changes");
}

#[test]
fn gaps_make_one_tick_and_frequent_jobs_do_not_pause() {
    let local = |expression: &str, from: &str, to: &str| {
        let cron = Cron::parse(expression).unwrap().in_zone("Europe/Berlin").unwrap();
        let ticks = ticks(&cron, at(from), at(to)).into_iter();
        ticks.map(|tick| cron.zone.to_datetime(tick).strftime("%H:%M").to_string()).collect::<Vec<_>>()
    };
    let spring = local("0,20,40 1-3 * * *", "2025-03-29T20:00Z", "2025-03-30T20:00Z");
    assert_eq!(spring, ["01:00", "01:20", "01:40", "03:00", "03:20", "03:40"]);
    let autumn = |expression| local(expression, "2025-10-25T20:00Z", "2025-10-26T20:00Z");
    assert_eq!(autumn("0,30 1-2 * * *"), ["01:00", "01:30", "02:00", "02:30", "02:00", "02:30"]);
    assert_eq!(autumn("0,30 2 * * *"), ["02:00", "02:30"]);
    assert_eq!(autumn("30 2,3 * * *"), ["02:30", "03:30"]);
}

#[test]
fn a_day_skipped_by_a_zone_is_made_up_right_after() {
    let daily = Cron::parse("0 7 * * *").unwrap().in_zone("pacific/apia").unwrap();
    let ticks = ticks(&daily, at("2011-12-29T00:00-10:00"), at("2012-01-01T00:00+14:00"));
    let expected = ["2011-12-29T07:00-10:00", "2011-12-31T00:00+14:00", "2011-12-31T07:00+14:00"].map(at);
    assert_eq!(ticks, expected);
}

#[test]
fn an_invalid_expression_names_its_field() {
    let field = |expression: &str| match Cron::parse(expression) {
        Err(ConfigError::Cron { fault, value, .. }) => (fault, value),
        other => panic!("{expression}: {other:?}"),
    };
    assert_eq!(field("60 * * * *"), ("minute", "60".to_owned()));
    let minutes = Cron::parse("60 * * * *").unwrap_err().to_string();
    let text =
        "the minute \"60\" of the cron expression \"60 * * * *\" cannot be read: it takes 0 to 59, alone or as `*`, ";
    assert!(minutes.starts_with(text), "{minutes}");
    let months = Cron::parse("* * * 13 *").unwrap_err().to_string();
    assert!(months.contains("cannot be read: it takes 1 to 12, "), "{months}");
    assert_eq!(field("*/90 * * * *"), ("minute", "*/90".to_owned()));
    assert_eq!(field("JAN * * * *"), ("minute", "JAN".to_owned()));
    assert_eq!(field("* 24 * * *"), ("hour", "24".to_owned()));
    assert_eq!(field("* 5-2 * * *"), ("hour", "5-2".to_owned()));
    assert_eq!(field("* * 0 * *"), ("day of month", "0".to_owned()));
    assert_eq!(field("* * MON * *"), ("day of month", "MON".to_owned()));
    assert_eq!(field("* * * 13 *"), ("month", "13".to_owned()));
    assert_eq!(field("* * * MON *"), ("month", "MON".to_owned()));
    assert_eq!(field("* * * * 8"), ("day of week", "8".to_owned()));
    assert_eq!(field("* * * * FRY"), ("day of week", "FRY".to_owned()));
    assert_eq!(field("* * * * MON,"), ("day of week", "MON,".to_owned()));
    assert_eq!(field("ß * * * *"), ("minute", "ß".to_owned()));
    for (expression, fields) in [("", 0), ("* * * *", 4), ("0 * * * * *", 6), ("@reboot", 1)] {
        let why = format!(
            "the cron expression {expression:?} has {fields} fields: use 5 (minute, hour, day of month, month, day of week)"
        );
        assert_eq!(Cron::parse(expression).unwrap_err(), refused("fields", expression, &fields.to_string(), why));
    }
    let never = ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "* * 31W 2 *"];
    for expression in never {
        let why = format!(
            "no time matches the cron expression {expression:?}, so the job would never run: use a date that exists"
        );
        assert_eq!(Cron::parse(expression).unwrap_err(), refused("never", expression, "", why));
    }
    let hourly = Cron::parse("@Hourly").unwrap();
    assert_eq!((&hourly, hourly.to_string().as_str()), (&Cron::parse(" 0  * * * * ").unwrap(), "0 * * * * (UTC)"));
    let error = hourly.in_zone("Mars/Base").unwrap_err();
    let why =
        "there is no time zone \"Mars/Base\": use a name of the IANA time zone database, for example \"Europe/Berlin\"";
    assert_eq!(error, refused("time zone", "Mars/Base", "", why.to_owned()));
}

#[test]
fn a_leap_day_is_found_past_a_century_without_one() {
    let leap = Cron::parse("0 0 29 2 *").unwrap();
    let ticks = ticks(&leap, at("2091-01-01T00:00Z"), at("2105-01-01T00:00Z"));
    assert_eq!(ticks, ["2092-02-29T00:00Z", "2096-02-29T00:00Z", "2104-02-29T00:00Z"].map(at));
}

#[test]
fn each_field_syntax_is_read_as_documented() {
    let days = |expression: &str| {
        let ticks =
            ticks(&Cron::parse(expression).unwrap(), at("2025-07-31T23:59Z"), at("2025-09-01T00:00Z")).into_iter();
        ticks.map(|tick| TimeZone::UTC.to_datetime(tick).day()).collect::<Vec<_>>()
    };
    assert_eq!(days("0 0 L * *"), [31]);
    assert_eq!(days("0 0 16W * *"), [15]);
    assert_eq!(days("0 0 * * FRI#2"), [8]);
    assert_eq!(days("0 0 * * FRI#L"), [29]);
    assert_eq!(days("0 0 * * 5L"), [29]);
    assert_eq!(days("0 0 1 * fri"), [1, 8, 15, 22, 29]);
    assert_eq!(days("0 0 15 * MON"), [4, 11, 15, 18, 25]);
    assert_eq!(days("0 0 15 * +FRI"), [15]);
    assert_eq!(days("0 0 15 * +MON"), Vec::<i8>::new());
    assert_eq!(days("0 0 * * 7"), days("0 0 * * 0"));
    assert_eq!(days("0 0 2-8/3,20 aug *"), [2, 5, 8, 20]);
}

/// Inline code of a page is no doc test.
#[test]
fn cron_expressions_of_the_readme_are_valid() {
    let readme = include_str!("../../../../README.md");
    let expressions: Vec<_> =
        readme.split("Cron::parse(\"").skip(1).filter_map(|text| text.split('"').next()).collect();
    assert!(!expressions.is_empty());
    for expression in expressions {
        assert!(!expression.contains('\n'), "{expression:?} is in two lines");
        assert!(Cron::parse(expression).is_ok(), "{expression:?}");
    }
}
