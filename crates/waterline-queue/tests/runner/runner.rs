//! Runners on a store: the writes beside the ends of jobs, stores that fail, threads and log lines.
//! The suite has the rest, in `crates/waterline-queue-suite/src/runner.rs` and beside it.

use common::queues::{MINUTE, SECOND, awaiting, in_a_runtime, noon, queue_in, until};
use common::{HOUR, LONG, ends, eventually, own_threads};
use crossbeam_channel::{bounded, unbounded};
use parking_lot::Mutex;
#[cfg(feature = "tokio")]
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use waterline::testing::FaultyStore;
use waterline::{BoxError, Effects, Error, Store};
use waterline_queue::{
    Accept, AttemptEnd, Clock, DrainLimits, Finisher, JobState, NewJob, Outcome, Queue, QueueError, QueueOptions,
    Reached, Runner, RunnerBuilder, RunnerGate, Running, Unknown, Waits,
};

fn queue() -> (Queue, Clock) {
    queue_in(&Store::in_memory(), QueueOptions::default())
}

fn job(kind: &str) -> NewJob {
    NewJob::new(kind, &()).unwrap()
}

fn state(queue: &Queue, id: &str) -> Option<JobState> {
    queue.state(id).unwrap()
}

/// The timeout thread and the one that ends the runner each take the locks of both.
#[test]
fn runners_with_a_timeout_never_deadlock() {
    let (queue, _) = queue();
    ends("a runner", move || {
        for _ in 0..300 {
            queue.push(job("k")).unwrap();
            let drained = Runner::builder(&queue)
                .on("k", |_, ()| Ok(Outcome::Done))
                .attempt_timeout(HOUR)
                .drain(DrainLimits::default());
            assert_eq!(drained.unwrap().finished, 1);
        }
    });
}

#[test]
fn transactional_writes_commit_only_with_success() {
    let function: fn(RunnerBuilder, Write) -> RunnerBuilder = |builder, write| builder.on_transactional("k", write);
    for add in [function, |builder, write| awaiting(builder, "k", write)] {
        in_a_runtime(|| writes_commit_only_with_success(add));
    }
}

type Write = Box<dyn Fn(&Running, (), &mut Effects) -> Result<Outcome, BoxError> + Send + Sync>;

fn writes_commit_only_with_success(add: fn(RunnerBuilder, Write) -> RunnerBuilder) {
    let store = Store::in_memory();
    let queue = Queue::open(&store, "q", QueueOptions::default().clock(Clock::manual(noon()))).unwrap();
    let (table, count) = (store.table("rows").unwrap(), store.table("count").unwrap());
    count.put("text", "no number").unwrap();
    let ids = ["good", "error", "panic", "snooze", "removed", "refused", "counter", "neighbour"];
    queue.push_all(ids.map(|id| job("k").id(id))).unwrap();
    let foreign = Store::in_memory().table("rows").unwrap();
    let write = {
        let (queue, table, count) = (queue.clone(), table.clone(), count.clone());
        move |job: &Running, (), effects: &mut Effects| {
            effects.put(&table, job.id(), "x")?;
            queue.push_with(effects, NewJob::new("child", &())?.id(format!("{}/child", job.id())))?;
            match job.id() {
                "error" => return Err("no".into()),
                "panic" => panic!("out of order"),
                "snooze" => return Ok(Outcome::Snooze(noon() + HOUR)),
                "removed" => queue.remove("removed")?,
                "refused" => drop(effects.put(&foreign, "key", "x")),
                "counter" => effects.add(&count, "text", 1)?,
                _ => {}
            }
            Ok(Outcome::Done)
        }
    };
    let drained = add(Runner::builder(&queue), Box::new(write))
        .on("child", |_, ()| Ok(Outcome::Done))
        .max_processing(2)
        .drain(DrainLimits::default())
        .unwrap();
    let keys: Vec<_> = table.iter().map(|row| String::from_utf8(row.unwrap().0).unwrap()).collect();
    assert_eq!(keys, ["good", "neighbour"]);
    assert_eq!((drained.finished, drained.retried, drained.snoozed, drained.dead, drained.lost), (4, 3, 1, 1, 1));
    assert_eq!(state(&queue, "good/child"), Some(JobState::Finished));
    assert_eq!(state(&queue, "error/child"), None);
    assert_eq!(state(&queue, "counter"), Some(JobState::Dead), "no retry mends it");
}

/// Effects that a future hands back are made once, and only if they are those of its attempt.
#[cfg(feature = "tokio")]
#[test]
fn only_its_own_effects_end_a_future() {
    let store = Store::in_memory();
    let (queue, clock) = queue_in(&store, QueueOptions::default());
    let (other, _) = queue_in(&Store::in_memory(), QueueOptions::default());
    let (table, kept) = (store.table("rows").unwrap(), Arc::new(Mutex::new(None::<Effects>)));
    let builder = |queue: &Queue| {
        let (table, kept) = (table.clone(), kept.clone());
        Runner::builder(queue).max_processing(1).on_transactional_async("k", move |job, (), mut effects| {
            let (table, kept) = (table.clone(), kept.clone());
            async move {
                drop(effects.put(&table, format!("{}/{}", job.id(), job.attempt()), "x"));
                let given = kept.lock().take();
                match given {
                    Some(given) => Ok((Outcome::Done, given)),
                    None if job.attempt() == 1 => {
                        *kept.lock() = Some(effects);
                        Err("it keeps them".into())
                    }
                    None => Ok((Outcome::Done, effects)),
                }
            }
        })
    };
    let drain = |queue: &Queue| in_a_runtime(|| builder(queue).drain(DrainLimits::default())).unwrap();
    let is_refused = |queue: &Queue, id: &str| {
        assert!(queue.get(id).unwrap().unwrap().error.unwrap().contains("hand back those"), "{id}");
        assert_eq!(table.iter().count(), 0);
    };
    // The second attempt has those of the first one, and then another job has those of a first one.
    queue.push(job("k").id("a")).unwrap();
    assert_eq!(drain(&queue).retried, 1);
    clock.advance(SECOND);
    assert_eq!(drain(&queue).retried, 1);
    is_refused(&queue, "a");
    queue.push(job("k").id("b")).unwrap();
    queue.push(job("k").id("c")).unwrap();
    assert_eq!(drain(&queue).retried, 2);
    is_refused(&queue, "c");
    // A queue of another store.
    other.push(job("k").id("d")).unwrap();
    assert_eq!(drain(&other).retried, 1);
    queue.push(job("k").id("e")).unwrap();
    assert_eq!(drain(&queue).retried, 1);
    is_refused(&queue, "e");
    clock.advance(HOUR);
    assert_eq!(drain(&queue).finished, 4);
    let keys: Vec<_> = table.iter().map(|row| String::from_utf8(row.unwrap().0).unwrap()).collect();
    assert_eq!(keys, ["a/3", "b/2", "c/2", "e/2"]);
}

/// What drops a future drops its effects, and the next attempt makes them.
#[cfg(feature = "tokio")]
#[test]
fn effects_of_a_future_that_is_dropped_vanish() {
    type Cut = fn(Runner, &Queue, &Clock);
    let cuts: [(&str, Cut, JobState); 3] = [
        (
            "a timeout",
            |runner, queue, clock| {
                clock.advance(SECOND);
                until(queue, "a", JobState::Scheduled);
                runner.stop().unwrap();
            },
            JobState::Scheduled,
        ),
        ("a stop", |runner, _, _| drop(runner.stop_within(Duration::ZERO)), JobState::Ready),
        (
            "a removal",
            |runner, queue, _| {
                queue.remove("a").unwrap();
                queue.push(job("k").id("a").delay(SECOND)).unwrap();
                runner.stop().unwrap();
            },
            JobState::Scheduled,
        ),
    ];
    for (name, cut, after) in cuts {
        let store = Store::in_memory();
        let (queue, clock) = queue_in(&store, QueueOptions::default());
        let (table, (begun, begins)) = (store.table("rows").unwrap(), unbounded());
        let builder = |waits: bool| {
            let (table, begun) = (table.clone(), begun.clone());
            Runner::builder(&queue).attempt_timeout(SECOND).on_transactional_async("k", move |_, (), mut effects| {
                let (table, begun) = (table.clone(), begun.clone());
                async move {
                    effects.add(&table, "n", 1)?;
                    begun.send(())?;
                    if waits {
                        std::future::pending::<()>().await;
                    }
                    Ok((Outcome::Done, effects))
                }
            })
        };
        in_a_runtime(|| {
            let runner = builder(true).start().unwrap();
            queue.push(job("k").id("a")).unwrap();
            begins.recv_timeout(LONG).unwrap();
            cut(runner, &queue, &clock);
            until(&queue, "a", after);
            assert_eq!(table.counter("n").unwrap(), 0, "{name}");
            clock.advance(HOUR);
            eventually("the name to be free", || builder(false).drain(DrainLimits::default()).is_ok());
        });
        assert_eq!((state(&queue, "a"), table.counter("n").unwrap()), (Some(JobState::Finished), 1), "{name}");
    }
}

#[test]
fn invalid_settings_are_refused_and_the_queue_stays_free() {
    let (queue, _) = queue();
    let empty = || Runner::builder(&queue);
    let one = || empty().on("k", |_, ()| Ok(Outcome::Done));
    let gate = |name| RunnerGate::new(name, || true);
    let cases = [
        (empty(), "the runner has no handler, so it would run nothing: add one with `on`"),
        (one().on("k", |_, ()| Ok(Outcome::Done)), "the runner has two handlers for the kind \"k\": use one"),
        (empty().on("", |_, ()| Ok(Outcome::Done)), "the kind of a job has 0 bytes: use 1 to 255"),
        (
            one().max_processing(0),
            "max_processing is 0, so no job would ever run: use at least 1 (to hold a consumer or a queue back, use \
             `pause`)",
        ),
        (
            one().attempt_timeout(Duration::ZERO),
            "attempt_timeout is zero, so no attempt could end in time: leave it out for no timeout",
        ),
        (
            one().gate(gate("g").every(Duration::ZERO)),
            "the answers of the gate \"g\" hold for no time: use some milliseconds at least",
        ),
        (one().gate(gate("")), "the gate name is 0 bytes long: use 1 to 255 bytes"),
    ];
    for (builder, says) in cases {
        let error = builder.start().unwrap_err();
        assert!(matches!(error, QueueError::Config(_)), "{error:?}");
        assert_eq!(error.to_string(), says);
    }
    one().start().unwrap().stop().unwrap();
}

#[test]
fn runners_give_back_their_threads() {
    let (queue, _) = queue();
    ends("the runners", move || {
        for _ in 0..50 {
            let runner =
                Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Done)).attempt_timeout(HOUR).start().unwrap();
            queue.push(job("k")).unwrap();
            runner.stop().unwrap();
        }
        drop(queue);
    });
    // The threads of other tests in this process come and go.
    eventually("few threads to be left", || own_threads() < 100);
}

/// The cases of the suite cannot count writes.
#[test]
fn a_runner_at_a_closed_gate_writes_nothing() {
    let faulty = FaultyStore::new().unwrap();
    let (queue, clock) = queue_in(&faulty.store(), QueueOptions::default());
    queue.push(job("k")).unwrap();
    let (writes, (ask, asked)) = (faulty.writes(), unbounded());
    let gate = RunnerGate::new("closed", move || ask.send(()).is_err());
    let runner = Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Done)).gate(gate).start().unwrap();
    for _ in 0..3 {
        asked.recv_timeout(LONG).unwrap();
        clock.advance(SECOND * 2);
    }
    runner.stop().unwrap();
    assert_eq!((faulty.writes(), queue.counts().ready), (writes, 1));
}

// A store that fails.

#[test]
fn a_failing_store_loses_no_end_and_shows_in_the_status() {
    let faulty = FaultyStore::new().unwrap();
    let queue = Queue::open(&faulty.store(), "q", QueueOptions::default()).unwrap();
    let (begun, finishers) = unbounded::<Finisher>();
    let (release, is_released) = bounded::<()>(0);
    let (ended, ends_of_jobs) = unbounded();
    let runner = Runner::builder(&queue)
        .on_deferred("deferred", move |_, (), done| begun.send(done).unwrap())
        .on("direct", move |_, ()| Ok(is_released.recv().map_or(Outcome::Done, |()| Outcome::Done)))
        .teardown(move |job, end| ended.send((job.id().to_owned(), end.clone())).unwrap())
        .max_processing(4)
        .start()
        .unwrap();
    queue.push_all([job("deferred").id("a"), job("direct").id("b")]).unwrap();
    let done = finishers.recv_timeout(LONG).unwrap();
    until(&queue, "b", JobState::Running);
    faulty.fail(..);
    done.complete();
    drop(release);
    let fails = || matches!(queue.status().unwrap().waits, Waits::StoreFails { .. });
    let tries = faulty.writes();
    eventually("the status to say it", fails);
    eventually("more tries", || faulty.writes() >= tries + 4);
    for _ in 0..100 {
        assert!(fails(), "the status says it until the store works: {}", queue.status().unwrap());
        std::thread::yield_now();
    }
    assert_eq!((state(&queue, "a"), state(&queue, "b")), (Some(JobState::Running), Some(JobState::Running)));
    faulty.heal();
    let mut ended: Vec<_> = (0..2).map(|_| ends_of_jobs.recv_timeout(LONG).unwrap()).collect();
    ended.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(ended, [("a".to_owned(), AttemptEnd::Finished), ("b".to_owned(), AttemptEnd::Finished)]);
    eventually("the status to forget it", || !fails());
    runner.stop().unwrap();
}

/// Each read of a queue does the same, so this test makes none.
#[test]
fn a_full_runner_promotes_due_jobs_by_itself() {
    let (faulty, clock) = (FaultyStore::new().unwrap(), Clock::manual(noon()));
    let options = QueueOptions::default().clock(clock.clone());
    let queue = Queue::open(&faulty.store(), "q", options).unwrap();
    let (begun, finishers) = unbounded::<Finisher>();
    let runner = Runner::builder(&queue).on_deferred("k", move |_, (), done| begun.send(done).unwrap());
    let runner = runner.max_processing(1).start().unwrap();
    queue.push_all([job("k").id("first"), job("k").id("later").delay(SECOND)]).unwrap();
    let first = finishers.recv_timeout(LONG).unwrap();
    let writes = faulty.writes();
    clock.advance(SECOND);
    eventually("the job that is due to be put into its place", || faulty.writes() > writes);
    first.complete();
    finishers.recv_timeout(LONG).unwrap().complete();
    runner.stop().unwrap();
}

#[test]
fn a_drain_retries_a_failing_store_until_its_time_limit() {
    let (faulty, clock) = (FaultyStore::new().unwrap(), Clock::manual(noon()));
    let options = QueueOptions::default().clock(clock.clone());
    let queue = Queue::open(&faulty.store(), "q", options).unwrap();
    queue.push(job("k").id("a")).unwrap();
    faulty.fail(..);
    let builder = Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Done));
    let drain = std::thread::spawn(move || builder.drain(DrainLimits::default().time(MINUTE)));
    let fails = || matches!(queue.status().unwrap().waits, Waits::StoreFails { .. });
    eventually("the claim to fail", fails);
    clock.advance(MINUTE);
    let summary = ends("the drain", || drain.join().unwrap()).unwrap();
    assert_eq!((summary.finished, summary.reached, state(&queue, "a")), (0, Reached::Time, Some(JobState::Ready)));
}

// Log lines.

/// True while the subscriber panics at each line about the queue "hostile".
static HOSTILE: AtomicBool = AtomicBool::new(true);

/// Keeps the log lines of this process. Each test has a queue of its own name.
struct Lines(Mutex<Vec<std::collections::HashMap<&'static str, String>>>);

#[derive(Default)]
struct Fields(std::collections::HashMap<&'static str, String>);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl tracing::Subscriber for &'static Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("waterline")
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields::default();
        fields.0.insert("level", event.metadata().level().to_string());
        event.record(&mut fields);
        let is_hostile = fields.0.get("queue").is_some_and(|queue| queue == "hostile");
        let panics = is_hostile && HOSTILE.load(Ordering::Relaxed);
        self.0.lock().push(fields.0);
        assert!(!panics, "in the subscriber");
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

fn lines() -> &'static Lines {
    static LINES: Lines = Lines(Mutex::new(Vec::new()));
    static BEGUN: std::sync::Once = std::sync::Once::new();
    BEGUN.call_once(|| tracing::subscriber::set_global_default(&LINES).expect("it is the first"));
    &LINES
}

#[test]
fn a_runner_whose_thread_panics_stops_with_an_error() {
    lines();
    let clock = Clock::manual(noon());
    // The clock moves on by months while a thread of the second runner gets no core.
    let options = QueueOptions::default().clock(clock.clone()).dead_for(HOUR * 24 * 3650);
    let queue = Queue::open(&Store::in_memory(), "hostile", options).unwrap();
    let builder = Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Dead("never".to_owned())));
    let runner = builder.max_processing(2).start().unwrap();
    queue.push_all([job("k").id("a"), job("k"), job("k"), job("k")]).unwrap();
    until(&queue, "a", JobState::Dead);
    let stopped = ends("the runner", move || runner.stop());
    assert!(matches!(stopped, Err(QueueError::Store(Error::Thread))), "{stopped:?}");
    // The remaining jobs die in this runner, and each is logged. The thread that panicked had
    // claimed one of them, which is taken back when its lease expires.
    HOSTILE.store(false, Ordering::Relaxed);
    let others = Runner::builder(&queue).on("other", |_, ()| Ok(Outcome::Done)).unknown(Unknown::Dead).start();
    let others = others.expect("the name is free");
    eventually("all to die", || {
        clock.advance(MINUTE);
        queue.counts().dead == 4
    });
    others.stop().unwrap();
}

#[test]
fn log_lines_name_the_queue_the_job_and_the_attempt() {
    let kept = lines();
    let clock = Clock::manual(noon());
    let queue = Queue::open(&Store::in_memory(), "told", QueueOptions::default().clock(clock.clone())).unwrap();
    queue.push(job("fails").id("silent")).unwrap();
    let lease = queue.accept(Accept::new()).unwrap().unwrap();
    clock.advance(MINUTE);
    assert!(queue.accept(Accept::new()).unwrap().is_none());
    drop(lease);
    queue.remove("silent").unwrap();
    let removes = queue.clone();
    queue.push_all(["fails", "dies", "lost", "panics", "hook"].map(|id| job(id).id(id))).unwrap();
    Runner::builder(&queue)
        .on("fails", |_, ()| Err("no".into()))
        .on("dies", |_, ()| Ok(Outcome::Dead("never".to_owned())))
        .on("lost", move |job, ()| Ok(removes.remove(job.id()).map(|()| Outcome::Done)?))
        .on_deferred("panics", |_, (), _| panic!("out of order"))
        .on("hook", |_, ()| Ok(Outcome::Done))
        .teardown(|job, _| assert_ne!(job.id(), "hook"))
        .drain(DrainLimits::default())
        .unwrap();
    let lines: Vec<_> =
        kept.0.lock().iter().filter(|line| line.get("queue").is_some_and(|q| q == "told")).cloned().collect();
    let expected = [
        ("silent", "WARN", "taken back"),
        ("silent", "WARN", "removed or taken over"),
        ("fails", "DEBUG", "is tried again"),
        ("dies", "WARN", "is dead: mend its cause"),
        ("lost", "WARN", "removed or taken over"),
        ("panics", "ERROR", "a handler panicked"),
        ("panics", "DEBUG", "is tried again"),
        ("hook", "ERROR", "a teardown hook panicked"),
    ];
    for (id, level, text) in expected {
        let says = |line: &&std::collections::HashMap<_, String>| line["message"].contains(text) && line["id"] == id;
        let line = lines.iter().find(says).unwrap_or_else(|| panic!("no line of {id} says {text:?}: {lines:#?}"));
        assert_eq!((line["level"].as_str(), line.get("attempt").map(String::as_str)), (level, Some("1")), "{line:?}");
    }
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
}
