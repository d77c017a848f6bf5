//! Roots and their leaves.

use crate::bench::*;
use std::time::SystemTime;
use waterline_queue::{ConfigError, JobState, PushOutcome, QueueError, Root, Skipped};

fn skipped(bench: &Bench, id: &str) -> Option<Skipped> {
    bench.info(id).skipped
}

pub(super) fn m14_jobs_of_an_older_root_are_skipped(on: &Benches<'_>) {
    let bench = on.bench();
    let root = |id: &str, at: SystemTime| job(id).root("tree", at);
    bench.push(root("old", noon()));
    let old = bench.claim();
    let of_old = old.root().expect("it has one").clone();
    bench.push(job("leaf").leaf(&of_old));
    bench.push(job("late leaf").leaf(&of_old).delay(SECOND));
    assert_eq!(bench.claim_all(), ["leaf"], "its root is the newest");
    bench.push(root("new", noon() + MILLI));
    bench.push(root("other tree", noon()).leaf(&of_old).root("other", noon()));
    bench.push(root("same time", noon() + MILLI));
    bench.push(root("older", noon()));
    bench.clock.advance(SECOND);
    assert_eq!(bench.claim_all(), ["new", "other tree", "same time"]);
    for id in ["late leaf", "older"] {
        assert_eq!((bench.state(id), skipped(&bench, id)), (Some(JobState::Finished), Some(Skipped::Superseded)));
    }
    drop(old);
}

pub(super) fn a_leaf_needs_only_the_name_and_time_of_its_root(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(job("old").root("tree", noon()));
    bench.push(job("new").root("tree", noon() + MILLI));
    let kept = |millis: u32| Root::new("tree", noon() + millis * MILLI);
    bench.push(job("leaf").leaf(&kept(1)));
    bench.push(job("late leaf").leaf(&kept(0)));
    assert_eq!(bench.info("leaf").root, Some(kept(1)));
    assert_eq!((&bench.info("new").root, &bench.info("old").root), (&Some(kept(1)), &Some(kept(0))));
    assert_eq!(bench.claim_all(), ["new", "leaf"]);
    assert_eq!(skipped(&bench, "late leaf"), Some(Skipped::Superseded));
    let refused = |root: &Root| match bench.queue.push(job("none").leaf(root)) {
        Err(QueueError::Config(refused)) => refused,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&Root::new("tree", noon() + 100_000 * 365 * DAY)), ConfigError::RunAt);
    for signature in [String::new(), "x".repeat(100_000)] {
        assert!(matches!(refused(&Root::new(signature, noon())), ConfigError::Length { what: "root signature", .. }));
    }
    assert_eq!(bench.state("none"), None);
}

pub(super) fn leaves_and_unpushed_roots_register_nothing(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(job("root").root("tree", noon()));
    let mut lease = bench.claim();
    let mut newer = lease.root().unwrap().clone();
    newer.timestamp += MINUTE;
    bench.push(job("wrong leaf").leaf(&newer));
    // The same id at the same time is a duplicate, whose payload and root do not count.
    assert_eq!(bench.push(job("waits").root("tree", noon())), PushOutcome::Added);
    assert_eq!(bench.push(job("waits").root("tree", noon() + MINUTE)), PushOutcome::Duplicate("waits".to_owned()));
    lease.finish(None).unwrap();
    assert_eq!(bench.claim_all(), ["wrong leaf", "waits"]);
}

pub(super) fn m14_roots_are_remembered_for_28_days_over_a_restart(on: &Benches<'_>) {
    let mut bench = on.bench();
    let leaf = |id: &str, root: &Root| job(id).leaf(root).expires(40 * DAY);
    bench.push(job("old").root("tree", noon()));
    let mut old = bench.claim();
    let root = old.root().unwrap().clone();
    old.finish(None).unwrap();
    bench.push(job("new").root("tree", noon() + SECOND));
    bench.claim().finish(None).unwrap();
    bench.reopen();
    bench.clock.advance(28 * DAY - MILLI);
    bench.push(leaf("a", &root));
    assert!(bench.accept().is_none());
    assert_eq!(skipped(&bench, "a"), Some(Skipped::Superseded));
    bench.clock.advance(MILLI);
    bench.push(leaf("b", &root));
    assert_eq!(bench.claim_all(), ["b"]);
}
