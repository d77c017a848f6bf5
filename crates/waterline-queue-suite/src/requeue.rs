//! Requeued jobs, and those that died while they waited for others.

use crate::bench::*;
use waterline::Retry;
use waterline_queue::{JobState, NewJob, OnDead, PushOutcome, QueueOptions};

fn options() -> QueueOptions {
    QueueOptions::default().retry(Retry::none())
}

fn job(id: &str) -> NewJob {
    NewJob::new("k", id).unwrap().id(id)
}

const WAITING: Option<JobState> = Some(JobState::Waiting);
const READY: Option<JobState> = Some(JobState::Ready);
const DEAD: Option<JobState> = Some(JobState::Dead);

/// A chain of three jobs that died together. The first one is listed last.
fn dead_chain(on: &Benches<'_>) -> Bench {
    let bench = on.bench_with(options());
    bench.queue.push_all([job("z"), job("y").after(["z"]), job("x").after(["y"])]).unwrap();
    bench.bury("z");
    assert_eq!(bench.states(["z", "y", "x"]), [DEAD; 3]);
    bench
}

pub(super) fn jobs_that_died_together_run_in_order_when_requeued(on: &Benches<'_>) {
    let bench = dead_chain(on);
    let related = bench.queue.related("x", 9).unwrap();
    assert_eq!((related.waits_for, bench.info("x").waits_for), (vec!["y".to_owned()], 0), "it waits for nobody now");
    assert_eq!(bench.queue.requeue_dead().unwrap(), 3);
    assert_eq!(bench.states(["z", "y", "x"]), [READY, WAITING, WAITING]);
    assert_eq!((bench.info("x").waits_for, bench.queue.counts().waiting), (1, 2));
    // The next death reaches all of them again, and so does the next requeue.
    bench.bury("z");
    assert_eq!(bench.states(["z", "y", "x"]), [DEAD; 3]);
    assert_eq!(bench.info("x").error.unwrap(), "the job \"y\" is dead, and this one was to run after it");
    assert_eq!(bench.queue.requeue_dead().unwrap(), 3);
    ["z", "y", "x"].into_iter().for_each(|id| bench.finish(id));
    assert_eq!((bench.queue.counts().waiting, bench.queue.requeue_dead().unwrap()), (0, 0));
}

pub(super) fn a_requeued_job_waits_for_those_alive_then(on: &Benches<'_>) {
    let mut bench = dead_chain(on);
    bench.reopen();
    // One by one, in their order.
    for id in ["z", "y", "x"] {
        assert!(bench.queue.requeue(id).unwrap());
    }
    assert_eq!(bench.states(["z", "y", "x"]), [READY, WAITING, WAITING]);
    bench.bury("z");
    // Alone, or before the others, it runs: a dead job counts as ended.
    assert!(bench.queue.requeue("x").unwrap() && bench.queue.requeue("z").unwrap());
    assert_eq!(bench.states(["z", "y", "x"]), [READY, DEAD, READY]);
    let lease = bench.take("x");
    // A running job is alive, and so is one that is pushed anew or will be retried.
    let mut first = bench.take("z");
    assert!(bench.queue.requeue("y").unwrap());
    assert_eq!(bench.state("y"), WAITING);
    first.bury("no way").unwrap();
    assert_eq!(bench.push(job("z").delay(SECOND)), PushOutcome::Added);
    assert!(bench.queue.requeue("y").unwrap());
    assert_eq!(bench.state("y"), WAITING);
    bench.clock.advance(SECOND);
    bench.bury("z");
    // A finished job counts as ended, and so does one that is gone.
    assert!(bench.queue.requeue("z").unwrap());
    bench.finish("z");
    assert!(bench.queue.requeue("y").unwrap());
    assert_eq!(bench.state("y"), READY);
    bench.finish("y");
    drop(lease);
    let bench = dead_chain(on);
    bench.queue.remove("z").unwrap();
    assert_eq!(bench.queue.requeue_dead().unwrap(), 2);
    assert_eq!(bench.states(["z", "y", "x"]), [None, READY, WAITING]);
    assert_eq!(bench.claim_all(), ["y", "x"]);
}

pub(super) fn a_requeued_job_resumes_the_waits_it_died_with(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    bench.queue.push_all(["a", "b", "c", "late"].map(job)).unwrap();
    bench.push(job("d").after(["a", "b", "c"]));
    bench.finish("a");
    bench.bury("b");
    // A job pushed after a dead one dies at once, and keeps its waits, too.
    bench.push(job("e").after(["a", "b", "c"]));
    assert_eq!(bench.states(["d", "e"]), [DEAD; 2]);
    assert_eq!(bench.queue.related("e", 9).unwrap().waits_for, ["b", "c"]);
    // "c" dies after them, for a reason of its own.
    bench.bury("c");
    bench.push(job("a"));
    assert_eq!(bench.queue.requeue_dead().unwrap(), 4);
    assert_eq!((bench.info("d").waits_for, bench.info("e").waits_for), (2, 2), "\"a\" had finished by then");
    assert_eq!(bench.claim_all(), ["late", "a", "b", "c", "d", "e"]);
}

pub(super) fn a_job_that_expired_waiting_waits_again_when_requeued(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    bench.push(job("a").delay(2 * SECOND));
    bench.push(job("b").after(["a"]).expires(SECOND));
    bench.pass(SECOND);
    assert_eq!(bench.state("b"), DEAD);
    assert!(bench.queue.requeue("b").unwrap());
    assert_eq!((bench.state("b"), bench.info("b").expires_at), (WAITING, None));
    bench.clock.advance(SECOND);
    assert_eq!(bench.claim_all(), ["a", "b"]);
}

pub(super) fn a_dead_job_forgets_its_waits_when_it_runs_again(on: &Benches<'_>) {
    let bench = dead_chain(on);
    // Pushed anew, it waits for nothing, and its next death is its own.
    bench.push(job("y"));
    bench.bury("y");
    assert!(bench.queue.related("y", 9).unwrap().waits_for.is_empty());
    assert_eq!(bench.queue.requeue_dead().unwrap(), 3);
    assert_eq!(bench.states(["z", "y", "x"]), [READY, READY, WAITING]);
    // So is that of a requeued job that has begun.
    let bench = dead_chain(on);
    bench.queue.requeue_dead().unwrap();
    bench.finish("z");
    bench.bury("y");
    assert!(bench.queue.requeue("z").is_ok_and(|done| !done));
    assert_eq!(bench.queue.requeue_dead().unwrap(), 2);
    assert_eq!(bench.states(["y", "x"]), [READY, WAITING]);
    // A removed job leaves no waits to a new job of the same id.
    let bench = dead_chain(on);
    bench.queue.remove("y").unwrap();
    bench.push(job("y"));
    bench.finish("y");
    assert!(bench.queue.related("y", 9).unwrap().waits_for.is_empty());
}

pub(super) fn a_requeued_job_never_waits_for_one_that_waits_for_it(on: &Benches<'_>) {
    for between in [None, Some("m")] {
        let bench = dead_chain(on);
        // The job that it died with must now run after it, perhaps through another one.
        if let Some(between) = between {
            bench.push(job(between).after(["y"]).on_dead(OnDead::Hold));
        }
        bench.push(job("other").delay(SECOND));
        bench.push(job("z").after([between.unwrap_or("y"), "other"]).on_dead(OnDead::Hold));
        assert!(bench.queue.requeue("y").unwrap());
        assert_eq!((bench.states(["z", "y"]), bench.info("z").waits_for), ([WAITING, READY], 2), "{between:?}");
        bench.finish("y");
        between.into_iter().for_each(|id| bench.finish(id));
        bench.clock.advance(SECOND);
        bench.finish("other");
        bench.finish("z");
    }
    // The past waits of a dead job are no waits, so no cycle goes through it.
    let bench = dead_chain(on);
    bench.push(job("v").after(["z"]).on_dead(OnDead::Hold));
    bench.push(job("w").after(["y"]).on_dead(OnDead::Hold));
    bench.push(job("z").after(["w"]).on_dead(OnDead::Hold));
    assert_eq!(bench.queue.related("z", 9).unwrap().waits_for, ["w"]);
    assert_eq!(bench.queue.related("y", 9).unwrap().awaited_by, ["w"]);
    // Two jobs that died with each other.
    let bench = on.bench_with(options());
    bench.push(job("a"));
    bench.push(job("b").after(["a"]));
    bench.bury("a");
    bench.push(job("a").after(["b"]));
    assert_eq!(bench.states(["a", "b"]), [DEAD; 2]);
    assert_eq!(bench.queue.requeue_dead().unwrap(), 2);
    let states = bench.states(["a", "b"]);
    assert!(states == [READY, WAITING] || states == [WAITING, READY], "{states:?}");
    assert_eq!(bench.claim_all().len(), 2);
}

pub(super) fn a_requeued_job_waits_for_the_rest_of_many(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    let ids: Vec<_> = (0..100).map(|n| format!("{n:02}")).collect();
    bench.queue.push_batch(ids.iter().map(|id| job(id)), job("end")).unwrap();
    bench.bury("00");
    assert_eq!(bench.state("end"), DEAD);
    ids[1..40].iter().for_each(|id| bench.finish(id));
    assert!(bench.queue.requeue("end").unwrap());
    assert_eq!(bench.info("end").waits_for, 60);
    bench.bury("40");
    assert_eq!(bench.queue.requeue_dead().unwrap(), 3);
    assert_eq!(bench.info("end").waits_for, 60);
    // Nothing of the first wait counts any more.
    assert_eq!(bench.claim_all(), [&ids[41..], &["00".to_owned(), "40".to_owned(), "end".to_owned()]].concat());
}

pub(super) fn requeue_all_follows_the_waits_and_leaves_the_others(on: &Benches<'_>) {
    let bench = dead_chain(on);
    bench.push(job("other"));
    bench.bury("other");
    bench.push(job("alive"));
    assert_eq!(bench.queue.requeue_all(["x", "gone", "alive", "y"]).unwrap(), 2);
    assert_eq!(bench.states(["z", "y", "x", "other"]), [DEAD, READY, WAITING, DEAD]);
    assert_eq!(bench.claim_all(), ["alive", "y", "x"]);
    assert_eq!(bench.queue.requeue_all(["other", "z"]).unwrap(), 2);
    assert_eq!(bench.claim_all(), ["other", "z"]);
}
