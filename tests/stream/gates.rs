//! Gates: nothing starts above one, no move of an upstream is missed, and the status names the
//! reason for the wait.

use common::*;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use waterline::testing::FaultyStore;
use waterline::{
    Blocked, BoxError, ConfigError, Consumer, Error, Gate, Index, Jobs, MemoryProgress, Retry, State, Store, Watermark,
};

/// A scripted source behind a gate that the test moves.
#[derive(Clone)]
struct Walled {
    script: Script,
    gate: Arc<Mutex<Gate>>,
    panics: Arc<AtomicBool>,
}

impl Walled {
    fn up_to(head: Index, gate: Gate) -> Self {
        Self { script: Script::up_to(head), gate: Arc::new(Mutex::new(gate)), panics: Arc::default() }
    }
}

impl Jobs for Walled {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        self.script.head()
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        self.script.at_index(index)
    }

    fn gate(&self) -> Gate {
        assert!(!self.panics.load(Ordering::SeqCst), "the gate panics as scripted");
        *self.gate.lock()
    }
}

#[test]
fn promise_04_a_gate_holds_back_what_is_above_it() {
    let jobs = Walled::up_to(9, Gate::Closed);
    let (worker, stage) = manual_worker();
    let consumer = builder(Arc::new(jobs.clone()), &MemoryProgress::new())
        .poll_every(HOUR)
        .max_processing(4)
        .start_worker(worker)
        .unwrap();
    let handle = consumer.handle();
    let status = until(&handle, "the gate", |status| status.blocked == Blocked::Upstream { index: 0 });
    assert_eq!((status.head, status.lag(), status.ended_upstream), (Some(9), 10, None));
    *jobs.gate.lock() = Gate::UpTo(1);
    handle.check();
    let running = stage.take(2);
    // A gate that goes back takes no started job back.
    *jobs.gate.lock() = Gate::Closed;
    handle.check();
    until(&handle, "a look", |_| jobs.script.calls().heads.load(Ordering::SeqCst) >= 3);
    running.into_values().for_each(|job| job.succeed());
    assert!(handle.wait_for(1, LONG));
    let status = until(&handle, "the gate", |status| status.blocked == Blocked::Upstream { index: 2 });
    assert!(status.blocked.to_string().starts_with("job 2 is held back"));
    jobs.script.set_head(Some(1));
    handle.check();
    until(&handle, "the head", |status| status.blocked == Blocked::CaughtUp);
    jobs.script.set_head(Some(2));
    *jobs.gate.lock() = Gate::Open;
    handle.check();
    stage.next().succeed();
    assert!(handle.wait_for(2, LONG));
    consumer.stop().unwrap();
}

#[test]
fn promise_04_a_panicking_gate_is_a_failing_source() {
    let jobs = Walled::up_to(3, Gate::Open);
    jobs.panics.store(true, Ordering::SeqCst);
    let consumer = builder(jobs.clone(), &MemoryProgress::new()).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    // While the panic is being printed, the status may still say that the source has not answered.
    let status =
        until(&handle, "the panic", |status| status.blocked.to_string().contains("the gate panics as scripted"));
    assert!(matches!(status.blocked, Blocked::Source { .. }));
    jobs.panics.store(false, Ordering::SeqCst);
    assert!(handle.wait_for(3, LONG));
    consumer.stop().unwrap();
}

#[test]
fn promise_04_no_move_of_the_upstream_is_missed() {
    const JOBS: u64 = 3_000;
    for round in 0..6 {
        // These sources never notify and are polled once an hour: only the watermark of the first
        // consumer wakes the second.
        let (first, second) = (MemoryProgress::new(), MemoryProgress::new());
        let jobs = numbers(JOBS);
        let upstream = builder(jobs, &first)
            .max_processing(1 + round % 3)
            .max_search_ahead(if round % 2 == 0 { 1 } else { 100 })
            .start(|_| Ok(()))
            .unwrap();
        let gate = upstream.handle();
        let downstream = builder(Script::up_to(JOBS - 1).gated_by(&gate), &second)
            .poll_every(HOUR)
            .max_processing(2)
            .stop_at(JOBS - 1)
            .start(move |job| {
                let reached = gate.last_processed_index();
                if reached >= Some(job.index) { Ok(()) } else { Err(format!("the gate is at {reached:?}").into()) }
            })
            .unwrap();
        let handle = downstream.handle();
        assert!(handle.wait_for(JOBS - 1, LONG), "round {round}: {:#?}", handle.status());
        downstream.join().unwrap();
        upstream.stop().unwrap();
    }
}

#[test]
fn stacked_gates_let_through_what_each_allows() {
    let jobs = numbers(10);
    let (one, other) = (Watermark::new(), Watermark::new());
    let gated = Arc::new(jobs.clone().gated_by(&one).gated_by(&other));
    assert_eq!(gated.gate(), Gate::Closed);
    let publish = |watermark: &Watermark, last| {
        builder(jobs.clone(), &MemoryProgress::new()).watermark(watermark.clone()).stop_at(last).start(|_| Ok(()))
    };
    publish(&one, 3).unwrap().join().unwrap();
    assert_eq!(gated.gate(), Gate::Closed);
    publish(&other, 6).unwrap().join().unwrap();
    assert_eq!((gated.gate(), gated.head().unwrap()), (Gate::UpTo(3), Some(9)));
    assert!(one.has_ended() && other.last_processed() == Some(6));
    let error = publish(&one, 8).unwrap_err();
    assert!(matches!(&error, Error::Config(ConfigError::WatermarkInUse { name }) if name == "unnamed"), "{error}");
}

#[test]
fn an_ended_upstream_is_named_or_refused() {
    let store = Store::in_memory();
    let upstream = Consumer::builder(numbers(10), store.progress("fetch")).stop_at(4).start(|_| Ok(())).unwrap();
    let gate = upstream.handle();
    upstream.join().unwrap();
    let progress = || store.progress("index");
    let consumer = Consumer::builder(numbers(10).gated_by(&gate), progress()).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    let status = until(&handle, "the gate", |status| status.blocked == Blocked::Upstream { index: 5 });
    assert_eq!(status.ended_upstream.as_deref(), Some("fetch"));
    consumer.stop().unwrap();

    let error = Consumer::builder(numbers(10).gated_by(&gate), progress()).start(|_| Ok(())).unwrap_err();
    let expected = ConfigError::UpstreamEnded {
        consumer: "index".into(),
        upstream: "fetch".into(),
        next: 5,
        last_processed: Some(4),
    };
    assert!(matches!(&error, Error::Config(config) if *config == expected), "{error}");
    // A consumer that has reached its end needs no gate.
    Consumer::builder(numbers(10).gated_by(&gate), progress()).stop_at(4).start(|_| Ok(())).unwrap().join().unwrap();
}

#[test]
fn a_consumer_names_an_upstream_that_ended() {
    let (worker, stage) = manual_worker();
    let upstream = builder(numbers(3), &MemoryProgress::new()).max_processing(1).start_worker(worker).unwrap();
    let gated = numbers(3).gated_by(upstream.handle());
    let consumer = builder(gated, &MemoryProgress::new()).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    stage.next().succeed();
    assert!(handle.wait_for(0, LONG));
    upstream.handle().request_stop();
    stage.next().succeed();
    assert!(handle.wait_for(1, LONG));
    upstream.join().unwrap();
    let status = until(&handle, "the end", |status| status.ended_upstream.is_some());
    assert_eq!((status.blocked, status.state), (Blocked::Upstream { index: 2 }, State::Running));
    consumer.stop().unwrap();
}

#[test]
fn a_cycle_of_gates_is_refused_when_it_closes() {
    let store = Store::in_memory();
    let (a, b, c) = (Watermark::new(), Watermark::new(), Watermark::new());
    let start = |name: &str, own: &Watermark, upstream: &Watermark| {
        Consumer::builder(Arc::new(numbers(5).gated_by(upstream)), store.progress(name))
            .watermark(own.clone())
            .start(|_| Ok(()))
    };
    let running = [start("a", &a, &b).unwrap(), start("b", &b, &c).unwrap()];
    let error = start("c", &c, &a).unwrap_err();
    let expected = ConfigError::GateCycle { consumer: "c".into(), upstream: "a".into() };
    assert!(matches!(&error, Error::Config(config) if *config == expected), "{error}");
    // The refused start left its watermark and its name free.
    let last = Consumer::builder(numbers(5), store.progress("c")).watermark(c).start(|_| Ok(())).unwrap();
    for consumer in &running {
        assert!(consumer.handle().wait_for(4, LONG));
    }
    running.into_iter().chain([last]).for_each(|consumer| consumer.stop().unwrap());

    let own = Watermark::new();
    let error = start("own", &own, &own).unwrap_err();
    assert!(matches!(error, Error::Config(ConfigError::GateCycle { .. })), "{error}");
}

#[test]
fn one_of_two_mutually_gated_starts_is_refused() {
    for round in 0..200 {
        let (one, other) = (Watermark::new(), Watermark::new());
        let together = Arc::new(Barrier::new(2));
        let starting = [(one.clone(), other.clone()), (other, one)].map(|(own, upstream)| {
            let together = together.clone();
            std::thread::spawn(move || {
                let builder = builder(numbers(5).gated_by(upstream), &MemoryProgress::new()).watermark(own);
                together.wait();
                builder.start(|_| Ok(()))
            })
        });
        let started = starting.map(|starting| starting.join().unwrap());
        let refused =
            |started: &Result<Consumer, Error>| matches!(started, Err(Error::Config(ConfigError::GateCycle { .. })));
        assert!(started.iter().any(refused), "round {round}: {started:?}");
        assert!(started.iter().all(|started| started.is_ok() || refused(started)), "round {round}: {started:?}");
        started.into_iter().flatten().for_each(|consumer| consumer.stop().unwrap());
    }
}

#[test]
fn thousands_of_stacked_gates_need_no_deep_stack() {
    const GATES: usize = 50_000;
    let gated = |upstream: &dyn Fn() -> Watermark| {
        (1..GATES).fold(numbers(10).gated_by(upstream()), |jobs, _| jobs.gated_by(upstream()))
    };
    let upstream = builder(numbers(10), &MemoryProgress::new()).start(|_| Ok(())).unwrap();
    let handle = upstream.handle();
    let one = AsRef::<Watermark>::as_ref(&handle).clone();
    // One upstream for all gates.
    let consumer = builder(gated(&|| one.clone()), &MemoryProgress::new()).stop_at(9).start(|_| Ok(())).unwrap();
    consumer.join().unwrap();
    // An upstream for each gate, of which only one ever moves.
    let others = gated(&Watermark::new).gated_by(&one);
    let consumer = builder(others, &MemoryProgress::new()).start(|_| Ok(())).unwrap();
    until(&consumer.handle(), "the gate", |status| status.blocked == Blocked::Upstream { index: 0 });
    consumer.stop().unwrap();
    upstream.stop().unwrap();
}

#[test]
fn an_outer_gate_leaves_the_inner_source_as_it_is() {
    let (inner, outer) = (Watermark::new(), Watermark::new());
    let jobs = Arc::new(numbers(10).gated_by(&inner));
    let both = jobs.clone().gated_by(&outer);
    let publish = |watermark: &Watermark, last| {
        let builder = builder(numbers(10), &MemoryProgress::new()).watermark(watermark.clone());
        builder.stop_at(last).start(|_| Ok(())).unwrap().join().unwrap();
    };
    let ring = |jobs| builder(jobs, &MemoryProgress::new()).poll_every(HOUR).start(|_| Ok(())).unwrap();
    let first = ring(jobs.clone());
    publish(&inner, 5);
    assert_eq!((jobs.gate(), both.gate()), (Gate::UpTo(5), Gate::Closed));
    assert!(first.handle().wait_for(5, LONG), "the inner gate alone holds it back");
    publish(&outer, 3);
    assert_eq!((jobs.gate(), both.gate()), (Gate::UpTo(5), Gate::UpTo(3)));
    first.stop().unwrap();
}

#[test]
fn an_upstream_that_lost_saves_repeats_no_job() {
    // The crash loses saves of the upstream alone.
    let (faulty, safe) = (FaultyStore::new().unwrap(), MemoryProgress::new());
    let life = |store: &Store, stop_at: Index| {
        let upstream = Consumer::builder(numbers(20), store.progress("up")).stop_at(stop_at).start(|_| Ok(())).unwrap();
        let gated = numbers(20).gated_by(upstream.handle());
        let ran = Arc::new(Mutex::new(Vec::new()));
        let runs = ran.clone();
        let consumer = builder(gated, &safe)
            .stop_at(stop_at)
            .start(move |job| {
                runs.lock().push(job.index);
                Ok(())
            })
            .unwrap();
        consumer.join().unwrap();
        upstream.join().unwrap();
        let mut ran = std::mem::take(&mut *ran.lock());
        ran.sort_unstable();
        ran
    };
    assert_eq!(life(&faulty.store(), 3), [0, 1, 2, 3]);
    faulty.freeze_at(0);
    assert_eq!(life(&faulty.store(), 9), [4, 5, 6, 7, 8, 9]);
    let after = faulty.after_crash().unwrap();
    assert_eq!(life(&after.store(), 12), [10, 11, 12]);
}

#[test]
fn promise_04_an_idle_upstream_opens_to_its_old_watermark() {
    let (store, jobs) = (Store::in_memory(), numbers(10));
    Consumer::builder(jobs.clone(), store.progress("fetch")).stop_at(9).start(|_| Ok(())).unwrap().join().unwrap();
    let fetched = Watermark::new();
    // Neither polls: the new watermark of the first consumer wakes the second.
    let index = Consumer::builder(jobs.clone().gated_by(&fetched), store.progress("index")).start(|_| Ok(())).unwrap();
    let handle = index.handle();
    until(&handle, "the gate", |status| status.blocked == Blocked::Upstream { index: 0 });
    let fetch = Consumer::builder(jobs, store.progress("fetch")).watermark(fetched).start(|_| Ok(())).unwrap();
    assert!(handle.wait_for(9, LONG), "{:#?}", handle.status());
    fetch.stop().unwrap();
    index.stop().unwrap();
}

#[test]
fn join_names_an_upstream_that_ended_too_early() {
    let (worker, stage) = manual_worker();
    let store = Store::in_memory();
    let upstream =
        Consumer::builder(numbers(10), store.progress("fetch")).max_processing(1).start_worker(worker).unwrap();
    let gate = upstream.handle();
    let start = |name| {
        let builder = Consumer::builder(numbers(10).gated_by(&gate), store.progress(name));
        builder.stop_at(7).start(|_| Ok(())).unwrap()
    };
    let (joined, stopped) = (start("joined"), start("stopped"));
    let handles = [joined.handle(), stopped.handle()];
    let (tell, told) = crossbeam_channel::unbounded();
    std::thread::spawn(move || tell.send(joined.join()));
    (0..3).for_each(|_| stage.next().succeed());
    let last = stage.next();
    gate.request_stop();
    last.succeed();
    upstream.join().unwrap();
    let error = told.recv_timeout(LONG).expect("an end").unwrap_err();
    assert!(
        matches!(&error, Error::UpstreamEnded { upstream, last_processed: Some(3), index: 7 } if upstream == "fetch"),
        "{error}"
    );
    let status = handles[0].status();
    assert_eq!((status.state, status.last_processed), (State::Halted, Some(3)));
    assert_eq!(status.blocked, Blocked::Halted { index: 4, error: error.to_string() });
    let status = until(&handles[1], "the gate", |status| status.blocked == Blocked::Upstream { index: 4 });
    assert_eq!((status.state, status.ended_upstream.as_deref()), (State::Running, Some("fetch")));
    stopped.stop().unwrap();
    let builder = Consumer::builder(numbers(10).gated_by(&gate), store.progress("stopped"));
    builder.stop_at(3).start(|_| Ok(())).unwrap().join().unwrap();
}

#[test]
fn an_index_above_an_ended_upstream_is_not_awaited() {
    let (worker, stage) = manual_worker();
    let upstream = builder(numbers(10), &MemoryProgress::new()).max_processing(1).start_worker(worker).unwrap();
    // An earlier life did all jobs but job 1, while the gate was wider.
    let store = Store::in_memory();
    let fails = |job: waterline::Job<u64>| if job.index == 1 { Err("not yet".into()) } else { Ok(()) };
    let earlier =
        Consumer::builder(numbers(6), store.progress("index")).retry(Retry::fixed(HOUR)).start(fails).unwrap();
    until(&earlier.handle(), "all but one", |status| {
        (status.last_processed, status.unsaved) == (Some(0), 0) && status.done_ahead == 4
    });
    earlier.stop().unwrap();
    let script = Script::up_to(9);
    let consumer = Consumer::builder(script.clone().gated_by(upstream.handle()), store.progress("index"))
        .poll_every(HOUR)
        .start(|_| Ok(()))
        .unwrap();
    let handle = consumer.handle();
    let (tell, told) = crossbeam_channel::unbounded();
    for index in [5, 6, 9] {
        let (handle, tell) = (handle.clone(), tell.clone());
        std::thread::spawn(move || tell.send((index, handle.wait_for(index, HOUR))));
    }
    stage.next().succeed();
    let last = stage.next();
    upstream.handle().request_stop();
    last.succeed();
    upstream.join().unwrap();
    let mut answers = [(); 3].map(|()| told.recv_timeout(LONG).expect("nobody waits for what cannot come"));
    answers.sort_unstable();
    assert_eq!(answers, [(5, true), (6, false), (9, false)], "what is done above the gate counts");
    assert!(!handle.wait_for(6, HOUR));
    consumer.stop().unwrap();
}
