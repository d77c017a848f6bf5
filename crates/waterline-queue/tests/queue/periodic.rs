//! Periodic jobs through crashes and failed writes.

use common::HOUR;
use common::every_write::DiskFault::{Fail, PowerLoss, Stop};
use common::every_write::{Trial, every_write};
use common::queues::{Bench, MINUTE, SECOND, again, leak, noon, open_anew};
use std::time::SystemTime;

use waterline::testing::FaultyStore;
use waterline::{Error, Retry};
use waterline_queue::{
    Accept, CatchUp, Clock, ConfigError, DrainLimits, Every, JobState, NewJob, Outcome, Overlap, PeriodicBuilder,
    Queue, QueueError, QueueOptions, Retention, Runner, Schedule,
};

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

/// Runs all ready jobs, and returns their ticks in minutes since noon.
fn run(bench: &Bench) -> Vec<u64> {
    let mut ticks = Vec::new();
    while let Some(mut lease) = bench.accept() {
        ticks.push(minutes(lease.pushed_at()));
        lease.finish(None).unwrap();
    }
    ticks
}

/// In Mosquito, a worker that dies suppresses a periodic job for 24 hours.
#[test]
fn q21_a_run_lost_in_a_crash_runs_again() {
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

    // A run that keeps killing its process dies, and so holds up no tick.
    clock.advance(HOUR);
    let bench = crash(crash(bench, SECOND), SECOND);
    assert_eq!(bench.queue.counts().dead, 1);
    digest(&bench, Every::hours(1)).start().unwrap();
    clock.advance(HOUR);
    assert_eq!(run(&bench), [180]);
}

/// Returns the ticks of a life of several hours with one long pause.
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
fn each_tick_has_one_job_through_crashes_and_failed_writes() {
    let hours: Vec<_> = (0..=7).map(|hour| hour * 60).collect();
    let lives = every_write(&[Stop, PowerLoss, Fail(1)], live, |next, (ticks, clock)| {
        assert_eq!(ticks, hours[..7]);
        let queue = open_anew(&next.store(), &options().clock(clock));
        every_tick(&queue).start().unwrap();
        let runner = Runner::builder(&queue).on("digest", |_, _: u32| Ok(Outcome::Done));
        runner.drain(DrainLimits::default()).unwrap();
        let jobs = queue.list(JobState::Finished, None, 99).unwrap();
        let mut ticks: Vec<_> = jobs.iter().map(|job| minutes(job.pushed_at)).collect();
        ticks.sort_unstable();
        // If nothing was stored before the crash, the schedule begins now.
        let is_new = ticks == [7 * 60] && next.fault != Fail(1) && next.write < 5;
        assert!(ticks == hours || is_new, "{ticks:?}");
    });
    assert!(lives > 15, "{lives} writes");
}

#[test]
fn a_failed_registration_or_removal_changes_nothing() {
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
    let again = start(1).unwrap_err();
    assert!(matches!(again, QueueError::Config(ConfigError::Periodic { fault: "twice", .. })), "{again:?}");
}
