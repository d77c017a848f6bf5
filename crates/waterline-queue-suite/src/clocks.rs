//! A wall clock that is wrong for a while: what was to last a minute still does.

use crate::bench::*;
use std::time::{Duration, UNIX_EPOCH};
use waterline::{Failure, Retry};
use waterline_queue::{
    Accept, DrainLimits, Every, JobState, Lease, NewJob, Outcome, PushOutcome, Queue, QueueOptions, Retention, Runner,
    Schedule, Unique, Waits,
};

/// Each duration that a queue reckons from the wall clock is the same here.
fn options() -> QueueOptions {
    let options = QueueOptions::default().retry(Retry::fixed(MINUTE)).retention(Retention::For(MINUTE));
    options.dead_for(MINUTE).lease(DAY)
}

fn twin(id: &str) -> NewJob {
    NewJob::new("twin", &1).unwrap().id(id).unique(Unique::within(MINUTE))
}

/// Makes the queue note the time, and changes nothing else.
fn touch(bench: &Bench) {
    bench.push(NewJob::new("touch", &1).unwrap().id("touch"));
    bench.queue.remove("touch").unwrap();
    assert!(bench.queue.accept(Accept::new().kinds(["none"])).unwrap().is_none());
}

/// Begins one of each thing that lasts a minute, and returns the lease of a running job.
fn begin(bench: &Bench) -> Lease {
    bench.running("retried").retry("not yet").unwrap();
    bench.push(job("deferred"));
    Runner::builder(&bench.queue)
        .on("k", |_, _: u32| -> Result<Outcome, _> { Err(Failure::defer(MINUTE).into()) })
        .drain(DrainLimits::default())
        .unwrap();
    let mut again = bench.running("again");
    bench.push(job("again").delay(MINUTE));
    again.finish(None).unwrap();
    bench.finished("finished");
    bench.running("dead").bury("no way").unwrap();
    bench.push(twin("unique"));
    bench.finish("unique");
    let runs = bench.running("runs");
    bench.push(job("runs").delay(MINUTE));
    bench.queue.notes("k").unwrap().set_for("note", 1, MINUTE).unwrap();
    bench.push(job("delayed").delay(MINUTE));
    for first in ["early", "late"] {
        bench.push(job(first).delay(DAY));
        bench.push(job(&format!("after {first}")).after([first]).delay(MINUTE));
    }
    bench.push(job("expires").expires(MINUTE));
    bench.queue.pause(Some(MINUTE)).unwrap();
    runs
}

pub(super) fn the_push_time_of_an_ended_job_follows_the_clock_back(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    touch(&bench);
    bench.clock.set_wall(noon() + HOUR);
    bench.finished("finished");
    bench.running("dead").bury("no way").unwrap();
    bench.clock.set_wall(noon());
    touch(&bench);
    let pushed = ["finished", "dead"].map(|id| bench.info(id).pushed_at);
    assert!(pushed.iter().all(|at| *at <= noon()), "{pushed:?}");
}

/// Returns the things whose minute is over, and those that go on.
fn over(bench: &Bench) -> (Vec<&'static str>, Vec<&'static str>) {
    let is = |id: &str, state| bench.state(id) == state;
    let paused = || matches!(bench.queue.status().unwrap().waits, Waits::Paused { .. });
    let jobs = ["retried", "deferred", "again", "runs", "delayed", "after early", "after late"];
    let mut all: Vec<_> = jobs.into_iter().map(|id| (id, !is(id, Some(JobState::Scheduled)))).collect();
    all.push(("finished", is("finished", None)));
    all.push(("dead", is("dead", None)));
    all.push(("expires", is("expires", Some(JobState::Dead)) || is("expires", None)));
    all.push(("note", bench.queue.notes("k").unwrap().get("note").unwrap().is_none()));
    all.push(("pause", !paused()));
    all.push(("unique", bench.push(twin("other")) == PushOutcome::Added));
    let (over, going): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, is_over)| *is_over);
    let names = |of: Vec<(&'static str, bool)>| of.into_iter().map(|(name, _)| name).collect();
    (names(over), names(going))
}

/// Changes of the wall clock, while the monotonic clock goes on steadily.
struct Jumps {
    /// The seconds by which the clock is wrong while the minutes begin.
    first: i64,
    /// The seconds by which it is wrong afterwards, one change after the other.
    then: &'static [i64],
}

const YEAR: i64 = 365 * 24 * 3600;

/// Right, then ahead for a while; ahead, then right at once or in two steps; right, then behind;
/// ahead by so little that nothing has to be done.
const JUMPS: [Jumps; 12] = [
    Jumps { first: 0, then: &[5, 0] },
    Jumps { first: 0, then: &[30, 0] },
    Jumps { first: 5, then: &[0] },
    Jumps { first: 40, then: &[0] },
    Jumps { first: 8 * 3600, then: &[0] },
    Jumps { first: YEAR, then: &[0] },
    Jumps { first: YEAR, then: &[8 * 3600, 0] },
    Jumps { first: YEAR, then: &[-40] },
    Jumps { first: 0, then: &[-5] },
    Jumps { first: 0, then: &[-8 * 3600] },
    Jumps { first: 0, then: &[-8 * 3600, -YEAR] },
    Jumps { first: 30, then: &[30, 0] },
];

fn set(bench: &Bench, passed: Duration, wrong: i64) {
    let right = noon() + 2 * YEAR.unsigned_abs() as u32 * SECOND + passed;
    let by = Duration::from_secs(wrong.unsigned_abs());
    bench.clock.set_wall(if wrong < 0 { right - by } else { right + by });
}

fn check(on: &Benches<'_>, Jumps { first, then }: &Jumps, is_restarted: bool) {
    let name = format!("{first} {then:?} {is_restarted}");
    let mut bench = on.bench_with(options());
    set(&bench, Duration::ZERO, *first);
    let mut runs = Some(begin(&bench));
    let mut passed = Duration::ZERO;
    let mut pass = |bench: &Bench, time: Duration| {
        bench.clock.advance(time);
        passed += time;
        passed
    };
    for (step, wrong) in then.iter().enumerate() {
        pass(&bench, 3 * SECOND);
        if step + 1 == then.len() {
            bench.queue.remove("early").unwrap();
        }
        if is_restarted && let Some(mut runs) = runs.take() {
            runs.finish(None).unwrap();
        }
        touch(&bench);
        if is_restarted {
            let before = bench.clock.wall_time();
            let passed = pass(&bench, Duration::ZERO);
            set(&bench, passed, *wrong);
            let is_back = bench.clock.wall_time() < before;
            bench.reopen();
            let set_back = bench.queue.status().unwrap().set_back;
            assert_eq!(set_back.is_some(), is_back, "{name}");
        } else {
            let passed = pass(&bench, Duration::ZERO);
            set(&bench, passed, *wrong);
            touch(&bench);
        }
    }
    if let Some(mut runs) = runs {
        runs.finish(None).unwrap();
    }
    bench.queue.remove("late").unwrap();
    let passed = pass(&bench, Duration::ZERO);
    bench.clock.advance(MINUTE - passed - SECOND);
    assert_eq!(over(&bench).0, [""; 0], "{name}: a second is left");
    bench.clock.advance(SECOND);
    assert_eq!(over(&bench).1, [""; 0], "{name}: the minute is over");
}

pub(super) fn a_clock_change_alters_no_duration(on: &Benches<'_>) {
    JUMPS.iter().for_each(|jumps| check(on, jumps, false));
}

pub(super) fn a_clock_change_while_closed_alters_no_duration(on: &Benches<'_>) {
    JUMPS.iter().for_each(|jumps| check(on, jumps, true));
}

pub(super) fn an_absolute_time_survives_a_clock_set_back(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    let named = noon() + HOUR;
    bench.clock.set_wall(noon() + 10 * DAY);
    let then = noon() + 20 * DAY;
    bench.running("tried").retry_at(then, "not yet").unwrap();
    bench.running("snoozed").snooze(then).unwrap();
    let mut again = bench.running("again");
    again.resubmit(Some(then)).unwrap();
    let mut runs = bench.running("runs");
    bench.push(job("runs").run_at(then));
    bench.push(job("pushed").run_at(then));
    again.finish(None).unwrap();
    touch(&bench);
    bench.clock.set_wall(noon());
    touch(&bench);
    runs.finish(None).unwrap();
    bench.push(job("new").run_at(named));
    let ids = ["tried", "snoozed", "again", "runs", "pushed"];
    assert!(ids.iter().all(|id| bench.info(id).run_at == Some(then)), "{:?}", ids.map(|id| bench.info(id).run_at));
    bench.clock.advance(HOUR);
    assert_eq!(bench.claim_all(), ["new"]);
    bench.clock.set_wall(then - MILLI);
    bench.none();
    bench.clock.advance(MILLI);
    let mut all = bench.claim_all();
    all.sort_unstable();
    assert_eq!(all, ["again", "pushed", "runs", "snoozed", "tried"]);
}

/// Returns the hours until the next tick; `None` if it takes more than `most`.
fn next_tick(queue: &Queue, bench: &Bench, most: u32) -> Option<u32> {
    (1..=most).find(|_| {
        bench.clock.advance(HOUR);
        queue.accept(Accept::new()).unwrap().is_some_and(|mut lease| lease.finish(None).is_ok())
    })
}

pub(super) fn an_interval_resumes_after_a_clock_that_was_ahead(on: &Benches<'_>) {
    let (free, named): (Schedule, Schedule) = (Every::hours(2).into(), Every::hours(2).anchor(UNIX_EPOCH).into());
    for (schedule, ahead, is_restarted, hours) in [
        (&free, HOUR, false, 2),
        (&free, 8 * HOUR, false, 2),
        (&free, 8 * HOUR, true, 2),
        (&free, 365 * DAY, false, 2),
        (&free, 365 * DAY, true, 2),
        // 22:13 is 13 minutes after a tick.
        (&named, HOUR, false, 2),
        // The tick of midnight is made already, and no other one lies between.
        (&named, 2 * HOUR, false, 4),
        (&named, 2 * HOUR, true, 4),
        (&named, 4 * HOUR, false, 2),
        (&named, 365 * DAY, false, 2),
        (&named, 365 * DAY, true, 2),
    ] {
        let mut bench = on.bench_with(QueueOptions::default());
        let start = |bench: &Bench| {
            let job = NewJob::new("tick", &1).unwrap();
            bench.queue.periodic("p", schedule.clone(), job).start_at_next().start().unwrap();
        };
        start(&bench);
        bench.clock.set_wall(noon() + ahead);
        let made = bench.accept().map(|mut lease| lease.finish(None).unwrap());
        assert_eq!(made.is_some(), ahead >= 2 * HOUR, "{schedule} {ahead:?}");
        touch(&bench);
        bench.clock.set_wall(noon() + MINUTE);
        if is_restarted {
            bench.reopen();
            start(&bench);
        }
        // A runner looks each second.
        touch(&bench);
        let next = next_tick(&bench.queue, &bench, 9);
        assert_eq!(next, Some(hours), "{schedule} {ahead:?} {is_restarted}");
        assert_eq!(next_tick(&bench.queue, &bench, 9), Some(2), "{schedule} {ahead:?} {is_restarted}: and so on");
    }
}

pub(super) fn the_status_tells_of_a_clock_set_back_for_an_hour(on: &Benches<'_>) {
    let bench = on.bench_with(QueueOptions::default());
    touch(&bench);
    let set_back = || bench.queue.status().unwrap().set_back;
    assert_eq!(set_back(), None);
    bench.clock.set_wall(noon() + HOUR);
    touch(&bench);
    assert_eq!(set_back(), None, "forward");
    bench.clock.set_wall(noon());
    let (by, since) = set_back().map(|set_back| (set_back.by, set_back.since)).expect("it says so");
    assert_eq!((by, since), (HOUR, Duration::ZERO));
    let text = bench.queue.status().unwrap().to_string();
    assert!(text.contains("its clock was set back by 3600.0s, 0.0ns ago"), "{text}");
    bench.clock.advance(HOUR);
    assert_eq!(set_back(), None);
}
