//! The jobs that run while their runner stops. They lose no attempt by it, and their process may
//! end before they do.

use common::queues::{Bench, noon, until};
use common::{LONG, ends, eventually};
use crossbeam_channel::{bounded, unbounded};
use std::sync::Arc;
use std::time::Duration;
use waterline::queue::{
    Accept, AttemptEnd, Clock, DrainLimits, Finisher, JobState, NewJob, Outcome, QueueError, QueueOptions, Runner,
    RunnerBuilder, Running,
};
use waterline::testing::FaultyStore;
use waterline::{BoxError, Failure, Retry};

/// A bench whose jobs die of their first failure and of their first crash.
fn bench() -> Bench {
    let options = QueueOptions::default().retry(Retry::none()).max_crashes(1);
    Bench::on_disk(FaultyStore::new().unwrap(), &Clock::manual(noon()), options)
}

/// Pushes the job `a`.
fn push(bench: &Bench, kind: &str) {
    bench.push(NewJob::new(kind, &()).unwrap().id("a"));
}

/// Returns a runner with a handler of each sort, each of which answers by this function.
fn handlers(
    bench: &Bench,
    answer: impl Fn(&Running) -> Result<Outcome, BoxError> + Send + Sync + 'static,
) -> RunnerBuilder {
    let answer = Arc::new(move |job: &Running| {
        job.update(&7)?;
        job.progress(0.5, "half")?;
        answer(job)
    });
    let (deferred, future) = (answer.clone(), answer.clone());
    let builder = Runner::builder(&bench.queue).on("direct", move |job, ()| answer(job)).on_deferred("deferred", {
        move |job, (), done: Finisher| {
            let answer = deferred.clone();
            std::thread::spawn(move || done.end(answer(&job)));
        }
    });
    #[cfg(feature = "tokio")]
    return builder.on_async("async", move |job, ()| {
        let answer = future.clone();
        async move { answer(&job) }
    });
    #[cfg(not(feature = "tokio"))]
    {
        drop(future);
        builder
    }
}

/// Runs a test for a handler of each sort.
fn for_each_sort(test: impl Fn(&str)) {
    #[cfg(feature = "tokio")]
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    #[cfg(feature = "tokio")]
    let _context = runtime.enter();
    let sorts = ["direct", "deferred", "async"];
    sorts[..2 + usize::from(cfg!(feature = "tokio"))].iter().for_each(|sort| test(sort));
}

/// Asserts that the job `a` is ready, and has what its last attempt has left and nothing else.
#[track_caller]
fn is_put_back(bench: &Bench, kind: &str) {
    let info = bench.info("a");
    assert_eq!((info.state, info.failures, info.crashes, info.error), (JobState::Ready, 0, 0, None), "{kind}");
    assert_eq!((info.data, info.progress.map(|it| it.fraction)), (Some(7.into()), Some(0.5)), "{kind}");
}

#[test]
fn an_attempt_that_fails_while_its_runner_stops_is_put_back_and_does_not_count() {
    for_each_sort(|kind| {
        let bench = bench();
        push(&bench, kind);
        for panics in [false, true, false] {
            let ((begun, begins), (told, tells)) = (unbounded(), unbounded());
            let runner = handlers(&bench, move |job| {
                begun.send(())?;
                eventually("the stop", || job.is_stopping());
                assert!(!panics, "cut short");
                Err("cut short".into())
            });
            let runner = runner.teardown(move |_, ended| told.send(ended.clone()).unwrap()).start().unwrap();
            begins.recv_timeout(LONG).unwrap();
            runner.stop().unwrap();
            let ended = tells.recv_timeout(LONG).unwrap();
            let error = |error: &str| error.contains(if panics { "panic" } else { "cut short" });
            // A finisher that is dropped by a panic says that alone.
            assert!(
                matches!(&ended, AttemptEnd::PutBack { error: text } if kind == "deferred" || error(text)),
                "{ended:?}"
            );
            is_put_back(&bench, kind);
        }
        let drained = handlers(&bench, |_| Ok(Outcome::Done)).drain(DrainLimits::default()).unwrap();
        assert_eq!(drained.finished, 1, "{kind}");
    });
}

#[test]
fn an_answer_that_is_no_failed_attempt_counts_also_while_the_runner_stops() {
    type Answer = fn() -> Result<Outcome, BoxError>;
    let answers: [(Answer, JobState); 4] = [
        (|| Ok(Outcome::Done), JobState::Finished),
        (|| Ok(Outcome::Dead("no way".to_owned())), JobState::Dead),
        (|| Err(Failure::permanent("no way").into()), JobState::Dead),
        (|| Ok(Outcome::Snooze(noon() + Duration::from_secs(1))), JobState::Scheduled),
    ];
    for_each_sort(|kind| {
        for (answer, state) in answers {
            let bench = bench();
            push(&bench, kind);
            let (begun, begins) = unbounded();
            let runner = handlers(&bench, move |job| {
                begun.send(())?;
                eventually("the stop", || job.is_stopping());
                answer()
            });
            let runner = runner.start().unwrap();
            begins.recv_timeout(LONG).unwrap();
            runner.stop().unwrap();
            assert_eq!(bench.state("a"), Some(state), "{kind}");
        }
    });
}

#[test]
fn a_process_that_ends_while_its_runner_stops_is_no_crash_of_the_jobs_that_still_run() {
    for_each_sort(|kind| {
        let mut bench = bench();
        push(&bench, kind);
        let begin = |bench: &Bench| {
            let ((begun, begins), (release, is_released)) = (unbounded(), bounded::<()>(0));
            let runner = handlers(bench, move |_| {
                begun.send(())?;
                let _ = is_released.recv();
                Ok(Outcome::Done)
            });
            let runner = runner.start().unwrap();
            begins.recv_timeout(LONG).unwrap();
            (runner, release)
        };
        for _ in 0..5 {
            let (runner, _release) = begin(&bench);
            let stopped = runner.stop_within(Duration::ZERO);
            assert!(matches!(&stopped, Err(QueueError::StopTimeout { running }) if *running == ["a"]), "{stopped:?}");
            bench = bench.next_life();
            is_put_back(&bench, kind);
        }
        // Nobody has asked this one to stop.
        let (runner, release) = begin(&bench);
        let died = bench.next_life();
        assert_eq!(died.state("a"), Some(JobState::Dead), "{kind}");
        drop(release);
        runner.stop().unwrap();
    });
}

/// The note is a write, and it may fail.
#[test]
fn a_runner_whose_stop_cannot_be_noted_stops_all_the_same() {
    for_each_sort(|kind| {
        let disk = FaultyStore::new().unwrap();
        let bench = Bench::on(disk.store(), &Clock::manual(noon()), QueueOptions::default());
        push(&bench, kind);
        let ((begun, begins), (release, is_released)) = (unbounded(), bounded::<()>(0));
        let runner = handlers(&bench, move |_| {
            begun.send(())?;
            let _ = is_released.recv();
            Ok(Outcome::Done)
        });
        let runner = runner.start().unwrap();
        begins.recv_timeout(LONG).unwrap();
        disk.fail(..);
        assert!(matches!(runner.stop_within(Duration::ZERO), Err(QueueError::StopTimeout { .. })));
        disk.heal();
        drop(release);
        // A finisher changes nothing any more.
        if kind != "deferred" {
            until(&bench.queue, "a", JobState::Finished);
        }
    });
}

/// The end of a deferred job is written by a thread of the runner, and its handler has one.
#[test]
fn a_deferred_handler_may_wait_for_the_end_of_its_own_job_with_one_slot() {
    let bench = bench();
    let (queue, (said, says)) = (bench.queue.clone(), bounded(1));
    let runner = Runner::builder(&bench.queue).max_processing(1).on_deferred("k", move |job, (), done: Finisher| {
        let mut subscription = queue.subscribe(job.id()).unwrap();
        done.complete();
        said.send(subscription.wait_for(JobState::Finished, LONG).unwrap().is_some()).unwrap();
    });
    let runner = runner.start().unwrap();
    push(&bench, "k");
    assert!(says.recv_timeout(LONG).unwrap(), "the handler waits for its own end");
    ends("the runner", move || runner.stop().unwrap());
    assert!(bench.queue.accept(Accept::new()).unwrap().is_none());
}
