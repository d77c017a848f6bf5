//! Features and finer rules of other queues that no other case shows.
//!
//! These are CouchDB's jobs (`c`), MediaWiki's queue (`m`) with its Kafka runner (`p`), and
//! Mosquito (`q`), also with defects of theirs that the queue lacks. Cases are named after the rows
//! of the page `queue::parity`.

use crate::bench::*;
use crossbeam_channel::bounded;
use std::collections::BTreeMap;
use std::time::Duration;
use waterline::{Failure, Retry};
use waterline_queue::{
    Accept, Counts, DrainLimits, JobState, Lease, Limit, NewJob, Outcome, QueueChange, QueueError, QueueOptions, Rate,
    Retention, Runner, Skipped, Subscription, Unknown,
};

#[track_caller]
fn assert_halt<R: std::fmt::Debug>(answer: Result<R, QueueError>) {
    assert!(matches!(answer, Err(QueueError::Halt { .. })), "{answer:?}");
}

// CouchDB.

pub(super) fn c10_the_job_with_the_highest_id_is_not_skipped(on: &Benches<'_>) {
    let bench = on.bench();
    let last = "\u{10ffff}".repeat(63);
    bench.push(job(&last).run_at(noon() + HOUR));
    bench.push(job("a").run_at(noon() + HOUR));
    let early = || bench.queue.accept(Accept::new().max_run_at(noon() + HOUR)).unwrap();
    let leases: Vec<_> = std::iter::from_fn(early).collect();
    let ids: Vec<_> = leases.iter().map(Lease::id).collect();
    assert_eq!(ids, ["a", &last]);
}

pub(super) fn c11_similar_ids_and_later_jobs_hold_up_no_claim(on: &Benches<'_>) {
    let bench = on.bench();
    bench.queue.push_all((0..2000).map(|n| job(&format!("job {n:05}")).delay(HOUR))).unwrap();
    bench.queue.push_all((2000..2003).map(|n| job(&format!("job {n:05}")))).unwrap();
    assert_eq!(bench.claim_all(), ["job 02000", "job 02001", "job 02002"]);
}

pub(super) fn c13_data_that_is_not_json_is_refused(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(job("a"));
    let keys = BTreeMap::from([((1, 2), 3)]);
    let summary = Runner::builder(&bench.queue)
        .on("k", move |job, _: u32| {
            job.update("half")?;
            assert!(matches!(job.update(&keys), Err(QueueError::Payload { .. })));
            assert_eq!(job.data(), Some("half".into()), "nothing is changed");
            job.check()?;
            Ok(Outcome::Done)
        })
        .drain(DrainLimits::default())
        .unwrap();
    assert_eq!(summary.finished, 1, "{summary}");
    assert_eq!(bench.info("a").data, Some("half".into()));
}

pub(super) fn c23_a_subscription_sees_a_removed_job_pushed_again(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(job("a"));
    let mut subscription = bench.queue.subscribe("a").unwrap();
    bench.queue.remove("a").unwrap();
    assert_eq!(subscription.wait(LONG).unwrap().unwrap().state, None);
    bench.push(job("another one"));
    assert_eq!(subscription.wait(Duration::ZERO).unwrap(), None);
    bench.push(job("a").delay(MINUTE));
    assert_eq!(subscription.wait(Duration::ZERO).unwrap().unwrap().state, Some(JobState::Scheduled));
}

pub(super) fn c24_wait_any_reports_the_first_job_that_changes(on: &Benches<'_>) {
    // The clock may move on while a thread wakes, and the rows must stay.
    let bench = on.bench_with(QueueOptions::default().retention(Retention::Keep));
    let other = bench.database.open("other", bench.options.clone()).unwrap();
    for n in 0..3 {
        bench.push(job(&n.to_string()));
    }
    other.push(job("3")).unwrap();
    let mut all: Vec<_> = (0..3).map(|n| bench.queue.subscribe(n.to_string()).unwrap()).collect();
    all.push(other.subscribe("3").unwrap());
    let wait = |all: &mut Vec<Subscription>| Subscription::wait_any(all, Duration::ZERO).unwrap();
    assert_eq!(wait(&mut all), None);
    assert_eq!(wait(&mut Vec::new()), None, "nobody would ever be told");
    bench.queue.remove("2").unwrap();
    bench.claim().finish(Some(7.into())).unwrap();
    let told = std::iter::from_fn(|| wait(&mut all)).take(9);
    let told: Vec<_> = told.map(|(place, seen)| (place, seen.state)).collect();
    assert_eq!(told, [(0, Some(JobState::Finished)), (2, None)], "each change is told once");
    let mut wait_for = |state| Subscription::wait_any_for(&mut all, state, Duration::ZERO).unwrap();
    assert_eq!(wait_for(JobState::Dead), None);
    let (place, seen) = wait_for(JobState::Finished).unwrap();
    assert_eq!((place, seen.data), (0, Some(7.into())));
    // A sleeping thread wakes for a job of any queue, and at its deadline.
    for is_timed in [false, true] {
        let (sender, answers) = bounded(1);
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(Subscription::wait_any(&mut all, 30 * SECOND).unwrap()).unwrap());
            if !is_timed {
                other.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
                assert_eq!(answers.recv_timeout(LONG).unwrap().map(|(place, _)| place), Some(3));
            } else {
                let mut waited = Duration::ZERO;
                while answers.is_empty() {
                    bench.clock.advance(SECOND);
                    waited += SECOND;
                    std::thread::yield_now();
                }
                assert_eq!(answers.recv_timeout(LONG).unwrap(), None);
                assert!(waited >= 30 * SECOND, "it waited for {waited:?} only");
            }
        });
        // The end of the job may be reported after its claim.
        while wait(&mut all).is_some() {}
    }
    bench.queue.purge().unwrap();
    for id in ["0", "1", "3"] {
        drop((bench.queue.remove(id), other.remove(id)));
    }
    assert_eq!(Subscription::wait_any_for(&mut all, JobState::Ready, LONG).unwrap(), None, "all are gone");
}

pub(super) fn c25_a_dropped_subscription_leaves_no_events(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(job("a"));
    let (dropped, mut other) = (bench.queue.subscribe("a").unwrap(), bench.queue.subscribe("a").unwrap());
    let mut lease = bench.claim();
    lease.update(Some(1.into())).unwrap();
    drop(dropped);
    lease.update(Some(2.into())).unwrap();
    let mut next = bench.queue.subscribe("a").unwrap();
    assert_eq!(next.state(), Some(JobState::Running));
    assert_eq!(next.wait(Duration::ZERO).unwrap(), None, "nothing has happened since");
    lease.finish(None).unwrap();
    assert_eq!(next.wait(LONG).unwrap().unwrap().state, Some(JobState::Finished));
    assert!(other.wait_for(JobState::Finished, LONG).unwrap().is_some(), "it is independent of the others");
}

pub(super) fn c30_a_handler_sees_that_its_job_was_removed(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(job("a"));
    let queue = bench.queue.clone();
    let summary = Runner::builder(&bench.queue)
        .on("k", move |job, _: u32| {
            job.check()?;
            queue.remove(job.id())?;
            assert_halt(job.check());
            assert_halt(job.update(&1));
            queue.push(with("a", 2).delay(HOUR))?;
            assert_halt(job.update(&1));
            Ok(Outcome::DoneWith("late".into()))
        })
        .drain(DrainLimits::default())
        .unwrap();
    assert_eq!((summary.finished, summary.lost), (0, 1), "{summary}");
    let info = bench.info("a");
    assert_eq!((info.state, info.data.clone(), bench.payload("a")), (JobState::Scheduled, None, 2));
}

// MediaWiki.

pub(super) fn m04_leaves_of_leaves_inherit_the_time_of_the_root(on: &Benches<'_>) {
    let bench = on.bench_with(QueueOptions::default().lease(DAY));
    bench.push(job("root").root("tree", noon()));
    for (from, to) in [("root", "leaf"), ("leaf", "leaf of leaf")] {
        let mut lease = bench.claim();
        assert_eq!(lease.id(), from);
        bench.clock.advance(HOUR);
        bench.push(job(to).leaf(lease.root().expect("it inherits it")));
        lease.finish(None).unwrap();
    }
    let root = bench.info("leaf of leaf").root.unwrap();
    assert_eq!((root.signature.as_str(), root.timestamp), ("tree", noon()));
    bench.push(job("newer").root("tree", noon() + MILLI));
    assert_eq!(bench.claim_all(), ["newer"], "so a newer root makes all of them needless");
}

pub(super) fn m21_due_jobs_queue_up_behind_ready_ones_by_time(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(job("late").delay(3 * SECOND));
    bench.push(job("early").delay(SECOND));
    bench.push(job("middle").run_at(noon() + 2 * SECOND));
    bench.push(job("ready"));
    bench.push(job("past").run_at(noon() - DAY));
    assert_eq!(bench.state("past"), Some(JobState::Ready), "a past time means at once");
    bench.clock.advance(3 * SECOND);
    assert_eq!(bench.claim_all(), ["ready", "past", "early", "middle", "late"]);
}

pub(super) fn m34_kinds_have_separate_rates_and_skips_cost_no_token(on: &Benches<'_>) {
    let slow = |kind: &str| Limit::kind(kind).rate(Rate::new(1, MINUTE));
    let mut bench = on.bench_with(QueueOptions::default().limit(slow("a")).limit(slow("b")));
    let new = |kind: &str, id: &str| NewJob::new(kind, &1).unwrap().id(id);
    bench.queue.push_all(["a1", "a2", "b1", "b2"].map(|id| new(&id[..1], id))).unwrap();
    assert_eq!(bench.claim_all(), ["a1", "b1"]);
    bench.reopen();
    assert!(bench.claim_all().is_empty(), "a restart forgets neither");
    bench.clock.advance(MINUTE);
    assert_eq!(bench.claim_all(), ["a2", "b2"]);
    bench.push(new("a", "old").root("tree", noon()));
    bench.push(new("a", "newer").root("tree", noon() + MILLI));
    bench.clock.advance(MINUTE);
    assert_eq!(bench.claim_all(), ["newer"], "the needless one before it has cost nothing");
    assert_eq!(bench.info("old").skipped, Some(Skipped::Superseded));
}

// The Kafka runner.

pub(super) fn p06_a_scheduled_job_holds_no_slot(on: &Benches<'_>) {
    let bench = on.bench();
    bench.queue.push_all((0..50).map(|n| job(&format!("later {n}")).delay(HOUR))).unwrap();
    bench.push(job("now"));
    let runner = || Runner::builder(&bench.queue).on("k", |_, _: u32| Ok(Outcome::Done)).max_processing(1);
    assert_eq!(runner().drain(DrainLimits::default()).unwrap().finished, 1);
    assert_eq!((bench.queue.counts().scheduled, bench.state("now")), (50, Some(JobState::Finished)));
    bench.clock.advance(HOUR);
    assert_eq!(runner().drain(DrainLimits::default()).unwrap().finished, 50);
}

pub(super) fn p07_a_leaf_expires_with_its_root(on: &Benches<'_>) {
    let bench = on.bench_with(QueueOptions::default().lease(DAY));
    bench.push(job("root").root("tree", noon()).expires(HOUR));
    let mut lease = bench.claim();
    let root = lease.root().unwrap().clone();
    bench.clock.advance(HOUR / 2);
    let left = |passed: Duration| (root.timestamp + HOUR).duration_since(noon() + passed).unwrap_or_default();
    bench.push(job("leaf").leaf(&root).expires(left(HOUR / 2)));
    assert_eq!(bench.info("leaf").expires_at, Some(noon() + HOUR));
    bench.clock.advance(HOUR / 2);
    bench.push(job("late leaf").leaf(&root).expires(left(HOUR)));
    lease.finish(None).unwrap();
    assert!(bench.accept().is_none());
    assert_eq!((bench.state("leaf"), bench.state("late leaf")), (Some(JobState::Dead), Some(JobState::Dead)));
}

pub(super) fn p10_a_hook_can_refuse_keys_that_fail_too_often(on: &Benches<'_>) {
    let bench = on.bench_with(QueueOptions::default().retry(Retry::none()));
    fn customer(job: &waterline_queue::Running) -> String {
        job.id().split('/').next().unwrap_or_default().to_owned()
    }
    let failures = bench.queue.notes("k").unwrap();
    let drain = || {
        let (counts, counted) = (failures.clone(), failures.clone());
        Runner::builder(&bench.queue)
            .on("k", |job, _: u32| if job.id().starts_with("bad") { Err("500".into()) } else { Ok(Outcome::Done) })
            .before(move |job| match counts.get(customer(job))?.and_then(|failures| failures.as_u64()) {
                Some(3..) => Err(Failure::permanent("it has failed too often").into()),
                _ => Ok(()),
            })
            .after_each(move |job, answer| {
                if answer.as_ref().is_err_and(|error| error.to_string() == "500") {
                    counted.add(customer(job), 1).unwrap();
                    counted.keep_for(customer(job), HOUR).unwrap();
                }
            })
            .max_processing(1)
            .drain(DrainLimits::default())
            .unwrap()
    };
    let errors = |ids: std::ops::Range<u32>| {
        let dead = ids.map(|n| bench.info(&format!("bad/{n}")).error.unwrap());
        dead.collect::<Vec<_>>()
    };
    bench.queue.push_all((0..5).flat_map(|n| [job(&format!("bad/{n}")), job(&format!("good/{n}"))])).unwrap();
    let summary = drain();
    assert_eq!((summary.finished, summary.dead), (5, 5), "{summary}");
    assert_eq!(errors(0..5), ["500", "500", "500", "it has failed too often", "it has failed too often"]);
    bench.clock.advance(HOUR);
    bench.push(job("bad/5"));
    assert_eq!((drain().dead, errors(5..6)), (1, vec!["500".to_owned()]), "its time is over");
}

// Mosquito.

pub(super) fn q03_payloads_of_many_types_round_trip(on: &Benches<'_>) {
    fn comes_back<P>(bench: &Bench, payload: P)
    where
        P: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
    {
        bench.queue.push(NewJob::new("k", &payload).unwrap()).unwrap();
        let mut lease = bench.claim();
        assert_eq!(lease.payload::<P>().unwrap(), payload);
        lease.finish(None).unwrap();
    }
    let bench = on.bench();
    comes_back(&bench, (i8::MIN, i64::MIN, u64::MAX, 0.1_f64, 1.5e-30_f32));
    comes_back(&bench, (false, true, 'ß', "Grüße\u{0}\n\"".to_owned()));
    comes_back(&bench, (None::<u32>, Some("x".to_owned()), ()));
    comes_back(&bench, vec![BTreeMap::from([("k".to_owned(), vec![1, 2])]), BTreeMap::new()]);
    comes_back(&bench, [0_u8, 255, 7, 9]);
    comes_back(&bench, Duration::new(3, 5));
    comes_back(&bench, serde_json::json!({ "a": [null, 1.25, "x"] }));
    comes_back(&bench, "x".repeat(1_000_000));
}

pub(super) fn q10_q17_a_hook_can_defer_a_job_without_an_attempt(on: &Benches<'_>) {
    let bench = on.bench_with(QueueOptions::default().retry(Retry::none()));
    bench.push(job("a"));
    let (ran, runs) = crossbeam_channel::unbounded();
    let drain = |is_ready: bool| {
        let ran = ran.clone();
        Runner::builder(&bench.queue)
            .on("k", |_, _: u32| Ok(Outcome::Done))
            .before(move |_| if is_ready { Ok(()) } else { Err(Failure::defer(HOUR).into()) })
            .after_each(move |_, answer| ran.send(answer.is_ok()).unwrap())
            .drain(DrainLimits::default())
            .unwrap()
    };
    for n in 1..=20 {
        let summary = drain(false);
        assert_eq!((summary.snoozed, summary.dead), (1, 0), "{summary}");
        assert_eq!((bench.info("a").run_at, bench.info("a").failures), (Some(noon() + n * HOUR), 0));
        bench.clock.advance(HOUR - MILLI);
        assert!(bench.accept().is_none(), "not before its time");
        bench.clock.advance(MILLI);
    }
    assert_eq!(drain(true).finished, 1);
    let after: Vec<_> = runs.try_iter().collect();
    assert_eq!((after.len(), after[19], after[20]), (21, false, true), "a hook after it is always called");
}

pub(super) fn q14_q15_a_job_without_a_handler_dies_once_and_is_swept(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(NewJob::new("unknown", &7).unwrap().id("a"));
    let summary = Runner::builder(&bench.queue)
        .on("k", |_, _: u32| Ok(Outcome::Done))
        .unknown(Unknown::Dead)
        .drain(DrainLimits::default())
        .unwrap();
    assert_eq!(summary.dead, 1);
    let dead = bench.queue.list(JobState::Dead, None, 9).unwrap();
    assert_eq!((dead.len(), dead[0].kept_until), (1, Some(noon() + 7 * DAY)));
    assert_eq!(dead[0].payload::<u32>().unwrap(), 7, "it is there for as long as the job is");
    bench.clock.advance(7 * DAY);
    assert!(bench.accept().is_none());
    assert!(bench.queue.list(JobState::Dead, None, 9).unwrap().is_empty());
    assert_eq!((bench.queue.counts(), bench.state("a")), (Counts::default(), None));
}

pub(super) fn q16_a_failing_hook_is_retried_with_backoff_and_a_bound(on: &Benches<'_>) {
    let bench = on.bench_with(QueueOptions::default().retry(Retry::fixed(MINUTE).max_attempts(3)));
    bench.push(job("a"));
    let drain = || {
        Runner::builder(&bench.queue)
            .on("k", |_, _: u32| Ok(Outcome::Done))
            .before(|_| Err("not today".into()))
            .drain(DrainLimits::default())
            .unwrap()
    };
    for failures in 1..=2 {
        assert_eq!(drain().retried, 1, "once, and not in a hot loop");
        assert_eq!((bench.info("a").failures, bench.state("a")), (failures, Some(JobState::Scheduled)));
        bench.clock.advance(MINUTE);
    }
    assert_eq!(drain().dead, 1);
    bench.clock.advance(HOUR);
    let summary = drain();
    assert_eq!((summary.retried, summary.dead), (0, 0), "{summary}");
}

pub(super) fn q35_a_watch_sees_every_change_of_a_queue(on: &Benches<'_>) {
    let bench = on.bench_with(QueueOptions::default().retry(Retry::fixed(SECOND)));
    bench.push(job("before"));
    let mut watch = bench.queue.watch();
    let mut told = || {
        let changes = std::iter::from_fn(|| watch.wait(Duration::ZERO));
        changes.map(|change| format!("{change:?}")).collect::<Vec<_>>()
    };
    let seen = |id: &str, state: &str| format!("Job {{ id: {id:?}, state: {state} }}");
    let (ready, running) = ("Some(Ready)", "Some(Running)");
    bench.queue.push_all([job("a"), job("b").delay(SECOND)]).unwrap();
    assert_eq!(told(), [seen("a", ready), seen("b", "Some(Scheduled)")]);
    bench.claim().finish(None).unwrap();
    bench.claim().retry("no").unwrap();
    let ends = [seen("before", running), seen("before", "Some(Finished)")];
    assert_eq!(told(), [ends, [seen("a", running), seen("a", "Some(Scheduled)")]].concat());
    bench.clock.advance(SECOND);
    bench.claim().bury("no").unwrap();
    bench.queue.remove("b").unwrap();
    let due = [seen("a", ready), seen("b", ready), seen("a", running), seen("a", "Some(Dead)"), seen("b", "None")];
    assert_eq!(told(), due);
    bench.queue.pause(None).unwrap();
    bench.queue.pause(Some(SECOND)).unwrap();
    bench.queue.resume().unwrap();
    let until = format!("Paused {{ until: {:?} }}", Some(noon() + 2 * SECOND));
    assert_eq!(told(), ["Paused { until: None }", &until, "Resumed"]);
    bench.queue.push_all((0..5000).map(|n| job(&format!("many {n}")))).unwrap();
    let last = told();
    assert_eq!((last.len(), last[0].as_str()), (4097, "Missed { changes: 904 }"));
    assert_eq!(last[4096], seen("many 4999", ready));
    let (sender, answers) = bounded(1);
    std::thread::scope(|scope| {
        scope.spawn(|| sender.send(watch.wait(LONG)).unwrap());
        bench.queue.resume().unwrap();
        assert_eq!(answers.recv_timeout(LONG).unwrap(), Some(QueueChange::Resumed));
    });
}
