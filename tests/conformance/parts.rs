//! The parts of `waterline::testing` that fail on demand.

use super::refusal;
use std::panic::AssertUnwindSafe;
use std::time::Duration;
use waterline::testing::{FaultyProgress, FaultyStore, manual_worker};
use waterline::{Checkpoint, Consumer, Error, Job, MemoryJobs, MemoryProgress, Progress, Worker};

fn numbers(n: u64) -> MemoryJobs<u64> {
    (0..n).collect()
}

#[test]
fn a_faulty_progress_fails_at_the_chosen_writes() {
    let mut progress = FaultyProgress::in_memory();
    let faults = progress.faults();
    progress.acquire().unwrap();
    faults.fail(1..=1);
    faults.panic(2..3);
    faults.freeze_at(4);
    let mut outcome = |index| {
        let saved = std::panic::catch_unwind(AssertUnwindSafe(|| progress.save(&Checkpoint::new(index)).is_ok()));
        (saved.ok(), progress.last_processed())
    };
    assert_eq!(outcome(0), (Some(true), Some(0)));
    assert_eq!(outcome(1), (Some(false), Some(0)));
    assert_eq!(outcome(1), (None, Some(0)));
    assert_eq!(outcome(1), (Some(true), Some(1)));
    assert_eq!(outcome(2), (Some(true), Some(1)), "it does not reach the disk");
    assert_eq!(outcome(3), (Some(true), Some(1)));
    assert_eq!((faults.writes(), faults.saves()), (6, vec![0, 1, 2, 3]));
    // A new demand restarts the count and replaces the earlier one.
    faults.fail(0..1);
    assert_eq!(outcome(4).0, Some(false));
    faults.fail(..);
    faults.heal();
    assert_eq!(outcome(4).0, Some(true));
    let mut after = progress.after_crash();
    assert_eq!(after.acquire().unwrap(), Some(Checkpoint::new(1)), "the name is free, as after a crash");
    after.save(&Checkpoint::new(2)).unwrap();
    assert_eq!((after.last_processed(), progress.last_processed()), (Some(2), Some(1)));
}

#[test]
fn promise_07_a_checkpoint_that_goes_back_is_caught() {
    let mut progress = FaultyProgress::in_memory();
    progress.acquire().unwrap();
    progress.save(&Checkpoint::new(5)).unwrap();
    let said = refusal("going back", || drop(progress.save(&Checkpoint::new(4))));
    assert!(said.contains("goes back from 5 to 4"), "{said}");
}

#[test]
fn promise_01_a_frozen_watermark_misses_no_job() {
    for freeze_at in 0..20 {
        let progress = FaultyProgress::in_memory();
        progress.faults().freeze_at(freeze_at);
        let life = |progress: FaultyProgress| {
            let loaded = progress.last_processed();
            let (done, finished) = crossbeam_channel::unbounded();
            let consumer = Consumer::builder(numbers(30), progress).max_processing(4).max_search_ahead(3).stop_at(29);
            let consumer = consumer.start(move |job| Ok(done.send(job.index)?)).unwrap();
            consumer.join().unwrap();
            (loaded, finished.iter().collect::<std::collections::BTreeSet<_>>())
        };
        let (_, first) = life(progress.clone());
        assert_eq!(first.len(), 30, "the life that is lost knows nothing of it");
        let (loaded, second) = life(progress.after_crash());
        assert!(second.into_iter().eq(loaded.map_or(0, |last| last + 1)..30), "frozen at {freeze_at}: {loaded:?}");
        assert!(loaded.map_or(0, |last| last + 1) <= 3 * freeze_at, "what came after write {freeze_at} is lost");
    }
}

#[test]
fn a_held_save_hangs_until_released() {
    let progress = FaultyProgress::in_memory();
    let hold = progress.faults().hold();
    let consumer = Consumer::builder(numbers(1), progress.clone()).start(|_| Ok(())).unwrap();
    hold.wait();
    assert_eq!(progress.last_processed(), None);
    drop(hold);
    assert!(consumer.handle().wait_for(0, Duration::from_secs(60)));
    consumer.stop().unwrap();
}

#[test]
fn a_faulty_store_after_a_crash_is_a_new_store() {
    let faulty = FaultyStore::new().unwrap();
    let mut progress = faulty.store().progress("p");
    progress.acquire().unwrap();
    progress.save(&Checkpoint::new(1)).unwrap();
    let before = faulty.writes();
    faulty.freeze_at(1);
    progress.save(&Checkpoint::new(2)).unwrap();
    progress.save(&Checkpoint::new(3)).unwrap();
    assert_eq!(faulty.writes() - before, 2);
    let after = faulty.after_crash().unwrap();
    assert_eq!(after.store().progress("p").acquire().unwrap(), Some(Checkpoint::new(2)), "and its name is free");
    assert!(matches!(faulty.store().progress("p").acquire(), Err(Error::InUse { .. })));
    faulty.fail(..);
    assert!(progress.save(&Checkpoint::new(4)).is_err());
    faulty.heal();
    progress.save(&Checkpoint::new(4)).unwrap();
    assert_eq!(faulty.after_crash().unwrap().store().progress("p").last_processed().unwrap(), Some(2));
}

#[test]
fn a_manual_job_ends_as_told_and_fails_when_dropped() {
    let (worker, started) = manual_worker();
    let run = |say: fn(waterline::testing::StartedJob)| {
        let worker = worker.clone();
        let job = std::thread::spawn(move || worker.run(Job::new(7, "any payload")).map_err(|error| error.to_string()));
        let running = started.next();
        assert_eq!((running.index, running.attempt), (7, 1));
        say(running);
        job.join()
    };
    assert_eq!(run(|job| job.succeed()).unwrap(), Ok(()));
    assert_eq!(run(|job| job.fail("no")).unwrap(), Err("no".to_owned()));
    assert_eq!(run(drop).unwrap(), Err("the test let go of this job".to_owned()));
    assert!(run(|job| job.panic()).is_err());
    assert!(started.is_quiet());
    assert!(started.next_within(Duration::from_millis(1)).is_none());
}

#[test]
fn a_failing_test_releases_its_manual_jobs() {
    let (worker, started) = manual_worker();
    let consumer = Consumer::builder(numbers(3), MemoryProgress::new()).max_processing(2).start_worker(worker).unwrap();
    let _first = started.next();
    // As if the test panicked here: its side is dropped first, with the jobs that it took and those
    // that it did not.
    drop((_first, started));
    assert!(matches!(consumer.join(), Err(Error::Job { index: 0 | 1, .. })));
}
