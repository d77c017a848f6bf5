//! Groups with an unreadable record in one queue.

use super::*;
use crate::runner::drain::{DrainLimits, Reached};
use crate::runner::outcome::Outcome;
use crate::types::job::Retention;
use crate::types::limit::{Limit, Rate};
use crate::types::options::QueueOptions;
use crate::{Clock, Fair};
use std::time::{Duration, SystemTime};
use waterline::Store;

const SECOND: Duration = Duration::from_secs(1);

/// Longer than anything here takes; only a failing test waits this long.
const LONG: Duration = Duration::from_secs(60);

/// A group of two queues, each with jobs. The first job of the queue `bad` cannot be read.
fn group(clock: &Clock) -> Group {
    let options = || QueueOptions::default().clock(clock.clone());
    let group = Group::new(&Store::in_memory()).queue("bad", ["bad"], options()).queue("good", ["good"], options());
    let group = group.fair(Fair::strict(Duration::from_secs(60))).open().unwrap();
    let new = |kind: &str, n: usize| NewJob::new(kind, &()).unwrap().id(format!("{kind}{n}"));
    group.push_all((0..3).flat_map(|n| [new("bad", n), new("good", n)])).unwrap();
    group
}

#[test]
fn a_damaged_job_holds_up_no_queue() {
    for damaged in ["ready", "scheduled"] {
        let clock = Clock::manual(SystemTime::now());
        let group = group(&clock);
        let bad = group.queue("bad").unwrap().clone();
        bad.push(NewJob::new("bad", &()).unwrap().id("later").delay(SECOND)).unwrap();
        let id = if damaged == "ready" { "bad0" } else { "later" };
        bad.damage(id);
        clock.advance(2 * SECOND);
        let runner = group.runner().on("bad", |_, ()| Ok(Outcome::Done)).on("good", |_, ()| Ok(Outcome::Done));
        let summary = runner.max_processing(1).drain(DrainLimits::default()).unwrap();
        assert_eq!((summary.finished, summary.reached), (6, Reached::NothingReady), "{damaged}");
        assert_eq!((group.counts().damaged, bad.counts().damaged), (1, 1));
        assert!(group.status().unwrap().to_string().contains("damaged 1"));
        bad.remove(id).unwrap();
        assert_eq!(group.counts().damaged, 0);
    }
}

#[test]
fn stale_entries_do_not_age_a_queue() {
    let clock = Clock::manual(SystemTime::now());
    let options = || QueueOptions::default().clock(clock.clone());
    let group = Group::new(&Store::in_memory()).queue("a", ["a"], options()).queue("b", ["b"], options());
    let group = group.fair(Fair::strict(SECOND)).open().unwrap();
    let all = |kind: &'static str, jobs: usize| (0..jobs).map(move |_| NewJob::new(kind, &()).unwrap());
    group.push_all(all("b", 200)).unwrap();
    clock.advance(10 * SECOND);
    group.queue("b").unwrap().purge().unwrap();
    group.push_all(all("b", 1)).unwrap();
    clock.advance(Duration::from_millis(1));
    group.push_all(all("a", 60)).unwrap();
    let next =
        || group.accept(Accept::new()).unwrap().map(|mut lease| lease.finish(None).map(|_| lease.kind().to_owned()));
    for _ in 0..20 {
        assert_eq!(next().unwrap().unwrap(), "a");
    }
    // By now the stale entries have been passed, so the job behind them ages as any other.
    clock.advance(2 * SECOND);
    let kinds: Vec<_> = (0..2).map(|_| next().unwrap().unwrap()).collect();
    assert!(kinds.contains(&"b".to_owned()), "{kinds:?}");
}

#[test]
fn a_group_sees_no_work_behind_a_full_limit() {
    let clock = Clock::manual(SystemTime::now());
    let options = || QueueOptions::default().clock(clock.clone());
    let slow = options().limit(Limit::queue().rate(Rate::new(1, 60 * SECOND)));
    let group = Group::new(&Store::in_memory()).queue("slow", ["slow"], slow).queue("good", ["good"], options());
    let group = group.open().unwrap();
    group.push_all((0..3).map(|n| NewJob::new("slow", &n).unwrap())).unwrap();
    let drain = || {
        let runner = group.runner().on("slow", |_, _: u32| Ok(Outcome::Done)).on("good", |_, ()| Ok(Outcome::Done));
        runner.drain(DrainLimits::default()).unwrap()
    };
    // A claim that finds nothing while there seems to be work would spin.
    for _ in 0..2 {
        let summary = drain();
        assert_eq!((summary.finished, summary.reached), (1, Reached::Limited));
        assert!(!group.members().have_work(&[], None) && !group.members().have_ready(&[], None));
        clock.advance(60 * SECOND);
        assert!(group.members().have_ready(&[], None));
    }
    assert_eq!(drain().reached, Reached::NothingReady);
}

#[test]
fn an_early_waiter_wakes_once_the_limit_has_room() {
    let clock = Clock::manual(SystemTime::now());
    let limited = QueueOptions::default().clock(clock).limit(Limit::each_key().at_once(1)).retention(Retention::Drop);
    let group = Group::new(&Store::in_memory()).queue("q", ["k"], limited).open().unwrap();
    let job = || NewJob::new("k", &()).unwrap().key("x");
    group.push_all([job(), job().delay(60 * SECOND)]).unwrap();
    let mut running = group.accept(Accept::new()).unwrap().unwrap();
    let (waits, (claimed, claims)) = (group.clone(), crossbeam_channel::bounded(1));
    std::thread::spawn(move || {
        let accept = Accept::new().max_run_at(SystemTime::now() + 120 * SECOND).timeout(Duration::MAX);
        claimed.send(waits.accept(accept).unwrap().unwrap().finish(None).is_ok())
    });
    let until = waterline::seam::now() + LONG;
    while !group.members().bell().is_awaited() {
        assert!(waterline::seam::now() < until, "nobody waits for a job");
        std::thread::park_timeout(Duration::from_millis(1));
    }
    running.finish(None).unwrap();
    assert_eq!(claims.recv_timeout(LONG), Ok(true), "the one who waits was not woken");
}
