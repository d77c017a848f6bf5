//! Stored JSON comes back unchanged, and what could not is refused.

use common::queues::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::time::Duration;
use waterline::Retry;
use waterline_queue::{
    Accept, AttemptEnd, ConfigError, Counts, DrainLimits, Every, Group, JobState, Limit, NewJob, Outcome, QueueError,
    QueueEvent, QueueOptions, Runner,
};

/// Nested arrays.
fn deep(depth: usize) -> Value {
    (0..depth).fold(json!("["), |value, _| json!([value]))
}

#[track_caller]
fn assert_too_deep<T: std::fmt::Debug>(refused: Result<T, QueueError>) {
    let report = refused.as_ref().unwrap_err().report();
    assert!(report.contains("nested deeper than 127 arrays and objects"), "{report}");
    assert!(matches!(refused, Err(QueueError::Payload { .. } | QueueError::Config(ConfigError::JsonDepth))));
}

#[test]
fn json_nested_too_deep_to_read_back_is_refused() {
    on_store(|bench| {
        let (queue, store) = (&bench.queue, bench.store());
        let job = |depth| NewJob::new("k", &deep(depth));
        assert_too_deep(job(128));
        queue.push(job(127).unwrap().id("a")).unwrap();
        let mut lease = queue.accept(Accept::new()).unwrap().expect("a job is ready");
        assert_eq!(lease.payload::<Value>().unwrap(), deep(127));
        lease.update(Some(deep(127))).unwrap();
        assert_too_deep(lease.update(Some(deep(128))));
        assert_too_deep(lease.finish(Some(deep(128))));
        assert_eq!(lease.data(), Some(deep(127)));
        // The object around all values counts, too.
        lease.set_meta("k", Some(deep(126))).unwrap();
        assert_too_deep(lease.set_meta("k", Some(deep(127))));
        assert_too_deep(queue.set_meta("a", "l", Some(deep(127))));
        assert_too_deep(queue.push(job(1).unwrap().meta("k", &deep(127)).unwrap()));
        let notes = queue.notes("k").unwrap();
        notes.set("k", deep(127)).unwrap();
        assert_too_deep(notes.set("k", deep(128)));
        let refused = store.write(|effects| notes.set_with(effects, "k", deep(128)));
        let refused = refused.map_err(QueueError::from);
        assert!(matches!(refused, Err(QueueError::Config(ConfigError::JsonDepth))), "{refused:?}");
        assert_eq!(notes.get("k").unwrap(), Some(deep(127)));
        let listed = queue.list(JobState::Running, None, 9).unwrap();
        assert_eq!((listed.len(), listed[0].data.as_ref(), &listed[0].meta["k"]), (1, Some(&deep(127)), &deep(126)));
        lease.finish(Some(deep(127))).unwrap();
    });
}

#[test]
fn an_attempt_that_leaves_unreadable_data_fails() {
    on_each(&QueueOptions::default(), |Bench { queue, .. }| {
        queue.push(NewJob::new("k", &()).unwrap().id("a").retry(Retry::none())).unwrap();
        let runner = Runner::builder(&queue).on("k", |job, ()| {
            assert_too_deep(job.update(deep(128)));
            Ok(Outcome::DoneWith(deep(128)))
        });
        assert_eq!(runner.drain(DrainLimits::default()).unwrap().dead, 1);
        let job = queue.list(JobState::Dead, None, 9).unwrap().remove(0);
        assert!(job.error.as_ref().is_some_and(|error| error.contains("nested deeper than 127")), "{job:?}");
    });
}

proptest! {
    #[test]
    fn floats_round_trip(floats in proptest::collection::vec(any::<f64>(), 64)) {
        let floats: Vec<f64> = floats.into_iter().filter(|float| float.is_finite()).collect();
        let (queue, _) = queue_in(&waterline::Store::in_memory(), QueueOptions::default());
        queue.push(NewJob::new("k", &floats).unwrap()).unwrap();
        let mut lease = queue.accept(Accept::new()).unwrap().expect("a job is ready");
        prop_assert_eq!(&lease.payload::<Vec<f64>>().unwrap(), &floats);
        lease.update(Some(json!(floats))).unwrap();
        prop_assert_eq!(lease.data(), Some(json!(floats)));
        lease.finish(None).unwrap();
    }

    #[test]
    fn accepted_json_can_be_read_back(depth in 120_usize..135, texts in proptest::collection::vec(r#"[\\\[\]{}"a]{0,8}"#, 3)) {
        let value = texts.iter().fold(deep(depth), |value, text| json!({ text: value, "t": text }));
        let job = NewJob::new("k", &value);
        prop_assert_eq!(job.is_ok(), serde_json::from_str::<Value>(&value.to_string()).is_ok());
    }
}

#[test]
fn jobs_and_status_serialize_to_json() {
    let bench = Bench::in_memory(QueueOptions::default().limit(Limit::each_key().at_once(1)));
    let pushed = bench.queue.push(NewJob::new("mail", &json!({ "to": "ann" })).unwrap().id("a").key("ann")).unwrap();
    assert_eq!(json!(pushed), json!({ "id": "a", "outcome": "added", "is_new": true }));
    let now = 1_700_000_000_000u64;
    assert_eq!(
        json!(bench.info("a")),
        json!({
            "id": "a", "kind": "mail", "state": "ready", "priority": "normal", "failures": 0, "crashes": 0,
            "runs_alone": false, "pushed_at": now, "run_at": null, "since": now, "kept_until": null,
            "resubmitted": false, "skipped": null, "root": null, "expires_at": null, "waits_for": 0, "key": "ann",
            "cost": 1, "held_by": null, "error": null, "payload": { "to": "ann" }, "data": null, "meta": {},
            "progress": null, "damaged": null,
        })
    );
    let mut lease = bench.take("a");
    lease.progress(0.5, "half").unwrap();
    assert_eq!(json!(bench.info("a").progress), json!({ "fraction": 0.5, "note": "half", "at": now }));
    bench.push(NewJob::new("mail", &1).unwrap().id("b").key("ann").root("tree", noon()));
    bench.none();
    let held = json!(bench.info("b"));
    assert_eq!(held["held_by"], json!("the key \"ann\""));
    assert_eq!(held["root"], json!({ "signature": "tree", "timestamp": now }));
    bench.clock.advance(SECOND);
    let status = bench.queue.status().unwrap();
    assert_eq!(
        json!(status),
        json!({
            "queue": "q", "oldest_ready": "b", "oldest_ready_for": 1000, "waits": "limited",
            "unknown_kinds": [], "untaken": [], "stuck": null, "set_back_by": null, "set_back_for": null,
            "counts": { "scheduled": 0, "ready": 1, "running": 1, "finished": 0, "dead": 0, "waiting": 0, "damaged": 0 },
            "text": status.to_string(),
        })
    );
    assert_eq!(bench.queue.counts().to_string(), "1 ready, 1 running");
    assert_eq!(Counts::default().to_string(), "no job");
    bench.queue.periodic("p", Every::new(HOUR), NewJob::new("tick", &1).unwrap()).start_at_next().start().unwrap();
    let periodic = json!(bench.queue.periodics().unwrap());
    let tick = now + 1000;
    assert_eq!((&periodic[0]["name"], &periodic[0]["last_tick"]), (&json!("p"), &json!(null)), "it has never ticked");
    assert_eq!(periodic[0]["next_tick"], json!(tick + 3_600_000));
}

#[test]
fn changes_pages_and_summaries_serialize_to_json() {
    let bench = Bench::in_memory(QueueOptions::default());
    let now = 1_700_000_000_000u64;
    let mut watch = bench.queue.watch();
    let mut told = || json!(watch.wait(Duration::ZERO));
    bench.push(job("a"));
    assert_eq!(told(), json!({ "change": "job", "id": "a", "state": "ready" }));
    bench.queue.pause(Some(SECOND)).unwrap();
    assert_eq!(told(), json!({ "change": "paused", "until": now + 1000 }));
    bench.queue.resume().unwrap();
    assert_eq!(told(), json!({ "change": "resumed" }));
    bench.queue.pause(None).unwrap();
    assert_eq!(told(), json!({ "change": "paused", "until": null }));
    bench.queue.resume().unwrap();
    let mut lease = bench.take("a");
    let mut subscription = bench.queue.subscribe("a").unwrap();
    lease.update("half").unwrap();
    let seen = subscription.wait(LONG).unwrap().unwrap();
    assert_eq!(json!(seen), json!({ "state": "running", "data": "half", "error": null, "progress": null }));
    lease.finish(None).unwrap();

    let page = bench.queue.page(JobState::Finished, None, 1).unwrap();
    assert_eq!(json!(page), json!({ "jobs": page.jobs, "next": null }));
    bench.push(job("b"));
    let (sender, ends) = crossbeam_channel::unbounded();
    let summary = Runner::builder(&bench.queue)
        .on("k", |_job, _n: u32| Err("no".into()))
        .observe(move |event| {
            if let QueueEvent::AttemptEnded { ended, .. } = event {
                sender.send(json!(ended)).unwrap();
            }
        })
        .drain(DrainLimits::default())
        .unwrap();
    assert_eq!(ends.iter().collect::<Vec<_>>(), [json!({ "end": "retried", "error": "no" })]);
    assert_eq!(json!(AttemptEnd::Lost), json!({ "end": "lost", "error": null }));
    assert_eq!(
        json!(summary),
        json!({
            "finished": 0, "retried": 1, "snoozed": 0, "dead": 0, "lost": 0, "elapsed": 0,
            "reached": "nothing_ready", "text": summary.to_string(),
        })
    );
    let group = Group::new(&bench.store()).queue("g", ["k"], QueueOptions::default()).open().unwrap();
    let status = group.status().unwrap();
    assert_eq!(json!(status), json!({ "queues": status.queues, "text": status.to_string() }));
}
