//! Periodic jobs: their ticks over restarts, crashes and clocks that jump, on each back end and
//! with a clock that the test moves.

use common::every_write::DiskFault::{Fail, PowerLoss, Stop};
use common::every_write::{Trial, every_write};
use common::queues::{Bench, MINUTE, SECOND, again, leak, noon, on_each_with, open_anew};
use common::{HOUR, LONG, eventually};
use crossbeam_channel::{Receiver, unbounded};
use std::time::SystemTime;
#[cfg(feature = "cron")]
use std::time::{Duration, UNIX_EPOCH};
use waterline::queue::{
    Accept, CatchUp, Clock, Every, JobState, Limits, NewJob, Outcome, Overlap, PeriodicBuilder, PeriodicInfo, Priority,
    Queue, QueueError, QueueOptions, Retention, Runner, Schedule, Unique, Waits,
};
use waterline::testing::FaultyStore;
use waterline::{ConfigError, Error, Retry};

const NOTHING: [u64; 0] = [];

fn options() -> QueueOptions {
    let options = QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(2)).max_crashes(2);
    options.retention(Retention::For(30 * MINUTE)).lease(10 * HOUR)
}

/// Runs a test on each back end.
fn on_each(test: impl Fn(Bench)) {
    on_each_with(options(), test);
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

/// Runs all that is ready, and returns the ticks of the jobs, in minutes since noon.
fn run(bench: &Bench) -> Vec<u64> {
    let mut ticks = Vec::new();
    while let Some(mut lease) = bench.accept() {
        ticks.push(minutes(lease.pushed_at()));
        lease.finish(None).unwrap();
    }
    ticks
}

#[test]
fn the_first_tick_is_at_once_and_each_further_one_an_interval_later() {
    on_each(|bench| {
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
        assert_eq!((minutes(info.last_tick), info.next_tick.map(minutes)), (180, Some(240)));
        assert_eq!((info.name.as_str(), info.schedule.as_deref()), ("digest", Some("every 3600s")));
    });
}

#[test]
fn a_start_at_the_next_tick_is_not_put_off_by_restarts() {
    on_each(|mut bench| {
        digest(&bench, Every::hours(1)).start_at_next().start().unwrap();
        let info = periodic(&bench);
        assert_eq!((info.last_run, info.last_tick, info.next_tick), (None, noon(), Some(noon() + HOUR)));
        for _ in 0..2 {
            bench = bench.restart_after(25 * MINUTE);
            digest(&bench, Every::hours(1)).start_at_next().start().unwrap();
            assert_eq!(run(&bench), NOTHING);
        }
        bench = bench.restart_after(10 * MINUTE);
        digest(&bench, Every::hours(1)).start_at_next().start().unwrap();
        assert_eq!(run(&bench), [60]);
    });
}

/// Mosquito counts an interval from the moment at which the last tick was made.
#[test]
fn q20_a_tick_that_is_made_late_does_not_move_those_after_it() {
    on_each(|bench| {
        digest(&bench, Every::hours(1)).start().unwrap();
        assert_eq!(run(&bench), [0]);
        for (pause, tick) in [(70, 60), (59, 120), (51, 180), (60, 240)] {
            bench.clock.advance(pause * MINUTE);
            assert_eq!(run(&bench), [tick]);
        }
    });
}

/// Mosquito forgets a periodic job after three intervals.
#[test]
fn q20_the_last_tick_is_known_after_any_time() {
    on_each(|bench| {
        digest(&bench, Every::hours(1)).start().unwrap();
        assert_eq!(run(&bench), [0]);
        let bench = bench.restart_after(1000 * HOUR + 59 * MINUTE);
        digest(&bench, Every::hours(1)).start().unwrap();
        assert_eq!(run(&bench), [60_000]);
        bench.clock.advance(MINUTE);
        assert_eq!(run(&bench), [60_060]);
    });
}

/// Mosquito notes a tick as executed that made no job, and says that it was enqueued.
#[test]
fn q20_a_tick_that_meets_an_unfinished_run_makes_no_job_and_is_counted_as_that() {
    on_each(|bench| {
        digest(&bench, Every::hours(1)).start().unwrap();
        let first = periodic(&bench).last_run.unwrap();
        // It waits for a worker, then it runs, then it waits for its next attempt.
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
        assert_eq!((info.skipped, minutes(info.last_tick), info.last_run.as_deref()), (3, 180, Some(first.as_str())));
        // A tick that comes with the end of the wait finds the run unfinished still.
        bench.clock.advance(HOUR);
        assert_eq!(run(&bench), [0]);
        bench.clock.advance(HOUR);
        assert_eq!(run(&bench), [300]);
        assert_eq!(periodic(&bench).skipped, 4);
    });
}

#[test]
fn runs_may_be_side_by_side_if_that_is_allowed() {
    on_each(|bench| {
        digest(&bench, Every::hours(1)).overlap(Overlap::Allow).start().unwrap();
        let first = bench.accept().unwrap();
        bench.clock.advance(HOUR);
        assert_eq!(run(&bench), [60]);
        assert_eq!(periodic(&bench).skipped, 0);
        drop(first);
    });
}

/// In Mosquito, a worker that dies suppresses a periodic job for 24 hours.
#[test]
fn q21_a_run_that_was_lost_in_a_crash_runs_again_and_the_next_tick_comes_in_time() {
    let clock = Clock::manual(noon());
    let crash = |bench: Bench, time| {
        let lease = bench.claim();
        clock.advance(time);
        let next = bench.next_life();
        leak((lease, bench));
        next
    };
    let bench = Bench::on_disk(FaultyStore::new().unwrap(), &clock, options());
    digest(&bench, Every::hours(1)).start().unwrap();
    let bench = crash(bench, MINUTE);
    digest(&bench, Every::hours(1)).start().unwrap();
    assert_eq!(run(&bench), [0], "the run that was lost");
    clock.advance(59 * MINUTE);
    assert_eq!(run(&bench), [60]);

    // One that kills its process again and again dies, and so holds up nothing.
    clock.advance(HOUR);
    let bench = crash(crash(bench, SECOND), SECOND);
    assert_eq!(bench.queue.counts().dead, 1);
    digest(&bench, Every::hours(1)).start().unwrap();
    clock.advance(HOUR);
    assert_eq!(run(&bench), [180]);
}

#[test]
fn q21_a_run_whose_lease_ran_out_or_that_was_removed_holds_up_no_tick() {
    on_each(|bench| {
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
    });
}

/// Mosquito tries a periodic job once.
#[test]
fn q21_a_run_that_fails_is_tried_again_with_the_time_of_its_tick_and_dies_as_its_retry_says() {
    on_each(|bench| {
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
    });
}

#[test]
fn ticks_that_were_missed_while_the_process_was_down_make_one_job_or_none_or_one_each() {
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
        on_each(|bench| {
            assert_eq!(all(&bench, catch_up), [0]);
            let bench = bench.restart_after(100 * HOUR + 30 * MINUTE);
            assert_eq!(all(&bench, catch_up), caught_up, "{catch_up:?}");
            bench.clock.advance(30 * MINUTE);
            assert_eq!(all(&bench, catch_up), [101 * 60]);
        });
    }
}

#[test]
fn a_clock_that_is_set_back_brings_no_tick_twice_and_one_that_is_set_forward_catches_up() {
    on_each(|bench| {
        digest(&bench, Every::hours(1)).start().unwrap();
        bench.clock.advance(3 * HOUR);
        assert_eq!(run(&bench), [0]);
        bench.clock.advance(HOUR);
        assert_eq!(run(&bench), [240]);
        bench.clock.set_wall(noon() + HOUR);
        for _ in 0..3 {
            assert_eq!(run(&bench), NOTHING);
            bench.clock.advance(HOUR);
        }
        // It is as late as before now.
        assert_eq!(run(&bench), NOTHING);
        bench.clock.advance(HOUR);
        assert_eq!(run(&bench), [300]);
        bench.clock.set_wall(noon() + 29 * HOUR);
        assert_eq!(run(&bench), [29 * 60]);
        // An operator who has mended the clock need not wait for the last tick.
        bench.clock.set_wall(noon());
        assert!(bench.queue.remove_periodic("digest").unwrap());
        digest(&bench, Every::hours(1)).start().unwrap();
        assert_eq!(run(&bench), [0]);
    });
}

#[test]
fn a_runner_that_sleeps_is_woken_by_a_tick_and_by_the_registration() {
    on_each(|bench| {
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
    });
}

#[test]
fn a_runner_with_all_slots_busy_still_makes_ticks() {
    on_each(|bench| {
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
    });
}

#[test]
fn a_status_says_when_the_next_tick_is_and_a_pause_holds_up_jobs_and_no_tick() {
    on_each(|bench| {
        digest(&bench, Every::hours(1)).start().unwrap();
        assert_eq!(run(&bench), [0]);
        bench.clock.advance(20 * MINUTE);
        let waits = bench.queue.status().unwrap().waits;
        assert_eq!(waits, Waits::NothingReady { due_in: Some(40 * MINUTE) });
        bench.queue.pause(None).unwrap();
        bench.clock.advance(40 * MINUTE);
        assert_eq!(run(&bench), NOTHING);
        assert_eq!(bench.queue.counts().ready, 1);
        bench.queue.resume().unwrap();
        assert_eq!(run(&bench), [60]);
    });
}

#[test]
fn the_settings_of_the_job_hold_for_each_of_its_runs() {
    on_each(|bench| {
        let settings = job().priority(Priority::Urgent).retention(Retention::Drop).retry(Retry::none());
        let unique = settings.unique(Unique::until_done());
        bench.queue.periodic("digest", Every::hours(1), unique).overlap(Overlap::Allow).start().unwrap();
        let first = bench.accept().unwrap();
        assert_eq!(bench.queue.get(first.id()).unwrap().unwrap().priority, Priority::Urgent);
        bench.clock.advance(MINUTE / 2);
        // Each tick meets the job that is there.
        bench.clock.set_wall(noon() + 2 * HOUR);
        assert!(bench.accept().is_none());
        assert_eq!(periodic(&bench).last_run.as_deref(), Some(first.id()));
        drop(first);
        assert_eq!(bench.queue.counts().dead, 1, "there is no second attempt");
    });
}

#[test]
fn several_periodic_jobs_have_ticks_of_their_own_and_each_can_be_removed() {
    on_each(|bench| {
        let start =
            |name: &str, every| bench.queue.periodic(name, every, NewJob::new(name, &()).unwrap()).start().unwrap();
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
    });
}

#[test]
fn a_name_that_the_program_no_longer_registers_makes_no_job_and_is_listed_until_it_is_removed() {
    on_each(|bench| {
        digest(&bench, Every::hours(1)).start().unwrap();
        assert_eq!(run(&bench), [0]);
        let bench = bench.restart_after(2 * HOUR);
        assert_eq!(run(&bench), NOTHING);
        let info = periodic(&bench);
        assert_eq!((info.schedule, info.next_tick, info.last_tick), (None, None, noon()));
        assert!(bench.queue.remove_periodic("digest").unwrap());
        assert_eq!(bench.queue.periodics().unwrap(), []);
    });
}

#[test]
fn a_schedule_may_change_with_a_restart_and_goes_on_from_the_last_tick() {
    on_each(|bench| {
        digest(&bench, Every::hours(24)).start().unwrap();
        assert_eq!(run(&bench), [0]);
        let bench = bench.restart_after(10 * MINUTE);
        digest(&bench, Every::minutes(30).anchor(noon() + MINUTE)).start().unwrap();
        assert_eq!(run(&bench), [1]);
        bench.clock.advance(21 * MINUTE);
        assert_eq!(run(&bench), [31]);
    });
}

#[cfg(feature = "cron")]
#[test]
fn a_cron_job_runs_once_on_the_days_of_clock_changes_over_restarts() {
    use waterline::queue::Cron;

    on_each(|mut bench| {
        let cron = || Cron::parse("30 2 * * *").unwrap().in_zone("Europe/Berlin").unwrap();
        // 2025-03-29 at 12:00, and 2025-10-25 at 12:00.
        for (begin, ticks) in [(1_743_246_000, [14 * 60, 37 * 60 + 30]), (1_761_386_400, [14 * 60 + 30, 39 * 60 + 30])]
        {
            let begin = UNIX_EPOCH + Duration::from_secs(begin);
            bench.queue.remove_periodic("digest").unwrap();
            bench.clock.set_wall(begin);
            digest(&bench, cron()).start().unwrap();
            let mut made = Vec::new();
            for _ in 0..(2 * 24 * 4) {
                bench = bench.restart_after(15 * MINUTE);
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
    });
}

#[test]
fn a_periodic_job_that_cannot_be_is_refused_and_nothing_is_registered() {
    on_each(|bench| {
        let refused = |builder: PeriodicBuilder| match builder.start() {
            Err(QueueError::Config(config)) => config,
            other => panic!("{other:?}"),
        };
        let name = || "digest".to_owned();
        for name in ["".to_owned(), "x".repeat(256)] {
            let refused = refused(bench.queue.periodic(&name, Every::hours(1), job()));
            assert!(
                matches!(refused, ConfigError::Length { what: "periodic job", length, .. } if length == name.len())
            );
        }
        assert!(matches!(refused(digest(&bench, Every::seconds(0))), ConfigError::Zero { setting: "every", .. }));
        for job in [job().id("a"), job().delay(SECOND), job().run_at(noon()), job().after(["b"])] {
            let refused = refused(bench.queue.periodic("digest", Every::hours(1), job));
            assert_eq!(refused, ConfigError::PeriodicJob { name: name() });
        }
        let both = digest(&bench, Every::hours(1)).catch_up(CatchUp::All);
        assert_eq!(refused(both), ConfigError::CatchUpSkips { name: name() });
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
            assert_eq!(refused(other), ConfigError::PeriodicTwice { name: name() });
        }
        assert_eq!(run(&bench), [0], "the second registration of the same is none");
        assert!(bench.queue.remove_periodic("digest").unwrap());
        digest(&bench, Every::hours(2)).start().unwrap();
    });
}

/// Returns the ticks of a life of a periodic job, over some hours and one long pause.
fn live(trial: &Trial) -> (Vec<u64>, Clock) {
    let (clock, mut failed) = (Clock::manual(noon()), 0);
    let queue = again(&mut failed, || Queue::open(&trial.store(), "q", options().clock(clock.clone())));
    again(&mut failed, || every_tick(&queue).start());
    let mut ticks = Vec::new();
    for pause in [30, 30, 60, 200, 40, 60] {
        while let Some(mut lease) = again(&mut failed, || queue.accept(Accept::new())) {
            ticks.push(minutes(lease.pushed_at()));
            again(&mut failed, || lease.finish(None));
        }
        clock.advance(pause * MINUTE);
    }
    (ticks, clock)
}

fn every_tick(queue: &Queue) -> PeriodicBuilder {
    queue
        .periodic("digest", Every::hours(1), job().retention(Retention::Keep))
        .overlap(Overlap::Allow)
        .catch_up(CatchUp::All)
}

#[test]
fn each_tick_has_one_job_wherever_the_process_dies_and_whichever_write_fails() {
    let hours: Vec<_> = (0..=7).map(|hour| hour * 60).collect();
    let lives = every_write(&[Stop, PowerLoss, Fail(1)], live, |next, (ticks, clock)| {
        assert_eq!(ticks, hours[..7]);
        let queue = open_anew(&next.store(), &options().clock(clock));
        every_tick(&queue).start().unwrap();
        let runner = Runner::builder(&queue).on("digest", |_, _: u32| Ok(Outcome::Done));
        runner.drain(Limits::default()).unwrap();
        let jobs = queue.list(JobState::Finished, None, 99).unwrap();
        let mut ticks: Vec<_> = jobs.iter().map(|job| minutes(job.pushed_at)).collect();
        ticks.sort_unstable();
        // A life that has stored nothing begins now.
        let is_new = ticks == [7 * 60] && next.fault != Fail(1) && next.write < 5;
        assert!(ticks == hours || is_new, "{ticks:?}");
    });
    assert!(lives > 15, "{lives} writes");
}

#[test]
fn a_registration_or_a_removal_that_cannot_be_written_changes_nothing() {
    let (disk, clock) = (FaultyStore::new().unwrap(), Clock::manual(noon()));
    let queue = Queue::open(&disk.store(), "q", options().clock(clock.clone())).unwrap();
    let start = |hours| queue.periodic("digest", Every::hours(hours), job()).start();
    disk.fail(..);
    assert!(matches!(start(1), Err(QueueError::Store(Error::Store { .. }))));
    disk.heal();
    assert_eq!((queue.periodics().unwrap(), queue.accept(Accept::new()).unwrap().is_none()), (vec![], true));
    start(2).expect("the name is free");
    disk.fail(..);
    assert!(queue.remove_periodic("digest").is_err());
    disk.heal();
    assert_eq!(queue.periodics().unwrap()[0].next_tick, Some(noon() + 2 * HOUR));
    let Err(QueueError::Config(ConfigError::PeriodicTwice { .. })) = start(1) else { panic!("it is registered") };
}
