//! Sources that fail now and then, miss a job for a moment, or never answer.

use common::*;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use waterline::{Blocked, BoxError, Consumer, Index, Jobs, MemoryProgress, Retry, Sparse, Status, Wakeup};

const MS: Duration = Duration::from_millis(1);

/// A call that may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Head,
    AtIndex,
    Read,
    ReadSparse,
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Good,
    Error,
    Panic,
    /// No job is there: for reads only.
    Null,
}

/// The answer to each call of one kind, by its number.
type Plan = Box<dyn Fn(u64) -> Answer + Send + Sync>;

/// A source of the jobs below a number, whose calls of one kind follow a plan.
struct Flaky {
    jobs: u64,
    kind: Call,
    plan: Plan,
    calls: AtomicU64,
    failed: AtomicU64,
    looks: AtomicU64,
    wakeup: Mutex<Option<Wakeup>>,
    /// The first index of each run that was read, and the most jobs asked for.
    runs: Mutex<Vec<(Index, u64)>>,
}

impl Flaky {
    fn new(jobs: u64, kind: Call, plan: impl Fn(u64) -> Answer + Send + Sync + 'static) -> Arc<Self> {
        watch();
        Arc::new(Self {
            jobs,
            kind,
            plan: Box::new(plan),
            calls: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            wakeup: Mutex::new(None),
            runs: Mutex::default(),
        })
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    fn failed(&self) -> u64 {
        self.failed.load(Ordering::SeqCst)
    }

    /// Returns whether a job is there.
    fn call(&self, kind: Call) -> Result<bool, BoxError> {
        if kind != self.kind {
            return Ok(true);
        }
        let answer = (self.plan)(self.calls.fetch_add(1, Ordering::SeqCst));
        self.failed.fetch_add(u64::from(matches!(answer, Answer::Error | Answer::Panic)), Ordering::SeqCst);
        match answer {
            Answer::Good => Ok(true),
            Answer::Error => Err("no route to the node".into()),
            Answer::Panic => panic!("no memory"),
            Answer::Null => Ok(false),
        }
    }

    /// Returns the head. If it follows the plan, each look shows one more job.
    fn look(&self) -> Result<Option<Index>, BoxError> {
        self.call(Call::Head)?;
        let looks = self.looks.fetch_add(1, Ordering::SeqCst) + 1;
        Ok(Some(if self.kind == Call::Head { looks.min(self.jobs) } else { self.jobs } - 1))
    }

    fn get(&self, index: Index) -> Result<Option<Index>, BoxError> {
        // Announces the next job.
        self.wakeup.lock().iter().for_each(|wakeup| _ = wakeup.ring());
        Ok((self.call(Call::AtIndex)? && index < self.jobs).then_some(index))
    }

    fn is_gap(&self, index: Index) -> bool {
        self.kind == Call::ReadSparse && index % 3 == 1
    }

    /// Returns the source behind the reading calls of its kind.
    fn jobs(self: &Arc<Self>) -> Arc<dyn Jobs<Job = Index>> {
        match self.kind {
            Call::Head | Call::AtIndex => Arc::new(OneByOne(self.clone())),
            Call::Read | Call::ReadSparse => Arc::new(InRuns(self.clone())),
        }
    }
}

/// Reads by the default `read`, job by job.
struct OneByOne(Arc<Flaky>);

impl Jobs for OneByOne {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        self.0.look()
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        self.0.get(index)
    }

    fn subscribe(&self, wakeup: Wakeup) -> bool {
        *self.0.wakeup.lock() = Some(wakeup).filter(|_| self.0.kind == Call::Head);
        self.0.kind == Call::Head
    }
}

/// Reads up to sixteen jobs a call.
struct InRuns(Arc<Flaky>);

impl Jobs for InRuns {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        self.0.look()
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        self.0.get(index)
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Index>) -> Result<(), BoxError> {
        let there = self.0.call(Call::Read)?;
        into.extend(run.take(16).filter(|_| there));
        Ok(())
    }

    fn read_sparse(&self, run: RangeInclusive<Index>, most: usize, into: &mut Sparse<Index>) -> Result<(), BoxError> {
        self.0.runs.lock().push((*run.start(), most as u64));
        if self.0.kind == Call::Read {
            let last = run.start().saturating_add(most as u64 - 1).min(*run.end());
            let (start, mut jobs) = (*run.start(), Vec::new());
            let read = self.read(start..=last, &mut jobs);
            (start..).zip(jobs).for_each(|(index, job)| into.job(index, job));
            return read;
        }
        let there = self.0.call(Call::ReadSparse)?;
        for index in run.take(most.min(16)).filter(|_| there) {
            if self.0.is_gap(index) {
                into.none_through(index);
            } else {
                into.job(index, index);
            }
        }
        Ok(())
    }
}

/// Runs all jobs, and returns the order in which they ran, and the last status.
fn run(source: &Flaky, jobs: impl Jobs<Job = Index>, time: &Time) -> (Vec<Index>, Status) {
    let ran = Arc::new(Mutex::new(Vec::new()));
    let runs = ran.clone();
    let consumer = builder(jobs, &MemoryProgress::new())
        .clock(time.clock())
        .stop_at(source.jobs - 1)
        .start(move |job| {
            runs.lock().push(job.payload);
            Ok(())
        })
        .unwrap();
    let handle = consumer.handle();
    ends("a consumer whose clock stands still", move || consumer.join()).unwrap();
    let mut ran = std::mem::take(&mut *ran.lock());
    ran.sort_unstable();
    (ran, handle.status())
}

#[test]
fn a_first_failed_call_is_repeated_at_once() {
    const JOBS: u64 = 600;
    let some_fail = |call| match call % 7 {
        3 => Answer::Error,
        6 => Answer::Panic,
        _ => Answer::Good,
    };
    let check = |source: Arc<Flaky>, jobs: Arc<dyn Jobs<Job = Index>>| {
        // The clock stands still, so no pause ever ends.
        let (ran, status) = run(&source, jobs, &Time::new());
        let all: Vec<_> = (0..JOBS).filter(|index| !source.is_gap(*index)).collect();
        assert_eq!(ran, all, "{:?}: each once", source.kind);
        let failed = source.failed();
        assert!(failed >= JOBS / 16 / 7 * 2, "{:?}: {failed}", source.kind);
        // A look behind the last job may have failed.
        assert!(status.source.failed == failed && status.source.failed_in_a_row <= 1, "{:?}", status.source);
        assert!(status.source.made > failed && status.source.retry_in.is_none(), "{:?}", status.source);
    };
    for kind in [Call::Head, Call::AtIndex, Call::Read, Call::ReadSparse] {
        let source = Flaky::new(JOBS, kind, some_fail);
        check(source.clone(), source.jobs());
    }
    #[cfg(feature = "tokio")]
    {
        use waterline::AsyncJobs;
        let runtime = tokio::runtime::Runtime::new().unwrap();
        for kind in [Call::Head, Call::AtIndex] {
            let source = Flaky::new(JOBS, kind, some_fail);
            check(source.clone(), Arc::new(futures::Futures(source).on(runtime.handle())));
        }
    }
}

/// A consumer of ten jobs on a manual clock. The first `until` calls of this kind have this answer.
fn waiting(kind: Call, answer: Answer, until: u64, retry: Option<Retry>) -> (Arc<Flaky>, Arc<Time>, Consumer) {
    let (source, time) =
        (Flaky::new(10, kind, move |call| if call < until { answer } else { Answer::Good }), Time::new());
    let builder = builder(source.jobs(), &MemoryProgress::new()).clock(time.clock()).stop_at(9);
    let builder = retry.into_iter().fold(builder, waterline::Builder::source_retry);
    (source, Arc::new(time), builder.start(|_| Ok(())).unwrap())
}

#[test]
fn calls_that_fail_in_a_row_back_off_visibly() {
    let second = Duration::from_secs(1);
    let default = [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000].map(|pause| pause * MS);
    for (retry, pauses) in [(None, &default[..]), (Some(Retry::fixed(7 * second)), &[7 * second; 4])] {
        for kind in [Call::Head, Call::AtIndex, Call::Read, Call::ReadSparse] {
            // The call after the last pause is answered.
            let fails = pauses.len() as u64 + 1;
            let (source, time, consumer) = waiting(kind, Answer::Error, fails, retry);
            let handle = consumer.handle();
            for (pause, calls) in pauses.iter().zip(2..) {
                let failed = |status: &Status| status.source.failed == calls && status.source.retry_in == Some(*pause);
                let status = until(&handle, "the pause", failed);
                assert!(
                    matches!(&status.blocked, Blocked::Source { index: 0, error } if error == "no route to the node")
                );
                // Looks answered meanwhile are calls of another kind, and end the row.
                let (in_a_row, answered) = (u64::from(status.source.failed_in_a_row), status.source.made - calls);
                assert!(in_a_row == calls || kind != Call::Head && answered > 1 && in_a_row > 0, "{status:?}");
                let (made, says) = (status.source.made, status.to_string());
                let end = format!("(it is asked again in {pause:.1?}; {calls} of {made} calls failed)");
                assert!(says.ends_with(&end), "{says}: {end}");
                time.pass(*pause - MS);
                // While the source is asked for its head, no pause is shown.
                until(&handle, "the last moment of the pause", |status| status.source.retry_in == Some(MS));
                assert_eq!(source.calls(), calls, "{kind:?}");
                time.pass(MS);
            }
            ends("the last jobs", move || consumer.join()).unwrap();
            assert_eq!(source.failed(), fails, "{kind:?}");
        }
    }
}

#[test]
fn a_missing_job_is_asked_for_with_a_growing_pause() {
    for kind in [Call::AtIndex, Call::Read, Call::ReadSparse] {
        let pauses = [20, 40, 80, 160, 320, 640, 1_000, 1_000].map(|pause| pause * MS);
        let (source, time, consumer) = waiting(kind, Answer::Null, pauses.len() as u64, None);
        let handle = consumer.handle();
        for (pause, calls) in pauses.into_iter().zip(1..) {
            let waits = |status: &Status| status.source.retry_in == Some(pause) && source.calls() == calls;
            let status = until(&handle, "the pause", waits);
            assert_eq!(status.blocked, Blocked::Missing { index: 0 });
            assert!(status.to_string().ends_with(&format!("(it is asked again in {pause:.1?})")), "{status}");
            if time.passed() + pause >= Duration::from_secs(1) {
                break;
            }
            assert_eq!(source.looks.load(Ordering::SeqCst), 1, "{kind:?}: nobody rings, and no poll is due");
            time.pass(pause);
        }
        // From here on, polls ask the source, too.
        time.steps(20 * MS, "the jobs", || handle.wait_for(9, Duration::ZERO));
        ends("the last jobs", move || consumer.join()).unwrap();
        let runs = source.runs.lock();
        let again = runs.iter().skip(1).take_while(|(first, _)| *first == 0);
        assert!(again.clone().all(|(_, most)| *most == 1), "{kind:?}: {runs:?}");
        assert_eq!(again.count(), if kind == Call::AtIndex { 0 } else { pauses.len() }, "{kind:?}: {runs:?}");
    }
}

#[test]
fn an_unreadable_retry_delays_no_neighbour() {
    let (source, time) = (Script::up_to(9), Time::new());
    let script = source.clone();
    let consumer = builder(source, &MemoryProgress::new())
        .clock(time.clock())
        .retry(Retry::fixed(Duration::ZERO))
        .start(move |job| {
            script.fail_at(0, Fault::Error);
            if job.attempt == 1 { Err("not yet".into()) } else { Ok(()) }
        })
        .unwrap();
    // A neighbour read together with job 0 while the source failed waits for a pause, too.
    let handle = consumer.handle();
    time.steps(10 * MS, "the neighbours of job 0", || handle.status().done_ahead == 9);
    assert_eq!(handle.status().last_processed, None);
    consumer.stop().unwrap();
}

fn plan(seed: u64, of: u64) -> impl Fn(u64) -> Answer + Send + Sync + 'static {
    move |call| {
        let mut random = fastrand::Rng::with_seed(seed ^ (call << 20));
        match random.u64(..100) {
            at if at < of => Answer::Error,
            at if at < 2 * of => Answer::Null,
            at if at < 2 * of + 1 => Answer::Panic,
            _ => Answer::Good,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(24), ..ProptestConfig::default() })]

    #[test]
    fn promise_01_a_flaky_source_skips_and_repeats_nothing(
        seed in any::<u64>(), of in 0u64..40, kind in 0..4usize, most in 1usize..9, fails in 0u32..4,
    ) {
        let kind = [Call::Head, Call::AtIndex, Call::Read, Call::ReadSparse][kind];
        let (source, time) = (Flaky::new(300, kind, plan(seed, of)), Time::new());
        let (ran, announced) = (Arc::new(Mutex::new(Vec::new())), Announced::default());
        let runs = ran.clone();
        let consumer = builder(source.jobs(), &MemoryProgress::new())
            .clock(time.clock())
            .max_processing(most)
            .retry(Retry::fixed(MS))
            .stop_at(299)
            .on_processed(announced.callback())
            .start(move |job| {
                assert_eq!(job.index, job.payload);
                // Some jobs fail, and are read again for their retry.
                if fastrand::Rng::with_seed(seed ^ job.index).u32(..10) < fails && job.attempt < 3 {
                    return Err("not yet".into());
                }
                runs.lock().push(job.index);
                Ok(())
            })
            .unwrap();
        let handle = consumer.handle();
        // Most calls may fail, and the longest pause has 5 s.
        time.steps(500 * MS, "all jobs", || handle.wait_for(299, Duration::ZERO));
        ends("the consumer", move || consumer.join()).unwrap();
        let mut ran = std::mem::take(&mut *ran.lock());
        ran.sort_unstable();
        let all: Vec<_> = (0..300).filter(|index| !source.is_gap(*index)).collect();
        prop_assert_eq!(ran, all);
        prop_assert_eq!(announced.all(), Some(0..=299));
        prop_assert_eq!(handle.status().source.failed, source.failed());
    }
}

#[cfg(feature = "tokio")]
mod futures {
    use super::*;
    use waterline::AsyncJobs;

    /// The flaky source with calls that are futures.
    pub(super) struct Futures(pub(super) Arc<Flaky>);

    impl AsyncJobs for Futures {
        type Job = Index;

        async fn head(&self) -> Result<Option<Index>, BoxError> {
            tokio::task::yield_now().await;
            self.0.look()
        }

        async fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
            tokio::task::yield_now().await;
            self.0.get(index)
        }

        fn subscribe(&self, wakeup: Wakeup) -> bool {
            *self.0.wakeup.lock() = Some(wakeup).filter(|_| self.0.kind == Call::Head);
            self.0.kind == Call::Head
        }
    }

    /// A source of 200 jobs that never answers the call of this kind and number.
    struct Silent {
        call: Call,
        number: u64,
        calls: Arc<AtomicU64>,
        dropped: Arc<AtomicU64>,
    }

    impl Silent {
        fn new(call: Call, number: u64) -> (Self, Arc<AtomicU64>) {
            watch();
            let dropped = Arc::<AtomicU64>::default();
            (Self { call, number, calls: Arc::default(), dropped: dropped.clone() }, dropped)
        }

        async fn call(&self, call: Call) {
            struct Dropped(Arc<AtomicU64>);
            impl Drop for Dropped {
                fn drop(&mut self) {
                    self.0.fetch_add(1, Ordering::SeqCst);
                }
            }
            if call == self.call && self.calls.fetch_add(1, Ordering::SeqCst) == self.number {
                let _dropped = Dropped(self.dropped.clone());
                std::future::pending::<()>().await;
            }
            tokio::task::yield_now().await;
        }
    }

    impl AsyncJobs for Silent {
        type Job = Index;

        async fn head(&self) -> Result<Option<Index>, BoxError> {
            self.call(Call::Head).await;
            Ok(Some(199))
        }

        async fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
            self.call(Call::AtIndex).await;
            Ok(Some(index))
        }

        async fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Index>) -> Result<(), BoxError> {
            for index in run.take(8) {
                into.extend(self.at_index(index).await?);
            }
            self.call(Call::Read).await;
            Ok(())
        }

        async fn read_sparse(
            &self,
            run: RangeInclusive<Index>,
            most: usize,
            into: &mut Sparse<Index>,
        ) -> Result<(), BoxError> {
            self.call(Call::ReadSparse).await;
            let last = run.start().saturating_add(most as u64 - 1).min(*run.end());
            let (start, mut jobs) = (*run.start(), Vec::new());
            self.read(start..=last, &mut jobs).await?;
            (start..).zip(jobs).for_each(|(index, job)| into.job(index, job));
            Ok(())
        }
    }

    /// In real time: a call belongs to its runtime, whatever the consumer's clock.
    #[test]
    fn a_call_past_its_timeout_is_dropped_and_repeated() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let log = waterline::Store::in_memory().log::<u64>("out").unwrap();
        let upstream = Consumer::builder(numbers(200), MemoryProgress::new()).start(|_| Ok(())).unwrap();
        for (call, number) in [(Call::Head, 0), (Call::AtIndex, 20), (Call::Read, 2), (Call::ReadSparse, 2)] {
            for adapter in 0..5 {
                let (silent, dropped) = Silent::new(call, number);
                let jobs = silent.on(runtime.handle());
                let jobs: Arc<dyn Jobs<Job = Index>> = match adapter {
                    0 => Arc::new(jobs),
                    1 => Arc::new(Arc::new(jobs)),
                    2 => Arc::new(jobs.confirmed(0)),
                    3 => Arc::new(jobs.gated_by(upstream.handle())),
                    _ => Arc::new(log.hold_back(jobs, 1_000)),
                };
                let ran = Arc::new(Mutex::new(Vec::new()));
                let runs = ran.clone();
                let consumer = builder(jobs, &MemoryProgress::new())
                    .clock(Time::new().clock())
                    .source_timeout(20 * MS)
                    .stop_at(199)
                    .start(move |job| {
                        runs.lock().push(job.payload);
                        Ok(())
                    })
                    .unwrap();
                let handle = consumer.handle();
                ends("the consumer", move || consumer.join()).unwrap();
                let source = handle.status().source;
                let seen = (source.failed, source.timeout, dropped.load(Ordering::SeqCst));
                assert_eq!(seen, (1, Some(20 * MS), 1), "{call:?} {adapter}");
                let mut ran = std::mem::take(&mut *ran.lock());
                ran.sort_unstable();
                assert_eq!(ran, (0..200).collect::<Vec<_>>(), "{call:?} {adapter}: each once");
            }
        }
        upstream.stop().unwrap();
    }

    #[test]
    fn a_silent_source_is_named_and_delays_no_stop() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        for (timeout, says) in [
            (None, "; the call is given up after 30.0s"),
            (Some(HOUR), "; the call is given up after 3600.0s"),
            (Some(Duration::MAX), "; the call is never given up: set a source_timeout"),
        ] {
            let ((silent, dropped), time) = (Silent::new(Call::AtIndex, 0), Time::new());
            let calls = silent.calls.clone();
            let builder = builder(silent.on(runtime.handle()), &MemoryProgress::new()).clock(time.clock());
            let builder = timeout.into_iter().fold(builder, waterline::Builder::source_timeout);
            let consumer = builder.start(|_| Ok(())).unwrap();
            let handle = consumer.handle();
            eventually("the call", || calls.load(Ordering::SeqCst) == 1);
            let named = |status: &Status| matches!(&status.blocked, Blocked::Source { index: 0, error } if error.starts_with("it has not answered for "));
            let status = time.until(Duration::from_secs(1), &handle, "the silence", named);
            assert!(status.to_string().ends_with(says), "{status}");
            ends("the stop", move || consumer.stop()).unwrap();
            eventually("the drop of the call", || dropped.load(Ordering::SeqCst) == 1);
        }
    }

    #[test]
    fn a_timed_out_call_is_an_error_with_advice() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        struct Never;
        impl AsyncJobs for Never {
            type Job = Index;
            async fn head(&self) -> Result<Option<Index>, BoxError> {
                std::future::pending().await
            }
            async fn at_index(&self, _: Index) -> Result<Option<Index>, BoxError> {
                Ok(None)
            }
        }
        // The timeout of a call is real time; the pauses are on the manual clock.
        let time = Time::new();
        let consumer = builder(Never.on(runtime.handle()), &MemoryProgress::new())
            .clock(time.clock())
            .source_timeout(5 * MS)
            .start(|_| Ok(()))
            .unwrap();
        let status = until(&consumer.handle(), "two calls", |status| status.source.failed == 2);
        let says =
            "it has not answered within 5.0ms, so the call was dropped; if calls may take longer, raise source_timeout";
        assert_eq!(status.blocked, Blocked::Source { index: 0, error: says.to_owned() });
        assert_eq!(status.source.retry_in, Some(50 * MS));
        consumer.stop().unwrap();
    }
}
