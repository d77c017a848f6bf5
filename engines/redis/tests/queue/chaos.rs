//! Workers in three languages on one queue, while workers are killed or frozen, and the server
//! crashes or freezes. No job is lost, none ends twice, no limit is passed, and nothing is left
//! over.

use crate::bench::options;
use crate::languages::Language;
use crate::server::Server;
use crate::size;
use pushing::Pusher;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use waterline_queue::{JobState, Queue};
use waterline_redis::{RedisStore, redis};
use workers::{WRITTEN, Worker};

mod pushing;
mod workers;

/// The workers: runners, and one in each other language.
const WORKERS: [Option<Language>; 5] = [None, None, None, Some(Language::Python), Some(Language::Node)];

/// What those that end jobs call themselves.
const LANGUAGES: [&str; 3] = ["rust", "python", "javascript"];

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A worker is killed, and begins again.
    Kill,
    /// A worker is frozen for longer than its lease.
    Freeze,
    /// The server is killed, and starts with what its file has.
    Crash,
    /// The server is frozen for a moment.
    Stall,
    /// Nothing is pushed until no job is ready: then one that comes back is the next one.
    Drain,
}

fn events(random: &mut fastrand::Rng) -> Vec<Event> {
    use Event::*;
    let times = [(Kill, 6, 150), (Freeze, 2, 40), (Crash, 3, 65), (Stall, 1, 10), (Drain, 1, 10)];
    let mut events: Vec<_> =
        times.iter().flat_map(|(event, few, many)| (0..size(*few, *many)).map(|_| *event)).collect();
    random.shuffle(&mut events);
    events
}

#[test]
fn no_job_is_lost_or_ends_twice_with_a_flush_each_second() {
    no_job_is_lost_or_ends_twice("everysec");
}

#[test]
fn no_job_is_lost_or_ends_twice_with_a_flush_for_each_call() {
    no_job_is_lost_or_ends_twice("always");
}

fn no_job_is_lost_or_ends_twice(fsync: &str) {
    let seed = if std::env::var_os("SEED").is_some() { common::seed() } else { fastrand::u64(..) };
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let server = Server::start(&[("appendfsync", fsync)]);
    let directory = tempfile::tempdir().unwrap();
    let (told, begun) = (directory.path().join("told"), Instant::now());
    let store = RedisStore::connect(server.url(), options()).unwrap();
    store.migrate().unwrap();
    let queue = store.queue("q", workers::options()).unwrap();
    let pusher = Pusher::start(queue.clone(), random.u64(..));
    let (url, head) = (server.url(), store.place_of("q").0);
    let place = head.strip_suffix("head").unwrap();
    let workers = WORKERS.iter().enumerate();
    let mut all: Vec<_> = workers.map(|(at, language)| Worker::start(&url, place, *language, at, &told)).collect();
    let log = |at| std::fs::read_to_string(workers::log_of(&told, at)).unwrap_or_default();
    let events = events(&mut random);
    let tens = size(40, 1_000);
    pusher.push(tens / 4);
    for event in &events {
        let at = random.usize(..WORKERS.len());
        std::thread::park_timeout(Duration::from_millis(random.u64(20..200)));
        println!("{:?}: {event:?} {at}", begun.elapsed());
        match event {
            Event::Kill => all[at].kill(&url, place, at, &told),
            Event::Freeze => all[at].freeze(workers::LEASE * 3 / 2),
            Event::Crash => {
                // One that flushes each second answers meanwhile, and writes nothing to its file.
                if fsync == "everysec" {
                    server.ask(&["CONFIG", "SET", "appendfsync", "no"]);
                }
                server.kill();
                server.start_again();
            }
            Event::Stall => {
                server.signal("STOP");
                std::thread::park_timeout(Duration::from_millis(500));
                server.signal("CONT");
            }
            Event::Drain => wait_for(&queue, |counts| counts.ready + counts.scheduled == 0),
        }
        pusher.push((tens / 2 / events.len() as u64).max(1));
    }
    pusher.push(tens / 4);
    // Those in Rust, which are quicker, could take each of these jobs.
    let others = || all.iter().zip(WORKERS).filter(|(_, language)| language.is_none()).map(|(worker, _)| worker);
    others().for_each(|worker| worker.signal("STOP"));
    common::eventually("each language has ended a job", || {
        pusher.push(1);
        std::thread::park_timeout(Duration::from_millis(50));
        let said = std::fs::read_to_string(&told).unwrap_or_default();
        LANGUAGES[1..].iter().all(|language| said.lines().any(|line| line.ends_with(language)))
    });
    others().for_each(|worker| worker.signal("CONT"));
    let pushed = pusher.end();
    wait_for(&queue, |counts| counts.ready + counts.scheduled + counts.waiting + counts.running == 0);
    let said: Vec<_> = all.into_iter().map(Worker::end).collect();
    let failed = said.iter().position(|ended| !ended);
    assert_eq!(failed, None, "SEED={seed}: the workers end in order: {}", failed.map_or(String::new(), log));
    check(&queue, &pushed.added, &pushed.after, &told, seed);
    for id in pushed.added.keys() {
        let job = queue.get(id).unwrap().unwrap();
        let counted: Option<u32> = redis::from_redis_value(server.ask(&["GET", &format!("{WRITTEN}{id}")])).unwrap();
        // Those in other languages keep a text with the end instead.
        let writes = job.kind == "plain" && job.data.is_none();
        assert_eq!(counted, writes.then_some(1), "SEED={seed}: {id} has its writes once: {job:?}");
    }
    let text = std::fs::read_to_string(&told).unwrap();
    let ended = LANGUAGES.map(|language| text.lines().filter(|line| line.ends_with(language)).count());
    let (jobs, events) = (pushed.added.len(), events.len());
    println!("{jobs} jobs, ended by {LANGUAGES:?}: {ended:?}, {events} events, {:?}", begun.elapsed());
}

#[track_caller]
fn wait_for(queue: &Queue, is: impl Fn(&waterline_queue::Counts) -> bool) {
    let (mut changed, mut last) = (Instant::now(), None);
    loop {
        let counts = queue.counts();
        if is(&counts) {
            return;
        }
        let now = (counts.ready, counts.running, counts.finished);
        if last != Some(now) {
            (changed, last) = (Instant::now(), Some(now));
        }
        assert!(changed.elapsed() < common::LONG, "waited in vain: {counts:?}\n{}", queue.status().unwrap());
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// A run whose end has counted, as its worker was told.
struct Run {
    key: String,
    is_narrow: bool,
    begun: u128,
    ended: u128,
}

fn runs(told: &Path) -> Vec<(String, Run)> {
    let text = std::fs::read_to_string(told).unwrap();
    let run = |line: &str| {
        let words: Vec<_> = line.split(' ').collect();
        let [id, kind, key, begun, ended, _language] = words[..] else { panic!("{line:?} is no run") };
        let run = Run {
            key: key.to_owned(),
            is_narrow: kind == "narrow",
            begun: begun.parse().unwrap(),
            ended: ended.parse().unwrap(),
        };
        (id.to_owned(), run)
    };
    text.lines().map(run).collect()
}

fn check(
    queue: &Queue,
    added: &BTreeMap<String, Option<String>>,
    after: &[(String, [String; 2])],
    told: &Path,
    seed: u64,
) {
    for id in added.keys() {
        let info = queue.get(id).unwrap().unwrap_or_else(|| panic!("SEED={seed}: {id} was lost"));
        assert_eq!(info.state, JobState::Finished, "SEED={seed}: {info:?}");
        let number: u64 = id[1..].parse().unwrap();
        assert!(info.failures <= u32::from(number.is_multiple_of(13)), "SEED={seed}: no handler said so: {info:?}");
    }
    let counts = queue.counts();
    let left = (counts.ready, counts.scheduled, counts.waiting, counts.running, counts.dead);
    assert_eq!((left, counts.finished), ((0, 0, 0, 0, 0), added.len() as u64), "SEED={seed}");
    for limit in queue.limits().unwrap() {
        assert_eq!((limit.running, limit.held), (0, 0), "SEED={seed}: the use of {limit:?} was left over");
    }
    let all = runs(told);
    let count = all.len();
    let runs: BTreeMap<_, _> = all.into_iter().collect();
    assert_eq!(runs.len(), count, "SEED={seed}: an end was told twice");
    assert!(!runs.is_empty() && runs.keys().all(|id| added.contains_key(id)), "SEED={seed}: an end was made up");
    let overlap = |a: &Run, b: &Run| a.begun < b.ended && b.begun < a.ended;
    for (id, run) in &runs {
        let beside = runs.iter().filter(|(other, run)| *other != id && run.begun <= runs[id].begun);
        let beside: Vec<_> = beside.filter(|(_, other)| overlap(run, other)).collect();
        let of_key = beside.iter().filter(|(_, other)| run.key != "-" && other.key == run.key).count();
        assert_eq!(of_key, 0, "SEED={seed}: {id} ran beside a job of its key");
        let narrow = beside.iter().filter(|(_, other)| run.is_narrow && other.is_narrow).count();
        assert!(narrow < 2, "SEED={seed}: {id} ran beside {narrow} others of its kind");
    }
    for (id, awaited) in after {
        let early = awaited.iter().filter(|awaited| match (runs.get(id), runs.get(*awaited)) {
            (Some(run), Some(awaited)) => awaited.ended > run.begun,
            // Its worker died before it was told.
            _ => false,
        });
        assert_eq!(early.count(), 0, "SEED={seed}: {id} began before one of {awaited:?} had ended");
    }
    let mut unique: Vec<_> = added.iter().filter_map(|(id, twin)| Some((twin.as_ref()?, runs.get(id)?))).collect();
    unique.sort_unstable_by_key(|(twin, run)| (*twin, run.begun));
    let twins = unique.windows(2).filter(|two| two[0].0 == two[1].0 && overlap(two[0].1, two[1].1));
    assert_eq!(twins.count(), 0, "SEED={seed}: unique jobs ran beside their twins");
}
