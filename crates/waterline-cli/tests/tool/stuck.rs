//! An application with one consumer for each way to be stuck, and what the doctor says of them.

use crate::application::{Application, tell};
use crate::program::{At, json as records};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};
use waterline::testing::{FaultyProgress, FaultyStore};
use waterline::{
    BoxError, Consumer, Done, Failure, Index, Job, Jobs, MemoryJobs, MemoryProgress, OnExhausted, Retry, Store,
};
use waterline_queue::{Accept, JobState, Limit, NewJob, Outcome, Queue, QueueOptions, Runner, RunnerGate, Unknown};
use waterline_ui::Page;

/// The reasons of the consumers. (`looking` becomes a `source` that does not answer.)
const REASONS: &str = "ahead_of_source alone caught_up deferred halted held in_use leaving log_full missing no overdue \
                       paused progress retrying running source source_waits threads upstream";

/// Those that the doctor does not tell an operator.
const UNTOLD: [&str; 2] = ["caught_up", "no"];

const NEVER: Duration = Duration::from_secs(36_000);

const SOON: Duration = Duration::from_millis(10);

/// Returns a text without times, which go on, and without the number of a write (`3,`).
fn timeless(text: &str) -> String {
    let is_time = |word: &str| {
        let bare = word.trim_matches([',', ';', ':', '.']);
        let is_counted = word.strip_suffix(',').is_some_and(|word| word.parse::<u64>().is_ok());
        is_counted || bare.starts_with(|first: char| first.is_ascii_digit()) && bare.ends_with('s')
    };
    // The number of calls of a failing source goes on.
    let text = text.split(" (it is asked again ").next().unwrap_or_default();
    text.split(' ').map(|word| if is_time(word) { "TIME" } else { word }).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_doctor_quotes_the_status_for_each_reason() {
    let (mut application, mut page) = Application::serving("stuck");
    let at = At::url(&page.url);
    let before = application.statuses(&mut page);
    let doctor = at.call("doctor --json");
    let after = application.statuses(&mut page);
    assert_eq!((doctor.code, doctor.error.as_str()), (1, ""));
    let found = records(&doctor.out);
    let text = at.call("doctor").out;
    let mut told = Vec::new();
    let streams = |statuses: &Value| statuses["streams"].as_array().unwrap().clone();
    for (before, after) in streams(&before).iter().zip(&streams(&after)) {
        let sentences = [before, after].map(|status| timeless(status["sentence"].as_str().unwrap()));
        let word = before["word"].as_str().unwrap();
        let is_it = |record: &&Value| {
            let said = timeless(record["sentence"].as_str().unwrap());
            record["subject"] == "consumer" && sentences.contains(&said)
        };
        let record = found.iter().find(is_it);
        if UNTOLD.contains(&word) {
            assert_eq!(record, None, "{word}");
            continue;
        }
        let record = record.unwrap_or_else(|| panic!("{word}: {sentences:?} is not in {}", doctor.out));
        let is_said = |line: &str| sentences.iter().any(|sentence| timeless(line).ends_with(sentence));
        assert!(text.lines().any(is_said), "{text}");
        assert!(record["help"].as_str().is_some_and(|help| !help.is_empty()), "{record}");
        told.push(word.to_owned());
    }
    told.sort();
    told.dedup();
    assert_eq!(told, REASONS.split(' ').filter(|word| !UNTOLD.contains(word)).collect::<Vec<_>>());
    // A progress without a name has no records.
    let unnamed = at.call_with("show", &["unnamed consumer"]);
    assert!(unnamed.code == 0 && unnamed.out.contains("parked         no job"), "{unnamed:?}");
    for help in ["resume paused --consumer", "check missing", "skip halted 1 --reason TEXT", "show running"] {
        assert!(text.contains(help), "{help}: {text}");
    }
}

/// The name, the reason and the verdict of each queue.
const OF_QUEUES: [(&str, &str, &str); 16] = [
    ("alone", "alone", "waits"),
    ("busy", "busy", "waits"),
    ("gate", "gate", "waits"),
    ("has dead", "nothing_ready", "needs_you"),
    ("has unknown", "nothing_ready", "needs_you"),
    ("limited", "limited", "waits"),
    ("no worker", "no_worker", "needs_you"),
    ("nothing", "nothing_ready", "goes_well"),
    ("other kinds", "other_kinds", "needs_you"),
    ("paused", "paused", "needs_you"),
    ("paused for an hour", "paused", "waits"),
    ("runs", "no", "goes_well"),
    ("scheduled", "nothing_ready", "goes_well"),
    ("stands still", "stands_still", "needs_you"),
    ("store fails", "store_fails", "needs_you"),
    ("stuck slot", "nothing_ready", "needs_you"),
];

/// Requests a view of the page, with the token.
fn ask(url: &str, path: &str) -> (u16, Value) {
    let addr = url.strip_prefix("http://").unwrap();
    let mut stream = std::net::TcpStream::connect(addr).unwrap();
    let token = crate::program::TOKEN;
    let head =
        format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

#[test]
fn page_health_doctor_and_tables_agree_on_verdicts() {
    let (mut application, mut page) = Application::serving("stuck");
    let at = At::url(&page.url);
    let statuses = application.statuses(&mut page);
    let (_, overview) = ask(&page.url, "/api/overview");
    let (health, sick) = ask(&page.url, "/api/health");
    let doctor = records(&at.call("doctor --json").out);
    let (mut streams, mut queues, mut needs_you) = (Vec::new(), Vec::new(), Vec::new());
    for (list, subject, table) in [("streams", "consumer", "list"), ("queues", "queue", "queues")] {
        let listed = at.records(table);
        for (status, row) in statuses[list].as_array().unwrap().iter().zip(overview[list].as_array().unwrap()) {
            let (name, verdict) = (row["name"].as_str().unwrap(), status["verdict"].as_str().unwrap());
            assert_eq!(row["verdict"], verdict, "the page, {name}");
            let of_it = |record: &&Value| record["name"] == name && record["subject"] == subject;
            let levels: Vec<_> = doctor.iter().filter(of_it).map(|record| record["type"].as_str().unwrap()).collect();
            assert_eq!(levels.contains(&"problem"), verdict == "needs_you", "the doctor, {name}: {levels:?}");
            assert_eq!(levels.is_empty(), verdict == "goes_well", "the doctor, {name}: {levels:?}");
            let told = listed.iter().find(|record| record["name"] == name && record["type"] == subject).unwrap();
            let also = told["also"].as_array().unwrap();
            let of_all = std::iter::once(told).chain(also).any(|advice| advice["verdict"] == "needs_you");
            assert_eq!(of_all, verdict == "needs_you", "the table, {told}");
            if verdict == "needs_you" {
                needs_you.push(name.to_owned());
            }
            let word = status["word"].as_str().unwrap().to_owned();
            match list {
                "streams" => {
                    // It has caught up, and has a parked job.
                    assert!(name != "parks" || (word.as_str(), verdict) == ("caught_up", "needs_you"), "{status}");
                    streams.push(word);
                }
                _ => queues.push((name.to_owned(), word, verdict.to_owned())),
            }
        }
    }
    streams.sort();
    streams.dedup();
    queues.sort();
    assert_eq!(streams, REASONS.split(' ').collect::<Vec<_>>());
    let queues: Vec<_> = queues.iter().map(|(name, word, verdict)| (&name[..], &word[..], &verdict[..])).collect();
    assert_eq!(queues, OF_QUEUES);
    // The health check names exactly these.
    let mut named: Vec<_> =
        sick["needs_you"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    named.dedup();
    assert_eq!((health, &sick["verdict"]), (503, &json!("needs_you")));
    assert_eq!(named, needs_you);
    #[cfg(all(unix, feature = "top"))]
    {
        let all = overview["streams"].as_array().unwrap().len() + overview["queues"].as_array().unwrap().len();
        crate::top::says_at(&page.url, &format!("{} of {all} need you.", needs_you.len()));
    }
}

/// A source that misbehaves at job 1.
struct Odd(&'static str);

impl Jobs for Odd {
    type Job = u64;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        if self.0 == "silent" {
            hang();
        }
        Ok(if self.0 == "source_waits" { Some(0) } else { Some(2) })
    }

    fn at_index(&self, index: Index) -> Result<Option<u64>, BoxError> {
        match self.0 {
            "missing" if index == 1 => Ok(None),
            "source" | "alone" if index == 1 => Err("no route to the node".into()),
            _ => Ok(Some(index)),
        }
    }

    fn waits_for(&self) -> Option<String> {
        (self.0 == "source_waits").then(|| "process 7 has not committed".to_owned())
    }
}

fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

fn hangs_at(index: Index) -> impl Fn(Job<u64>) -> Result<(), BoxError> + Send + Sync + Clone + 'static {
    move |job| if job.index == index { hang() } else { Ok(()) }
}

fn numbers(count: u64) -> MemoryJobs<u64> {
    (0..count).collect()
}

/// Returns a store after another death of its process, in which job 1 of the consumer `alone` and
/// the job of the queue `alone` were running.
fn died(disk: &FaultyStore) -> Result<FaultyStore, BoxError> {
    let queue = Queue::open(&disk.store(), "alone", options())?;
    queue.push(NewJob::new("k", &())?.id("suspect"))?;
    let runs = queue.accept(Accept::new())?.ok_or("it is ready")?;
    let (say, said) = crossbeam_channel::bounded::<()>(0);
    let builder = Consumer::builder(numbers(2), disk.store().progress("alone")).max_crashes(9).max_search_ahead(1);
    let consumer = builder.stop_at(1).start(move |job| {
        if job.index == 1 {
            say.send(())?;
            say.send(())?;
        }
        Ok(())
    })?;
    said.recv()?;
    disk.freeze_at(0);
    drop(runs);
    said.recv()?;
    consumer.join()?;
    Ok(disk.after_crash()?)
}

fn options() -> QueueOptions {
    QueueOptions::default().lease(NEVER).limit(Limit::kind("one").at_once(1))
}

/// Consumers, each with the reason for which it is stuck.
type Stuck = Vec<(&'static str, Consumer)>;

/// The application, with a consumer for each reason.
pub(crate) fn run() -> Result<(), BoxError> {
    let disk = died(&died(&FaultyStore::new()?)?)?;
    let store = disk.store();
    // Never dropped: their jobs do not end.
    let mut consumers = ManuallyDrop::new(Vec::new());
    of_jobs(&store, &mut consumers)?;
    of_sources(&store, &mut consumers)?;
    of_places(&store, &mut consumers)?;
    let handles: Vec<_> = consumers.iter().map(|(_, consumer)| consumer.handle()).collect();
    let is_stuck = |(word, consumer): &(&str, Consumer)| json!(consumer.handle().status())["blocked"] == *word;
    let begun = Instant::now();
    while !consumers.iter().all(is_stuck) {
        if begun.elapsed() > Duration::from_secs(60) {
            let others = consumers.iter().filter(|consumer| !is_stuck(consumer));
            let said: Vec<_> = others.map(|(word, consumer)| (word, consumer.handle().status())).collect();
            return Err(format!("they are not stuck: {said:#?}").into());
        }
        std::thread::yield_now();
    }
    let queues = of_queues(&store)?;
    let page = handles.iter().fold(Page::new(&store), |page, handle| page.watch(handle.clone()));
    let page = queues.iter().fold(page, Page::queue);
    tell(&page.token(crate::program::TOKEN).serve("127.0.0.1:0")?, &handles, &queues)?;
    Ok(())
}

/// Returns queues, each stuck for one reason until the process ends.
fn of_queues(store: &Store) -> Result<Vec<Queue>, BoxError> {
    let fails: &FaultyStore = Box::leak(Box::new(FaultyStore::new()?));
    let failing = fails.store();
    let open = |name: &str| {
        let options = if name == "stands still" { options().lease(SOON) } else { options() };
        Queue::open(if name == "store fails" { &failing } else { store }, name, options)
    };
    let queues = OF_QUEUES.map(|(name, ..)| open(name)).into_iter().collect::<Result<Vec<_>, _>>()?;
    let of = |name: &str| queues.iter().find(|queue| queue.name() == name).expect("it is open");
    let push = |name: &str, kind: &str| of(name).push(NewJob::new(kind, &())?).map(drop);
    for (name, ..) in
        OF_QUEUES.iter().filter(|(_, reason, _)| !["nothing_ready", "limited", "alone", "other_kinds"].contains(reason))
    {
        push(name, "k")?;
    }
    of("paused").pause(None)?;
    of("paused for an hour").pause(Some(Duration::from_secs(3_600)))?;
    of("scheduled").push(NewJob::new("k", &())?.delay(NEVER))?;
    push("has dead", "k")?;
    of("has dead").accept(Accept::new())?.ok_or("it is ready")?.bury("no such customer")?;
    // The second job waits for the first one, which has crashed twice and so runs alone.
    let suspect = loop {
        // After a crash it is due once its backoff is over.
        if let Some(suspect) = of("alone").accept(Accept::new())? {
            break suspect;
        }
        std::thread::yield_now();
    };
    Box::leak(Box::new(suspect));
    push("alone", "k")?;
    for name in ["limited", "runs"] {
        (0..2).try_for_each(|_| push(name, "one"))?;
        // Keep the job running until the process ends.
        Box::leak(Box::new(of(name).accept(Accept::new())?));
    }
    // The limit holds the second job back only once it is asked for.
    assert!(of("limited").accept(Accept::new())?.is_none());
    push("has unknown", "unknown")?;
    push("other kinds", "unknown")?;
    push("stuck slot", "k")?;
    fails.fail(..);
    for name in ["busy", "gate", "has unknown", "other kinds", "stands still", "store fails", "stuck slot"] {
        let is_open = name != "gate";
        let unknown = if name == "has unknown" { Unknown::Dead } else { Unknown::Leave };
        let runner = Runner::builder(of(name)).max_processing(1).gate(RunnerGate::new("disk", move || is_open));
        // Keep the runner, too.
        let runner = runner.on("k", |_job, ()| -> Result<Outcome, BoxError> { hang() });
        Box::leak(Box::new(runner.unknown(unknown).start()?));
    }
    ["busy", "stands still"].into_iter().try_for_each(|name| push(name, "k"))?;
    let begun = Instant::now();
    let slot = of("stuck slot");
    let runs = || slot.list(JobState::Running, None, 1).map(|jobs| jobs.into_iter().next());
    let job = loop {
        match runs()? {
            Some(job) => break job,
            None if begun.elapsed() > Duration::from_secs(60) => return Err("its job does not start".into()),
            None => std::thread::yield_now(),
        }
    };
    slot.remove(job.id)?;
    let is_so = |(name, reason, verdict): &(&str, &str, &str)| {
        of(name).status().is_ok_and(|status| (json!(status)["waits"] == *reason) && json!(status.verdict()) == *verdict)
    };
    while let Some((name, ..)) = OF_QUEUES.iter().find(|wanted| !is_so(wanted)) {
        if begun.elapsed() > Duration::from_secs(60) {
            return Err(format!("it is in another state: {:?}", of(name).status()?).into());
        }
        std::thread::yield_now();
    }
    Ok(queues)
}

fn of_jobs(store: &Store, stuck: &mut Stuck) -> Result<(), BoxError> {
    let of = |name: &str| Consumer::builder(numbers(3), store.progress(name)).max_processing(1);
    stuck.push(("running", of("running").start(hangs_at(1))?));
    stuck.push(("overdue", of("overdue").attempt_timeout(SOON).start(hangs_at(1))?));
    let fails = |job: Job<u64>| if job.index == 1 { Err("no disk".into()) } else { Ok(()) };
    stuck.push(("retrying", of("retrying").retry(Retry::fixed(NEVER)).start(fails)?));
    let defers = |job: Job<u64>| if job.index == 1 { Err(Failure::defer(NEVER).into()) } else { Ok(()) };
    stuck.push(("deferred", of("deferred").start(defers)?));
    stuck.push(("halted", of("halted").start(fails)?));
    stuck.push(("caught_up", of("parks").on_exhausted(OnExhausted::Park { budget: 9 }).start(fails)?));
    let busy = |job: Job<u64>, done: Done| {
        done.complete();
        if job.index == 1 {
            hang();
        }
    };
    stuck.push(("threads", of("threads").threads(1).on_stall(SOON, |_| {}).start_deferred(busy)?));
    stuck.push(("caught_up", of("caught_up").start(|_| Ok(()))?));
    stuck.push(("no", of("ended").stop_at(2).start(|_| Ok(()))?));
    let leaving = of("leaving").stop_at(0).on_stall(SOON, |_| {}).on_processed(|_| hang());
    stuck.push(("leaving", leaving.start(|_| Ok(()))?));
    Ok(())
}

fn of_sources(store: &Store, stuck: &mut Stuck) -> Result<(), BoxError> {
    let of = |name: &'static str| Consumer::builder(Odd(name), store.progress(name));
    for name in ["missing", "source", "source_waits"] {
        stuck.push((name, of(name).start(|_| Ok(()))?));
    }
    stuck.push(("source", of("silent").on_stall(SOON, |_| {}).start(|_| Ok(()))?));
    // Job 1 runs alone, after job 2 has ended.
    stuck.push(("alone", of("alone").max_crashes(9).max_processing(4).start(hangs_at(2))?));
    Consumer::builder(numbers(6), store.progress("ahead")).stop_at(5).start(|_| Ok(()))?.join()?;
    let ahead = Consumer::builder(numbers(3), store.progress("ahead")).start(|_| Ok(()))?;
    stuck.push(("ahead_of_source", ahead));
    Ok(())
}

/// Adds consumers that wait for the first one, whose job hangs: for its progress, and for its name.
fn of_places(store: &Store, stuck: &mut Stuck) -> Result<(), BoxError> {
    let gated = numbers(3).gated_by(stuck[0].1.handle());
    let log = store.log::<u64>("full")?;
    let held_back = Consumer::builder(log.hold_back(numbers(3), 1), store.progress("log_full"));
    stuck.push(("log_full", held_back.start(move |job| Ok(log.push(&job.index).map(drop)?))?));
    stuck.push(("upstream", Consumer::builder(gated, store.progress("upstream")).start(|_| Ok(()))?));
    let standby = Consumer::builder(numbers(3), store.progress("running")).standby();
    stuck.push(("in_use", standby.start(|_| Ok(()))?));
    let paused = Consumer::builder(numbers(0), store.progress("paused")).start(|_| Ok(()))?;
    paused.handle().pause();
    stuck.push(("paused", paused));
    let (progress, jobs) = (FaultyProgress::new(store.progress("held")), numbers(0));
    let faults = progress.faults();
    let held = Consumer::builder(jobs.clone(), progress).start(|_| Ok(()))?;
    faults.tenure().ok_or("it has started")?.hold("the lease server does not answer");
    jobs.push(0);
    stuck.push(("held", held));
    stuck.push(("caught_up", Consumer::builder(numbers(3), MemoryProgress::new()).start(|_| Ok(()))?));
    let progress = FaultyProgress::new(store.progress("unsaved"));
    progress.faults().fail(..);
    stuck.push(("progress", Consumer::builder(numbers(3), progress).start(|_| Ok(()))?));
    Ok(())
}
