//! Log lines about jobs. Each automatic change is logged once, names its job, and may go to a
//! subscriber that uses the same store.

mod kinds;
mod standing;

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Once;
use std::time::{Duration, SystemTime};

use waterline::fuzzing::{Disk, DiskRecord};
use waterline::testing::FaultyStore;
use waterline::{Consumer, MemoryJobs, Retry, Store};
use waterline_queue::{
    Accept, Clock, Every, JobState, Lease, Limit, NewJob, OnDead, Queue, QueueError, QueueOptions, Retention, Unique,
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

type Line = BTreeMap<&'static str, String>;

/// The log lines of this process, and the queue that gets a job for each line about "told". Each
/// test has a queue of its own name.
struct Log {
    lines: Mutex<Vec<Line>>,
    into: Mutex<Option<Queue>>,
}

struct Fields(Line);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl tracing::Subscriber for &'static Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "waterline" && metadata.is_event()
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields(Line::new());
        fields.0.insert("level", event.metadata().level().to_string());
        event.record(&mut fields);
        let queue = fields.0.get("queue").cloned().unwrap_or_default();
        self.lines.lock().push(fields.0);
        assert_ne!(queue, "hostile", "in the subscriber");
        let into = self.into.lock().clone().filter(|_| queue == "told");
        into.iter().for_each(|into| drop(into.push(NewJob::new("line", &1).unwrap()).unwrap()));
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

fn log() -> &'static Log {
    static LOG: Log = Log { lines: Mutex::new(Vec::new()), into: Mutex::new(None) };
    static BEGUN: Once = Once::new();
    common::watch();
    BEGUN.call_once(|| tracing::subscriber::set_global_default(&LOG).expect("it is the first"));
    &LOG
}

/// Takes the lines about this queue.
fn lines(queue: &str) -> Vec<Line> {
    log().lines.lock().extract_if(.., |line| line.get("queue").is_some_and(|of| of == queue)).collect()
}

/// Asserts the level, id, attempt and text of each new line about a queue.
fn assert_lines(queue: &str, expected: &[(&str, &str, &str, &str)]) {
    let lines = lines(queue);
    for (level, id, attempt, text) in expected {
        let says = |line: &&Line| {
            let told = format!("{}: {}", line["message"], line.get("error").map_or("", String::as_str));
            line["level"] == *level && line.get("id").is_some_and(|of| of == id) && told.contains(text)
        };
        let line = lines.iter().find(says).unwrap_or_else(|| panic!("no line of {id} says {text:?}: {lines:#?}"));
        assert_eq!((line.get("attempt").map(String::as_str), line["kind"].as_str()), (Some(*attempt), "k"), "{line:?}");
    }
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
}

fn job(id: &str) -> NewJob {
    NewJob::new("k", &id).unwrap().id(id)
}

fn accept(queue: &Queue) -> Lease {
    queue.accept(Accept::new()).unwrap().expect("a job is ready")
}

fn none(queue: &Queue) {
    assert!(queue.accept(Accept::new()).unwrap().is_none());
}

fn manual() -> (Clock, QueueOptions) {
    let clock = Clock::manual(SystemTime::UNIX_EPOCH + MINUTE);
    let options = QueueOptions::default().clock(clock.clone()).retry(Retry::fixed(SECOND).max_attempts(2));
    (clock, options)
}

#[test]
fn a_job_that_never_runs_is_logged_with_the_reason() {
    log();
    let (clock, options) = manual();
    let queue = Queue::open(&Store::in_memory(), "unrun", options).unwrap();
    let twin = |id: &str| NewJob::new("k", &0).unwrap().id(id).skip_if_executed();
    queue.push_all([twin("first"), twin("second")]).unwrap();
    accept(&queue).finish(None).unwrap();
    none(&queue);
    assert_lines("unrun", &[("DEBUG", "second", "1", "skipped, since a twin of it began")]);

    queue.push_all([job("old").root("page", wall(1)), job("new").root("page", wall(2))]).unwrap();
    assert_eq!(accept(&queue).id(), "new");
    // The lease was dropped, so its attempt has failed.
    assert_lines(
        "unrun",
        &[
            ("DEBUG", "old", "1", "skipped, since a newer root"),
            ("DEBUG", "new", "1", "failed, and is tried again: its lease was dropped"),
        ],
    );
    queue.purge().unwrap();
    queue.push(job("late").expires(SECOND)).unwrap();
    let waits = [("dies", OnDead::Die), ("runs", OnDead::Run)];
    queue.push_all(waits.map(|(id, on_dead)| job(id).after(["late"]).on_dead(on_dead))).unwrap();
    clock.advance(SECOND);
    assert_eq!(accept(&queue).id(), "runs");
    assert_lines(
        "unrun",
        &[
            ("WARN", "late", "1", "is dead: mend its cause and requeue it, or remove it: it expired"),
            ("WARN", "dies", "1", "requeue it, or remove it: the job \"late\" is dead"),
            ("DEBUG", "runs", "1", "is tried again"),
        ],
    );
}

fn wall(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

#[test]
fn a_leased_job_logs_the_lines_of_a_runners_job() {
    log();
    let (clock, options) = manual();
    let queue = Queue::open(&Store::in_memory(), "leased", options).unwrap();
    queue.push(job("a")).unwrap();
    accept(&queue).retry("no").unwrap();
    clock.advance(SECOND);
    accept(&queue).retry("never").unwrap();
    queue.push(job("b")).unwrap();
    accept(&queue).bury("no such customer").unwrap();
    queue.push(job("c")).unwrap();
    accept(&queue).snooze(wall(62)).unwrap();
    clock.advance(SECOND);
    accept(&queue).finish(None).unwrap();
    assert_lines(
        "leased",
        &[
            ("DEBUG", "a", "1", "is tried again: no"),
            ("WARN", "a", "2", "is dead: mend its cause and requeue it, or remove it: never"),
            ("WARN", "b", "1", "is dead: mend its cause and requeue it, or remove it: no such customer"),
            ("DEBUG", "c", "1", "is not ready"),
        ],
    );
    queue.push(job("d").retry(Retry::none())).unwrap();
    let mut lease = accept(&queue);
    clock.advance(MINUTE);
    for _ in 0..2 {
        assert!(matches!(lease.update(None), Err(QueueError::Halt { .. })));
    }
    assert_lines(
        "leased",
        &[
            ("WARN", "d", "1", "was silent for 60s, so the job is taken back"),
            ("WARN", "d", "1", "is dead: mend its cause and requeue it, or remove it: its worker was silent"),
            ("WARN", "d", "1", "removed or taken over while it ran"),
        ],
    );
    queue.push(job("e")).unwrap();
    let lease = accept(&queue);
    queue.remove("e").unwrap();
    drop(lease);
    assert_lines("leased", &[("WARN", "e", "1", "removed or taken over while it ran")]);
}

#[test]
fn a_job_that_dies_with_its_process_is_logged() {
    log();
    let disk = FaultyStore::new().unwrap();
    let options = || QueueOptions::default().max_crashes(1);
    let queue = Queue::open(&disk.store(), "crashed", options()).unwrap();
    queue.push(job("poison")).unwrap();
    let _ = std::mem::ManuallyDrop::new(accept(&queue));
    let disk = disk.after_crash().unwrap();
    Queue::open(&disk.store(), "crashed", options()).unwrap();
    let told = lines("crashed");
    assert_eq!(told.len(), 2, "{told:#?}");
    let dead = told.iter().find(|line| line.get("id").is_some_and(|id| id == "poison")).expect("it has a line");
    assert_eq!((dead["attempt"].as_str(), dead["kind"].as_str()), ("1", "k"));
    assert!(dead["message"].starts_with("a job is dead") && dead["error"].contains("died"), "{dead:?}");
}

/// An entry that names another job, or none, is damaged. The line says where it was, and the job
/// that lost it still runs, even though the queue is never empty.
#[test]
fn an_unreadable_entry_is_logged_and_its_job_runs() {
    log();
    let disk = Disk::default();
    let (_, options) = manual();
    let open = |disk: &Disk| Queue::open(&disk.open(&Store::options()).unwrap(), "entries", options.clone()).unwrap();
    let queue = open(&disk);
    queue.push_all(["aa", "bb", "running", "cc"].map(job)).unwrap();
    let damage = |disk: &Disk, family: &str, id: &[u8]| {
        let is_entry = |(of, key, value): &&DiskRecord| {
            let (first, last) = (value.first() == Some(&1), value.windows(id.len()).any(|part| part == id));
            of == family && key.len() == 13 && first && last
        };
        let (of, key, mut value) = disk.records().iter().find(is_entry).expect("it is there").clone();
        value[1] ^= 1;
        disk.put(&[(of, key, value)]);
    };
    damage(&disk, "waterline.ready", b"aa");
    let mut claimed = Vec::new();
    for _ in 0..2 {
        let mut lease = accept(&queue);
        claimed.push(lease.id().to_owned());
        lease.finish(None).unwrap();
    }
    assert_eq!(claimed, ["bb", "running"]);
    let told = lines("entries");
    assert_eq!(told.len(), 1, "{told:#?}");
    assert_eq!(told[0]["place"], "0 of the ready jobs of the priority Normal");
    assert!(told[0]["error"].contains("checksum"), "{told:?}");
    assert_eq!([accept(&queue), accept(&queue)].map(|lease| lease.id().to_owned()), ["cc", "aa"]);

    queue.push(job("next")).unwrap();
    let lease = std::mem::ManuallyDrop::new(accept(&queue));
    let disk = disk.after_crash();
    damage(&disk, "waterline.queue", lease.id().as_bytes());
    let queue = open(&disk);
    let told = lines("entries");
    let is_entry = |line: &&Line| line.get("place").is_some_and(|place| place.ends_with("of the running jobs"));
    assert_eq!(told.iter().filter(is_entry).count(), 1, "{told:#?}");
    assert_eq!(queue.get(lease.id()).unwrap().map(|job| (job.state, job.crashes)), Some((JobState::Ready, 1)));
}

#[test]
fn a_held_job_is_logged_with_its_limit() {
    log();
    let (_, options) = manual();
    let queue = Queue::open(&Store::in_memory(), "limited", options.limit(Limit::kind("k").at_once(1))).unwrap();
    queue.push_all([job("a"), job("b")]).unwrap();
    let mut first = accept(&queue);
    none(&queue);
    none(&queue);
    let told = lines("limited");
    assert_eq!(told.len(), 1, "{told:#?}");
    assert_eq!((told[0]["id"].as_str(), told[0]["limit"].as_str()), ("b", "the kind \"k\""));
    first.finish(None).unwrap();
    accept(&queue).finish(None).unwrap();
    assert_lines("limited", &[]);
}

#[test]
fn a_periodic_job_warns_only_of_a_clock_set_back() {
    log();
    let (clock, options) = manual();
    let store = Store::in_memory();
    let queue = Queue::open(&store, "back", options).unwrap();
    let start = |queue: &Queue, name: &str| {
        queue.periodic(name, Every::hours(1), NewJob::new("k", &1).unwrap()).start().unwrap();
    };
    start(&queue, "tick");
    clock.set_wall(clock.wall_time() - 2 * SECOND);
    start(&queue, "tick");
    let told = lines("back");
    assert!(told.len() == 1 && told[0]["message"].contains("clock on the wall was set back"), "{told:?}");
    // The real clock moves on during some of these calls.
    let queue = Queue::open(&store, "forth", QueueOptions::default()).unwrap();
    (0..1_000).for_each(|number| start(&queue, &number.to_string()));
    let told = lines("forth");
    assert!(told.is_empty(), "{} of 1,000: {:?}", told.len(), told[0]);
}

/// Lines are logged after all locks of the store are released; otherwise this would hang.
#[test]
fn a_subscriber_may_push_into_the_same_store() {
    let log = log();
    let (clock, options) = manual();
    let store = Store::in_memory();
    let into = Queue::open(&store, "into", QueueOptions::default()).unwrap();
    *log.into.lock() = Some(into.clone());
    let queue = Queue::open(&store, "told", options.retention(Retention::Keep)).unwrap();
    queue.periodic("tick", Every::seconds(1), NewJob::new("k", &1).unwrap()).start().unwrap();
    clock.advance(SECOND);
    let run = accept(&queue);
    let skips = lines("told");
    assert_eq!(skips[0]["id"], run.id(), "the line names the run that has not ended: {skips:?}");
    assert_eq!((skips.len(), skips[0]["periodic"].as_str(), into.counts().ready), (1, "tick", 1));
    // Times are logged in the format of RFC 3339, not as a Rust struct.
    assert_eq!(skips[0]["tick"], "1970-01-01T00:01:01.000Z");
    // A stream pushes without calling the queue.
    queue.push(job("dead")).unwrap();
    accept(&queue).bury("never").unwrap();
    assert_eq!(lines("told").len(), 1);
    let stream: MemoryJobs<_> = ["b"].into_iter().collect();
    let pushes = queue.clone();
    Consumer::builder(stream, store.progress("stream"))
        .stop_at(0)
        .start_transactional(move |of, effects| {
            pushes.push_with(effects, job(of.payload).after(["dead"]))?;
            Ok(())
        })
        .unwrap()
        .join()
        .unwrap();
    common::eventually("the line about the job of the stream", || into.counts().ready == 3);
    assert_lines("told", &[("WARN", "b", "1", "requeue it, or remove it: the job \"dead\" is dead")]);
    *log.into.lock() = None;
}

#[test]
fn a_panicking_subscriber_changes_no_result() {
    log();
    let (clock, options) = manual();
    let queue = Queue::open(&Store::in_memory(), "hostile", options).unwrap();
    queue.push_all([job("late").expires(SECOND), job("b").unique(Unique::until_done())]).unwrap();
    clock.advance(SECOND);
    let mut lease = accept(&queue);
    assert_eq!(lease.id(), "b");
    lease.finish(None).unwrap();
    let told = lines("hostile");
    assert_eq!((told.len(), told[0]["id"].as_str()), (1, "late"));
}
