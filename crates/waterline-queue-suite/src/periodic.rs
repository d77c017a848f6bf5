//! Periodic jobs: their ticks over restarts, lost runs and clock changes.

use crate::bench::*;
use crossbeam_channel::{Receiver, unbounded};
use std::time::SystemTime;

#[cfg(feature = "cron")]
use std::time::{Duration, UNIX_EPOCH};

use waterline::Retry;
use waterline_queue::{
    CatchUp, ConfigError, Every, JobState, NewJob, Outcome, Overlap, PeriodicBuilder, PeriodicInfo, Priority,
    QueueError, QueueOptions, Retention, Runner, Schedule, Unique, Waits,
};

const NOTHING: [u64; 0] = [];

fn options() -> QueueOptions {
    let options = QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(2)).max_crashes(2);
    options.retention(Retention::For(30 * MINUTE)).lease(10 * HOUR)
}

fn minutes(time: SystemTime) -> u64 {
    time.duration_since(noon()).unwrap().as_secs() / 60
}

fn job() -> NewJob {
    NewJob::new("digest", &7).unwrap()
}

fn digest(bench: &Bench, schedule: impl Into<Schedule>) -> PeriodicBuilder {
    bench.queue.periodic("digest", schedule, job())
}

fn periodic(bench: &Bench) -> PeriodicInfo {
    let mut infos = bench.queue.periodics().unwrap();
    assert_eq!(infos.len(), 1);
    infos.remove(0)
}

pub(super) fn each_run_is_due_at_its_tick(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    digest(&bench, Every::minutes(5)).start().unwrap();
    let due = || bench.info(&periodic(&bench).last_run.unwrap()).run_at;
    assert_eq!(due(), Some(noon()));
    bench.claim().finish(None).unwrap();
    bench.clock.advance(5 * MINUTE);
    let _second = bench.claim();
    assert_eq!(due(), Some(noon() + 5 * MINUTE));
}

/// Runs all ready jobs, and returns their ticks in minutes since noon.
fn run(bench: &Bench) -> Vec<u64> {
    let mut ticks = Vec::new();
    while let Some(mut lease) = bench.accept() {
        ticks.push(minutes(lease.pushed_at()));
        lease.finish(None).unwrap();
    }
    ticks
}

pub(super) fn the_first_tick_is_at_once_then_one_per_interval(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    digest(&bench, Every::hours(1)).start().unwrap();
    let first = bench.accept().expect("the first tick is at once");
    assert_eq!((first.kind(), first.payload::<u32>().unwrap(), first.pushed_at()), ("digest", 7, noon()));
    drop(first);
    bench.queue.purge().unwrap();
    for _ in 0..3 {
        bench.clock.advance(HOUR - SECOND);
        assert_eq!(run(&bench), NOTHING);
        bench.clock.advance(SECOND);
        assert_eq!(run(&bench).len(), 1);
    }
    let info = periodic(&bench);
    assert_eq!((info.last_tick.map(minutes), info.next_tick.map(minutes)), (Some(180), Some(240)));
    assert_eq!((info.name.as_str(), info.schedule.as_deref()), ("digest", Some("every 3600s")));
}

pub(super) fn restarts_do_not_postpone_a_start_at_the_next_tick(on: &Benches<'_>) {
    let mut bench = on.bench_with(options());
    digest(&bench, Every::hours(1)).start_at_next().start().unwrap();
    let info = periodic(&bench);
    assert_eq!((info.last_run, info.last_tick, info.next_tick), (None, None, Some(noon() + HOUR)));
    for _ in 0..2 {
        bench = bench.restart_after(25 * MINUTE);
        digest(&bench, Every::hours(1)).start_at_next().start().unwrap();
        assert_eq!(run(&bench), NOTHING);
    }
    bench = bench.restart_after(10 * MINUTE);
    digest(&bench, Every::hours(1)).start_at_next().start().unwrap();
    assert_eq!(run(&bench), [60]);
}

/// Mosquito counts an interval from the time at which the last tick was made.
pub(super) fn q20_a_late_tick_does_not_move_the_next_ones(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    digest(&bench, Every::hours(1)).start().unwrap();
    assert_eq!(run(&bench), [0]);
    for (pause, tick) in [(70, 60), (59, 120), (51, 180), (60, 240)] {
        bench.clock.advance(pause * MINUTE);
        assert_eq!(run(&bench), [tick]);
    }
}

/// Mosquito forgets a periodic job after three intervals.
pub(super) fn q20_the_last_tick_is_never_forgotten(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    digest(&bench, Every::hours(1)).start().unwrap();
    assert_eq!(run(&bench), [0]);
    let bench = bench.restart_after(1000 * HOUR + 59 * MINUTE);
    digest(&bench, Every::hours(1)).start().unwrap();
    assert_eq!(run(&bench), [60_000]);
    bench.clock.advance(MINUTE);
    assert_eq!(run(&bench), [60_060]);
}

/// Mosquito records such a tick as executed, and says that it was enqueued.
pub(super) fn q20_a_tick_during_an_unfinished_run_is_skipped(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    digest(&bench, Every::hours(1)).start().unwrap();
    let first = periodic(&bench).last_run.unwrap();
    // The run waits for a worker, then it runs, then it waits for its next attempt.
    bench.clock.advance(HOUR);
    bench.queue.push(job().id("other")).unwrap();
    let mut lease = bench.accept().unwrap();
    assert_eq!((lease.id(), periodic(&bench).skipped), (first.as_str(), 1));
    assert_eq!(bench.accept().unwrap().finish(None).unwrap(), Some(JobState::Finished));
    bench.clock.advance(HOUR);
    assert!(bench.accept().is_none());
    lease.retry_at(noon() + 4 * HOUR, "later").unwrap();
    bench.clock.advance(HOUR);
    assert!(bench.accept().is_none());
    let info = periodic(&bench);
    assert_eq!(
        (info.skipped, info.last_tick.map(minutes), info.last_run.as_deref()),
        (3, Some(180), Some(first.as_str()))
    );
    // A tick at the end of that wait still finds the run unfinished.
    bench.clock.advance(HOUR);
    assert_eq!(run(&bench), [0]);
    bench.clock.advance(HOUR);
    assert_eq!(run(&bench), [300]);
    assert_eq!(periodic(&bench).skipped, 4);
}

pub(super) fn runs_may_overlap_if_allowed(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    digest(&bench, Every::hours(1)).overlap(Overlap::Allow).start().unwrap();
    let first = bench.accept().unwrap();
    bench.clock.advance(HOUR);
    assert_eq!(run(&bench), [60]);
    assert_eq!(periodic(&bench).skipped, 0);
    drop(first);
}

pub(super) fn q21_a_lost_or_removed_run_holds_up_no_tick(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    digest(&bench, Every::hours(1)).start().unwrap();
    leak(bench.accept().unwrap());
    bench.clock.advance(10 * HOUR);
    assert_eq!(run(&bench), NOTHING, "it is taken back, and waits for its next attempt");
    bench.clock.advance(SECOND);
    assert_eq!(run(&bench), [0]);
    bench.clock.advance(HOUR);
    let lease = bench.accept().unwrap();
    bench.queue.remove(lease.id()).unwrap();
    leak(lease);
    bench.clock.advance(HOUR);
    assert_eq!(run(&bench), [12 * 60]);
}

/// Mosquito tries a periodic job once.
pub(super) fn q21_a_failed_run_is_retried_with_its_tick_time(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    digest(&bench, Every::hours(1)).start().unwrap();
    for _ in 0..2 {
        let mut lease = bench.accept().expect("an attempt is due");
        assert_eq!(lease.pushed_at(), noon());
        lease.retry("it fails").unwrap();
        bench.clock.advance(SECOND);
    }
    assert_eq!(bench.queue.counts().dead, 1);
    bench.clock.advance(HOUR - 2 * SECOND);
    assert_eq!(run(&bench), [60]);
}

pub(super) fn missed_ticks_make_one_job_none_or_one_each(on: &Benches<'_>) {
    let all = |bench: &Bench, catch_up| {
        let overlap = if catch_up == CatchUp::All { Overlap::Allow } else { Overlap::Skip };
        digest(bench, Every::hours(1)).catch_up(catch_up).overlap(overlap).start().unwrap();
        run(bench)
    };
    for (catch_up, caught_up) in [
        (CatchUp::None, vec![]),
        (CatchUp::One, vec![100 * 60]),
        (CatchUp::All, (1..=100).map(|hour| hour * 60).collect::<Vec<_>>()),
    ] {
        let bench = on.bench_with(options());
        assert_eq!(all(&bench, catch_up), [0]);
        let bench = bench.restart_after(100 * HOUR + 30 * MINUTE);
        assert_eq!(all(&bench, catch_up), caught_up, "{catch_up:?}");
        bench.clock.advance(30 * MINUTE);
        assert_eq!(all(&bench, catch_up), [101 * 60]);
    }
}

pub(super) fn a_clock_change_stalls_no_interval_and_catches_up(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    digest(&bench, Every::hours(1)).start().unwrap();
    bench.clock.advance(3 * HOUR);
    assert_eq!(run(&bench), [0]);
    bench.clock.advance(HOUR);
    assert_eq!(run(&bench), [240]);
    bench.clock.set_wall(noon() + HOUR);
    assert_eq!(run(&bench), NOTHING);
    for hour in 2..6 {
        bench.clock.advance(HOUR - SECOND);
        assert_eq!(run(&bench), NOTHING);
        bench.clock.advance(SECOND);
        assert_eq!(run(&bench), [hour * 60]);
    }
    bench.clock.set_wall(noon() + 29 * HOUR);
    assert_eq!(run(&bench), [29 * 60]);
    // A removed name begins at once when it is registered again.
    bench.clock.set_wall(noon());
    assert!(bench.queue.remove_periodic("digest").unwrap());
    digest(&bench, Every::hours(1)).start().unwrap();
    assert_eq!(run(&bench), [0]);
}

pub(super) fn ticks_and_registrations_wake_a_sleeping_runner(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    let (ran, runs) = unbounded();
    let runner = Runner::builder(&bench.queue)
        .on("digest", move |job, _: u32| {
            ran.send(job.pushed_at())?;
            Ok(Outcome::Done)
        })
        .start()
        .unwrap();
    let next = |runs: &Receiver<SystemTime>| runs.recv_timeout(LONG).expect("a tick makes a job");
    digest(&bench, Every::hours(1)).start().unwrap();
    assert_eq!(next(&runs), noon());
    for hour in 1..4 {
        eventually("the last run has ended", || bench.queue.counts().running == 0);
        bench.clock.advance(HOUR);
        assert_eq!(next(&runs), noon() + hour * HOUR);
    }
    runner.stop().unwrap();
}

pub(super) fn a_busy_runner_still_makes_ticks(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    let (begun, runs) = unbounded();
    let runner = Runner::builder(&bench.queue)
        .max_processing(1)
        .on_deferred("digest", move |job, _: u32, finisher| {
            begun.send((job.pushed_at(), finisher)).expect("the test takes it");
        })
        .start()
        .unwrap();
    digest(&bench, Every::hours(1)).overlap(Overlap::Allow).catch_up(CatchUp::All).start().unwrap();
    let first = runs.recv_timeout(LONG).unwrap();
    for hours in 1..4 {
        bench.clock.advance(HOUR);
        eventually("the tick has its job", || bench.queue.counts().ready == hours);
    }
    first.1.complete();
    for tick in [60, 120, 180] {
        let (pushed_at, finisher) = runs.recv_timeout(LONG).unwrap();
        assert_eq!(minutes(pushed_at), tick);
        finisher.complete();
    }
    runner.stop().unwrap();
}

pub(super) fn the_status_shows_the_next_tick_and_a_pause_stops_none(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    digest(&bench, Every::hours(1)).start().unwrap();
    assert_eq!(run(&bench), [0]);
    bench.clock.advance(20 * MINUTE);
    let due_in = |time| assert_eq!(bench.queue.status().unwrap().waits, Waits::NothingReady { due_in: time });
    due_in(Some(40 * MINUTE));
    bench.queue.pause(None).unwrap();
    bench.clock.advance(40 * MINUTE);
    assert_eq!(run(&bench), NOTHING);
    assert_eq!(bench.queue.counts().ready, 1);
    bench.queue.resume().unwrap();
    assert_eq!(run(&bench), [60]);
    assert!(bench.queue.remove_periodic("digest").unwrap());
    due_in(None);
}

pub(super) fn each_run_has_the_settings_of_its_job(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    let settings = job().priority(Priority::Urgent).retention(Retention::Drop).retry(Retry::none());
    let unique = settings.unique(Unique::until_done());
    bench.queue.periodic("digest", Every::hours(1), unique).overlap(Overlap::Allow).start().unwrap();
    let first = bench.accept().unwrap();
    assert_eq!(bench.queue.get(first.id()).unwrap().unwrap().priority, Priority::Urgent);
    bench.clock.advance(MINUTE / 2);
    // Each tick meets the first run.
    bench.clock.set_wall(noon() + 2 * HOUR);
    assert!(bench.accept().is_none());
    assert_eq!(periodic(&bench).last_run.as_deref(), Some(first.id()));
    drop(first);
    assert_eq!(bench.queue.counts().dead, 1, "there is no second attempt");
}

pub(super) fn periodic_jobs_tick_independently_and_can_be_removed(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    let start = |name: &str, every| bench.queue.periodic(name, every, NewJob::new(name, &()).unwrap()).start().unwrap();
    start("b", Every::minutes(20));
    start("a", Every::minutes(30));
    let run = || {
        let mut kinds = Vec::new();
        while let Some(mut lease) = bench.accept() {
            kinds.push(lease.kind().to_owned());
            lease.finish(None).unwrap();
        }
        kinds
    };
    assert_eq!(run(), ["b", "a"]);
    bench.clock.advance(20 * MINUTE);
    assert_eq!(run(), ["b"]);
    bench.clock.advance(10 * MINUTE);
    assert_eq!(run(), ["a"]);
    assert!(bench.queue.remove_periodic("b").unwrap());
    assert!(!bench.queue.remove_periodic("b").unwrap());
    bench.clock.advance(30 * MINUTE);
    assert_eq!(run(), ["a"]);
    start("b", Every::minutes(20));
    assert_eq!(run(), ["b"], "the name is new again");
    let names: Vec<_> = bench.queue.periodics().unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["a", "b"]);
}

pub(super) fn an_unregistered_name_makes_no_job_but_stays_listed(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    digest(&bench, Every::hours(1)).start().unwrap();
    assert_eq!(run(&bench), [0]);
    let bench = bench.restart_after(2 * HOUR);
    assert_eq!(run(&bench), NOTHING);
    let info = periodic(&bench);
    // A shared database keeps what the last process has said of it.
    let known =
        if bench.can().one_process { (None, None) } else { (Some("every 3600s".to_owned()), Some(noon() + HOUR)) };
    assert_eq!(((info.schedule, info.next_tick), info.last_tick), (known, Some(noon())));
    assert!(bench.queue.remove_periodic("digest").unwrap());
    assert_eq!(bench.queue.periodics().unwrap(), []);
}

pub(super) fn a_changed_schedule_goes_on_from_the_last_tick(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    digest(&bench, Every::hours(24)).start().unwrap();
    assert_eq!(run(&bench), [0]);
    let bench = bench.restart_after(10 * MINUTE);
    digest(&bench, Every::minutes(30).anchor(noon() + MINUTE)).start().unwrap();
    assert_eq!(run(&bench), [1]);
    bench.clock.advance(21 * MINUTE);
    assert_eq!(run(&bench), [31]);
}

/// There is no cron without its feature.
#[cfg(not(feature = "cron"))]
pub(super) fn a_cron_job_runs_once_on_days_of_clock_changes(_: &Benches<'_>) {}

#[cfg(feature = "cron")]
pub(super) fn a_cron_job_runs_once_on_days_of_clock_changes(on: &Benches<'_>) {
    use waterline_queue::Cron;

    let mut bench = on.bench_with(options());
    let cron = || Cron::parse("30 2 * * *").unwrap().in_zone("Europe/Berlin").unwrap();
    // 2025-03-29 at 12:00, and 2025-10-25 at 12:00.
    for (begin, ticks) in [(1_743_246_000, [14 * 60, 37 * 60 + 30]), (1_761_386_400, [14 * 60 + 30, 39 * 60 + 30])] {
        let begin = UNIX_EPOCH + Duration::from_secs(begin);
        bench.queue.remove_periodic("digest").unwrap();
        bench.clock.set_wall(begin);
        digest(&bench, cron()).start().unwrap();
        let mut made = Vec::new();
        for _ in 0..(2 * 24 * 2) {
            bench = bench.restart_after(30 * MINUTE);
            digest(&bench, cron()).start().unwrap();
            let before = minutes(begin);
            made.extend(run(&bench).into_iter().map(|tick| tick - before));
        }
        assert_eq!(made, ticks);
    }
    let info = periodic(&bench);
    assert_eq!(info.schedule.as_deref(), Some("30 2 * * * (Europe/Berlin)"));
    bench.queue.remove_periodic("digest").unwrap();
    digest(&bench, cron()).start_at_once().start().unwrap();
    assert_eq!(run(&bench).len(), 1, "it begins at once if it is told to");
}

pub(super) fn an_invalid_periodic_job_is_refused(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    let refused = |builder: PeriodicBuilder| match builder.start() {
        Err(QueueError::Config(config)) => config,
        other => panic!("{other:?}"),
    };
    let is_refused = |refused: &ConfigError, why| matches!(refused, ConfigError::Periodic { fault, name, .. } if (*fault, name.as_str()) == (why, "digest"));
    for name in ["".to_owned(), "x".repeat(256)] {
        let refused = refused(bench.queue.periodic(&name, Every::hours(1), job()));
        assert!(matches!(refused, ConfigError::Length { what: "periodic job", length, .. } if length == name.len()));
    }
    assert!(matches!(
        refused(digest(&bench, Every::seconds(0))),
        ConfigError::Setting(waterline::ConfigError::Zero { setting: "every", .. })
    ));
    for job in [job().id("a"), job().delay(SECOND), job().run_at(noon()), job().after(["b"])] {
        let refused = refused(bench.queue.periodic("digest", Every::hours(1), job));
        assert!(is_refused(&refused, "job"), "{refused:?}");
    }
    let both = digest(&bench, Every::hours(1)).catch_up(CatchUp::All);
    assert!(is_refused(&refused(both), "catch_up"));
    let kind = NewJob::new("", &()).unwrap();
    assert!(matches!(
        refused(bench.queue.periodic("digest", Every::hours(1), kind)),
        ConfigError::Length { what: "job kind", length: 0, .. }
    ));
    assert_eq!((bench.queue.periodics().unwrap(), run(&bench)), (vec![], vec![]));

    digest(&bench, Every::hours(1)).start().unwrap();
    digest(&bench, Every::hours(1)).start().unwrap();
    let other_job = NewJob::new("digest", &8).unwrap();
    for other in [
        digest(&bench, Every::hours(2)),
        digest(&bench, Every::hours(1)).overlap(Overlap::Allow),
        digest(&bench, Every::hours(1)).catch_up(CatchUp::None),
        bench.queue.periodic("digest", Every::hours(1), other_job),
    ] {
        assert!(is_refused(&refused(other), "twice"));
    }
    assert_eq!(run(&bench), [0], "the second registration of the same is none");
    assert!(bench.queue.remove_periodic("digest").unwrap());
    digest(&bench, Every::hours(2)).start().unwrap();
}
