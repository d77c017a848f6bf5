//! The timeout of an attempt (`attempt_timeout`) in each mode.

use common::*;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use waterline::{
    AttemptOutcome, Blocked, BoxError, Builder, Consumer, Done, Error, Event, Failure, Index, Job, MemoryJobs,
    MemoryProgress, OnExhausted, Progress, Retry, State, Store,
};

/// The timeout of most attempts. The clock moves only when a test or its job moves it.
const SHORT: Duration = Duration::from_millis(20);

const NOW: Retry = Retry::fixed(Duration::ZERO);

/// A consumer of this many jobs with the short timeout. All may be in flight.
fn timed(jobs: u64, time: &Time) -> Builder<MemoryJobs<u64>, MemoryProgress> {
    builder(numbers(jobs), &MemoryProgress::new())
        .clock(time.clock())
        .max_processing(usize::try_from(jobs).unwrap())
        .attempt_timeout(SHORT)
        .stop_at(jobs - 1)
}

fn hands(give: Sender<(Job<u64>, Done)>) -> impl Fn(Job<u64>, Done) + Send + Sync {
    move |job, done| give.send((job, done)).unwrap()
}

/// Waits for the next token, which must be that of this attempt.
#[track_caller]
fn token(taken: &Receiver<(Job<u64>, Done)>, index: Index, attempt: u32) -> Done {
    let (job, done) = taken.recv_timeout(LONG).expect("the attempt begins");
    assert_eq!((job.index, job.attempt), (index, attempt));
    done
}

fn is_timeout(error: &BoxError, of: Index, number: u32) -> bool {
    matches!(error.downcast_ref(), Some(Error::AttemptTimeout { index, attempt, after })
        if (*index, *attempt, *after) == (of, number, SHORT))
}

/// Uses up the timeout, and returns once the job is told to end.
fn until_told(job: &Job<u64>, time: &Time) {
    time.pass(SHORT);
    eventually("the end of the timeout", || job.is_stopping());
}

/// The ended attempts: the index, the attempt, and the text of a failure.
type Ends = Arc<Mutex<Vec<(Index, u32, Option<String>)>>>;

fn ends<P: Progress>(builder: Builder<MemoryJobs<u64>, P>) -> (Builder<MemoryJobs<u64>, P>, Ends) {
    let ends = Ends::default();
    let heard = ends.clone();
    let builder = builder.observe(move |event: &Event<'_>| {
        if let Event::AttemptEnded { index, attempt, outcome, .. } = event {
            let failed =
                if let AttemptOutcome::Failed { error, .. } = outcome { Some((*error).to_owned()) } else { None };
            heard.lock().push((*index, *attempt, failed));
        }
    });
    (builder, ends)
}

#[test]
fn an_overdue_direct_job_is_told_and_counts_by_result() {
    let (ask, asked) = bounded::<()>(0);
    let time = Arc::new(Time::new());
    let (builder, ends) = ends(timed(2, &time));
    let consumer = builder
        .start(move |job| {
            if job.index == 0 {
                until_told(&job, &time);
                asked.recv_timeout(LONG)?;
                assert!(job.is_stopping(), "it stays so");
            }
            Ok(())
        })
        .unwrap();
    let handle = consumer.handle();
    let status = until(&handle, "the finding", |status| matches!(status.blocked, Blocked::Overdue { .. }));
    let Blocked::Overdue { index: 0, attempt: 1, elapsed, timeout: SHORT } = status.blocked else {
        panic!("{status:?}")
    };
    assert!(elapsed >= SHORT, "{elapsed:?}");
    let text = status.blocked.to_string();
    assert!(text.starts_with("job 0 has been running for ") && !text.contains(". "), "one sentence: {text}");
    assert!(text.contains("(attempt 1), longer than its timeout of 20.0ms") && text.contains("is_stopping"), "{text}");
    assert_eq!((status.failed, status.state), (0, State::Running));
    ask.send(()).unwrap();
    consumer.join().unwrap();
    assert_eq!((handle.status().blocked, handle.status().failed), (Blocked::No, 0));
    let mut ends = ends.lock().clone();
    ends.sort_unstable();
    assert_eq!(ends, [(0, 1, None), (1, 1, None)]);
}

#[test]
fn the_next_job_on_an_overdue_thread_is_not_told() {
    let ((see, seen), time) = (unbounded(), Arc::new(Time::new()));
    let consumer = timed(20, &time)
        .max_processing(1)
        .start(move |job| {
            see.send(job.is_stopping())?;
            if job.index.is_multiple_of(4) {
                until_told(&job, &time);
            }
            Ok(())
        })
        .unwrap();
    consumer.join().unwrap();
    assert_eq!(seen.iter().collect::<Vec<_>>(), [false; 20]);
}

#[test]
fn an_overdue_ordered_job_is_told_but_not_its_sink() {
    let (sank, sinking) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let (sink, sinks) = (sank.clone(), sinking.clone());
    let (tell, told) = unbounded();
    let (go, gone) = bounded::<()>(0);
    let time = Arc::new(Time::new());
    let its_time = time.clone();
    let consumer = timed(3, &time)
        .start_ordered(
            move |job| {
                if job.index == 1 {
                    until_told(&job, &its_time);
                    tell.send(())?;
                }
                Ok(job)
            },
            move |index, job: Job<u64>| {
                sinks.fetch_add(1, Ordering::SeqCst);
                if index == 1 {
                    gone.recv_timeout(LONG)?;
                    assert!(!job.is_stopping(), "the sink has no timeout");
                }
                sink.lock().push(index);
                Ok(())
            },
        )
        .unwrap();
    let handle = consumer.handle();
    told.recv_timeout(LONG).unwrap();
    eventually("job 1 at the sink", || sinking.load(Ordering::SeqCst) == 2);
    // The sink takes longer than the timeout, which is not reported as overdue work.
    let is_long = |elapsed: Duration| elapsed >= SHORT * 3;
    let status = time.until(
        SHORT,
        &handle,
        "the sink to take long",
        |status| matches!(status.blocked, Blocked::Running { elapsed, .. } | Blocked::Overdue { elapsed, .. } if is_long(elapsed)),
    );
    assert!(matches!(status.blocked, Blocked::Running { index: 1, .. }), "{status:?}");
    go.send(()).unwrap();
    consumer.join().unwrap();
    assert_eq!(*sank.lock(), [0, 1, 2]);
    assert_eq!(handle.status().failed, 0);
}

#[test]
fn a_deferred_timeout_is_retried_despite_a_late_token() {
    let (give, taken) = unbounded();
    let told = Arc::new(AtomicU64::new(0));
    let time = Time::new();
    let (builder, ends) = ends(timed(1, &time));
    let consumer = builder
        .retry(NOW)
        .on_job_done({
            let told = told.clone();
            move |_| _ = told.fetch_add(1, Ordering::SeqCst)
        })
        .start_deferred(hands(give))
        .unwrap();
    let handle = consumer.handle();
    // Each token is used late in another way, while the next attempt runs.
    let late: [fn(Done); 3] = [Done::complete, |done| done.fail(Failure::permanent("late")), |done| drop(done)];
    let mut before = token(&taken, 0, 1);
    for (attempt, late) in (2..).zip(late) {
        time.pass(SHORT);
        let next = token(&taken, 0, attempt);
        assert!(before.is_stopping(), "attempt {}", attempt - 1);
        late(before);
        assert_eq!((handle.status().done, told.load(Ordering::SeqCst)), (0, 0), "attempt {}", attempt - 1);
        before = next;
    }
    before.complete();
    consumer.join().unwrap();
    assert_eq!((handle.status().done, told.load(Ordering::SeqCst)), (1, 1));
    let ends = ends.lock().clone();
    let numbers: Vec<_> = ends.iter().map(|(index, attempt, _)| (*index, *attempt)).collect();
    assert_eq!(numbers, [(0, 1), (0, 2), (0, 3), (0, 4)], "each ends once");
    let (last, failed) = ends.split_last().unwrap();
    assert_eq!(last.2, None);
    for (_, attempt, error) in failed {
        let begin = format!("attempt {attempt} of job 0 did not end within its timeout of 20ms: ");
        assert!(error.as_ref().is_some_and(|error| error.starts_with(&begin)), "{error:?}");
    }
}

#[test]
fn a_late_token_does_not_report_the_next_attempt() {
    let (give, taken) = unbounded();
    let (jobs, time) = (numbers(3), Time::new());
    let consumer = builder(jobs.clone(), &MemoryProgress::new())
        .clock(time.clock())
        .max_processing(3)
        .attempt_timeout(SHORT)
        .retry(Retry::fixed(HOUR))
        .start_deferred(hands(give))
        .unwrap();
    let handle = consumer.handle();
    // Several threads start them, in any order.
    let three = || -> Vec<Done> { (0..3).map(|_| taken.recv_timeout(LONG).expect("it begins").1).collect() };
    let late = three();
    time.pass(SHORT);
    until(&handle, "the failures", |status| status.failed == 3);
    (3..6).for_each(|index| assert_eq!(jobs.push(index), index));
    let running = three();
    late.into_iter().for_each(Done::complete);
    let status = handle.status();
    assert_eq!((status.done, status.processing, status.failed), (0, 3, 3), "{status:?}");
    running.into_iter().for_each(|done| done.fail("enough"));
    until(&handle, "the last ones", |status| status.processing == 0 && status.failed == 6);
    consumer.stop().unwrap();
}

#[test]
fn each_attempt_after_a_pause_times_out_in_real_time() {
    // A manual clock wakes all threads, so it would hide one that is not told of the attempt.
    let (give, taken) = unbounded();
    let builder = builder(numbers(1), &MemoryProgress::new()).attempt_timeout(SHORT);
    let consumer = builder.retry(Retry::fixed(SHORT).max_attempts(3)).start_deferred(hands(give)).unwrap();
    let error = consumer.join().unwrap_err();
    let Error::Job { index: 0, attempt: 3, source } = &error else { panic!("{error:?}") };
    assert!(is_timeout(source, 0, 3), "{error:?}");
    assert_eq!(taken.len(), 3);
}

#[test]
fn the_last_timed_out_attempt_halts_or_parks() {
    let (give, taken) = unbounded();
    // No attempt runs during the pause, so the next one must be noticed.
    let time = Time::new();
    let consumer = timed(1, &time).retry(Retry::fixed(SHORT).max_attempts(3)).start_deferred(hands(give)).unwrap();
    time.steps(SHORT, "the halt", || consumer.handle().wait_end(Duration::ZERO).is_some());
    let error = consumer.join().unwrap_err();
    let Error::Job { index: 0, attempt: 3, source } = &error else { panic!("{error:?}") };
    assert!(is_timeout(source, 0, 3), "{error:?}");
    assert!(error.report().contains("attempt 3 of job 0 did not end within its timeout of 20ms"), "{error:?}");
    assert_eq!(taken.len(), 3);

    let store = Store::in_memory();
    let (give, taken) = unbounded();
    let consumer = Consumer::builder(numbers(3), store.progress("p"))
        .clock(time.clock())
        .max_processing(3)
        .attempt_timeout(SHORT)
        .on_exhausted(OnExhausted::Park { budget: 9 })
        .stop_at(2)
        .start_deferred(move |job, done| if job.index == 1 { give.send(done).unwrap() } else { done.complete() })
        .unwrap();
    until(&consumer.handle(), "the others", |status| status.done == 2 && status.processing == 1);
    time.pass(SHORT);
    consumer.join().unwrap();
    let parked = store.parked("p").unwrap();
    let [job] = &parked[..] else { panic!("{parked:?}") };
    assert_eq!((job.index, job.attempts), (1, 1));
    assert!(job.error.starts_with("attempt 1 of job 1 did not end"), "{parked:?}");
    assert_eq!(store.progress("p").last_processed().unwrap(), Some(2));
    drop(taken);
}

#[test]
fn a_stop_does_not_await_timed_out_code() {
    for within in [false, true] {
        let (progress, (give, taken), time) = (MemoryProgress::new(), unbounded(), Time::new());
        let start = |timeout, give: Sender<(Job<u64>, Done)>| {
            let builder = builder(numbers(1), &progress).clock(time.clock()).attempt_timeout(timeout);
            builder.retry(Retry::fixed(HOUR)).start_deferred(hands(give))
        };
        let consumer = start(SHORT, give.clone()).unwrap();
        let late = token(&taken, 0, 1);
        let handle = consumer.handle();
        // The stop awaits only the end of the attempt.
        handle.request_stop();
        time.pass(SHORT);
        if within { consumer.stop_within(LONG) } else { consumer.stop() }.unwrap();
        let status = handle.status();
        assert_eq!((status.state, status.failed, status.processing), (State::Finished, 1, 0));
        assert!(late.is_stopping());
        let error = start(SHORT, give.clone()).map(drop).unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error:?}");
        late.complete();
        let consumer = start(HOUR, give).expect("the token was the last to hold the name");
        token(&taken, 0, 1).complete();
        consumer.stop().unwrap();
        assert_eq!(progress.last_processed(), Some(0), "in this life alone");
    }
}

#[test]
fn a_stop_without_time_abandons_before_the_timeout() {
    let (give, taken) = unbounded();
    let consumer = timed(1, &Time::new()).attempt_timeout(HOUR).start_deferred(hands(give)).unwrap();
    let late = token(&taken, 0, 1);
    let handle = consumer.handle();
    let error = consumer.stop_within(Duration::ZERO).unwrap_err();
    assert!(matches!(&error, Error::StopTimeout { running } if *running == [0]), "{error:?}");
    late.complete();
    assert_eq!((handle.status().done, handle.status().failed), (0, 0));
}

#[test]
fn a_stop_awaits_an_overdue_direct_job() {
    let (begin, begun) = unbounded();
    let (end, ended) = bounded::<()>(0);
    let time = Time::new();
    let consumer = timed(1, &time)
        .start(move |_| {
            begin.send(())?;
            Ok(ended.recv_timeout(LONG)?)
        })
        .unwrap();
    let handle = consumer.handle();
    begun.recv_timeout(LONG).unwrap();
    handle.request_stop();
    time.pass(SHORT);
    until(&handle, "the finding", |status| matches!(status.blocked, Blocked::Overdue { .. }));
    assert_eq!(handle.status().state, State::Stopping);
    end.send(()).unwrap();
    consumer.stop().unwrap();
    assert_eq!((handle.status().done, handle.status().last_processed), (1, Some(0)));
}

#[test]
fn a_pause_does_not_delay_a_timeout() {
    let (give, taken) = unbounded();
    let time = Time::new();
    let consumer = timed(1, &time).retry(NOW).start_deferred(hands(give)).unwrap();
    let handle = consumer.handle();
    let late = token(&taken, 0, 1);
    handle.pause();
    time.pass(SHORT);
    let status = until(&handle, "the failure", |status| status.failed == 1);
    assert_eq!(status.state, State::Paused);
    assert!(late.is_stopping());
    handle.resume();
    token(&taken, 0, 2).complete();
    consumer.join().unwrap();
}

#[test]
fn ten_thousand_attempts_expire_in_starting_order() {
    const JOBS: u64 = 10_000;
    let (give, taken) = unbounded();
    let time = Time::new();
    let (builder, ends) = ends(timed(JOBS, &time));
    let consumer = builder
        .max_search_ahead(JOBS)
        .retry(Retry::fixed(HOUR))
        // With one thread they start in the order of their indices.
        .threads(1)
        .start_deferred(hands(give))
        .unwrap();
    let handle = consumer.handle();
    // Some end meanwhile, anywhere in the list.
    let mut kept = Vec::new();
    for _ in 0..JOBS {
        let (job, done) = taken.recv_timeout(LONG).unwrap();
        if job.index % 7 == 3 { done.complete() } else { kept.push((job.index, done)) }
    }
    time.pass(SHORT);
    let status = until(&handle, "the last one", |status| status.processing == 0);
    assert_eq!((status.failed, status.done), (kept.len() as u64, JOBS - kept.len() as u64));
    let failed: Vec<Index> = ends.lock().iter().filter(|(_, _, error)| error.is_some()).map(|end| end.0).collect();
    assert!(failed.is_sorted() && failed.len() as u64 == status.failed, "{failed:?}");
    assert!(kept.iter().all(|(_, done)| done.is_stopping()));
    consumer.stop().unwrap();
}

#[test]
fn a_slow_on_job_done_is_no_timeout() {
    let (enter, entered) = unbounded();
    let (go, gone) = bounded::<()>(0);
    let (give, taken) = unbounded();
    let time = Time::new();
    let consumer = timed(1, &time)
        .retry(NOW)
        .on_job_done(move |_| {
            enter.send(()).unwrap();
            gone.recv_timeout(LONG).unwrap();
        })
        .start_deferred(hands(give))
        .unwrap();
    let handle = consumer.handle();
    let done = token(&taken, 0, 1);
    let reporter = std::thread::spawn(move || done.complete());
    entered.recv_timeout(LONG).unwrap();
    time.pass(SHORT * 3);
    assert!(handle.status().oldest.is_some_and(|oldest| oldest.elapsed == SHORT * 3));
    assert_eq!((handle.status().failed, handle.status().done), (0, 0));
    go.send(()).unwrap();
    consumer.join().unwrap();
    assert_eq!((handle.status().failed, handle.status().done), (0, 1));
    reporter.join().unwrap();
}

/// Adds an observer that blocks in the event of a failed attempt until the test releases it.
fn dwells(
    builder: Builder<MemoryJobs<u64>, MemoryProgress>,
) -> (Builder<MemoryJobs<u64>, MemoryProgress>, Receiver<()>, Sender<()>) {
    let ((enter, entered), (go, gone)) = (unbounded(), bounded(0));
    let builder = builder.observe(move |event: &Event<'_>| {
        if let Event::AttemptEnded { outcome: AttemptOutcome::Failed { .. }, .. } = event {
            let _ = enter.send(());
            let _ = gone.recv_timeout(LONG);
        }
    });
    (builder, entered, go)
}

#[test]
fn a_token_used_during_the_timeout_changes_nothing() {
    let (give, taken) = unbounded();
    let time = Time::new();
    let (builder, entered, go) = dwells(timed(1, &time).retry(NOW));
    let consumer = builder.start_deferred(hands(give)).unwrap();
    let handle = consumer.handle();
    let late = token(&taken, 0, 1);
    time.pass(SHORT);
    entered.recv_timeout(LONG).unwrap();
    late.complete();
    let status = handle.status();
    assert_eq!((status.done, status.failed, status.processing), (0, 0, 1));
    drop(go);
    token(&taken, 0, 2).complete();
    consumer.join().unwrap();
}

#[test]
fn an_attempt_abandoned_while_failing_keeps_the_name() {
    for used_before in [false, true] {
        let (progress, (give, taken), time) = (MemoryProgress::new(), unbounded(), Time::new());
        let again = || builder(numbers(1), &progress).start(|_| Ok(()));
        let (builder, entered, go) = dwells(builder(numbers(1), &progress).clock(time.clock()).attempt_timeout(SHORT));
        let consumer = builder.start_deferred(hands(give)).unwrap();
        let handle = consumer.handle();
        let mut late = Some(token(&taken, 0, 1));
        time.pass(SHORT);
        entered.recv_timeout(LONG).unwrap();
        if used_before {
            drop(late.take());
        }
        let error = consumer.stop_within(Duration::ZERO).unwrap_err();
        assert!(matches!(&error, Error::StopTimeout { running } if *running == [0]), "{error:?}");
        drop(go);
        eventually("the end of the threads", || handle.wait_end(Duration::ZERO).is_some());
        assert_eq!((handle.status().failed, handle.status().done), (0, 0), "it no longer counts");
        if let Some(late) = late {
            assert!(matches!(again().map(drop), Err(Error::InUse { .. })));
            late.complete();
        }
        again().expect("the name is free").stop().unwrap();
    }
}

#[cfg(feature = "tokio")]
mod futures {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use tokio::runtime::Runtime;

    fn runtime() -> Runtime {
        // Without timers: the consumer needs none.
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap()
    }

    struct There(Arc<AtomicUsize>);

    impl There {
        fn new(count: &Arc<AtomicUsize>) -> Self {
            count.fetch_add(1, Ordering::SeqCst);
            Self(count.clone())
        }
    }

    impl Drop for There {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn an_overdue_future_is_dropped_before_its_retry() {
        let (runtime, there) = (runtime(), Arc::new(AtomicUsize::new(0)));
        let time = Time::new();
        let (builder, ends) = ends(timed(1, &time).retry(NOW.max_attempts(3)));
        let count = there.clone();
        let consumer = builder
            .start_async(runtime.handle(), move |job| {
                let beside = count.load(Ordering::SeqCst);
                let there = There::new(&count);
                async move {
                    let _there = there;
                    assert_eq!(beside, 0, "attempt {} runs alone", job.attempt);
                    std::future::pending().await
                }
            })
            .unwrap();
        let handle = consumer.handle();
        // Each future is pending when its time is over, so its task must be woken.
        time.steps(SHORT, "three attempts", || handle.status().failed == 3);
        let error = consumer.join().unwrap_err();
        let Error::Job { index: 0, attempt: 3, source } = &error else { panic!("{error:?}") };
        assert!(is_timeout(source, 0, 3), "{error:?}");
        assert_eq!((there.load(Ordering::SeqCst), handle.status().failed), (0, 3));
        let ends = ends.lock().clone();
        assert_eq!(ends.iter().map(|end| end.1).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(ends.iter().all(|end| end.2.as_ref().is_some_and(|error| error.contains("did not end"))), "{ends:?}");
    }

    #[test]
    fn each_overdue_future_of_many_is_dropped_once() {
        const JOBS: u64 = 2_000;
        let (runtime, there) = (runtime(), Arc::new(AtomicUsize::new(0)));
        let (count, begun) = (there.clone(), Arc::new(AtomicU64::new(0)));
        let begins = begun.clone();
        let time = Time::new();
        let consumer = timed(JOBS, &time)
            .max_search_ahead(JOBS)
            .retry(NOW)
            .start_async(runtime.handle(), move |job| {
                let there = There::new(&count);
                begins.fetch_add(1, Ordering::SeqCst);
                async move {
                    let _there = there;
                    if job.index % 3 == 0 && job.attempt == 1 {
                        std::future::pending::<()>().await;
                    }
                    Ok(())
                }
            })
            .unwrap();
        let handle = consumer.handle();
        let hang = JOBS.div_ceil(3);
        until(&handle, "the others", |status| (status.done, status.processing as u64) == (JOBS - hang, hang));
        time.pass(SHORT);
        consumer.join().unwrap();
        let status = handle.status();
        assert_eq!((status.done, status.failed, begun.load(Ordering::SeqCst)), (JOBS, hang, JOBS + hang));
        assert_eq!(there.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_future_that_blocks_its_thread_is_dropped_later() {
        let (runtime, blocks) = (runtime(), Arc::new(AtomicBool::new(true)));
        let (blocked, (hold, held), time) = (blocks.clone(), unbounded(), Arc::new(Time::new()));
        let consumer = timed(1, &time)
            .retry(NOW)
            .start_async(runtime.handle(), move |job| {
                let (blocked, hold, time) = (blocked.clone(), hold.clone(), time.clone());
                async move {
                    tokio::task::yield_now().await;
                    if blocked.load(Ordering::SeqCst) {
                        hold.send(job.attempt)?;
                        until_told(&job, &time);
                        eventually("the test", || !blocked.load(Ordering::SeqCst));
                        std::future::pending::<()>().await;
                    }
                    Ok(())
                }
            })
            .unwrap();
        let handle = consumer.handle();
        assert_eq!(held.recv_timeout(LONG), Ok(1));
        until(&handle, "the finding", |status| matches!(status.blocked, Blocked::Overdue { index: 0, attempt: 1, .. }));
        assert_eq!(handle.status().failed, 0);
        blocks.store(false, Ordering::SeqCst);
        consumer.join().unwrap();
        assert_eq!(handle.status().failed, 1);
    }

    #[test]
    fn a_stop_without_a_limit_drops_overdue_futures() {
        let runtime = runtime();
        let (begin, begun) = unbounded();
        let time = Time::new();
        let consumer = timed(3, &time)
            .retry(Retry::fixed(HOUR))
            .start_async(runtime.handle(), move |_| {
                begin.send(()).unwrap();
                std::future::pending()
            })
            .unwrap();
        (0..3).for_each(|_| begun.recv_timeout(LONG).unwrap());
        let handle = consumer.handle();
        handle.request_stop();
        time.pass(SHORT);
        consumer.stop().unwrap();
        assert_eq!((handle.status().state, handle.status().failed), (State::Finished, 3));
    }
}
