//! Jobs that wait for the ends of others, and batches with a last job.

use crate::bench::*;
use std::time::Duration;
use waterline::Retry;
use waterline_queue::{
    Accept, Clash, DrainLimits, JobState, NewJob, OnDead, Outcome, PushOutcome, QueueError, QueueOptions, Retention,
    Runner, Unique,
};

fn options() -> QueueOptions {
    QueueOptions::default().retry(Retry::none())
}

fn job(id: &str) -> NewJob {
    NewJob::new("k", id).unwrap().id(id)
}

const WAITING: Option<JobState> = Some(JobState::Waiting);
const READY: Option<JobState> = Some(JobState::Ready);
const FINISHED: Option<JobState> = Some(JobState::Finished);
const DEAD: Option<JobState> = Some(JobState::Dead);

pub(super) fn a_job_waits_until_all_it_depends_on_have_ended(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    ["a", "b"].into_iter().for_each(|id| drop(bench.push(job(id))));
    assert_eq!(bench.push(job("c").after(["a", "b", "a"])), PushOutcome::Added);
    let info = bench.info("c");
    assert_eq!((info.state, info.waits_for, bench.queue.counts().waiting), (JobState::Waiting, 2, 1));
    assert_eq!(bench.queue.list(JobState::Waiting, None, 9).unwrap(), [info]);
    assert!(bench.queue.status().unwrap().to_string().contains("waiting for other jobs 1"));
    bench.finish("a");
    assert_eq!((bench.state("c"), bench.info("c").waits_for), (WAITING, 1));
    let mut changes = bench.queue.subscribe("c").unwrap();
    bench.finish("b");
    assert_eq!((bench.state("c"), bench.info("c").waits_for), (READY, 0));
    assert_eq!(changes.wait_for(JobState::Ready, HOUR).unwrap().map(|seen| seen.state), READY.map(Some));
    bench.finish("c");
    assert_eq!(bench.queue.counts().waiting, 0);
    assert!(bench.queue.list(JobState::Waiting, None, 9).unwrap().is_empty());
}

pub(super) fn a_delay_counts_from_the_push_of_a_waiting_job(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    bench.push(job("a"));
    bench.push(job("soon").after(["a"]).delay(SECOND));
    bench.push(job("late").after(["a"]).delay(10 * SECOND));
    bench.clock.advance(5 * SECOND);
    bench.finish("a");
    assert_eq!(bench.states(["soon", "late"]), [READY, Some(JobState::Scheduled)]);
    bench.clock.advance(5 * SECOND);
    bench.finish("soon");
    bench.finish("late");
}

pub(super) fn retries_snoozes_and_reruns_do_not_end_a_job(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    bench.push(job("a").retry(Retry::fixed(SECOND).max_attempts(2)));
    bench.push(job("b").after(["a"]));
    bench.take("a").retry("it fails").unwrap();
    assert_eq!(bench.state("b"), WAITING);
    bench.clock.advance(SECOND);
    bench.take("a").snooze(noon()).unwrap();
    assert_eq!(bench.state("b"), WAITING);
    let mut lease = bench.take("a");
    assert_eq!(bench.push(job("a")), PushOutcome::Resubmit);
    lease.finish(None).unwrap();
    assert_eq!(bench.states(["a", "b"]), [READY, WAITING]);
    // Moving a job keeps the jobs that wait for it.
    assert_eq!(bench.push(job("a").delay(SECOND)), PushOutcome::Rescheduled);
    bench.clock.advance(SECOND);
    bench.finish("a");
    assert_eq!(bench.state("b"), READY);
}

pub(super) fn a_job_may_wait_for_past_jobs_but_not_unknown_ones(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    let made = bench.queue.push(NewJob::new("k", "~").unwrap().retention(Retention::Drop)).unwrap().id;
    bench.finish(&made);
    for id in ["kept", "dropped", "removed", "swept"] {
        let retention = if id == "dropped" { Retention::Drop } else { Retention::Keep };
        bench.push(job(id).retention(if id == "swept" { Retention::For(SECOND) } else { retention }));
        if id == "removed" { bench.queue.remove(id).unwrap() } else { bench.finish(id) }
    }
    bench.pass(2 * SECOND);
    assert_eq!(bench.states(["kept", "dropped", "removed", "swept"]), [FINISHED, None, None, None]);
    let all = [&made, "kept", "dropped", "removed", "swept"];
    assert_eq!(bench.push(job("b").after(all)), PushOutcome::Added);
    bench.finish("b");
    for never in ["never", "~99", "~00", "~", "~x"] {
        let refused = bench.queue.push(job("c").after([never, "kept"]));
        assert!(matches!(refused, Err(QueueError::NotFound { id, .. }) if id == never));
    }
    assert!(matches!(bench.queue.push(job("c").after([""])), Err(QueueError::Config(_))));
    assert_eq!((bench.state("c"), bench.queue.counts().waiting), (None, 0));
}

pub(super) fn an_id_is_remembered_for_its_time_over_a_restart(on: &Benches<'_>) {
    let Bench { queue, clock, database, options, .. } = on.bench_with(options());
    queue.push(job("a").retention(Retention::Drop)).unwrap();
    queue.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
    clock.advance(28 * DAY);
    queue.push(job("b").after(["a"]).retention(Retention::Drop)).unwrap();
    queue.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
    drop(queue);
    let queue = open_anew(&database, &options);
    clock.advance(DAY);
    assert!(queue.accept(Accept::new()).unwrap().is_none());
    let refused = queue.push(job("c").after(["a"]));
    assert!(matches!(refused, Err(QueueError::NotFound { id, .. }) if id == "a"));
    queue.push(job("c").after(["b"])).unwrap();
    drop(queue);
    let queue = open_anew(&database, &options.clone().ids_for(Duration::ZERO));
    queue.remove("c").unwrap();
    let refused = queue.push(job("d").after(["c"]));
    assert!(matches!(refused, Err(QueueError::NotFound { id, .. }) if id == "c"));
}

// Deaths.

pub(super) fn on_dead_decides_what_a_death_does_to_a_waiting_job(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    bench.push(job("a"));
    let push = |when: &str| {
        bench.push(job(&format!("die {when}")).after(["a"]));
        bench.push(job(&format!("run {when}")).after(["a"]).on_dead(OnDead::Run).delay(HOUR));
        bench.push(job(&format!("hold {when}")).after(["a"]).on_dead(OnDead::Hold));
    };
    push("before");
    bench.bury("a");
    push("after");
    for when in ["before", "after"] {
        let ids = ["die", "run", "hold"].map(|way| format!("{way} {when}"));
        let states = bench.states([&ids[0], &ids[1], &ids[2]]);
        assert_eq!(states, [DEAD, Some(JobState::Scheduled), WAITING], "{when}");
        let error = bench.info(&ids[0]).error.unwrap();
        assert_eq!(error, "the job \"a\" is dead, and this one was to run after it");
    }
    // It dies once more, and then it finishes.
    assert!(bench.queue.requeue("a").unwrap());
    bench.bury("a");
    assert_eq!(bench.state("hold before"), WAITING);
    assert!(bench.queue.requeue("a").unwrap());
    bench.push(job("new").after(["a"]));
    bench.finish("a");
    assert_eq!(bench.states(["hold before", "hold after", "new"]), [READY; 3]);
    // A job that died with another one waits for nothing once it is requeued.
    assert!(bench.queue.requeue("die before").unwrap());
    assert_eq!(bench.info("die before").waits_for, 0);
    assert_eq!(bench.state("die before"), READY);
}

pub(super) fn a_held_job_resumes_when_the_dead_one_is_rerun_or_gone(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    for way in ["anew", "removed", "swept"] {
        bench.push(job("a"));
        bench.push(job(way).after(["a"]).on_dead(OnDead::Hold));
        bench.bury("a");
        assert_eq!(bench.state(way), WAITING);
        match way {
            "anew" => {
                assert_eq!(bench.push(job("a")), PushOutcome::Added);
                assert_eq!(bench.state(way), WAITING);
                bench.finish("a");
                bench.queue.remove("a").unwrap();
            }
            "removed" => bench.queue.remove("a").unwrap(),
            _ => {
                bench.clock.advance(8 * DAY);
                assert_eq!(bench.state("a"), None);
            }
        }
        bench.finish(way);
    }
}

pub(super) fn a_death_spreads_to_jobs_that_wait_indirectly(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    ["a", "b"].into_iter().for_each(|id| drop(bench.push(job(id))));
    bench.push(job("c").after(["a", "b"]));
    bench.push(job("d").after(["c"]));
    bench.push(job("e").after(["d"]).on_dead(OnDead::Run));
    bench.bury("a");
    assert_eq!(bench.states(["c", "d", "e"]), [DEAD, DEAD, READY]);
    assert_eq!(bench.info("d").error.unwrap(), "the job \"c\" is dead, and this one was to run after it");
    // The end of "b" has no effect any more.
    bench.finish("b");
    assert_eq!(bench.states(["c", "d"]), [DEAD, DEAD]);
    bench.push(job("c"));
    bench.finish("e");
    bench.finish("c");
}

pub(super) fn expired_and_skipped_jobs_count_as_ended(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    bench.push(job("a").expires(SECOND).delay(2 * SECOND));
    bench.push(job("b").after(["a"]).on_dead(OnDead::Run));
    // A waiting job expires, too.
    bench.push(job("c").after(["b"]).expires(SECOND));
    bench.push(job("d").after(["c"]));
    bench.clock.advance(3 * SECOND);
    bench.finish("b");
    assert_eq!(bench.states(["a", "c", "d"]), [DEAD, DEAD, DEAD]);
    assert!(bench.info("c").error.unwrap().starts_with("it expired"));
    let old = job("old").root("tree", noon());
    bench.push(old);
    bench.push(job("leaf").after(["old"]));
    bench.push(job("new").root("tree", noon() + SECOND));
    bench.finish("new");
    bench.finish("leaf");
}

pub(super) fn a_waiting_job_that_is_moved_keeps_waiting(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    ["a", "b"].into_iter().for_each(|id| drop(bench.push(job(id))));
    bench.push(job("c").after(["a"]).on_dead(OnDead::Run).delay(SECOND));
    assert_eq!(bench.push(job("c").delay(2 * SECOND)), PushOutcome::Rescheduled);
    let info = bench.info("c");
    assert_eq!((info.state, info.waits_for, info.run_at), (JobState::Waiting, 1, Some(noon() + 2 * SECOND)));
    bench.clock.advance(2 * SECOND);
    assert_eq!(bench.state("c"), WAITING);
    bench.bury("a");
    assert_eq!(bench.state("c"), READY, "it runs also if the other one died, as it said first");
}

pub(super) fn a_waiting_job_pushed_again_waits_as_the_last_push_says(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    ["a", "b"].into_iter().for_each(|id| drop(bench.push(job(id))));
    let same = || job("c").after(["a"]);
    bench.push(same());
    assert_eq!(bench.push(same()), PushOutcome::Duplicate("c".into()));
    assert_eq!(bench.push(job("c")), PushOutcome::Duplicate("c".into()));
    assert_eq!(bench.push(same().on_dead(OnDead::Run)), PushOutcome::Rescheduled);
    assert_eq!(bench.push(job("c").after(["b"])), PushOutcome::Rescheduled);
    bench.finish("a");
    assert_eq!((bench.state("c"), bench.info("c").waits_for), (WAITING, 1));
    assert_eq!(bench.push(job("c").after(["a"])), PushOutcome::Rescheduled);
    assert_eq!(bench.state("c"), READY);
    assert_eq!(bench.push(job("c").after(["a"])), PushOutcome::Duplicate("c".into()));
    // A ready job can wait again, and a renewed job is waited for anew.
    bench.push(job("c").after(["b"]));
    assert_eq!(bench.state("c"), WAITING);
    bench.push(job("a"));
    bench.push(job("d").after(["a"]));
    bench.finish("b");
    assert_eq!(bench.states(["c", "d"]), [READY, WAITING]);
    bench.finish("a");
    bench.finish("c");
    bench.finish("d");
    assert_eq!(bench.push(job("c").delay(SECOND)), PushOutcome::Added);
    assert_eq!(bench.state("c"), Some(JobState::Scheduled));
}

pub(super) fn a_running_job_cannot_be_made_to_wait(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    ["a", "b"].into_iter().for_each(|id| drop(bench.push(job(id))));
    let mut lease = bench.take("a");
    let refused = bench.queue.push(job("a").after(["b"])).unwrap_err();
    assert!(matches!(&refused, QueueError::AlreadyRuns { id, .. } if id == "a"));
    assert!(refused.to_string().ends_with("push it when it has ended, or under another id"));
    bench.finish("b");
    assert_eq!(bench.push(job("a").after(["b"])), PushOutcome::Resubmit);
    lease.finish(None).unwrap();
    bench.finish("a");
}

pub(super) fn removing_a_job_ends_its_waits_and_those_for_it(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    bench.push(job("a"));
    bench.push(job("b").after(["a"]));
    bench.push(job("c").after(["b"]));
    bench.queue.remove("b").unwrap();
    assert_eq!(bench.states(["a", "b", "c"]), [READY, None, READY]);
    // A new job of the same id has no part in the old one's waits.
    bench.push(job("b").delay(SECOND));
    bench.finish("a");
    assert_eq!(bench.state("b"), Some(JobState::Scheduled));
    bench.queue.remove("b").unwrap();
    bench.finish("c");
    bench.push(job("d"));
    bench.push(job("e").after(["d"]));
    bench.push(job("f").after(["e"]));
    assert_eq!(bench.queue.purge().unwrap(), 3);
    assert_eq!(bench.states(["d", "e", "f"]), [None; 3]);
    assert_eq!((bench.queue.counts().waiting, bench.queue.counts().ready), (0, 0));
}

pub(super) fn a_cycle_is_refused_and_changes_nothing(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    let cycle = |job: NewJob, through: &str| match bench.queue.push(job) {
        Err(QueueError::Cycle { through: found, .. }) => assert_eq!(found.as_deref(), Some(through)),
        other => panic!("{other:?}"),
    };
    cycle(job("a").after(["a"]), "a");
    assert_eq!(bench.state("a"), None);
    bench.push(job("a"));
    bench.push(job("b").after(["a"]));
    bench.push(job("c").after(["b"]));
    bench.push(job("side"));
    bench.push(job("d").after(["side", "c"]));
    cycle(job("a").after(["d", "side"]), "d");
    cycle(job("a").after(["b"]).delay(SECOND), "b");
    cycle(job("b").after(["c"]), "c");
    let all = bench.queue.push_all([job("new"), job("a").after(["new", "d"])]);
    assert!(all.unwrap_err().to_string().contains("neither would ever run"));
    assert_eq!(bench.states(["a", "b", "c", "d", "new"]), [READY, WAITING, WAITING, WAITING, None]);
    // "c" no longer waits for the others, so "a" closes no cycle.
    bench.push(job("c").after(["side"]));
    bench.push(job("a").after(["d"]));
    bench.finish("side");
    ["c", "d", "a", "b"].into_iter().for_each(|id| bench.finish(id));
}

pub(super) fn a_dead_job_cannot_wait_for_the_jobs_it_holds(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    bench.push(job("a"));
    bench.push(job("b").after(["a"]).on_dead(OnDead::Hold));
    bench.bury("a");
    let refused = bench.queue.push(job("a").after(["b"]));
    assert!(matches!(refused, Err(QueueError::Cycle { .. })), "{refused:?}");
}

pub(super) fn a_push_may_name_its_earlier_jobs_and_is_all_or_none(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    bench.queue.push_all([job("a"), job("b").after(["a"]), job("c").after(["a", "b"])]).unwrap();
    let refused = bench.queue.push_all([job("x"), job("y").after(["z"]), job("z")]);
    assert!(matches!(refused, Err(QueueError::NotFound { id, .. }) if id == "z"));
    assert_eq!(bench.states(["x", "y", "z"]), [None; 3]);
    ["a", "b", "c"].into_iter().for_each(|id| bench.finish(id));
}

pub(super) fn the_last_job_of_a_batch_runs_after_all_or_their_twins(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    let unique = || NewJob::new("u", &1).unwrap().unique(Unique::until_done().on_clash(Clash::Keep));
    let twin = bench.queue.push(unique().id("twin")).unwrap().id;
    bench.push(job("other"));
    let pushed = bench.queue.push_batch([unique(), job("a")], job("end").after(["other"])).unwrap();
    assert_eq!(pushed.iter().map(|pushed| &*pushed.id).collect::<Vec<_>>(), [&twin, "a", "end"]);
    assert_eq!(bench.info("end").waits_for, 3);
    bench.finish("twin");
    bench.finish("other");
    assert_eq!(bench.state("end"), WAITING);
    bench.finish("a");
    bench.finish("end");
    let alone = bench.queue.push_batch([], job("alone").on_dead(OnDead::Run)).unwrap();
    assert_eq!((alone.len(), bench.state("alone")), (1, READY));
    bench.finish("alone");
    // The setting of the last job decides.
    bench.queue.push_batch([job("x"), job("y")], job("z").on_dead(OnDead::Run)).unwrap();
    bench.bury("x");
    bench.finish("y");
    assert_eq!(bench.state("z"), READY);
    let refused = bench.queue.push_batch([job("v"), job("w")], job("w"));
    assert!(matches!(refused, Err(QueueError::Cycle { .. })) && bench.state("v").is_none(), "{refused:?}");
}

pub(super) fn a_drain_runs_all_jobs_that_wait_for_one(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    bench.push(job("a"));
    bench.queue.push_batch((0..1000).map(|n| job(&format!("{n}")).after(["a"])), job("end")).unwrap();
    let runner = Runner::builder(&bench.queue).on("k", |_, _: String| Ok(Outcome::Done));
    assert_eq!(runner.drain(DrainLimits::default()).unwrap().finished, 1002);
}

pub(super) fn a_job_pushed_anew_forgets_its_earlier_waits(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    bench.queue.push_batch((0..100).map(|n| job(&format!("{n:02}"))), job("end")).unwrap();
    assert_eq!(bench.push(job("end").after(["98", "99"])), PushOutcome::Rescheduled);
    (0..98).for_each(|n| bench.finish(&format!("{n:02}")));
    assert_eq!((bench.state("end"), bench.info("end").waits_for), (WAITING, 2));
    bench.finish("98");
    bench.finish("99");
    bench.finish("end");
    // A job that died with another one is not told of the rest either.
    bench.queue.push_batch((0..100).map(|n| job(&format!("{n:02}"))), job("end")).unwrap();
    bench.bury("00");
    bench.push(job("end").after(["50"]));
    (1..50).for_each(|n| bench.finish(&format!("{n:02}")));
    assert_eq!(bench.info("end").waits_for, 1);
}
