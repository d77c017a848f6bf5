//! Limits on running jobs and on rates, for the queue, for a kind and for each key.

use crate::bench::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use waterline::Retry;
use waterline_queue::{
    Accept, DrainLimits, JobState, Lease, Limit, LimitOf, NewJob, Outcome, Priority, QueueOptions, Rate, Reached,
    Runner, Waits,
};

fn options(limits: &[Limit]) -> QueueOptions {
    let options = QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(3));
    limits.iter().fold(options, |options, limit| options.limit(limit.clone()))
}

fn job(id: &str) -> NewJob {
    NewJob::new("k", &()).unwrap().id(id)
}

fn keyed(id: &str, key: &str) -> NewJob {
    job(id).key(key)
}

fn finish(lease: &mut Lease) {
    lease.finish(None).unwrap();
}

fn ids(prefix: &str, numbers: std::ops::Range<u64>) -> Vec<String> {
    numbers.map(|n| format!("{prefix}{n}")).collect()
}

pub(super) fn a_kind_limit_holds_the_excess_in_order(on: &Benches<'_>) {
    let bench = on.bench_with(options(&[Limit::kind("k").at_once(2)]));
    for n in 0..5 {
        bench.push(job(&format!("a{n}")));
    }
    bench.push(NewJob::new("other", &()).unwrap().id("free"));
    let (mut a0, mut a1, free) = (bench.take("a0"), bench.take("a1"), bench.take("free"));
    bench.none();
    bench.assert_held(["a2", "a3", "a4"].map(|id| (id, LimitOf::Kind("k".into()))));
    assert_eq!((bench.queue.counts().ready, bench.queue.counts().running), (3, 3));
    a1.finish(None).unwrap();
    let mut a2 = bench.take("a2");
    bench.none();
    // Each sort of end frees the place.
    a0.retry("it fails").unwrap();
    a2.bury("no").unwrap();
    let (a3, _a4) = (bench.take("a3"), bench.take("a4"));
    bench.clock.advance(SECOND);
    bench.none();
    bench.queue.remove("a3").unwrap();
    bench.take("a0").snooze(noon() + HOUR).unwrap();
    drop((a3, free));
}

pub(super) fn each_key_has_its_own_limit_and_a_named_key_another(on: &Benches<'_>) {
    let limits = [Limit::each_key().at_once(1), Limit::key("big").at_once(2)];
    let bench = on.bench_with(options(&limits));
    for (id, key) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("big1", "big"), ("big2", "big"), ("big3", "big")] {
        bench.push(keyed(id, key));
    }
    bench.push(job("free"));
    let mut running: Vec<_> = ["a1", "b1", "big1", "big2", "free"].map(|id| bench.take(id)).into();
    bench.none();
    bench.assert_held([("a2", LimitOf::Key("a".into())), ("big3", LimitOf::Key("big".into()))]);
    running[2].finish(None).unwrap();
    bench.take("big3").finish(None).unwrap();
    running[0].finish(None).unwrap();
    bench.take("a2").finish(None).unwrap();
    bench.none();
}

pub(super) fn keys_take_turns_at_the_limit_of_a_kind(on: &Benches<'_>) {
    let bench = on.bench_with(options(&[Limit::each_key().at_once(10), Limit::kind("k").at_once(1)]));
    for n in 0..4 {
        bench.push(keyed(&format!("many{n}"), "many"));
    }
    bench.push(keyed("few0", "few"));
    bench.push(job("none"));
    bench.push(NewJob::new("other", &()).unwrap().id("other").key("idle"));
    let mut first = bench.take("many0");
    bench.take("other").finish(None).unwrap();
    bench.none();
    first.finish(None).unwrap();
    let turns = ["many1", "few0", "none", "many2", "many3"];
    let order = ["many1", "many2", "many3", "few0", "none"];
    assert_eq!(bench.claim_all(), if bench.can().keys_take_turns { turns } else { order });
    bench.assert_held([]);
}

pub(super) fn a_job_needs_a_place_at_each_of_its_limits(on: &Benches<'_>) {
    let limits = [Limit::each_key().at_once(1), Limit::kind("k").at_once(2), Limit::queue().at_once(3)];
    let bench = on.bench_with(options(&limits));
    let other = |id: &str| NewJob::new("other", &()).unwrap().id(id);
    for job in [keyed("a1", "a"), keyed("a2", "a"), keyed("b1", "b"), keyed("c1", "c"), other("x1"), other("x2")] {
        bench.push(job);
    }
    let (mut a1, mut b1, mut x1) = (bench.take("a1"), bench.take("b1"), bench.take("x1"));
    bench.none();
    a1.finish(None).unwrap();
    // The key `c` waits longer at the kind than the second job of `a` does.
    let (next, last) = if bench.can().keys_take_turns { ("c1", "a2") } else { ("a2", "c1") };
    let mut next = bench.take(next);
    bench.none();
    x1.finish(None).unwrap();
    let mut x2 = bench.take("x2");
    b1.finish(None).unwrap();
    bench.take(last).finish(None).unwrap();
    next.finish(None).unwrap();
    x2.finish(None).unwrap();
    bench.none();
}

/// Starts the next process, with these limits.
fn reopen_with(bench: Bench, limits: &[Limit]) -> Bench {
    let options = options(limits).clock(bench.clock.clone());
    bench.reopened_with(options)
}

pub(super) fn a_lease_that_expires_frees_its_place(on: &Benches<'_>) {
    let bench = on.bench_with(options(&[Limit::queue().at_once(1)]));
    bench.push(job("a"));
    bench.push(job("b"));
    leak(bench.take("a"));
    bench.none();
    bench.clock.advance(61 * SECOND);
    bench.take("b").finish(None).unwrap();
}

pub(super) fn a_queue_limit_keeps_the_order_of_priorities(on: &Benches<'_>) {
    let bench = on.bench_with(options(&[Limit::queue().at_once(1)]));
    bench.push(job("a"));
    bench.push(job("low").priority(Priority::Low));
    let mut a = bench.take("a");
    bench.none();
    bench.push(job("urgent").priority(Priority::Urgent));
    bench.none();
    bench.assert_held([]);
    a.finish(None).unwrap();
    bench.take("urgent").finish(None).unwrap();
    bench.take("low").finish(None).unwrap();
}

pub(super) fn a_rate_is_exact_for_a_queue_a_kind_and_a_key(on: &Benches<'_>) {
    let rate = Rate::new(7, 3 * SECOND).burst(2);
    for limit in [Limit::queue(), Limit::kind("k"), Limit::each_key()] {
        let bench = on.bench_with(options(&[limit.rate(rate)]));
        bench.queue.push_all((0..200).map(|n| keyed(&format!("a{n}"), "a"))).unwrap();
        let mut ran = Vec::new();
        // Each step is shorter than a token takes, so no full bucket loses one, and the steps fall
        // on every part of the time between two tokens.
        for at in (0..60_000).step_by(411) {
            ran.extend(bench.claim_all());
            // Two at the beginning, and seven every three seconds.
            assert_eq!(ran.len(), 2 + 7 * at / 3000, "after {at} ms");
            bench.clock.advance(411 * MILLI);
        }
        assert_eq!(ran, ids("a", 0..141));
    }
}

pub(super) fn a_cost_above_the_burst_leaves_a_debt_of_tokens(on: &Benches<'_>) {
    for limit in [Limit::queue(), Limit::kind("k"), Limit::each_key()] {
        let bench = on.bench_with(options(&[limit.rate(Rate::new(1, SECOND).burst(5))]));
        let costs = [("a", 3), ("b", 3), ("c", 12), ("d", 1)];
        bench.queue.push_all(costs.map(|(id, cost)| keyed(id, "key").cost(cost))).unwrap();
        let mut begun = BTreeMap::new();
        for second in 0..30 {
            for id in bench.claim_all() {
                begun.insert(id, second);
            }
            bench.clock.advance(SECOND);
        }
        // "c" needs a full bucket, which takes until 5 s after "b"; "d" runs when the debt is paid.
        let want = [("a", 0), ("b", 1), ("c", 6), ("d", 14)].map(|(id, at)| (id.to_owned(), at));
        assert_eq!(begun, BTreeMap::from(want));
    }
}

pub(super) fn a_clock_jump_stalls_no_rate_and_adds_one_burst(on: &Benches<'_>) {
    for limit in [Limit::queue(), Limit::kind("k"), Limit::each_key()] {
        let bench = on.bench_with(options(&[limit.rate(Rate::new(10, SECOND).burst(2))]));
        bench.queue.push_all((0..20).map(|n| keyed(&format!("a{n}"), "a"))).unwrap();
        assert_eq!(bench.claim_all(), ids("a", 0..2));
        bench.clock.set_wall(noon() - HOUR);
        bench.none();
        bench.clock.advance(99 * MILLI);
        bench.none();
        bench.clock.advance(MILLI);
        assert_eq!(bench.claim_all(), ["a2"], "a token comes in its time, counted from the jump on");
        bench.clock.set_wall(noon() + 24 * HOUR);
        assert_eq!(bench.claim_all(), ids("a", 3..5));
        bench.none();
    }
}

pub(super) fn a_burst_runs_at_once_and_then_a_job_per_token(on: &Benches<'_>) {
    let bench = on.bench_with(options(&[Limit::kind("k").rate(Rate::new(10, SECOND).burst(3))]));
    bench.queue.push_all((0..20).map(|n| job(&format!("a{n}")))).unwrap();
    bench.push(NewJob::new("other", &()).unwrap().id("free"));
    assert_eq!(bench.claim_all(), ["a0", "a1", "a2", "free"]);
    for n in 3..10 {
        bench.clock.advance(99 * MILLI);
        bench.none();
        bench.clock.advance(MILLI);
        assert_eq!(bench.claim_all(), [format!("a{n}")]);
    }
    bench.clock.advance(HOUR);
    assert_eq!(bench.claim_all(), ids("a", 10..13), "no more than a burst, however long the pause");
}

pub(super) fn a_token_or_the_end_of_a_job_wakes_a_waiting_accept(on: &Benches<'_>) {
    for limit in [Limit::queue(), Limit::kind("k"), Limit::each_key()] {
        let bench = on.bench_with(options(&[limit.at_once(1).rate(Rate::new(1, SECOND))]));
        bench.push(keyed("a", "key"));
        bench.push(keyed("b", "key"));
        let mut a = bench.take("a");
        let (queue, clock) = (&bench.queue, &bench.clock);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let lease = queue.accept(Accept::new().timeout(Duration::MAX)).unwrap().unwrap();
                (lease.id().to_owned(), lease)
            });
            // Both are needed: the token and the place.
            clock.advance(SECOND);
            a.finish(None).unwrap();
            let (id, mut lease) = waiter.join().unwrap();
            assert_eq!(id, "b");
            queue.push(keyed("c", "key")).unwrap();
            let waiter = scope.spawn(|| queue.accept(Accept::new().timeout(Duration::MAX)).unwrap().unwrap());
            lease.finish(None).unwrap();
            clock.advance(SECOND);
            assert_eq!(waiter.join().unwrap().id(), "c");
        });
    }
}

pub(super) fn a_runner_runs_the_held_jobs_of_a_key_one_at_a_time(on: &Benches<'_>) {
    let bench = on.bench_with(options(&[Limit::each_key().at_once(1)]));
    let now = Arc::new(AtomicU64::new(0));
    bench.queue.push_all((0..200).map(|n| keyed(&format!("a{n}"), "a"))).unwrap();
    let inside = now.clone();
    let summary = Runner::builder(&bench.queue)
        .on("k", move |job, ()| {
            assert_eq!((inside.fetch_add(1, SeqCst), job.key()), (0, Some("a")));
            std::thread::yield_now();
            inside.fetch_sub(1, SeqCst);
            Ok(Outcome::Done)
        })
        .max_processing(8)
        .drain(DrainLimits::default())
        .unwrap();
    assert_eq!((summary.finished, summary.retried, summary.reached), (200, 0, Reached::NothingReady));
}

pub(super) fn a_drain_ends_when_only_tokens_are_missing(on: &Benches<'_>) {
    for limit in [Limit::queue(), Limit::kind("k"), Limit::each_key()] {
        let bench = on.bench_with(options(&[limit.rate(Rate::new(3, HOUR))]));
        bench.queue.push_all((0..5).map(|n| keyed(&format!("a{n}"), "a"))).unwrap();
        let drain = || Runner::builder(&bench.queue).on("k", |_, ()| Ok(Outcome::Done)).drain(DrainLimits::default());
        let summary = drain().unwrap();
        assert_eq!((summary.finished, summary.reached), (3, Reached::Limited));
        bench.clock.advance(HOUR);
        let summary = drain().unwrap();
        assert_eq!((summary.finished, summary.reached), (2, Reached::NothingReady));
    }
}

pub(super) fn the_status_names_the_holding_limit_and_its_next_token(on: &Benches<'_>) {
    // The key `a` has a running job, and its limit holds the others.
    let bench = on.bench_with(options(&[Limit::each_key().at_once(1)]));
    bench.queue.push_all((0..5).map(|n| keyed(&format!("a{n}"), "a").cost(2))).unwrap();
    let mut running = bench.take("a0");
    bench.none();
    bench.clock.advance(3 * SECOND);
    let status = bench.queue.status().unwrap();
    assert_eq!(status.waits, Waits::Limited { limit: LimitOf::Key("a".into()), held: 4, left: None });
    assert_eq!(status.oldest_ready, Some(("a1".into(), 3 * SECOND)));
    let text = status.to_string();
    assert!(text.contains("the key \"a\" holds 4 of them, until a job ends"), "{text}");
    running.finish(None).unwrap();
    // A database may still list this process as a worker.
    let waits = bench.queue.status().unwrap().waits;
    assert!(matches!(waits, Waits::NoWorker | Waits::No), "{waits:?}");
    let bench = on.bench_with(options(&[Limit::kind("k").rate(Rate::new(1, SECOND))]));
    bench.queue.push_all((0..3).map(|n| keyed(&format!("a{n}"), "a"))).unwrap();
    assert_eq!(bench.claim_all(), ["a0"]);
    bench.clock.advance(400 * MILLI);
    let waits = bench.queue.status().unwrap().waits;
    assert_eq!(waits, Waits::Limited { limit: LimitOf::Kind("k".into()), held: 2, left: Some(600 * MILLI) });
    let bench = on.bench_with(options(&[Limit::queue().rate(Rate::new(1, SECOND))]));
    bench.queue.push_all((0..3).map(|n| job(&format!("a{n}")))).unwrap();
    assert_eq!(bench.claim_all(), ["a0"]);
    let status = bench.queue.status().unwrap();
    assert_eq!(status.waits, Waits::Limited { limit: LimitOf::Queue, held: 2, left: Some(SECOND) });
    assert!(status.to_string().contains("the queue holds 2 of them, and has a token in 1.0s"), "{status}");
}

pub(super) fn a_held_low_job_yields_to_urgent_ones_but_not_forever(on: &Benches<'_>) {
    let bench = on.bench_with(options(&[Limit::each_key().at_once(1)]));
    bench.queue.push_all((0..3).map(|n| keyed(&format!("a{n}"), "a").priority(Priority::Low))).unwrap();
    let mut running = bench.take("a0");
    bench.none();
    bench.queue.push_all((0..20).map(|n| job(&format!("u{n}")).priority(Priority::Urgent))).unwrap();
    running.finish(None).unwrap();
    let ran = bench.claim_all();
    assert_eq!(ran.len(), 22);
    assert_eq!(ran[..2], ["u0", "u1"]);
    let place = |id: &str| ran.iter().position(|other| other == id).unwrap();
    assert!(place("a1") < 8 && place("a2") < 16, "{ran:?}");
}

pub(super) fn accept_with_max_run_at_respects_limits_too(on: &Benches<'_>) {
    let bench = on.bench_with(options(&[Limit::each_key().at_once(1)]));
    let late = |at| Accept::new().max_run_at(at);
    bench.queue.push_all([keyed("a0", "a"), keyed("a1", "a"), keyed("b0", "b")]).unwrap();
    bench.push(keyed("later", "a").delay(HOUR));
    let mut a0 = bench.queue.accept(late(noon() - HOUR)).unwrap().unwrap();
    let mut b0 = bench.queue.accept(late(noon() - HOUR)).unwrap().unwrap();
    assert_eq!((a0.id(), b0.id()), ("a0", "b0"));
    assert!(bench.queue.accept(late(noon() + 2 * HOUR)).unwrap().is_none(), "both limits are full");
    assert_eq!(bench.queue.state("later").unwrap(), Some(JobState::Scheduled));
    a0.finish(None).unwrap();
    let mut a1 = bench.queue.accept(late(noon() - HOUR)).unwrap().unwrap();
    assert_eq!(a1.id(), "a1");
    let (queue, clock) = (&bench.queue, &bench.clock);
    std::thread::scope(|scope| {
        let accept = late(noon() + 2 * HOUR).timeout(Duration::MAX);
        let waiter = scope.spawn(move || queue.accept(accept).unwrap().unwrap());
        a1.finish(None).unwrap();
        assert_eq!(waiter.join().unwrap().id(), "later");
    });
    b0.finish(None).unwrap();
    clock.advance(HOUR);
}

pub(super) fn held_jobs_survive_a_restart(on: &Benches<'_>) {
    let limits = [Limit::each_key().at_once(1), Limit::kind("k").at_once(2)];
    let bench = on.bench_with(options(&limits));
    for key in ["a", "b", "c"] {
        bench.queue.push_all((0..3).map(|n| keyed(&format!("{key}{n}"), key))).unwrap();
    }
    bench.take("a0").bury("no").unwrap();
    let mut running = [bench.take("a1"), bench.take("b0")];
    bench.none();
    for lease in &mut running {
        lease.snooze(noon() + 100 * HOUR).unwrap();
    }
    drop(running);
    let held = bench.held();
    let bench = reopen_with(bench, &limits);
    assert_eq!(bench.held(), held);
    let ran = bench.claim_all();
    assert_eq!(ran.len(), 6, "{ran:?}");
    for key in ["a", "b", "c"] {
        assert!(ran.iter().filter(|id| id.starts_with(key)).is_sorted(), "{ran:?}");
    }
}

pub(super) fn held_jobs_follow_the_limits_of_the_next_start(on: &Benches<'_>) {
    let key = |n| Limit::each_key().at_once(n);
    let kind = |n| Limit::kind("k").at_once(n);
    let slow = Limit::each_key().rate(Rate::new(1, HOUR));
    let before = [vec![key(1)], vec![kind(1)], vec![key(1), kind(1)], vec![slow.clone(), kind(1)]];
    // The limits of the second process, and how many of the jobs may run at once then.
    let after = [
        (vec![], 12),
        (vec![key(3)], 6),
        (vec![kind(2)], 2),
        (vec![key(2), kind(3)], 3),
        (vec![Limit::each_key().rate(Rate::new(4, HOUR))], 8),
        (vec![Limit::queue().at_once(5)], 5),
        (vec![key(1), Limit::queue().rate(Rate::new(1, HOUR))], 1),
    ];
    for first in &before {
        for (second, may_run) in &after {
            let bench = on.bench_with(options(first));
            let all = (0..12).map(|n| keyed(&format!("a{n}"), if n % 2 == 0 { "even" } else { "odd" }));
            bench.queue.push_all(all).unwrap();
            let mut running = Vec::new();
            while let Some(lease) = bench.accept() {
                running.push(lease);
            }
            let begun = running.len();
            running.iter_mut().for_each(finish);
            drop(running);
            let bench = reopen_with(bench, second);
            bench.clock.advance(2 * HOUR);
            let mut running = Vec::new();
            while let Some(lease) = bench.accept() {
                running.push(lease);
            }
            let place = format!("{first:?} then {second:?}");
            assert_eq!(running.len(), (*may_run).min(12 - begun), "{place}");
            while !running.is_empty() {
                running.iter_mut().for_each(finish);
                bench.clock.advance(HOUR);
                running = std::iter::from_fn(|| bench.accept()).collect();
            }
            assert_eq!((bench.queue.counts().ready, bench.held()), (0, vec![]), "{place}");
        }
    }
}
