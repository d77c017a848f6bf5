//! Queue jobs that really kill their process, and a process killed beside its jobs. Each test runs
//! this program again as its child, with a directory to work in.

use common::dying::{Lines, child, dir_of_child, killed_after};
use common::queues::{awaiting, in_a_runtime};
use common::{a_directory, open_in};
use std::path::Path;
use std::time::Duration;
use waterline::{BoxError, Effects, Retry, Store};
use waterline_queue::{JobState, NewJob, Outcome, Queue, QueueOptions, Retention, Runner, RunnerBuilder, Running};

const LONG: Duration = Duration::from_secs(120);
const MAX: u32 = 5;
const JOBS: usize = 40;
const POISON: usize = 17;
const STATES: [JobState; 5] =
    [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Finished, JobState::Dead];

fn open(dir: &Path) -> (Store, Queue) {
    let store = open_in(dir).unwrap();
    let options = QueueOptions::default()
        .retention(Retention::Keep)
        .max_crashes(MAX)
        .retry(Retry::fixed(Duration::from_millis(1)).max_attempts(3));
    let queue = Queue::open(&store, "q", options).unwrap();
    (store, queue)
}

fn push_once(store: &Store, queue: &Queue, jobs: usize) {
    let begun = store.table("begun").unwrap();
    if begun.get("all").unwrap().is_some() {
        return;
    }
    let pushed = store.write(|effects| {
        effects.put(&begun, "all", "1")?;
        for number in 0..jobs {
            let kind = ["count", "awaiting"][number % 2];
            queue.push_with(effects, NewJob::new(kind, &number)?.id(number.to_string()))?;
        }
        Ok::<(), waterline::Error>(())
    });
    pushed.unwrap();
}

fn done(store: &Store, number: usize) -> i64 {
    store.table("done").unwrap().counter(number.to_string()).unwrap()
}

/// Checks that each job is in one list, and that its write is there once if it has finished.
fn check(store: &Store, queue: &Queue, jobs: usize, place: &str) {
    let mut found = vec![0; jobs];
    for state in STATES {
        let listed = queue.list(state, None, usize::MAX).unwrap();
        assert_eq!(queue.counts().of_state(state), listed.len() as u64, "{place}: {state:?}");
        for job in listed {
            let number: usize = job.id.parse().unwrap();
            found[number] += 1;
            assert_eq!(done(store, number), i64::from(state == JobState::Finished), "{place}: {job:?}");
            assert!(job.crashes <= MAX && job.failures <= 3, "{place}: {job:?}");
        }
    }
    assert!(found.iter().all(|lists| *lists == 1), "{place}: {found:?}");
}

/// Adds this handler as a function, and as one that a future calls.
fn twice<F>(builder: RunnerBuilder, handler: F) -> RunnerBuilder
where
    F: Fn(&Running, usize, &mut Effects) -> Result<Outcome, BoxError> + Clone + Send + Sync + 'static,
{
    awaiting(builder.on_transactional("count", handler.clone()), "awaiting", handler)
}

fn run(store: &Store, queue: &Queue, jobs: usize, builder: RunnerBuilder) {
    in_a_runtime(|| {
        let runner = builder.start().unwrap();
        for number in 0..jobs {
            let mut job = queue.subscribe(number.to_string()).unwrap();
            while !matches!(job.state(), Some(JobState::Finished | JobState::Dead)) {
                assert!(job.wait(LONG).unwrap().is_some(), "{}", queue.status().unwrap());
            }
        }
        runner.stop().unwrap();
    });
    check(store, queue, jobs, "the last life");
}

#[test]
#[ignore = "a child of the tests below"]
fn aborting_child() {
    let Some(dir) = dir_of_child() else { return };
    let (store, queue) = open(&dir);
    push_once(&store, &queue, JOBS);
    let table = store.table("done").unwrap();
    let builder = twice(Runner::builder(&queue).max_processing(4), move |_, number, effects| {
        if number == POISON {
            std::process::abort();
        }
        effects.add(&table, number.to_string(), 1)?;
        Ok(Outcome::Done)
    });
    run(&store, &queue, JOBS, builder);
}

#[test]
fn an_aborting_queue_job_ends_dead_alone() {
    let Some(dir) = a_directory() else { return };
    let mut deaths = 0;
    while !child("queue::aborting_child", dir.path(), 0).wait().unwrap().success() {
        deaths += 1;
        assert!(deaths <= MAX, "it dies for ever");
    }
    assert_eq!(deaths, MAX);
    let (store, queue) = open(dir.path());
    check(&store, &queue, JOBS, "at the end");
    let dead = queue.list(JobState::Dead, None, JOBS).unwrap();
    let dead: Vec<_> = dead.iter().map(|job| (job.id.parse().unwrap(), job.crashes, job.failures)).collect();
    assert_eq!(dead, [(POISON, MAX, 0)]);
    assert_eq!(queue.counts().finished, JOBS as u64 - 1);
}

/// The number of jobs of the killed process. Two of them fail once.
const FEW: usize = 6;

#[test]
#[ignore = "a child of the tests below"]
fn killed_child() {
    let Some(dir) = dir_of_child() else { return };
    let lines = Lines::of_child();
    let (store, queue) = open(&dir);
    lines.say("the queue is open");
    push_once(&store, &queue, FEW);
    lines.say("the jobs are pushed");
    let table = store.table("done").unwrap();
    let (begun, ended) = (lines.clone(), lines.clone());
    let builder = twice(Runner::builder(&queue).max_processing(2), move |job, number, effects| {
        begun.say(&format!("job {number} begins"));
        if [2, 3].contains(&number) && job.attempt() == 1 {
            return Err("it fails once".into());
        }
        effects.add(&table, number.to_string(), 1)?;
        Ok(Outcome::Done)
    })
    .teardown(move |job, end| ended.say(&format!("job {} ends: {end:?}", job.id())));
    run(&store, &queue, FEW, builder);
}

#[test]
fn a_killed_process_does_each_job_once() {
    let mut killed = 0;
    for line in 1.. {
        let Some(dir) = a_directory() else { return };
        if !killed_after("queue::killed_child", dir.path(), line) {
            break;
        }
        killed += 1;
        if line > 1 {
            // Opening the queue here counts a crash of the running jobs, as in any next life.
            let (store, queue) = open(dir.path());
            check(&store, &queue, FEW, &format!("killed after line {line}"));
        }
        assert!(!killed_after("queue::killed_child", dir.path(), 0));
        let (store, queue) = open(dir.path());
        check(&store, &queue, FEW, &format!("at the end, killed after line {line}"));
        assert_eq!(queue.counts().finished, FEW as u64);
    }
    assert!(killed >= 16, "{killed} places");
}
