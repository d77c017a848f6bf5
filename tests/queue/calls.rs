//! The job queue, call by call: claims, leases, ends, subscriptions, pauses and lists, with a clock
//! that the test moves. The tables of `parity` go through the calls on each state.

use common::queues::{Bench, MILLI, MINUTE, SECOND, job, noon, on_each, on_each_with, on_store, with};
use common::{HOUR, LONG, eventually};
use crossbeam_channel::bounded;
use std::time::{Duration, UNIX_EPOCH};
use waterline::queue::{
    Accept, Clock, JobInfo, JobState, Lease, NewJob, PushOutcome, Queue, QueueError, QueueOptions, Retention,
};
use waterline::testing::FaultyStore;
use waterline::{ConfigError, Error, Retry, Store};

#[track_caller]
fn assert_halt<R: std::fmt::Debug>(answer: Result<R, QueueError>) {
    assert!(matches!(answer, Err(QueueError::Halt { .. })), "{answer:?}");
}

#[track_caller]
fn assert_not_found<R: std::fmt::Debug>(answer: Result<R, QueueError>) {
    assert!(matches!(answer, Err(QueueError::NotFound { .. })), "{answer:?}");
}

// C10 to C12: claims.

#[test]
fn c10_a_job_is_due_at_its_time_and_not_before_and_max_run_at_hands_it_out_early() {
    on_each(|bench| {
        bench.push(job("a").run_at(noon() + MINUTE));
        bench.clock.advance(MINUTE - MILLI);
        assert!(bench.accept().is_none());
        bench.clock.advance(MILLI);
        bench.claim().finish(None).unwrap();
        bench.push(job("b").run_at(noon() + HOUR));
        let early = |time| bench.queue.accept(Accept::new().max_run_at(time)).unwrap();
        assert!(early(noon() + HOUR - MILLI).is_none());
        assert_eq!(early(noon() + HOUR).expect("it is inclusive").id(), "b");
    });
}

#[test]
fn c10_with_a_time_that_has_passed_only_jobs_that_were_due_by_then_are_handed_out() {
    on_each(|bench| {
        bench.push(job("new").run_at(noon() - SECOND));
        bench.push(job("old").run_at(noon() - MINUTE));
        let lease = bench.queue.accept(Accept::new().max_run_at(noon() - SECOND - MILLI)).unwrap().unwrap();
        assert_eq!(lease.id(), "old");
        assert!(bench.queue.accept(Accept::new().max_run_at(noon() - SECOND - MILLI)).unwrap().is_none());
        let lease = bench.queue.accept(Accept::new().max_run_at(noon() - SECOND)).unwrap().unwrap();
        assert_eq!(lease.id(), "new");
    });
}

#[test]
fn c11_a_time_beyond_the_calendar_is_refused() {
    let far = UNIX_EPOCH + Duration::from_secs(260_000_000_000);
    on_each(|bench| {
        let refused = |answer: Result<(), QueueError>| {
            assert!(matches!(answer, Err(QueueError::Config(ConfigError::RunAt))), "{answer:?}");
            let text = answer.unwrap_err().to_string();
            assert!(text.starts_with("the time of the job, or of the pause, is after the year 9999: use"), "{text}");
        };
        refused(bench.queue.accept(Accept::new().max_run_at(far)).map(drop));
        refused(bench.queue.push(job("a").run_at(far)).map(drop));
        refused(bench.queue.push(job("a").delay(Duration::MAX)).map(drop));
        refused(bench.queue.push(job("a").expires(Duration::MAX)).map(drop));
        refused(bench.queue.push_all([job("b"), job("a").delay(Duration::MAX)]).map(drop));
        refused(bench.queue.pause(Some(Duration::MAX)));
        refused(bench.queue.lazy().push(job("a").delay(Duration::from_secs(253_000_000_000))));
        assert_eq!(bench.queue.counts().ready, 0, "all or nothing");
        let mut lease = bench.running("c");
        refused(lease.retry_at(far, "x").map(drop));
        refused(lease.snooze(far).map(drop));
        refused(lease.resubmit(Some(far)));
        lease.finish(None).unwrap();
    });
}

#[test]
fn c12_an_accept_with_a_timeout_ends_at_it_and_not_before_and_one_without_answers_at_once() {
    on_each(|bench| {
        assert!(bench.accept().is_none());
        assert!(bench.queue.accept(Accept::new().timeout(Duration::ZERO)).unwrap().is_none());
        let (sender, answers) = bounded(1);
        let waiting = std::thread::spawn({
            let queue = bench.queue.clone();
            move || sender.send(queue.accept(Accept::new().timeout(MINUTE)).unwrap().is_some()).unwrap()
        });
        // The waiting thread may begin at any time, so time is moved until it has waited enough.
        let mut waited = Duration::ZERO;
        while answers.is_empty() {
            bench.clock.advance(SECOND);
            waited += SECOND;
            std::thread::yield_now();
        }
        assert!(!answers.recv_timeout(LONG).unwrap());
        assert!(waited >= MINUTE, "it waited for {waited:?} only");
        waiting.join().unwrap();
    });
}

/// Starts a thread that waits for a job, and returns what it got.
fn waiting(bench: &Bench, accept: Accept) -> crossbeam_channel::Receiver<Option<Lease>> {
    let (sender, answers) = bounded(1);
    let queue = bench.queue.clone();
    std::thread::spawn(move || {
        let _ = sender.send(queue.accept(accept).unwrap());
    });
    answers
}

/// Gives a thread that was started the time to fall asleep. The test is right if it does not, and
/// proves less.
fn most_likely_asleep() {
    (0..200).for_each(|_| std::thread::yield_now());
}

#[test]
fn c12_a_waiting_accept_is_woken_by_a_push_a_due_time_a_resume_and_a_lost_lease() {
    on_each(|bench| {
        let forever = Accept::new().timeout(Duration::MAX);
        let get = |answers: crossbeam_channel::Receiver<Option<Lease>>| {
            let mut lease = answers.recv_timeout(LONG).expect("it is woken").unwrap();
            lease.finish(None).unwrap();
            lease.id().to_owned()
        };
        let answers = waiting(&bench, forever.clone());
        bench.push(job("pushed"));
        assert_eq!(get(answers), "pushed");

        bench.push(job("due").delay(MINUTE));
        let answers = waiting(&bench, forever.clone());
        bench.clock.advance(MINUTE);
        assert_eq!(get(answers), "due");

        bench.queue.pause(None).unwrap();
        bench.push(job("resumed"));
        let answers = waiting(&bench, forever.clone());
        bench.queue.resume().unwrap();
        assert_eq!(get(answers), "resumed");

        bench.queue.pause(Some(MINUTE)).unwrap();
        bench.push(job("paused"));
        let answers = waiting(&bench, forever.clone());
        bench.clock.advance(MINUTE);
        assert_eq!(get(answers), "paused");

        let retry = Retry::fixed(MILLI);
        bench.push(job("silent").retry(retry));
        let silent = bench.claim();
        let answers = waiting(&bench, forever);
        bench.clock.advance(MINUTE);
        eventually("the silent job to be taken back", || bench.state("silent") == Some(JobState::Scheduled));
        bench.clock.advance(MILLI);
        assert_eq!(get(answers), "silent");
        drop(silent);
    });
}

#[test]
fn c12_an_accept_that_waits_for_early_jobs_is_woken_by_one_behind_a_removed_one() {
    on_each(|bench| {
        for n in 0..20 {
            let (removed, early) = (format!("removed {n}"), format!("early {n}"));
            bench.push(job(&removed).delay(SECOND));
            bench.queue.remove(&removed).unwrap();
            let answers = waiting(&bench, Accept::new().timeout(Duration::MAX).max_run_at(noon() + HOUR));
            most_likely_asleep();
            bench.push(job(&early).delay(MINUTE));
            let mut lease = answers.recv_timeout(LONG).expect("it is woken").unwrap();
            assert_eq!(lease.id(), early);
            lease.finish(None).unwrap();
        }
    });
}

#[test]
fn c12_a_push_wakes_an_accept_that_takes_it_and_not_only_one_that_takes_older_jobs() {
    on_each(|bench| {
        for n in 0..20 {
            let old = waiting(&bench, Accept::new().timeout(Duration::MAX).max_run_at(noon() - HOUR));
            let any = waiting(&bench, Accept::new().timeout(Duration::MAX));
            most_likely_asleep();
            bench.push(job(&format!("new {n}")).run_at(noon() - MINUTE));
            any.recv_timeout(LONG).expect("it is woken").unwrap().finish(None).unwrap();
            assert!(old.is_empty());
            bench.push(job(&format!("old {n}")).run_at(noon() - HOUR));
            old.recv_timeout(LONG).expect("it is woken").unwrap().finish(None).unwrap();
        }
    });
}

#[test]
fn c12_each_of_many_pushes_wakes_one_of_many_who_accept() {
    on_each(|bench| {
        let answers: Vec<_> = (0..8).map(|_| waiting(&bench, Accept::new().timeout(Duration::MAX))).collect();
        most_likely_asleep();
        for n in 0..4 {
            bench.push(job(&n.to_string()));
        }
        bench.queue.push_all((4..8).map(|n| job(&n.to_string()))).unwrap();
        let leases = answers.iter().map(|answers| answers.recv_timeout(LONG).expect("all are woken").unwrap());
        let mut ids: Vec<_> = leases.map(|lease| lease.id().to_owned()).collect();
        ids.sort();
        assert_eq!(ids, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    });
}

// C13 to C18: the calls of a lease.

#[test]
fn c13_update_renews_the_lease_and_replaces_the_data_and_shows_the_flag() {
    on_each(|bench| {
        let mut lease = bench.running("a");
        for n in 0..3 {
            bench.clock.advance(MINUTE - MILLI);
            lease.update(Some(n.into())).unwrap();
            assert_eq!(lease.data(), Some(n.into()));
        }
        bench.clock.advance(MINUTE - MILLI);
        lease.update(None).unwrap();
        assert_eq!(bench.info("a").data, Some(2.into()), "an update without data leaves it");
        bench.push(job("a"));
        assert!(!lease.is_resubmitted(), "no call has shown it yet");
        lease.update(None).unwrap();
        assert!(lease.is_resubmitted());
        assert_eq!(lease.finish(None).unwrap(), Some(JobState::Ready));
        assert_eq!(bench.claim().data(), Some(2.into()), "the next run sees it");
    });
}

#[test]
fn c14_finish_writes_the_end_and_the_users_writes_together() {
    on_store(|bench| {
        let table = bench.store().table("rows").unwrap();
        let mut lease = bench.running("a");
        let refused = lease.finish_with(|effects| {
            effects.put(&table, "row", "x")?;
            Err(Error::Stopped)
        });
        assert!(refused.is_err());
        assert_eq!((bench.state("a"), table.get("row").unwrap()), (Some(JobState::Running), None));
        let queue = bench.queue.clone();
        let state = lease.finish_with(|effects| {
            effects.put(&table, "row", "x")?;
            effects.enqueue(&queue, job("next")).map(drop)
        });
        assert_eq!(state.unwrap(), Some(JobState::Finished));
        assert_eq!(table.get("row").unwrap().as_deref(), Some(b"x".as_slice()));
        assert_eq!(bench.state("next"), Some(JobState::Ready));
    });
}

#[test]
fn c15_c16_resubmit_of_a_running_job_runs_it_once_more_at_the_last_time_or_at_once() {
    on_each(|bench| {
        let mut lease = bench.running("a");
        lease.resubmit(Some(noon() + MINUTE)).unwrap();
        assert!(lease.is_resubmitted());
        lease.resubmit(Some(noon() + HOUR)).unwrap();
        assert_eq!(lease.finish(None).unwrap(), Some(JobState::Scheduled), "C18: it is scheduled anew in one write");
        assert_eq!(bench.info("a").run_at, Some(noon() + HOUR));
        bench.clock.advance(HOUR);
        let mut lease = bench.claim();
        lease.resubmit(None).unwrap();
        assert_eq!(lease.finish(None).unwrap(), Some(JobState::Ready));
    });
}

// C19 to C21: leases and their end by silence.

#[test]
fn c20_a_silent_worker_loses_its_job_at_the_deadline_and_never_before() {
    on_each_with(QueueOptions::default().retry(Retry::fixed(MILLI).max_attempts(2)), |bench| {
        let mut lease = bench.running("a");
        lease.update(Some("half".into())).unwrap();
        let mut subscription = bench.queue.subscribe("a").unwrap();
        bench.clock.advance(MINUTE - MILLI);
        assert!(bench.accept().is_none());
        assert_eq!(bench.state("a"), Some(JobState::Running));
        bench.clock.advance(MILLI);
        assert!(bench.accept().is_none(), "its back-off begins now");
        let info = bench.info("a");
        assert_eq!((info.state, info.failures, info.data), (JobState::Scheduled, 1, Some("half".into())));
        assert_eq!(info.error.as_deref(), Some("its worker was silent for 60s"));
        let seen = subscription.wait(LONG).unwrap().expect("who watches the job sees it");
        assert_eq!(seen.state, Some(JobState::Scheduled));
        assert_halt(lease.update(None));
        bench.clock.advance(MILLI);
        let mut second = bench.claim();
        assert_eq!((second.id(), second.attempt()), ("a", 2));
        assert_halt(lease.finish(None));
        bench.clock.advance(MINUTE);
        assert_halt(second.finish(None));
        assert_eq!(bench.state("a"), Some(JobState::Dead), "that was its last attempt");
    });
}

#[test]
fn c19_a_queue_that_is_closed_opens_with_other_options_and_one_that_is_open_does_not() {
    on_each(|bench| {
        bench.push(job("a"));
        let longer = bench.options.clone().lease(HOUR);
        let error = bench.database.open("q", longer.clone()).unwrap_err();
        assert!(matches!(&error, QueueError::Config(ConfigError::QueueOptions { name }) if name == "q"), "{error}");
        let same = bench.database.open("q", bench.options.clone()).unwrap();
        let Bench { queue, clock, database, .. } = &bench;
        drop((same, queue.clone()));
        drop(database.open("other", longer.clone()).unwrap());
        let mut other = None;
        // The writer may have it for a moment longer.
        eventually("the queue to be closed", || {
            other = database.open("other", longer.clone().lease(SECOND)).ok();
            other.is_some()
        });
        let other = other.unwrap();
        other.push(job("x")).unwrap();
        let mut lease = other.accept(Accept::new()).unwrap().unwrap();
        clock.advance(SECOND);
        assert_halt(lease.finish(None));
    });
}

// C23 and C24: subscriptions.

#[test]
fn c23_a_subscription_is_told_of_each_change_and_many_are_told_as_the_last_one() {
    on_each(|bench| {
        bench.push(job("a"));
        let mut subscription = bench.queue.subscribe("a").unwrap();
        let mut lease = bench.claim();
        assert_eq!(subscription.wait(LONG).unwrap().unwrap().state, Some(JobState::Running));
        lease.update(Some(1.into())).unwrap();
        let seen = subscription.wait(LONG).unwrap().unwrap();
        assert_eq!((seen.state, seen.data), (Some(JobState::Running), Some(1.into())));
        lease.update(Some(2.into())).unwrap();
        lease.snooze(noon()).unwrap();
        let mut lease = bench.claim();
        lease.finish(None).unwrap();
        let seen = subscription.wait(LONG).unwrap().unwrap();
        assert_eq!((seen.state, seen.data), (Some(JobState::Finished), Some(2.into())));
        assert_eq!(subscription.wait(Duration::ZERO).unwrap(), None, "they were told as one");
        bench.push(with("a", 2));
        let seen = subscription.wait(LONG).unwrap().unwrap();
        assert_eq!((seen.state, seen.data), (Some(JobState::Ready), None), "its data is gone");
    });
}

#[test]
fn c23_a_job_that_finishes_and_is_dropped_at_once_is_seen_as_finished() {
    on_each_with(QueueOptions::default().retention(Retention::Drop), |bench| {
        bench.push(job("a"));
        let mut subscription = bench.queue.subscribe("a").unwrap();
        assert_eq!(bench.claim().finish(Some("end".into())).unwrap(), None);
        let seen = subscription.wait_for(JobState::Finished, LONG).unwrap().unwrap();
        assert_eq!(seen.data, Some("end".into()));
        assert_eq!(bench.state("a"), None);
    });
}

#[test]
fn c24_a_wait_ends_at_its_deadline_by_the_clock_of_the_queue_however_much_else_happens() {
    on_each(|bench| {
        let mut lease = bench.running("a");
        let mut subscription = bench.queue.subscribe("a").unwrap();
        let (sender, answers) = bounded(1);
        std::thread::spawn(move || sender.send(subscription.wait_for(JobState::Finished, MINUTE).unwrap().is_none()));
        let mut waited = Duration::ZERO;
        while answers.is_empty() {
            bench.clock.advance(SECOND);
            waited += SECOND;
            lease.update(Some(1.into())).unwrap();
        }
        assert!(answers.recv_timeout(LONG).unwrap());
        assert!(waited >= MINUTE, "it waited for {waited:?} only");
    });
}

#[test]
fn c24_a_wait_for_a_state_ends_when_the_job_is_removed() {
    on_each(|bench| {
        bench.push(job("a"));
        let mut subscription = bench.queue.subscribe("a").unwrap();
        bench.queue.remove("a").unwrap();
        assert_eq!(subscription.wait_for(JobState::Finished, LONG).unwrap(), None);
        assert_eq!(subscription.state(), None);
    });
}

// C29: retries and their back-off.

#[test]
fn c29_a_failed_job_waits_for_its_own_back_off_and_dies_after_its_own_attempts() {
    on_each_with(QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(2)), |bench| {
        bench.push(job("queues"));
        bench.push(job("own").retry(Retry::fixed(MINUTE).max_attempts(3)));
        let fail = |bench: &Bench| bench.claim().retry("no").unwrap();
        assert_eq!(fail(&bench), Some(JobState::Scheduled));
        assert_eq!(fail(&bench), Some(JobState::Scheduled));
        assert_eq!(bench.info("queues").run_at, Some(noon() + SECOND));
        assert_eq!(bench.info("own").run_at, Some(noon() + MINUTE));
        bench.clock.advance(MINUTE);
        let mut lease = bench.claim();
        assert_eq!((lease.id(), lease.attempt()), ("queues", 2));
        assert_eq!(lease.retry("no").unwrap(), Some(JobState::Dead));
        assert_eq!(bench.claim().retry("no").unwrap(), Some(JobState::Scheduled));
        bench.clock.advance(MINUTE);
        assert_eq!(bench.claim().retry("at last").unwrap(), Some(JobState::Dead));
        let info = bench.info("own");
        assert_eq!((info.failures, info.error.as_deref()), (3, Some("at last")));
    });
}

#[test]
fn c29_retry_at_sets_the_time_and_counts_and_snooze_gives_the_attempt_back() {
    on_each_with(QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(2)), |bench| {
        let mut lease = bench.running("a");
        assert_eq!(lease.retry_at(noon() + HOUR, "later").unwrap(), Some(JobState::Scheduled));
        assert_eq!((bench.info("a").run_at, bench.info("a").failures), (Some(noon() + HOUR), 1));
        bench.clock.advance(HOUR);
        for _ in 0..5 {
            let mut lease = bench.claim();
            assert_eq!(lease.attempt(), 2);
            assert_eq!(lease.snooze(noon()).unwrap(), Some(JobState::Ready), "a time that has passed");
        }
        assert_eq!(
            bench.claim().retry_at(noon() + HOUR * 3, "x").unwrap(),
            Some(JobState::Dead),
            "attempts are bounded"
        );
    });
}

/// Fails the job so often, each time at once. The clock then stands at its next attempt.
fn fail_at_once(bench: &Bench, times: u32) {
    for _ in 0..times {
        bench.claim().retry("no").unwrap();
        bench.clock.advance(SECOND);
    }
}

#[test]
fn c29_a_run_of_at_least_heal_after_makes_its_failure_the_first_one_and_a_shorter_run_does_not() {
    let options = QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(4));
    on_each_with(options.heal_after(MINUTE).lease(HOUR), |bench| {
        bench.push(job("a"));
        fail_at_once(&bench, 2);
        let mut lease = bench.claim();
        bench.clock.advance(MINUTE - MILLI);
        assert_eq!((lease.retry("no").unwrap(), bench.info("a").failures), (Some(JobState::Scheduled), 3));
        bench.clock.advance(SECOND);
        let mut lease = bench.claim();
        assert_eq!(lease.attempt(), 4);
        bench.clock.advance(MINUTE);
        assert_eq!((lease.retry("no").unwrap(), bench.info("a").failures), (Some(JobState::Scheduled), 1));
        bench.clock.advance(SECOND);
        fail_at_once(&bench, 2);
        assert_eq!(bench.claim().retry("no").unwrap(), Some(JobState::Dead), "short runs count up to the last attempt");
        assert_eq!(bench.info("a").failures, 4);
    });
}

#[test]
fn c29_a_long_run_that_snoozes_heals_too_and_a_clock_on_the_wall_that_jumps_heals_nothing() {
    let options = QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(4));
    on_each_with(options.heal_after(MINUTE).lease(HOUR), |bench| {
        bench.push(job("a"));
        fail_at_once(&bench, 2);
        let mut lease = bench.claim();
        bench.clock.set_wall(noon() + HOUR);
        lease.snooze(noon()).unwrap();
        assert_eq!(bench.info("a").failures, 2);
        let mut lease = bench.claim();
        bench.clock.advance(MINUTE);
        lease.snooze(noon()).unwrap();
        assert_eq!(bench.info("a").failures, 0);
    });
}

#[test]
fn c29_the_silence_of_a_worker_that_hangs_heals_nothing_so_its_job_dies_in_the_end() {
    let options = QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(3));
    on_each_with(options.heal_after(MINUTE).lease(HOUR), |bench| {
        bench.push(job("a"));
        for attempt in 1..=3 {
            let lease = bench.claim();
            assert_eq!(lease.attempt(), attempt);
            bench.clock.advance(HOUR);
            assert!(bench.queue.accept(Accept::new()).unwrap().is_none(), "the job is taken back, and waits");
            bench.clock.advance(SECOND);
            drop(lease);
        }
        assert_eq!(bench.info("a").state, JobState::Dead);
    });
}

// Retention, death, purge, pause, lists and buffers.

#[test]
fn dead_rows_are_kept_for_dead_for_and_then_are_in_no_list_and_count() {
    on_each_with(QueueOptions::default().dead_for(HOUR), |bench| {
        for n in 0..100 {
            bench.push(job(&n.to_string()));
            bench.claim().bury("no").unwrap();
        }
        bench.clock.advance(HOUR - MILLI);
        assert!(bench.accept().is_none());
        assert_eq!(bench.queue.list(JobState::Dead, None, 1000).unwrap().len(), 100);
        bench.clock.advance(MILLI);
        while bench.queue.counts().dead > 0 {
            let before = bench.queue.counts().dead;
            assert!(bench.accept().is_none());
            assert!(bench.queue.counts().dead < before, "each look takes some");
        }
        assert!(bench.queue.list(JobState::Dead, None, 1000).unwrap().is_empty());
        assert_eq!(bench.state("7"), None);
    });
}

#[test]
fn a_lease_that_is_over_says_so_although_the_disk_fails() {
    let faulty = FaultyStore::new().unwrap();
    let bench = Bench::on(faulty.store(), &Clock::manual(noon()), QueueOptions::default());
    let mut ended = bench.running("ended");
    ended.finish(None).unwrap();
    let mut silent = bench.running("silent");
    bench.push(job("due").delay(SECOND));
    bench.clock.advance(HOUR);
    faulty.fail(..);
    for lease in [&mut ended, &mut silent] {
        let refused = lease.finish(None);
        assert!(matches!(refused, Err(QueueError::Halt { .. })), "{}: {refused:?}", lease.id());
    }
    faulty.heal();
}

#[test]
fn calls_for_many_jobs_do_first_what_time_has_brought() {
    on_each_with(QueueOptions::default().dead_for(HOUR), |bench| {
        bench.push(job("old"));
        bench.bury("old");
        bench.clock.advance(HOUR);
        assert_eq!(bench.queue.requeue_dead().unwrap(), 0, "it is kept no longer");
        bench.push(job("expires").expires(SECOND));
        bench.clock.advance(SECOND);
        assert_eq!(bench.queue.purge().unwrap(), 0, "it is dead");
        assert_eq!(bench.states(["old", "expires"]), [None, Some(JobState::Dead)]);
    });
}

#[test]
fn a_dead_job_that_is_requeued_is_ready_with_a_clean_record_and_keeps_its_payload() {
    on_each(|bench| {
        bench.push(with("a", 7));
        bench.claim().bury("no").unwrap();
        assert!(bench.queue.requeue("a").unwrap());
        assert!(!bench.queue.requeue("a").unwrap(), "it is not dead any more");
        assert_not_found(bench.queue.requeue("x"));
        let lease = bench.claim();
        assert_eq!((lease.attempt(), lease.payload::<u32>().unwrap()), (1, 7));
        drop(lease);
        for n in 0..1200 {
            bench.push(job(&n.to_string()));
            bench.claim().bury("no").unwrap();
        }
        assert_eq!(bench.queue.requeue_dead().unwrap(), 1200);
        assert_eq!((bench.queue.counts().dead, bench.queue.counts().ready), (0, 1200));
    });
}

#[test]
fn purge_removes_what_waits_and_fences_what_runs_and_leaves_what_has_ended() {
    on_each(|bench| {
        bench.finished("finished");
        bench.running("dead").bury("no").unwrap();
        let mut lease = bench.running("running");
        bench.push(job("scheduled").delay(MINUTE));
        bench.queue.push_all((0..1100).map(|n| job(&n.to_string()))).unwrap();
        assert_eq!(bench.queue.purge().unwrap(), 1102);
        assert_halt(lease.finish(None));
        let counts = bench.queue.counts();
        assert_eq!((counts.finished, counts.dead), (1, 1));
        assert_eq!((counts.scheduled, counts.ready, counts.running), (0, 0, 0));
        bench.push(job("running"));
        assert_eq!(bench.claim().id(), "running");
    });
}

#[test]
fn a_paused_queue_takes_jobs_and_hands_out_none_until_its_time_is_over() {
    on_each(|mut bench| {
        let mut running = bench.running("running");
        bench.queue.pause(Some(MINUTE)).unwrap();
        bench.push(job("a"));
        assert!(bench.accept().is_none());
        running.finish(None).unwrap();
        drop(running);
        bench.reopen();
        bench.clock.advance(MINUTE - MILLI);
        assert!(bench.accept().is_none(), "a restart does not end it");
        bench.clock.advance(MILLI);
        bench.claim().finish(None).unwrap();
        bench.queue.pause(None).unwrap();
        bench.push(job("b"));
        bench.clock.advance(HOUR);
        assert!(bench.accept().is_none());
        bench.queue.resume().unwrap();
        bench.queue.resume().unwrap();
        assert_eq!(bench.claim().id(), "b");
    });
}

#[test]
fn lists_show_each_state_page_by_page_although_the_job_of_the_last_page_has_left() {
    on_each(|bench| {
        bench.queue.push_all((0..10).map(|n| job(&format!("r{n}")))).unwrap();
        bench.queue.push_all((0..10).map(|n| job(&format!("s{n}")).delay(SECOND * (10 - n)))).unwrap();
        let ids = |jobs: &[JobInfo]| jobs.iter().map(|job| job.id.clone()).collect::<Vec<_>>();
        let first = bench.queue.list(JobState::Ready, None, 4).unwrap();
        assert_eq!(ids(&first), ["r0", "r1", "r2", "r3"]);
        bench.queue.remove("r3").unwrap();
        bench.queue.remove("r4").unwrap();
        let second = bench.queue.list(JobState::Ready, first.last(), 4).unwrap();
        assert_eq!(ids(&second), ["r5", "r6", "r7", "r8"]);
        let scheduled = bench.queue.list(JobState::Scheduled, None, 3).unwrap();
        assert_eq!(ids(&scheduled), ["s9", "s8", "s7"], "by their time");
        bench.queue.remove("s7").unwrap();
        let more = bench.queue.list(JobState::Scheduled, scheduled.last(), 100).unwrap();
        assert_eq!(ids(&more), ["s6", "s5", "s4", "s3", "s2", "s1", "s0"]);
        let leases: Vec<_> = (0..5).map(|_| bench.claim()).collect();
        let running = bench.queue.list(JobState::Running, None, 2).unwrap();
        assert_eq!(ids(&running), ["r0", "r1"]);
        let running = bench.queue.list(JobState::Running, running.last(), 100).unwrap();
        assert_eq!(ids(&running), ["r2", "r5", "r6"]);
        for (n, mut lease) in leases.into_iter().enumerate() {
            if n % 2 == 0 { lease.finish(None) } else { lease.bury("no") }.unwrap();
        }
        assert_eq!(ids(&bench.queue.list(JobState::Finished, None, 100).unwrap()), ["r0", "r2", "r6"]);
        let dead = bench.queue.list(JobState::Dead, None, 1).unwrap();
        assert_eq!(ids(&bench.queue.list(JobState::Dead, dead.last(), 9).unwrap()), ["r5"]);
        assert!(bench.queue.list(JobState::Dead, None, 0).unwrap().is_empty());
    });
}

#[test]
fn a_buffer_refuses_at_once_pushes_in_order_in_one_write_and_flushes_when_it_is_dropped() {
    on_each(|bench| {
        let mut lazy = bench.queue.lazy();
        lazy.push(job("a")).unwrap();
        assert!(matches!(lazy.push(job("~x")), Err(QueueError::Config(ConfigError::JobIdReserved { .. }))));
        lazy.push(job("b")).unwrap();
        lazy.push(job("a")).unwrap();
        assert_eq!((lazy.len(), bench.queue.counts().ready), (3, 0));
        let outcomes: Vec<_> = lazy.flush().unwrap().into_iter().map(|pushed| pushed.outcome).collect();
        assert_eq!(outcomes, [PushOutcome::Added, PushOutcome::Added, PushOutcome::Duplicate("a".to_owned())]);
        assert!(lazy.is_empty() && lazy.flush().unwrap().is_empty());
        lazy.push(job("c")).unwrap();
        drop(lazy);
        assert_eq!(bench.state("c"), Some(JobState::Ready));
    });
}

// Bad input.

#[test]
fn bad_ids_kinds_names_and_options_are_refused_with_what_to_do() {
    on_each(|bench| {
        let long = "x".repeat(256);
        let pushed = |job: NewJob| bench.queue.push(job).unwrap_err();
        let new = |kind: &str| NewJob::new(kind, &()).unwrap();
        let retry = Retry::fixed(SECOND).max_attempts(0);
        let open = |name: &str, options: QueueOptions| bench.database.open(name, options).unwrap_err();
        let options = QueueOptions::default;
        let no_attempt =
            "the retry allows 0 attempts, and the first attempt counts: use `Retry::none()` for a single attempt";
        let cases = [
            (pushed(job("")), "the id of a job has 0 bytes: use 1 to 255"),
            (pushed(job(&long)), "the id of a job has 256 bytes: use 1 to 255"),
            (
                pushed(job("~1")),
                "the id \"~1\" begins with `~`, as those that the queue makes: use another one, or none",
            ),
            (pushed(new("")), "the kind of a job has 0 bytes: use 1 to 255"),
            (pushed(new(&long)), "the kind of a job has 256 bytes: use 1 to 255"),
            (pushed(job("a").retry(retry)), no_attempt),
            (open("", options()), "the queue name is 0 bytes long: use 1 to 255 bytes"),
            (open(&long, options()), "the queue name is 256 bytes long: use 1 to 255 bytes"),
            (
                open("o", options().lease(Duration::ZERO)),
                "the lease is 0, so each job would be taken back at once: use some seconds at least",
            ),
            (
                open("o", options().heal_after(Duration::ZERO)),
                "heal_after is 0, so no job would ever use up its attempts: use a time, or leave it out",
            ),
            (
                open("o", options().max_crashes(0)),
                "max_crashes is 0, so a job that ran while its process died could never run again: use 1 or more",
            ),
            (open("o", options().retry(retry)), no_attempt),
            (
                open("o", options().max_waiting(0)),
                "max_waiting is 0, so each push would be refused: use 1 or more (to hold the jobs back, pause the queue)",
            ),
        ];
        for (error, says) in cases {
            assert!(matches!(error, QueueError::Config(_)), "{error:?}");
            assert_eq!(error.to_string(), says);
        }
        assert_eq!(bench.queue.counts(), waterline::queue::Counts::default());
        bench.push(job(&"x".repeat(255)));
    });
}

#[test]
fn a_payload_that_is_no_json_or_does_not_fit_its_type_is_an_error_that_names_the_job() {
    let keys = std::collections::HashMap::from([((1, 2), 3)]);
    assert!(matches!(NewJob::new("k", &keys), Err(QueueError::Payload { id, .. }) if id == "k"));
    on_each(|bench| {
        let lease = bench.running("a");
        let error = lease.payload::<Vec<String>>().unwrap_err();
        assert!(matches!(&error, QueueError::Payload { id, .. } if id == "a"), "{error:?}");
        assert!(bench.info("a").payload::<String>().is_err());
        assert_eq!(lease.payload::<u32>().unwrap(), 1, "the lease is as before");
    });
}

#[test]
fn a_push_into_the_queue_of_another_store_is_refused() {
    on_store(|bench| {
        let other = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap();
        let refused = bench.store().write(|effects| effects.enqueue(&other, job("a")).map(drop));
        assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
        assert_eq!(other.counts().ready + bench.queue.counts().ready, 0);
    });
}

#[test]
fn calls_on_a_store_that_fails_change_nothing_and_leave_the_lease_usable() {
    let faulty = FaultyStore::new().unwrap();
    let clock = Clock::manual(noon());
    let queue = Queue::open(&faulty.store(), "q", QueueOptions::default().clock(clock.clone())).unwrap();
    queue.push(job("a")).unwrap();
    let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
    let mut lazy = queue.lazy();
    lazy.push(job("lazy")).unwrap();
    faulty.fail(..);
    assert!(matches!(queue.push(job("b")), Err(QueueError::Store(Error::Store { .. }))));
    assert!(lazy.flush().is_err());
    assert_eq!(lazy.len(), 1, "the jobs stay in the buffer");
    assert!(lease.update(Some(1.into())).is_err());
    assert!(lease.finish(None).is_err());
    assert!(queue.accept(Accept::new()).unwrap().is_none());
    let status = queue.status().unwrap().to_string();
    assert!(status.contains("cannot use its store"), "a call that writes nothing hides nothing: {status}");
    faulty.heal();
    assert_eq!(lease.finish(None).unwrap(), Some(JobState::Finished));
    assert_eq!(lazy.flush().unwrap().len(), 1);
    let status = queue.status().unwrap().to_string();
    assert!(!status.contains("cannot write"), "{status}");
    assert_eq!(queue.state("b").unwrap(), None);
}

#[test]
fn a_lease_that_is_dropped_while_the_store_fails_is_taken_back_after_its_silence() {
    let faulty = FaultyStore::new().unwrap();
    let clock = Clock::manual(noon());
    let queue = Queue::open(&faulty.store(), "q", QueueOptions::default().clock(clock.clone())).unwrap();
    queue.push(job("a")).unwrap();
    let lease = queue.accept(Accept::new()).unwrap().unwrap();
    faulty.fail(..);
    drop(lease);
    clock.advance(MINUTE);
    assert!(queue.accept(Accept::new()).is_err(), "it cannot be taken back yet");
    faulty.heal();
    assert!(queue.accept(Accept::new()).unwrap().is_none());
    assert_eq!(queue.state("a").unwrap(), Some(JobState::Scheduled));
}
