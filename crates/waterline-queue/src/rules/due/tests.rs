//! The decision against a naive model that goes from tick to tick.

use super::*;
use crate::types::schedule::every::Every;
use proptest::prelude::*;
use std::time::{Duration, UNIX_EPOCH};

const HOUR: u64 = 3_600_000;

fn hourly() -> Schedule {
    Every::hours(1).into()
}

fn of(run: &[u64], last: u64, next: u64) -> Due {
    Due { run: run.to_vec(), last, next, skipped: false, missed: None }
}

#[test]
fn a_tick_is_due_at_its_time_and_not_before() {
    for catch_up in [CatchUp::None, CatchUp::One] {
        let due = |now| due(&hourly(), (Overlap::Skip, catch_up), (5, false), now, 8);
        assert_eq!(due(HOUR + 4), of(&[], 5, HOUR + 5));
        assert_eq!(due(HOUR + 5), of(&[HOUR + 5], HOUR + 5, 2 * HOUR + 5));
        assert_eq!(due(HOUR + 5 + LATE), of(&[HOUR + 5], HOUR + 5, 2 * HOUR + 5));
    }
}

#[test]
fn missed_ticks_make_no_job_or_one_or_one_each() {
    let late = 5 * HOUR + HOUR / 2;
    let due = |catch_up, now| due(&hourly(), (Overlap::Allow, catch_up), (0, false), now, 3);
    assert_eq!(due(CatchUp::None, late), Due { missed: Some(HOUR), ..of(&[], 5 * HOUR, 6 * HOUR) });
    assert_eq!(due(CatchUp::One, late), Due { missed: Some(HOUR), ..of(&[5 * HOUR], 5 * HOUR, 6 * HOUR) });
    // The rest is still due.
    assert_eq!(due(CatchUp::All, late), of(&[HOUR, 2 * HOUR, 3 * HOUR], 3 * HOUR, 4 * HOUR));
    // The newest one is in time.
    assert_eq!(due(CatchUp::None, 5 * HOUR), Due { missed: Some(HOUR), ..of(&[5 * HOUR], 5 * HOUR, 6 * HOUR) });
    // A late tick alone is not given up with `One`.
    let late = HOUR + LATE + 1;
    assert_eq!(due(CatchUp::One, late), of(&[HOUR], HOUR, 2 * HOUR));
    assert_eq!(due(CatchUp::None, late), Due { missed: Some(HOUR), ..of(&[], HOUR, 2 * HOUR) });
}

#[test]
fn an_unfinished_run_skips_a_tick_unless_overlap_is_allowed() {
    let due = |overlap| due(&hourly(), (overlap, CatchUp::One), (0, true), HOUR, 8);
    assert_eq!(due(Overlap::Skip), Due { skipped: true, ..of(&[], HOUR, 2 * HOUR) });
    assert_eq!(due(Overlap::Allow), of(&[HOUR], HOUR, 2 * HOUR));
}

#[test]
fn a_clock_set_back_repeats_no_tick() {
    for now in [0, 9 * HOUR, 10 * HOUR, 11 * HOUR - 1] {
        let due = due(&hourly(), (Overlap::Allow, CatchUp::All), (10 * HOUR, false), now, 8);
        assert_eq!(due, of(&[], 10 * HOUR, 11 * HOUR));
    }
}

#[test]
fn a_schedule_without_a_next_tick_is_never_due() {
    let ages = Every::new(Duration::MAX).into();
    let due = due(&ages, (Overlap::Skip, CatchUp::One), (7, false), u64::MAX, 8);
    assert_eq!(due, of(&[], 7, u64::MAX));
}

fn schedules() -> impl Strategy<Value = Schedule> {
    let every = |millis| Every::new(Duration::from_millis(millis));
    let schedules = prop_oneof![
        (1..100_000u64).prop_map(move |millis| every(millis).into()),
        (1..100_000u64, 0..50_000u64)
            .prop_map(move |(millis, anchor)| every(millis).anchor(UNIX_EPOCH + Duration::from_millis(anchor)).into()),
    ];
    // The macro counts its arms before it looks at a condition of one of them.
    #[cfg(feature = "cron")]
    let schedules = prop_oneof![
        2 => schedules,
        1 => prop_oneof![Just("*/7 * * * *"), Just("0 3 * * *"), Just("1,2 4 5 * *")].prop_map(|expression| {
            crate::types::schedule::cron::Cron::parse(expression).unwrap().in_zone("Europe/Berlin").unwrap().into()
        }),
    ];
    schedules
}

proptest! {
    #[test]
    fn the_newest_tick_matches_a_step_by_step_search(schedule in schedules(), last in 0..90_000_000_000u64, time in 1..1000u64) {
        let ticks = schedule.ticks(last);
        let first = ticks.next(last).unwrap();
        // At most `time / 3` ticks, and sometimes a moment between two of them.
        let until = first + (schedule.next(first).unwrap() - first) * time / 3;
        let naive = std::iter::successors(Some(first), |tick| ticks.next(*tick)).take_while(|tick| *tick <= until).last();
        prop_assert_eq!(Some(ticks.newest(first, until)), naive);
    }

    #[test]
    fn each_tick_makes_a_job_exactly_once(schedule in schedules(), pauses in proptest::collection::vec(0..400_000u64, 1..40)) {
        let (mut now, mut last, mut run) = (1_000_000, 1_000_000, Vec::new());
        for pause in pauses {
            now += pause;
            let due = due(&schedule, (Overlap::Allow, CatchUp::All), (last, false), now, 5);
            prop_assert!(due.run.len() <= 5 && due.last >= last && due.next > due.last);
            run.extend(due.run);
            last = due.last;
        }
        let ticks = schedule.ticks(1_000_000);
        let naive: Vec<_> = std::iter::successors(ticks.next(1_000_000), |tick| ticks.next(*tick)).take(run.len()).collect();
        prop_assert_eq!(run, naive);
    }
}
