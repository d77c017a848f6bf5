//! The lines that a consumer logs with `tracing`: their levels, fields and number.

mod stuck;

use common::*;
use crossbeam_channel::bounded;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};
use waterline::testing::FaultyStore;
use waterline::{
    Blocked, BoxError, Builder, Checkpoint, Consumer, Error, Event, Handle, Index, Jobs, MemoryProgress, Progress,
    Retry, SaveError, Saved, Sparse, Store, StoreProgress,
};

/// The time until a stall, and the step in which time passes.
const SOON: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
struct Line {
    level: Level,
    fields: HashMap<&'static str, String>,
}

impl Line {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    fn message(&self) -> &str {
        self.field("message")
    }

    fn count(&self) -> u64 {
        self.field("count").parse().expect("each line says how many it stands for")
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

/// The closures to call when a line is written, by the name of the consumer or the log.
type Hooks = Mutex<HashMap<&'static str, Box<dyn Fn() + Send>>>;

/// Keeps all lines of the process. Tests find theirs by the names of their consumers.
#[derive(Default)]
struct Everything {
    lines: Mutex<Vec<Line>>,
    hooks: Hooks,
}

struct Listener(Arc<Everything>);

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("waterline")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line { level: *event.metadata().level(), fields: HashMap::new() };
        event.record(&mut line);
        let name = [line.field("consumer"), line.field("log")].concat();
        let hook = self.0.hooks.lock().remove(&*name);
        self.0.lines.lock().push(line);
        if let Some(hook) = hook {
            hook();
        }
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn everything() -> &'static Everything {
    static EVERYTHING: OnceLock<Arc<Everything>> = OnceLock::new();
    EVERYTHING.get_or_init(|| {
        let everything = Arc::<Everything>::default();
        tracing::subscriber::set_global_default(Listener(everything.clone())).expect("it is the first");
        everything
    })
}

fn lines_of(consumer: &str) -> Vec<Line> {
    everything().lines.lock().iter().filter(|line| line.field("consumer") == consumer).cloned().collect()
}

#[track_caller]
fn line(consumer: &str, level: Level, says: &str) -> Line {
    let found = || lines_of(consumer).into_iter().find(|line| line.message().contains(says));
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(line) = found() {
            assert_eq!(line.level, level, "{line:?}");
            return line;
        }
        assert!(Instant::now() < deadline, "no line says {says:?}: {:#?}", lines_of(consumer));
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

#[track_caller]
fn assert_says(line: &Line, index: &str, attempt: &str, error: &str) {
    assert_eq!((line.field("index"), line.field("attempt")), (index, attempt), "{line:?}");
    assert!(line.field("error").contains(error), "{line:?}");
}

const STALL: &str = "the watermark does not move, though there is work";

/// Lets time pass until a line of a stall says this. Another stall may come first, since a thread
/// takes a moment to get stuck.
#[track_caller]
fn stall(time: &Time, consumer: &str, index: &str, error: &str) -> Line {
    let is_it = |line: &Line| {
        line.message().contains(STALL) && line.field("index") == index && line.field("error").contains(error)
    };
    time.steps(SOON, "the stall to be told of", || lines_of(consumer).iter().any(is_it));
    let line = lines_of(consumer).into_iter().find(is_it).expect("it is there");
    assert_eq!(line.level, Level::WARN, "{line:?}");
    line
}

/// Returns a builder with this name, and installs the subscriber first.
fn named<J: Jobs>(name: &str, jobs: J, time: &Time) -> Builder<J, StoreProgress> {
    everything();
    Consumer::builder(jobs, Store::in_memory().progress(name)).clock(time.clock())
}

/// Job 0 and a gap behind it. The first read calls the closure.
struct Lonely(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Jobs for Lonely {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(20))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(Some(index))
    }

    fn read_sparse(&self, run: RangeInclusive<Index>, _: usize, into: &mut Sparse<Index>) -> Result<(), BoxError> {
        self.0.lock().take().into_iter().for_each(|call| call());
        if *run.start() == 0 {
            into.job(0, 0);
        }
        into.none_through(20);
        Ok(())
    }
}

#[test]
fn a_gap_recorded_before_a_death_logs_nothing() {
    everything();
    let mut disk = Arc::new(FaultyStore::new().unwrap());
    for life in 0..3 {
        let freeze = {
            let disk = disk.clone();
            // The second life has recorded what it reads, and dies before any other save.
            move || {
                if life == 1 {
                    disk.freeze_at(0);
                }
            }
        };
        let source = Lonely(Mutex::new(Some(Box::new(freeze))));
        let builder = Consumer::builder(source, disk.store().progress("lonely")).max_crashes(3).stop_at(20);
        let (dying, dies) = (disk.clone(), life == 0);
        let consumer = builder.start(move |_| {
            if dies {
                dying.freeze_at(0);
            }
            Ok(())
        });
        consumer.unwrap().join().unwrap();
        disk = Arc::new(disk.after_crash().unwrap());
    }
    line("lonely", Level::WARN, "a job runs alone");
    let lines = lines_of("lonely");
    assert!(!lines.iter().any(|line| line.message().contains("calls it a gap")), "{lines:#?}");
}

/// Six jobs, of which job 2 is deleted.
struct Deleted(Arc<AtomicU64>);

impl Jobs for Deleted {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(5))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(Some(index))
    }

    fn read_sparse(&self, run: RangeInclusive<Index>, most: usize, into: &mut Sparse<Index>) -> Result<(), BoxError> {
        for index in run.take(most) {
            if index == 2 && self.0.load(Ordering::SeqCst) > 0 {
                into.none_through(2);
            } else {
                into.job(index, index);
            }
        }
        Ok(())
    }
}

#[test]
fn a_deleted_failed_job_is_passed_with_one_line() {
    let deleted = Arc::<AtomicU64>::default();
    let delete = deleted.clone();
    let consumer = named("deleted", Deleted(deleted), &Time::new())
        .retry(Retry::fixed(Duration::ZERO))
        .stop_at(5)
        .start(move |job| {
            if job.index == 2 {
                delete.store(u64::from(job.attempt == 3), Ordering::SeqCst);
                return Err("poison".into());
            }
            Ok(())
        })
        .unwrap();
    consumer.join().unwrap();
    assert_says(&line("deleted", Level::WARN, "the source calls it a gap"), "2", "3", "");
    assert_eq!(lines_of("deleted").iter().filter(|line| line.level == Level::WARN).count(), 1);
}

#[test]
fn a_wait_for_a_name_is_logged_at_both_ends() {
    everything();
    let store = Store::in_memory();
    let holder = Consumer::builder(numbers(3), store.progress("awaited")).start(|_| Ok(())).unwrap();
    assert!(holder.handle().wait_for(2, LONG));
    let waiting = Consumer::builder(numbers(3), store.progress("awaited")).standby().start(|_| Ok(())).unwrap();
    let wait = line("awaited", Level::INFO, "another consumer has the name");
    assert_says(&wait, "", "", "");
    assert!(
        wait.field("reason").contains("is in use by another consumer") && wait.field("error").is_empty(),
        "{wait:?}"
    );
    holder.stop().unwrap();
    let takeover = line("awaited", Level::INFO, "that it waited for");
    assert_says(&takeover, "3", "", "");
    assert!(takeover.field("seconds").parse::<f64>().is_ok(), "{takeover:?}");
    waiting.stop().unwrap();
}

#[test]
fn endless_retries_log_once_a_second_with_counts() {
    let time = Time::new();
    let consumer = named("endless", Script::up_to(5), &time)
        .retry(Retry::fixed(Duration::ZERO))
        .start(|job| if job.index == 3 { Err("refused".into()) } else { Ok(()) })
        .unwrap();
    let handle = consumer.handle();
    assert_says(&line("endless", Level::DEBUG, "has attempts left"), "3", "1", "refused");
    assert_says(&line("endless", Level::DEBUG, "tried again"), "3", "2", "");
    until(&handle, "many attempts", |status| status.failed > 100);
    // The stall is named even if an attempt runs at that moment.
    stall(&time, "endless", "3", "refused");
    consumer.stop().unwrap();
    let lines = lines_of("endless");
    let seconds = time.passed().as_secs() as usize;
    // The last attempt may have failed after the stop.
    let put_back = lines.iter().filter(|line| line.message().contains("the job is put back")).count() as u64;
    assert!(put_back <= 1, "{lines:#?}");
    let failed = handle.status().failed - put_back;
    for (says, happened) in [("has attempts left", failed), ("tried again", handle.status().retries)] {
        let lines: Vec<_> = lines.iter().filter(|line| line.message().contains(says)).collect();
        // One line at once, one a second, and a last one at the end.
        assert!(lines.len() <= seconds + 2, "{} lines in {seconds} s", lines.len());
        assert_eq!(lines.iter().map(|line| line.count()).sum::<u64>(), happened);
    }
    assert!(lines.last().unwrap().message().contains("has ended"), "{lines:#?}");
}

#[test]
fn a_hanging_job_is_logged_while_all_threads_hang() {
    let script = Script::up_to(100);
    let gate = script.gated();
    let (release, hangs) = bounded::<()>(0);
    let time = Time::new();
    let consumer = named("hangs", script.clone(), &time)
        .max_processing(1)
        .start(move |_| {
            let _ = hangs.recv();
            Ok(())
        })
        .unwrap();
    // Dropped before the consumer, which waits for the job, even if the test fails.
    let (gate, release) = (gate, release);
    // The reader hands over the first job, and hangs in the second read. Only the thread that
    // watches for stalls is left.
    let handle = consumer.handle();
    gate.entered.recv_timeout(LONG).unwrap();
    while handle.status().processing == 0 {
        gate.pass();
        let _ = gate.entered.recv_timeout(Duration::from_millis(1));
    }
    assert_eq!(stall(&time, "hangs", "0", "job 0 has been running").field("attempt"), "1");
    script.ungate();
    drop((gate, release));
    consumer.stop().unwrap();
}

#[test]
fn a_halt_logs_its_attempt_and_the_end() {
    let consumer = named("halts", Script::up_to(5), &Time::new())
        .max_processing(1)
        .retry(Retry::fixed(Duration::ZERO).max_attempts(2))
        .start(|job| if job.index == 3 { Err("refused".into()) } else { Ok(()) })
        .unwrap();
    consumer.join().unwrap_err();
    let messages: Vec<String> = lines_of("halts").iter().map(|line| line.message().to_owned()).collect();
    assert_says(&line("halts", Level::DEBUG, "has attempts left"), "3", "1", "refused");
    assert_says(&line("halts", Level::WARN, "has no attempt left"), "3", "2", "refused");
    assert_says(&line("halts", Level::WARN, "halts"), "3", "2", "job 3 failed in attempt 2: refused");
    assert_says(&line("halts", Level::DEBUG, "has ended"), "2", "", "job 3 failed in attempt 2: refused");
    assert_eq!(messages.len(), 5, "and the retry, and all were written when `join` returned: {messages:#?}");
}

#[test]
fn a_failing_source_is_logged_for_head_and_jobs() {
    let script = Script::up_to(5);
    script.fail_head(Fault::Error);
    let time = Time::new();
    let consumer = named("source", script, &time).start(|_| Ok(())).unwrap();
    let failed = line("source", Level::WARN, "the source failed");
    assert_says(&failed, "0", "", "head fails as scripted");
    assert_eq!(["retry_in", "failed_calls", "calls"].map(|field| failed.field(field)), ["0.0", "1", "1"]);
    let stalled = stall(&time, "source", "0", "head fails as scripted");
    assert_eq!(stalled.field("attempt"), "");
    assert!(stalled.field("error").contains("(it is asked again "), "{stalled:?}");
    let waits = |line: &Line| line.message() == failed.message() && !["0.0", ""].contains(&line.field("retry_in"));
    let again = lines_of("source").into_iter().find(waits).expect("the calls behind the first one waited");
    assert_eq!(again.field("failed_calls"), again.field("calls"), "none was answered: {again:?}");
    consumer.stop().unwrap();
    let script = Script::up_to(5);
    script.fail_at(3, Fault::Error);
    let consumer = named("jobs", script, &time).start(|_| Ok(())).unwrap();
    assert_says(&line("jobs", Level::WARN, "the source failed"), "3", "", "at_index fails as scripted");
    consumer.stop().unwrap();
}

#[test]
fn a_healthy_consumer_logs_only_its_end() {
    everything();
    let builder = Consumer::builder(numbers(10_000), MemoryProgress::new()).stop_at(9_999).clock(Time::new().clock());
    builder.start(|_| Ok(())).unwrap().join().unwrap();
    let lines = lines_of("unnamed");
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert_says(&lines[0], "9999", "", "");
    assert_eq!((lines[0].message(), lines[0].level), ("the consumer has ended", Level::DEBUG));
}

#[test]
fn idle_time_does_not_count_towards_a_stall() {
    let (jobs, time) = (numbers(3), Time::new());
    let ((release, hangs), (hold, held)) = (bounded::<()>(0), bounded::<()>(0));
    let consumer = named("idle", jobs.clone(), &time)
        .start(move |job| {
            if job.index == 3 {
                let _ = hangs.recv();
            }
            Ok(())
        })
        .unwrap();
    // Lets enough time pass that another consumer stalls.
    let other = named("beside it", numbers(1), &time)
        .start(move |_| {
            let _ = held.recv();
            Ok(())
        })
        .unwrap();
    let (release, hold) = (release, hold);
    let handle = consumer.handle();
    assert!(handle.wait_for(2, LONG));
    until(&handle, "the end of the source", |status| status.blocked == Blocked::CaughtUp);
    stall(&time, "beside it", "0", "job 0 has been running");
    time.pass(SOON * 3);
    assert!(!lines_of("idle").iter().any(|line| line.message().contains(STALL)), "{:#?}", lines_of("idle"));
    jobs.push(3);
    until(&handle, "job 3", |status| status.processing == 1);
    time.pass(SOON);
    let stall = line("idle", Level::WARN, STALL);
    assert_says(&stall, "3", "1", "job 3 has been running");
    assert_eq!(stall.field("seconds").parse(), Ok(SOON.as_secs_f64()));
    drop((release, hold));
    consumer.stop().unwrap();
    other.stop().unwrap();
}

#[test]
fn observer_panics_log_once_a_second_with_counts() {
    let calls = Arc::new(AtomicU64::new(0));
    let called = calls.clone();
    let consumer = named("observed", numbers(500), &Time::new())
        .stop_at(499)
        .observe(move |_: &Event<'_>| {
            called.fetch_add(1, Ordering::SeqCst);
            panic!("nobody expects it");
        })
        .start(|_| Ok(()))
        .unwrap();
    consumer.join().unwrap();
    let (ends, lines): (Vec<_>, Vec<_>) =
        lines_of("observed").into_iter().partition(|line| line.message() == "the consumer has ended");
    assert_eq!(ends.len(), 1);
    // One line at once, none later since the clock stands still, a last one at the end, and the one
    // of the last event.
    assert!(lines.len() <= 3, "{lines:#?}");
    for line in &lines {
        assert_eq!(
            (line.level, line.message()),
            (Level::WARN, "an observer or a call of on_stall panicked; nothing else changes")
        );
        assert!(line.field("error").contains("nobody expects it"), "{line:?}");
    }
    assert_eq!(lines.iter().map(Line::count).sum::<u64>(), calls.load(Ordering::SeqCst));
}

/// Makes this write within the next line of that consumer or log. Returns what becomes of it.
fn within_line(name: &'static str, write: impl Fn() -> bool + Send + 'static) -> impl Fn() -> bool {
    let (wrote, written) = bounded(1);
    everything().hooks.lock().insert(name, Box::new(move || wrote.send(write()).unwrap()));
    move || written.recv_timeout(LONG).expect("it does not wait for itself")
}

/// Stops the consumer from within a line, in every way.
fn steer(handle: &Handle, own: &Mutex<Option<Consumer>>) {
    let _ = handle.status();
    handle.request_stop();
    assert_eq!(handle.wait_end(HOUR), None, "the end would wait for this line");
    let consumer = own.lock().take();
    assert!(consumer.is_none_or(|consumer| consumer.stop().is_err()), "it only asks");
}

#[test]
fn a_subscriber_may_steer_the_consumer() {
    everything();
    let own: Arc<Mutex<Option<Consumer>>> = Arc::default();
    let (send, tokens) = crossbeam_channel::unbounded();
    // The clock stands still, so no other thread writes a line.
    let consumer = named("steered", Script::up_to(5), &Time::new())
        .retry(Retry::fixed(HOUR))
        .start_deferred(move |_, done| send.send(done).unwrap())
        .unwrap();
    let handle = consumer.handle();
    *own.lock() = Some(consumer);
    let first = tokens.recv_timeout(LONG).unwrap();
    let hook = {
        let (handle, own) = (handle.clone(), own.clone());
        move || steer(&handle, &own)
    };
    everything().hooks.lock().insert("steered", Box::new(hook));
    // A line is also written on this thread, which is none of the consumer's.
    first.fail("refused");
    assert!(own.lock().is_none(), "the line was written");
    drop(tokens);
    let ended = handle.wait_end(LONG).expect("it was stopped from within its line");
    assert_eq!(ended.error, None);
}

#[test]
fn a_subscriber_may_write_to_the_failing_store() {
    let faulty = FaultyStore::new().unwrap();
    let log = faulty.store().log::<String>("heard").unwrap();
    // The push goes through the writer, which has just failed.
    let fails = within_line("store", move || log.push(&"of it".to_owned()).is_err());
    faulty.fail(..);
    let consumer = Consumer::builder(numbers(1), faulty.store().progress("store"))
        .clock(Time::new().clock())
        .start(|_| Ok(()))
        .unwrap();
    assert!(fails(), "the disk is full for it, too");
    faulty.heal();
    assert!(consumer.handle().wait_for(0, LONG));
    consumer.stop().unwrap();
}

#[test]
fn only_a_life_that_died_logs_a_death() {
    everything();
    let told = || lines_of("mortal").iter().filter(|line| line.message().contains("died in the life before")).count();
    let disk = FaultyStore::new().unwrap();
    let start = |disk: &FaultyStore, last| {
        let builder = Consumer::builder(numbers(100), disk.store().progress("mortal"));
        builder.max_crashes(3).max_processing(1).stop_at(last)
    };
    let (worker, stage) = manual_worker();
    let consumer = start(&disk, 99).start_worker(worker).unwrap();
    let running = stage.next();
    // The process dies here.
    let next = disk.after_crash().unwrap();
    consumer.handle().request_stop();
    running.succeed();
    consumer.stop().unwrap();
    assert_eq!(told(), 0);
    for (last, lines) in [(5, 1), (9, 1), (9, 1), (20, 1)] {
        // Each of these lives still takes care: the watermark is below the last job that may have
        // been in flight.
        start(&next, last).start(|_| Ok(())).unwrap().join().unwrap();
        assert_eq!(told(), lines, "up to {last}: {:#?}", lines_of("mortal"));
    }
}

#[test]
fn a_subscriber_may_write_after_a_failed_trim() {
    everything();
    let faulty = FaultyStore::new().unwrap();
    let (store, table) = (faulty.store(), faulty.store().table("heard").unwrap());
    let log = store.log::<u64>("untrimmed").unwrap();
    log.push(&1).unwrap();
    let consumer = Consumer::builder(log.clone(), store.progress("trimmer")).start(|_| Ok(())).unwrap();
    assert!(consumer.handle().wait_for(1, LONG));
    let fails = within_line("untrimmed", move || store.write(|effects| effects.put(&table, "line", "")).is_err());
    faulty.fail(..);
    log.retain([consumer.handle()]);
    assert!(fails(), "the disk is full for it, too");
    faulty.heal();
    eventually("the trim", || log.first().unwrap() == 2);
    consumer.stop().unwrap();
}

#[test]
fn a_subscriber_may_write_after_refused_effects() {
    everything();
    let store = Store::in_memory();
    let (log, table) = (store.log::<String>("heard").unwrap(), store.table("sums").unwrap());
    table.put("title", "no counter").unwrap();
    // The line is about a job whose effects the store's writer is checking just then.
    let written = within_line("refused", move || log.push(&"of it".to_owned()).is_ok());
    let consumer = Consumer::builder(numbers(1), store.progress("refused"))
        .clock(Time::new().clock())
        .start_transactional(move |_, effects| Ok(effects.add(&table, "title", 1)?))
        .unwrap();
    assert!(written());
    consumer.join().unwrap_err();
}

#[test]
fn a_subscriber_may_write_without_a_stall_watcher() {
    everything();
    let faulty = FaultyStore::new().unwrap();
    let log = faulty.store().log::<String>("heard").unwrap();
    let ((worker, stage), time) = (manual_worker(), Time::new());
    let consumer = Consumer::builder(numbers(2), faulty.store().progress("unwatched"))
        .max_processing(2)
        .retry(Retry::fixed(HOUR))
        .clock(time.clock())
        .start_worker(worker)
        .unwrap();
    let handle = consumer.handle();
    let mut running = stage.take(2);
    running.remove(&0).unwrap().fail("later");
    until(&handle, "the failure", |status| status.failed == 1);
    // A paused consumer does not stall, so the watching thread ends once it has found that twice.
    // If it gets no core meanwhile, it writes the line, which is as good.
    handle.pause();
    for _ in 0..100 {
        time.pass(SOON);
        rest();
    }
    faulty.fail(..);
    let fails = within_line("unwatched", move || log.push(&"of it".to_owned()).is_err());
    running.remove(&1).unwrap().succeed();
    assert!(fails(), "the disk is full for it, too");
    faulty.heal();
    consumer.stop().unwrap();
}

struct Claims(&'static str, Saved);

impl Progress for Claims {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        unreachable!("it keeps what is done ahead")
    }
    fn save(&mut self, _: &Checkpoint) -> Result<(), BoxError> {
        unreachable!("it keeps what is done ahead")
    }
    fn keeps_done_ahead(&self) -> bool {
        true
    }
    fn acquire_all(&mut self) -> Result<Option<Saved>, Error> {
        Ok(Some(self.1.clone()))
    }
    fn save_all(&mut self, _: &Saved) -> Result<(), SaveError> {
        Ok(())
    }
    fn label(&self) -> Option<String> {
        Some(self.0.to_owned())
    }
}

#[test]
fn an_impossible_run_of_done_jobs_is_logged() {
    everything();
    const FAR: Index = 1 << 28;
    for (name, run) in [("near run", 9..=12), ("far run", FAR..=FAR + 1)] {
        let progress = Claims(name, Saved::new(Some(6), 7, vec![run]));
        Consumer::builder(numbers(9), progress).stop_at(8).start(|_| Ok(())).unwrap().join().unwrap();
    }
    assert!(lines_of("near run").iter().all(|line| line.level != Level::WARN), "{:#?}", lines_of("near run"));
    let told = line("far run", Level::WARN, "jobs far above the lowest one");
    let fields = ["first", "last", "next"].map(|field| told.field(field).to_owned());
    assert_eq!(fields, [FAR, FAR + 1, 7].map(|index| index.to_string()));
}
