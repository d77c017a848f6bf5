//! Subscriptions, dead jobs and retention, purges, pauses, lists, and invalid input.

use crate::bench::*;
use crossbeam_channel::bounded;
use std::collections::BTreeSet;
use std::time::Duration;
use waterline::Retry;
use waterline_queue::{
    ConfigError, Counts, JobInfo, JobState, NewJob, Priority, Proposed, PushOutcome, QueueError, QueueOptions,
    Retention, Unique,
};

#[track_caller]
fn assert_not_found<R: std::fmt::Debug>(answer: Result<R, QueueError>) {
    assert!(matches!(answer, Err(QueueError::NotFound { .. })), "{answer:?}");
}

#[track_caller]
fn assert_halt<R: std::fmt::Debug>(answer: Result<R, QueueError>) {
    assert!(matches!(answer, Err(QueueError::Halt { .. })), "{answer:?}");
}

pub(super) fn c23_a_subscription_sees_each_change_or_the_latest(on: &Benches<'_>) {
    let bench = on.bench();
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
}

pub(super) fn c23_a_job_dropped_as_it_finishes_is_seen_as_finished(on: &Benches<'_>) {
    let bench = on.bench_with(QueueOptions::default().retention(Retention::Drop));
    bench.push(job("a"));
    let mut subscription = bench.queue.subscribe("a").unwrap();
    assert_eq!(bench.claim().finish(Some("end".into())).unwrap(), None);
    let seen = subscription.wait_for(JobState::Finished, LONG).unwrap().unwrap();
    assert_eq!(seen.data, Some("end".into()));
    assert_eq!(bench.state("a"), None);
}

pub(super) fn c24_a_wait_ends_at_its_deadline_despite_other_changes(on: &Benches<'_>) {
    let bench = on.bench();
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
}

pub(super) fn c24_a_wait_ends_when_its_job_is_removed(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(job("a"));
    let mut subscription = bench.queue.subscribe("a").unwrap();
    bench.queue.remove("a").unwrap();
    assert_eq!(subscription.wait_for(JobState::Finished, LONG).unwrap(), None);
    assert_eq!(subscription.state(), None);
}

pub(super) fn dead_jobs_are_swept_after_dead_for(on: &Benches<'_>) {
    let bench = on.bench_with(QueueOptions::default().dead_for(HOUR));
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
}

pub(super) fn requeue_dead_and_purge_apply_expiry_first(on: &Benches<'_>) {
    let bench = on.bench_with(QueueOptions::default().dead_for(HOUR));
    bench.push(job("old"));
    bench.bury("old");
    bench.clock.advance(HOUR);
    assert_eq!(bench.queue.requeue_dead().unwrap(), 0, "it is kept no longer");
    bench.push(job("expires").expires(SECOND));
    bench.clock.advance(SECOND);
    assert_eq!(bench.queue.purge().unwrap(), 0, "it is dead");
    assert_eq!(bench.states(["old", "expires"]), [None, Some(JobState::Dead)]);
}

pub(super) fn a_requeued_job_keeps_its_payload_but_not_its_failures(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(with("a", 7));
    bench.claim().bury("no").unwrap();
    assert!(bench.queue.requeue("a").unwrap());
    assert!(!bench.queue.requeue("a").unwrap(), "it is not dead any more");
    assert_not_found(bench.queue.requeue("x"));
    let mut lease = bench.claim();
    assert_eq!((lease.attempt(), lease.payload::<u32>().unwrap()), (1, 7));
    lease.finish(None).unwrap();
    // More than one call of a database takes.
    bench.queue.push_all((0..1200).map(|n| job(&n.to_string()).expires(MINUTE))).unwrap();
    bench.clock.advance(MINUTE);
    eventually("all of them to expire", || {
        bench.pass(MILLI);
        bench.queue.counts().dead == 1200
    });
    assert_eq!(bench.queue.requeue_dead().unwrap(), 1200);
    assert_eq!((bench.queue.counts().dead, bench.queue.counts().ready), (0, 1200));
}

pub(super) fn run_now_changes_only_the_time_of_a_scheduled_job(on: &Benches<'_>) {
    let bench = on.bench();
    let retry = Retry::fixed(HOUR).max_attempts(3);
    let job = with("a", 7).key("tenant").priority(Priority::High).retry(retry).unique(Unique::until_done());
    let job = job.meta("by", &"ann").unwrap().delay(HOUR);
    bench.push(job.clone());
    let made = bench.queue.push(NewJob::new("k", &8).unwrap().delay(2 * HOUR)).unwrap().id;
    bench.push(with("behind", 9).after(["a"]));
    assert!(bench.queue.run_now("a").unwrap() && bench.queue.run_now(&made).unwrap());
    assert!(!bench.queue.run_now("a").unwrap(), "it is not scheduled any more");
    assert!(!bench.queue.run_now("behind").unwrap(), "it waits for another job");
    assert_not_found(bench.queue.run_now("x"));
    assert_eq!((bench.queue.counts().ready, bench.queue.counts().scheduled), (2, 0));
    let row = bench.queue.get("a").unwrap().expect("it is there");
    assert_eq!((row.key.as_deref(), row.priority), (Some("tenant"), Priority::High));
    assert_eq!(row.meta["by"], serde_json::json!("ann"));
    assert!(!bench.queue.push(job).unwrap().is_new(), "its twin is refused as before");
    // A failed job waits for its retry, and keeps its count and its data.
    let mut lease = bench.claim();
    assert_eq!((lease.id(), lease.payload::<u32>().unwrap()), ("a", 7));
    assert!(!bench.queue.run_now("a").unwrap(), "it runs");
    lease.update(Some(1.into())).unwrap();
    lease.retry("no").unwrap();
    assert!(bench.queue.run_now("a").unwrap());
    let mut lease = bench.claim();
    assert_eq!((lease.id(), lease.attempt(), lease.data()), ("a", 2, Some(1.into())));
    lease.finish(None).unwrap();
    assert!(!bench.queue.run_now("a").unwrap(), "it has ended, and does not run again");
    let rest: Vec<_> = (0..2).map(|_| bench.claim().id().to_owned()).collect();
    assert!(rest.contains(&made) && rest.contains(&"behind".to_owned()), "{rest:?}");
}

pub(super) fn purge_removes_open_jobs_and_keeps_ended_ones(on: &Benches<'_>) {
    let bench = on.bench();
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
}

pub(super) fn a_paused_queue_takes_jobs_but_hands_out_none(on: &Benches<'_>) {
    let mut bench = on.bench();
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
}

pub(super) fn lists_page_through_each_state_past_removed_jobs(on: &Benches<'_>) {
    let bench = on.bench();
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
}

pub(super) fn a_buffer_pushes_in_order_on_flush_and_on_drop(on: &Benches<'_>) {
    let bench = on.bench();
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
}

pub(super) fn bad_ids_kinds_names_and_options_are_refused(on: &Benches<'_>) {
    let bench = on.bench();
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
        (pushed(job("~1")), "the id \"~1\" begins with `~`, as those that the queue makes: use another one, or none"),
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
    assert_eq!(bench.queue.counts(), Counts::default());
    bench.push(job(&"x".repeat(255)));
}

pub(super) fn a_bad_payload_is_an_error_that_names_the_job(on: &Benches<'_>) {
    let keys = std::collections::HashMap::from([((1, 2), 3)]);
    assert!(matches!(NewJob::new("k", &keys), Err(QueueError::Payload { id, .. }) if id == "k"));
    let bench = on.bench();
    let lease = bench.running("a");
    let error = lease.payload::<Vec<String>>().unwrap_err();
    assert!(matches!(&error, QueueError::Payload { id, .. } if id == "a"), "{error:?}");
    assert!(bench.info("a").payload::<String>().is_err());
    assert_eq!(lease.payload::<u32>().unwrap(), 1, "the lease is as before");
}

pub(super) fn m09_m10_a_push_with_a_refused_job_pushes_none(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(job("old").root("tree", noon()));
    let many = (0..100).map(|n| job(&n.to_string()).root("tree", noon() + MINUTE));
    let refused = bench.queue.push_all(many.chain([job("last").after(["nobody"])]));
    assert_not_found(refused);
    assert_eq!(bench.queue.push_all([]).unwrap(), []);
    assert_eq!((bench.claim_all(), bench.state("0")), (vec!["old".to_owned()], None), "its root is the newest one");
}

pub(super) fn q01_generated_ids_are_unique_on_a_stopped_clock(on: &Benches<'_>) {
    let mut bench = on.bench();
    let mut ids = BTreeSet::new();
    for life in 1..=3 {
        let made = || NewJob::new("k", &1).unwrap().retention(Retention::Drop);
        let pushed = bench.queue.push_all((0..50).map(|_| made())).unwrap();
        ids.extend(pushed.into_iter().map(|pushed| pushed.id));
        ids.insert(bench.queue.push(made()).unwrap().id);
        // No job is left to derive the next number from.
        assert_eq!((bench.claim_all().len(), ids.len()), (51, life * 51));
        bench.reopen();
    }
}

pub(super) fn qr8_a_job_the_hook_refuses_fails_every_way_to_push(on: &Benches<'_>) {
    let hook = |job: &Proposed<'_>| if job.id == Some("no") { Err("not this one".into()) } else { Ok(()) };
    let bench = on.bench_with(QueueOptions::default().before_push(hook));
    let (good, bad) = (|| job("yes").unique(Unique::until_done()), || job("no").unique(Unique::until_done()));
    let answers = [
        bench.queue.push(bad()).map(drop),
        bench.queue.push_all([good(), bad()]).map(drop),
        bench.queue.push_within(bad(), SECOND).map(drop),
        bench.queue.push_batch([bad()], good()).map(drop),
        bench.queue.lazy().push(bad()),
    ];
    for (number, answer) in answers.into_iter().enumerate() {
        assert!(matches!(answer, Err(QueueError::Refused { .. })), "{number}: {answer:?}");
    }
    assert_eq!(bench.queue.counts(), Counts::default());
    assert_eq!(bench.push(good()), PushOutcome::Added, "no mark is left");
}
