//! Claims of some kinds alone.

use crate::bench::*;
use crossbeam_channel::bounded;
use std::time::Duration;
use waterline::Retry;
use waterline_queue::{
    Accept, DrainLimits, Fair, JobState, Lease, Limit, NewJob, Outcome, Priority, PushOutcome, QueueOptions, Reached,
    Runner, Unknown, Waits,
};

/// A job whose kind is the first letter of its id.
fn of_kind(id: &str) -> NewJob {
    NewJob::new(&id[..1], &1).unwrap().id(id)
}

fn kinds(kinds: &str) -> Accept {
    Accept::new().kinds(kinds.chars())
}

fn accept(bench: &Bench, accept: Accept) -> Option<Lease> {
    bench.queue.accept(accept).unwrap()
}

#[track_caller]
fn finish(bench: &Bench, wanted: Accept, id: &str) {
    let mut lease = accept(bench, wanted).unwrap_or_else(|| panic!("{id} is ready"));
    assert_eq!(lease.id(), id);
    lease.finish(None).unwrap();
}

pub(super) fn accept_takes_its_kinds_in_order_and_leaves_others(on: &Benches<'_>) {
    let bench = on.bench();
    let first = ["b0", "a0", "c0", "a1", "b1"].map(of_kind);
    let urgent = ["c1", "a2"].map(|id| of_kind(id).priority(Priority::Urgent));
    bench.queue.push_all(first.into_iter().chain(urgent)).unwrap();
    assert!(accept(&bench, kinds("")).is_none(), "no kind, no job");
    assert!(accept(&bench, kinds("d")).is_none());
    finish(&bench, kinds("a"), "a2");
    finish(&bench, kinds("ab"), "b0");
    finish(&bench, kinds("a"), "a0");
    finish(&bench, kinds("a"), "a1");
    assert!(accept(&bench, kinds("a")).is_none());
    bench.queue.pause(None).unwrap();
    assert!(accept(&bench, kinds("b")).is_none());
    bench.queue.resume().unwrap();
    assert_eq!(bench.claim_all(), ["c1", "c0", "b1"], "the others are where they were");
}

pub(super) fn accept_by_kind_respects_due_and_expiry_times(on: &Benches<'_>) {
    let bench = on.bench();
    let due = |id: &str, at| bench.push(of_kind(id).run_at(at));
    due("a0", noon() - SECOND);
    due("b0", noon() - SECOND);
    due("b1", noon() - MINUTE);
    due("b2", noon() + MINUTE);
    due("a1", noon() + SECOND);
    finish(&bench, kinds("b").max_run_at(noon() - SECOND - MILLI), "b1");
    assert!(accept(&bench, kinds("ab").max_run_at(noon() - SECOND - MILLI)).is_none());
    finish(&bench, kinds("b").max_run_at(noon() + HOUR), "b0");
    // A ready job of another kind does not matter.
    finish(&bench, kinds("b").max_run_at(noon() + HOUR), "b2");
    assert!(accept(&bench, kinds("a").max_run_at(noon())).is_some_and(|mut lease| lease.finish(None).is_ok()));
    assert!(accept(&bench, kinds("a").max_run_at(noon())).is_none(), "a1 is not due by then");
    finish(&bench, kinds("a").max_run_at(noon() + SECOND), "a1");

    bench.push(of_kind("a2").expires(SECOND));
    bench.push(of_kind("b3").expires(SECOND));
    bench.push(of_kind("a3"));
    bench.clock.advance(SECOND);
    finish(&bench, kinds("a"), "a3");
    assert_eq!(bench.states(["a2", "b3"]), [Some(JobState::Dead); 2]);
}

pub(super) fn limits_of_other_kinds_hold_back_no_job(on: &Benches<'_>) {
    let limits = [Limit::kind("a").at_once(1), Limit::kind("b").at_once(1)];
    let options = QueueOptions::default().retry(Retry::fixed(SECOND));
    let bench = on.bench_with(limits.into_iter().fold(options, QueueOptions::limit));
    bench.queue.push_all(["a0", "a1", "b0", "b1", "c0", "a2", "b2"].map(of_kind)).unwrap();
    let mut a0 = bench.take("a0");
    let mut b0 = bench.take("b0");
    finish(&bench, kinds("abc"), "c0");
    assert!(accept(&bench, kinds("ab")).is_none(), "both limits are full");
    for _ in 0..2 {
        // The limit of `a` has its turn first, and keeps it.
        a0.finish(None).unwrap();
        b0.finish(None).unwrap();
        b0 = accept(&bench, kinds("b")).expect("the limit of b has a place");
        assert_eq!(b0.kind(), "b");
        assert!(accept(&bench, kinds("b")).is_none(), "and now it has none");
        a0 = accept(&bench, kinds("ca")).expect("so has that of a");
        assert_eq!((a0.kind(), accept(&bench, kinds("ab")).map(|lease| lease.id().to_owned())), ("a", None));
    }
    assert_eq!((a0.id(), b0.id()), ("a2", "b2"), "each kind in its order");
    b0.finish(None).unwrap();
    // A job that no limit holds yet, behind one of a kind that is full.
    bench.queue.push_all(["a3", "b3"].map(of_kind)).unwrap();
    finish(&bench, kinds("b"), "b3");
    let queue = &bench.queue;
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || queue.accept(kinds("a").timeout(Duration::MAX)).unwrap().unwrap());
        a0.finish(None).unwrap();
        assert_eq!(waiter.join().unwrap().id(), "a3");
    });
}

/// No claim takes the kind `c` for a while, so nothing waits for its jobs.
pub(super) fn an_unclaimed_kind_holds_up_no_job_of_its_key(on: &Benches<'_>) {
    let keyed = |id: &str| of_kind(id).key("k");
    for limit in [Limit::each_key().at_once(1), Limit::key("k").at_once(1)] {
        let bench = on.bench_with(QueueOptions::default().limit(limit));
        bench.queue.push_all(["a0", "c0", "a1", "c1", "a2"].map(keyed)).unwrap();
        let mut a0 = bench.take("a0");
        assert!(accept(&bench, Accept::new()).is_none(), "the key has no place");
        a0.finish(None).unwrap();
        finish(&bench, kinds("a"), "a1");
        finish(&bench, kinds("a"), "a2");
        assert!(accept(&bench, kinds("a")).is_none());
        // They are subject to the limit as before.
        bench.push(keyed("a3"));
        let mut c0 = accept(&bench, kinds("c")).expect("it is ready");
        assert!(accept(&bench, kinds("ac")).is_none(), "the key has no place");
        c0.finish(None).unwrap();
        finish(&bench, kinds("a"), "a3");
        finish(&bench, kinds("c"), if c0.id() == "c0" { "c1" } else { "c0" });
        assert_eq!(bench.queue.counts().ready, 0);
    }
}

pub(super) fn accept_of_all_kinds_wakes_beside_a_runner_of_some(on: &Benches<'_>) {
    let bench = on.bench();
    let (queue, yields) = (&bench.queue, || (0..200).for_each(|_| std::thread::yield_now()));
    for n in 0..10 {
        let running = || Runner::builder(queue).on("a", |_, _: u32| Ok(Outcome::Done)).start().unwrap();
        let (sender, answers) = bounded(1);
        let accepts = || {
            let queue = queue.clone();
            std::thread::spawn(move || {
                let _ = sender.send(queue.accept(Accept::new().timeout(Duration::MAX)).unwrap());
            })
        };
        // Either of them falls asleep first.
        let running = if n % 2 == 0 {
            let running = running();
            yields();
            accepts();
            running
        } else {
            accepts();
            yields();
            running()
        };
        yields();
        rest();
        bench.push(of_kind(&format!("b{n}")));
        answers.recv_timeout(LONG).expect("it is woken").unwrap().finish(None).unwrap();
        running.stop().unwrap();
    }
}

pub(super) fn a_push_wakes_only_an_accept_of_its_kind(on: &Benches<'_>) {
    let bench = on.bench();
    let waiting = |wanted: Accept| {
        let (sender, answers) = bounded(1);
        let queue = bench.queue.clone();
        std::thread::spawn(move || {
            let _ = sender.send(queue.accept(wanted.timeout(Duration::MAX)).unwrap());
        });
        answers
    };
    for n in 0..10 {
        let (a, b, any) = (waiting(kinds("a")), waiting(kinds("b")), waiting(Accept::new()));
        (0..200).for_each(|_| std::thread::yield_now());
        bench.push(of_kind(&format!("c{n}")));
        any.recv_timeout(LONG).expect("it is woken").unwrap().finish(None).unwrap();
        bench.push(of_kind(&format!("b{n}")));
        b.recv_timeout(LONG).expect("it is woken").unwrap().finish(None).unwrap();
        assert!(a.is_empty());
        bench.push(of_kind(&format!("a{n}")).delay(MINUTE));
        bench.clock.advance(MINUTE);
        a.recv_timeout(LONG).expect("it is woken").unwrap().finish(None).unwrap();
    }
}

pub(super) fn a_group_accepts_some_kinds_from_all_its_queues(on: &Benches<'_>) {
    let (database, bench) = (on.database(), on.bench());
    let options = || bench.options.clone();
    let group = database.group().queue("x", ["a", "b"], options()).queue("y", ["c", "d"], options()).open().unwrap();
    let wanted = |kinds: &str| {
        let lease = group.accept(Accept::new().kinds(kinds.chars()).max_run_at(noon() + HOUR)).unwrap();
        lease.map(|mut lease| lease.finish(None).map(|_| lease.id().to_owned()).unwrap())
    };
    group.push_all(["a0", "c0", "d0", "b0"].map(of_kind)).unwrap();
    group.push(of_kind("d1").delay(MINUTE)).unwrap();
    group.push(of_kind("b1").delay(SECOND)).unwrap();
    assert_eq!(wanted("d").as_deref(), Some("d0"));
    assert_eq!(wanted("e"), None);
    // Both queues have ready jobs of other kinds, and scheduled ones of these.
    assert_eq!([wanted("d"), wanted("d")], [Some("d1".to_owned()), None]);
    assert_eq!(wanted("b").as_deref(), Some("b0"));
    assert_eq!([wanted("b"), wanted("b")], [Some("b1".to_owned()), None]);
    let (a, c) = (wanted("ac").unwrap(), wanted("ac").unwrap());
    assert!([(&*a, &*c), (&*c, &*a)].contains(&("a0", "c0")), "{a} {c}");
    std::thread::scope(|scope| {
        let accept = || group.accept(Accept::new().kinds(["c"]).timeout(Duration::MAX)).unwrap().unwrap();
        let waiter = scope.spawn(accept);
        group.push(of_kind("a2")).unwrap();
        group.push(of_kind("c2")).unwrap();
        let mut lease = waiter.join().unwrap();
        assert_eq!(lease.id(), "c2");
        lease.finish(None).unwrap();
    });
}

/// There are more jobs of another kind than a claim reads at once. They keep their places.
pub(super) fn a_claim_finds_its_kind_behind_any_number_of_others(on: &Benches<'_>) {
    let mut bench = on.bench();
    let others: Vec<_> = (0..700).map(|n| format!("b{n}")).collect();
    bench.queue.push_all(others.iter().map(|id| of_kind(id))).unwrap();
    bench.push(of_kind("b urgent").priority(Priority::Urgent).expires(MINUTE));
    bench.push(of_kind("a0"));
    bench.push(of_kind("b low").priority(Priority::Low));
    finish(&bench, kinds("a"), "a0");
    assert!(accept(&bench, kinds("a")).is_none());
    assert_eq!(bench.queue.counts().ready, 702);
    // A job in the line of its kind is moved, removed and expires like any other.
    bench.queue.remove("b1").unwrap();
    assert_eq!(bench.push(of_kind("b2").priority(Priority::Urgent).delay(MINUTE)), PushOutcome::Rescheduled);
    bench.clock.advance(MINUTE);
    assert!(accept(&bench, kinds("a")).is_none());
    assert_eq!(bench.states(["b urgent", "b1", "b2"]), [Some(JobState::Dead), None, Some(JobState::Ready)]);
    bench.reopen();
    let mut expected = vec!["b2".to_owned()];
    expected.extend(others.iter().filter(|id| !["b1", "b2"].contains(&id.as_str())).cloned());
    expected.push("b low".to_owned());
    let mut listed: Vec<String> = Vec::new();
    let mut behind = None;
    while let Some(job) = bench.queue.list(JobState::Ready, behind.as_ref(), 1).unwrap().pop() {
        listed.push(job.id.clone());
        behind = Some(job);
    }
    assert_eq!(listed, expected);
    // New jobs come behind the passed ones. Each eighth claim takes the lowest priority.
    bench.push(of_kind("b new"));
    bench.push(of_kind("a1"));
    expected.retain(|id| id != "b low");
    expected.push("b new".to_owned());
    let (mut claimed, mut low) = (Vec::new(), 0);
    while let Some(mut lease) = accept(&bench, kinds("b")) {
        if lease.id() == "b low" {
            low += 1;
        } else {
            claimed.push(lease.id().to_owned());
        }
        lease.finish(None).unwrap();
    }
    assert_eq!((claimed, low), (expected, 1));
    assert_eq!(bench.claim_all(), ["a1"]);
    assert_eq!(bench.queue.counts().ready, 0);
}

pub(super) fn a_runner_leaves_and_counts_jobs_of_other_kinds(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let runner = |kind: &str| Runner::builder(&queue).on(kind, |_, _: u32| Ok(Outcome::Done));
    bench.queue.push_all((0..300).map(|n| of_kind(&format!("b{n}")))).unwrap();
    bench.queue.push_all((0..9).map(|n| of_kind(&format!("a{n}")))).unwrap();
    let drained = runner("a").drain(DrainLimits::default()).unwrap();
    assert_eq!((drained.finished, drained.dead, drained.reached), (9, 0, Reached::NothingReady));
    let counts = bench.queue.counts();
    assert_eq!((counts.ready, counts.dead), (300, 0));
    let running = runner("a").start().unwrap();
    bench.push(of_kind("a9"));
    until(&queue, "a9", JobState::Finished);
    let status = bench.queue.status().unwrap();
    assert_eq!(status.untaken.iter().map(|it| (&*it.kind, it.jobs)).collect::<Vec<_>>(), [("b", 300)]);
    assert_eq!(status.waits, Waits::OtherKinds, "{status}");
    let says = "300 jobs of kind \"b\" are due, and no worker that is here has it";
    assert!(status.sentence().ends_with(says), "{status}");
    assert!(status.advice().iter().any(|advice| advice.reason == "untaken" && advice.sentence == says), "{status}");
    running.stop().unwrap();
    let running = runner("b").start().unwrap();
    eventually("the end of all jobs", || bench.queue.counts().finished == 310);
    assert_eq!(bench.queue.status().unwrap().untaken, []);
    running.stop().unwrap();
    // A runner that takes all kinds finds those jobs, too.
    bench.queue.push_all(["c0", "a10"].map(of_kind)).unwrap();
    assert_eq!(runner("a").drain(DrainLimits::default()).unwrap().finished, 1);
    let buried = runner("a").unknown(Unknown::Dead).drain(DrainLimits::default()).unwrap();
    assert_eq!((buried.dead, bench.state("c0")), (1, Some(JobState::Dead)));
}

pub(super) fn a_group_drain_ends_beside_jobs_of_other_kinds(on: &Benches<'_>) {
    let (database, bench) = (on.database(), on.bench());
    let options = || bench.options.clone();
    let group = database.group().queue("x", ["a", "b"], options()).queue("y", ["c", "d"], options()).open().unwrap();
    group.push_all(["a0", "b0", "c0", "d0", "a1", "d1"].map(of_kind)).unwrap();
    let runner = group.runner().on("a", |_, _: u32| Ok(Outcome::Done)).on("c", |_, _: u32| Ok(Outcome::Done));
    let drained = ends("a drain beside others", move || runner.drain(DrainLimits::default()).unwrap());
    assert_eq!((drained.finished, drained.reached), (3, Reached::NothingReady));
    assert_eq!((group.counts().ready, group.counts().dead), (3, 0));
}

pub(super) fn a_group_drain_ends_beside_held_jobs_of_other_kinds(on: &Benches<'_>) {
    let (database, bench) = (on.database(), on.bench());
    for (n, limit) in [Limit::each_key().at_once(1), Limit::kind("b").at_once(1)].into_iter().enumerate() {
        let options = || bench.options.clone().limit(limit.clone());
        let names = ["x", "y"].map(|name| format!("{name}{n}"));
        let group = database.group().queue(&names[0], ["a", "b"], options()).queue(&names[1], ["c"], options());
        let group = group.open().unwrap();
        group.push_all(["b0", "b1", "b2"].map(|id| of_kind(id).key("k"))).unwrap();
        let mut b0 = group.accept(Accept::new()).unwrap().expect("b0 is ready");
        assert!(group.accept(Accept::new()).unwrap().is_none());
        b0.finish(None).unwrap();
        group.push_all(["a0", "c0"].map(of_kind)).unwrap();
        let runner = group.runner().on("a", |_, _: u32| Ok(Outcome::Done)).on("c", |_, _: u32| Ok(Outcome::Done));
        let drained = ends("a drain beside others", move || runner.drain(DrainLimits::default()).unwrap());
        assert_eq!((drained.finished, group.counts().ready), (2, 2));
    }
}

pub(super) fn claims_of_other_kinds_make_a_queue_no_younger(on: &Benches<'_>) {
    let (database, bench) = (on.database(), on.bench());
    let options = || bench.options.clone();
    let group = database.group().queue("x", ["a"], options()).queue("y", ["c", "d"], options());
    let group = group.fair(Fair::strict(MINUTE)).open().unwrap();
    let claimed = |wanted: Accept| {
        let lease = group.accept(wanted).unwrap();
        lease.map(|mut lease| lease.finish(None).map(|_| lease.id().to_owned()).unwrap()).unwrap_or_default()
    };
    group.push_all((0..9).map(|n| of_kind(&format!("c{n}")))).unwrap();
    assert_eq!(claimed(kinds("d")), "");
    bench.clock.advance(2 * MINUTE);
    group.push_all((0..9).map(|n| of_kind(&format!("a{n}")))).unwrap();
    group.push(of_kind("d0")).unwrap();
    // To a claim of some kinds, a queue is as old as its jobs of these. (A server is asked for the
    // oldest job of all.)
    if bench.can().one_process {
        let young: Vec<_> = (0..4).map(|_| claimed(kinds("ad"))).collect();
        assert_eq!(young, ["a0", "a1", "a2", "a3"]);
    }
    let all: Vec<_> = (0..4).map(|_| claimed(Accept::new())).collect();
    assert_eq!(all.iter().filter(|id| id.starts_with('c')).count(), 2, "{all:?}");
}
