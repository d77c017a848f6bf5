//! Metadata of a job, notes of a kind, and the progress of a running job.

use crate::bench::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;
use waterline::Retry;
use waterline_queue::{
    Clash, ConfigError, DrainLimits, JobState, NewJob, Outcome, PushOutcome, Queue, QueueError, QueueOptions,
    Retention, Runner, Unique,
};

fn options() -> QueueOptions {
    QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(2)).retention(Retention::Keep)
}

pub(super) fn metadata_is_shared_by_callers_and_workers(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    bench.push(job("a").meta("for", "ann").unwrap().meta("n", &[1, 2]).unwrap());
    assert_eq!(bench.meta("a"), json!({"for": "ann", "n": [1, 2]}));
    bench.queue.set_meta("a", "for", Some("bob".into())).unwrap();
    let mut lease = bench.claim();
    assert_eq!(lease.meta().unwrap()["for"], "bob");
    lease.set_meta("n", None).unwrap();
    lease.set_meta("none", None).unwrap();
    lease.set_meta("at", Some(json!({"row": 3}))).unwrap();
    assert_eq!(bench.meta("a"), json!({"for": "bob", "at": {"row": 3}}));
    lease.retry("it fails").unwrap();
    bench.clock.advance(SECOND);
    Runner::builder(&bench.queue)
        .on("k", |job, _: u32| {
            assert_eq!(json!(job.meta()?), json!({"for": "bob", "at": {"row": 3}}), "it stays over a retry");
            job.set_meta("done", Some(true.into()))?;
            Ok(Outcome::Done)
        })
        .drain(DrainLimits::default())
        .unwrap();
    assert_eq!(bench.info("a").state, JobState::Finished);
    bench.queue.set_meta("a", "at", None).unwrap();
    assert_eq!(bench.meta("a"), json!({"for": "bob", "done": true}));
    let error = bench.queue.set_meta("b", "k", None).unwrap_err();
    assert!(matches!(error, QueueError::NotFound { id, .. } if id == "b"));
}

pub(super) fn a_worker_that_lost_its_job_sets_no_metadata(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    bench.push(job("a"));
    let mut lease = bench.claim();
    bench.queue.remove("a").unwrap();
    bench.push(job("a"));
    assert!(matches!(lease.set_meta("k", Some(1.into())), Err(QueueError::Halt { .. })));
    assert_eq!(bench.meta("a"), json!({}));
    bench.queue.remove("a").unwrap();
    bench.push(job("b"));
    let queue = bench.queue.clone();
    let summary = Runner::builder(&bench.queue)
        .on("k", move |job, _: u32| {
            queue.remove(job.id())?;
            assert!(matches!(job.set_meta("k", Some(1.into())), Err(QueueError::Halt { .. })));
            Ok(Outcome::Done)
        })
        .drain(DrainLimits::default())
        .unwrap();
    assert_eq!(summary.lost, 1);
}

pub(super) fn metadata_stays_with_its_job_until_a_new_payload(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    let with = |id: &str, key: &str| job(id).meta(key, &1).unwrap();
    bench.push(with("a", "old"));
    // A duplicate and a further run change nothing.
    assert_eq!(bench.push(with("a", "new")), PushOutcome::Duplicate("a".into()));
    let mut lease = bench.claim();
    assert_eq!(bench.push(with("a", "new")), PushOutcome::Resubmit);
    assert_eq!(lease.finish(None).unwrap(), Some(JobState::Ready));
    assert_eq!(bench.meta("a"), json!({"old": 1}), "it stays over a further run");
    // A move brings a new payload, with its metadata or none.
    assert_eq!(bench.push(with("a", "new").delay(SECOND)), PushOutcome::Rescheduled);
    assert_eq!(bench.meta("a"), json!({"new": 1}));
    assert_eq!(bench.push(job("a").delay(2 * SECOND)), PushOutcome::Rescheduled);
    assert_eq!(bench.meta("a"), json!({}));
    bench.queue.set_meta("a", "k", Some(2.into())).unwrap();
    bench.clock.advance(2 * SECOND);
    bench.claim().bury("no way").unwrap();
    assert!(bench.queue.requeue("a").unwrap());
    assert_eq!(bench.meta("a"), json!({"k": 2}), "it stays when a dead job runs again");
    bench.claim().finish(None).unwrap();
    assert_eq!(bench.push(job("a")), PushOutcome::Added);
    assert_eq!(bench.meta("a"), json!({}));
    // The twin of a unique job that is replaced.
    let unique = |id: &str| NewJob::new("u", &1).unwrap().id(id).unique(Unique::until_done().on_clash(Clash::Replace));
    bench.push(unique("one").meta("k", &1).unwrap());
    bench.push(unique("two").meta("k", &2).unwrap());
    assert_eq!(bench.meta("one"), json!({"k": 2}));
    bench.queue.remove("one").unwrap();
    bench.push(unique("one"));
    assert_eq!(bench.meta("one"), json!({}), "it went with its job");
}

pub(super) fn metadata_too_large_or_without_a_key_is_refused(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    let long = "x".repeat(256);
    for key in ["", &long] {
        let is_refused = |error| matches!(error, QueueError::Config(ConfigError::Length { what: "metadata key", length, .. }) if length == key.len());
        assert!(is_refused(bench.queue.push(job("a").meta(key, &1).unwrap()).unwrap_err()));
        assert!(is_refused(bench.queue.set_meta("a", key, Some(1.into())).unwrap_err()));
    }
    let big = "x".repeat(40_000);
    let is_large = |error: &QueueError| {
        matches!(error, QueueError::Config(ConfigError::Length { what: "metadata", length: 80_015, most: 65_536, .. }))
    };
    let push = bench.queue.push(job("a").meta("a", &big).unwrap().meta("b", &big).unwrap());
    assert!(is_large(&push.unwrap_err()));
    assert_eq!(bench.queue.state("a").unwrap(), None);
    bench.push(job("a").meta("a", &big).unwrap());
    let mut lease = bench.claim();
    let refused = [
        lease.set_meta("b", Some(big.clone().into())).unwrap_err(),
        bench.queue.set_meta("a", "b", Some(big.clone().into())).unwrap_err(),
    ];
    for error in refused {
        assert!(is_large(&error), "{error:?}");
    }
    assert_eq!(bench.info("a").meta.keys().collect::<Vec<_>>(), ["a"]);
    lease.set_meta("a", None).unwrap();
    lease.set_meta("b", Some(big.clone().into())).unwrap();
    let error = job("a").meta("map", &BTreeMap::from([((1, 2), 3)])).unwrap_err();
    assert!(matches!(error, QueueError::Payload { .. }), "JSON has no such map");
}

pub(super) fn a_payload_or_data_above_max_payload_is_refused(on: &Benches<'_>) {
    let bench = on.bench_with(options().max_payload(100));
    // Each JSON string has two quotation marks.
    let (fits, large) = ("x".repeat(98), "x".repeat(99));
    let is_refused = |error: QueueError, of: &str| matches!(error, QueueError::Config(ConfigError::Length { what, length: 101, most: 100, .. }) if what == of);
    let of = |id: &str, payload: &str| NewJob::new("k", payload).unwrap().id(id);
    assert!(is_refused(bench.queue.push(of("a", &large)).unwrap_err(), "payload"));
    assert!(is_refused(bench.queue.push(NewJob::new("k", &large).unwrap()).unwrap_err(), "payload"));
    assert!(is_refused(bench.queue.push_all([of("a", &fits), of("b", &large)]).unwrap_err(), "payload"));
    assert_eq!(bench.queue.counts().ready, 0, "all or none");
    bench.push(of("a", &fits));
    let mut lease = bench.claim();
    assert!(is_refused(lease.update(&large).unwrap_err(), "data"));
    assert!(is_refused(lease.finish(&large).unwrap_err(), "data"));
    lease.update(&fits).unwrap();
    lease.finish(None).unwrap();
    assert_eq!(bench.info("a").data, Some(fits.clone().into()));
    // An attempt that leaves too much data has failed.
    bench.push(of("b", &fits));
    let data = large.clone();
    let runner = Runner::builder(&bench.queue).on("k", move |_, _: String| Ok(Outcome::DoneWith(data.clone().into())));
    runner.drain(DrainLimits::default()).unwrap();
    let failed = bench.info("b");
    assert!(
        failed.failures >= 1
            && failed.error.as_deref().is_some_and(|error| error.contains("the data of the job has 101 bytes")),
        "{failed:?}"
    );
}

pub(super) fn notes_of_a_kind_are_set_counted_listed_and_removed(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    let notes = bench.queue.notes("ab").unwrap();
    assert_eq!((notes.get("k").unwrap(), notes.remove("k").unwrap()), (None, false));
    notes.set("k", json!({"a": [1]})).unwrap();
    notes.set("k2", "text").unwrap();
    assert_eq!((notes.add("n", 3).unwrap(), notes.add("n", -5).unwrap()), (3, -2));
    // The names of other kinds and keys begin with the same letters.
    for (kind, key) in [("a", "bk"), ("abk", "2"), ("b", "k"), ("ab", "")] {
        let others = bench.queue.notes(kind).unwrap();
        assert_eq!(others.get(key).unwrap(), None, "{kind} {key}");
        if !key.is_empty() {
            others.set(key, 0).unwrap();
        }
    }
    assert_eq!(notes.get("k").unwrap(), Some(json!({"a": [1]})));
    let keys =
        |from, limit| -> Vec<String> { notes.list(from, limit).unwrap().into_iter().map(|note| note.key).collect() };
    assert_eq!(keys(None, 9), ["k", "k2", "n"]);
    assert_eq!((keys(None, 1), keys(Some("k"), 1), keys(Some("n"), 9)), (vec!["k".into()], vec!["k2".into()], vec![]));
    assert!(notes.remove("k").unwrap());
    assert_eq!(notes.get("k").unwrap(), None);
    let other = bench.database.open("other", bench.options.clone()).unwrap();
    assert_eq!(other.notes("ab").unwrap().list(None, 9).unwrap(), []);
}

pub(super) fn a_note_expires_at_its_time(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    let notes = bench.queue.notes("k").unwrap();
    for key in ["a", "b", "c", "d"] {
        notes.set_for(key, 7, 5 * SECOND).unwrap();
    }
    assert_eq!(notes.list(None, 1).unwrap()[0].expires_at, Some(noon() + 5 * SECOND));
    assert_eq!(notes.add("a", 1).unwrap(), 8);
    assert!(notes.keep_for("b", 9 * SECOND).unwrap());
    notes.set("c", 1).unwrap();
    bench.clock.advance(5 * SECOND - Duration::from_millis(1));
    assert_eq!(notes.list(None, 9).unwrap().len(), 4);
    bench.clock.advance(Duration::from_millis(1));
    let left: Vec<_> = notes.list(None, 9).unwrap().into_iter().map(|note| (note.key, note.expires_at)).collect();
    assert_eq!(left, [("b".into(), Some(noon() + 9 * SECOND)), ("c".into(), None)]);
    assert_eq!((notes.get("a").unwrap(), notes.get("c").unwrap()), (None, Some(1.into())));
    assert!(!notes.keep_for("d", SECOND).unwrap() && !notes.remove("a").unwrap());
    assert_eq!(notes.add("a", 1).unwrap(), 1, "it counts from 0 again");
    bench.clock.advance(3600 * SECOND);
    assert_eq!(notes.get("a").unwrap(), Some(1.into()), "and stays");
    notes.set_for("far", 1, Duration::MAX).unwrap();
    assert_eq!(notes.get("far").unwrap(), Some(1.into()));
}

pub(super) fn concurrent_additions_to_a_note_lose_nothing(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    let notes = bench.queue.notes("k").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..25).for_each(|_| assert!(notes.add("n", 1).unwrap() > 0)));
        }
    });
    assert_eq!(notes.get("n").unwrap(), Some(100.into()));
}

/// Returns the progress of a job, and asserts that lists show the same.
fn shown(queue: &Queue, id: &str) -> Option<(f64, String)> {
    let job = queue.get(id).unwrap().unwrap_or_else(|| panic!("there is no {id}"));
    let listed = queue.list(job.state, None, 9).unwrap();
    assert_eq!(listed.iter().find(|other| other.id == id), Some(&job));
    job.progress.map(|progress| (progress.fraction, progress.note))
}

pub(super) fn progress_is_shown_at_once_to_readers_and_subscribers(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    bench.push(job("a"));
    let mut subscription = bench.queue.subscribe("a").unwrap();
    let mut lease = bench.claim();
    assert_eq!(subscription.wait(SECOND).unwrap().unwrap().progress, None);
    for row in 0..10 {
        let fraction = f64::from(row) / 10.0;
        lease.progress(fraction, format!("row {row}")).unwrap();
        assert_eq!(shown(&bench.queue, "a"), Some((fraction, format!("row {row}"))));
        let seen = subscription.wait(SECOND).unwrap().expect("it is told");
        assert_eq!((seen.state, seen.progress.unwrap().fraction), (Some(JobState::Running), fraction));
        bench.clock.advance(Duration::from_millis(100));
    }
    let late = bench.queue.subscribe("a").unwrap().wait_for(JobState::Running, SECOND).unwrap().unwrap();
    assert_eq!(late.progress.unwrap().at, noon() + Duration::from_millis(900));
    assert_eq!(lease.last_progress().unwrap().note, "row 9");
    lease.progress(1.0, "").unwrap();
    lease.finish(None).unwrap();
    let seen = subscription.wait(SECOND).unwrap().unwrap();
    assert_eq!((seen.state, seen.progress.unwrap().fraction), (Some(JobState::Finished), 1.0));
    assert_eq!(shown(&bench.queue, "a"), Some((1.0, String::new())), "the last one is written with the end");
}

pub(super) fn a_job_that_starts_over_has_no_progress(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    let fail = |bench: &Bench| {
        let mut lease = bench.claim();
        lease.progress(0.5, "half").unwrap();
        lease.bury("no way").unwrap();
        assert_eq!(shown(&bench.queue, "a"), Some((0.5, "half".into())), "an operator sees it");
    };
    bench.push(job("a"));
    let subscription = bench.queue.subscribe("a").unwrap();
    fail(&bench);
    let mut waits = subscription;
    assert!(waits.wait_for(JobState::Dead, SECOND).unwrap().unwrap().progress.is_some());
    assert!(bench.queue.requeue("a").unwrap());
    assert_eq!(shown(&bench.queue, "a"), None);
    assert_eq!(waits.wait_for(JobState::Ready, SECOND).unwrap().unwrap().progress, None);
    fail(&bench);
    bench.push(job("a"));
    assert_eq!(shown(&bench.queue, "a"), None, "it is pushed again");
    assert_eq!(waits.wait_for(JobState::Ready, SECOND).unwrap().unwrap().progress, None);
    let mut lease = bench.claim();
    lease.progress(0.5, "half").unwrap();
    lease.resubmit(None).unwrap();
    assert_eq!(lease.finish(None).unwrap(), Some(JobState::Ready));
    assert_eq!(shown(&bench.queue, "a"), None, "a further run");
    assert_eq!(waits.wait_for(JobState::Ready, SECOND).unwrap().unwrap().progress, None);
    fail(&bench);
    bench.queue.remove("a").unwrap();
    assert_eq!(waits.wait(SECOND).unwrap().unwrap().progress, None);
    bench.push(job("a"));
    assert_eq!(shown(&bench.queue, "a"), None);
}

pub(super) fn invalid_progress_and_that_of_a_lost_job_are_refused(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    bench.push(job("a"));
    let mut lease = bench.claim();
    for value in [f64::NAN, -0.1, 1.000_001, f64::INFINITY] {
        let error = lease.progress(value, "").unwrap_err();
        assert!(
            matches!(
                error,
                QueueError::Config(ConfigError::Setting(waterline::ConfigError::Number { setting: "progress", .. }))
            ),
            "{value}: {error:?}"
        );
    }
    let error = lease.progress(0.5, "x".repeat(1025)).unwrap_err();
    assert!(matches!(error, QueueError::Config(ConfigError::Length { what: "progress note", length: 1025, .. })));
    assert_eq!(shown(&bench.queue, "a"), None);
    // The lease has expired, and no call has noticed it yet.
    bench.clock.advance(61 * SECOND);
    assert!(matches!(lease.progress(0.5, ""), Err(QueueError::Halt { .. })));
    assert_eq!(shown(&bench.queue, "a"), None);
    bench.queue.remove("a").unwrap();
    bench.push(job("a"));
    let mut other = bench.claim();
    assert!(matches!(lease.progress(0.5, ""), Err(QueueError::Halt { .. })));
    assert_eq!(shown(&bench.queue, "a"), None, "a worker that has lost its job");
    other.finish(None).unwrap();
    assert!(matches!(other.progress(0.5, ""), Err(QueueError::Halt { .. })));
    assert_eq!(shown(&bench.queue, "a"), None);
}

/// PostgreSQL keeps no NUL in a text, so no queue takes a name that could not move there.
pub(super) fn a_nul_is_refused_in_names_but_not_in_texts_of_workers(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    let odd = "a\0b";
    let refused = |tried: Result<(), QueueError>, subject: &str| match tried {
        Err(QueueError::Config(error @ ConfigError::Nul { .. })) => {
            assert!(error.to_string().starts_with(subject), "{error}");
        }
        other => panic!("{subject}: {other:?}"),
    };
    let push = |job: NewJob| bench.queue.push(job).map(drop);
    refused(push(job(odd)), "the id of a job has");
    refused(NewJob::new(odd, &1).and_then(push), "the kind of a job has");
    refused(push(job("a").key(odd)), "the key of a job's limits has");
    refused(job("a").meta(odd, &1).and_then(push), "a key of metadata, or of a note has");
    bench.push(job("a"));
    refused(bench.queue.set_meta("a", odd, Some(1.into())), "a key of metadata, or of a note has");
    let mut lease = bench.claim();
    lease.progress(0.5, odd).unwrap();
    let note = shown(&bench.queue, "a").unwrap().1;
    assert!([odd, "a\u{fffd}b"].contains(&note.as_str()), "{note:?}");
    // A value is JSON, which has an escape for it.
    lease.set_meta("n", Some(odd.into())).unwrap();
    assert_eq!(bench.meta("a"), json!({ "n": odd }));
    lease.retry(odd).unwrap();
    let error = bench.queue.get("a").unwrap().unwrap().error.unwrap();
    assert!([odd, "a\u{fffd}b"].contains(&error.as_str()), "{error:?}");
}
