//! Runners in Rust and workers in Python and Node on one queue, while all of them are killed, stand
//! still and lose their connections, and the server crashes.

use super::*;
use parking_lot::Mutex;
use postgres::Config;
use std::collections::BTreeMap;
use std::io::Read;
use std::time::{Instant, SystemTime};
use waterline::Retry;
use waterline::queue::{Limit, Outcome, QueueOptions, Retention, Runner};
use waterline_postgres::{PgOptions, PgStore};

/// The variable that makes a process a runner: the database.
const RUNNER: &str = "WATERLINE_LANGUAGES_RUNNER";
const LEASE: Duration = Duration::from_millis(2000);
const SLOTS: u32 = 4;
/// The most jobs of the kind `narrow` at once.
const NARROW: i64 = 2;

fn options() -> QueueOptions {
    QueueOptions::default()
        .lease(LEASE)
        .retry(Retry::fixed(Duration::from_millis(50)))
        .unlimited_crashes()
        .retention(Retention::Keep)
        .limit(Limit::each_key().at_once(1))
        .limit(Limit::kind("narrow").at_once(NARROW as u32))
}

/// Is nothing as a test. As a process of its own it works until it is killed, or its input ends.
#[test]
fn runner() {
    let Ok(url) = std::env::var(RUNNER) else { return };
    let config: Config = url.parse().unwrap();
    let Ok(store) = PgStore::connect(config.clone(), NoTls, PgOptions::new().ttl(LEASE)) else { return };
    let Ok(queue) = store.queue("q", options()) else { return };
    let client = Mutex::new(None::<Client>);
    let work = move |id: &str, attempt: u32, number: u64| {
        let begun = SystemTime::now();
        if number.is_multiple_of(13) && attempt == 1 {
            return Err("not in the first attempt".into());
        }
        std::thread::park_timeout(Duration::from_millis(number % 20));
        // These are no effects: it is killed between this and the end, and then the job runs again.
        let mut client = client.lock();
        let mut own = match client.take() {
            Some(own) => own,
            None => config.connect(NoTls)?,
        };
        own.execute("INSERT INTO runs VALUES ($1, 'rust', $2, clock_timestamp())", &[&id, &begun])?;
        *client = Some(own);
        Ok(Outcome::Done)
    };
    let work = std::sync::Arc::new(work);
    let mut builder = Runner::builder(&queue).max_processing(SLOTS as usize);
    for kind in ["plain", "narrow"] {
        let work = std::sync::Arc::clone(&work);
        builder = builder.on(kind, move |job, number: u64| work(job.id(), job.attempt(), number));
    }
    let runner = builder.start().unwrap();
    _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(runner);
}

/// The processes, each of which is started again when it was killed.
const PROCESSES: [Option<Language>; 3] = [None, Some(Language::Python), Some(Language::Node)];

fn started(bench: &Bench, process: Option<Language>) -> Worker {
    let user = process.map_or("rust", Language::name);
    let note =
        "INSERT INTO started VALUES ($1, clock_timestamp()) ON CONFLICT (language) DO UPDATE SET at = excluded.at";
    bench.client().execute(note, &[&user]).unwrap();
    let Some(language) = process else {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "languages::many::runner"]).env(RUNNER, bench.url("rust"));
        return Worker::start(command, bench.said("rust"));
    };
    Worker::of(language, bench, SLOTS, LEASE.as_secs_f64(), 0.5)
}

/// The jobs that were pushed.
#[derive(Default)]
struct Pushed {
    next: u64,
    /// The ids of those that were added, and the fingerprint of each unique one.
    added: BTreeMap<String, Option<String>>,
    duplicates: u64,
    /// Each of these waits for two others.
    after: Vec<(String, [String; 2])>,
}

impl Pushed {
    /// Pushes so many times ten jobs.
    fn push(&mut self, client: &mut Client, random: &mut fastrand::Rng, tens: u64) {
        let (mut kinds, mut payloads, mut settings) = (Vec::new(), Vec::new(), Vec::new());
        let (first, end) = (self.next, self.next + 10 * tens);
        for n in first..end {
            let key = random.u32(..5);
            let fingerprint = random.u32(..8);
            let decade = n - n % 10;
            kinds.push(if matches!(n % 10, 5 | 6 | 9) { "narrow" } else { "plain" });
            payloads.push(n.to_string());
            settings.push(match n % 10 {
                0 | 1 => Some(format!(r#"{{"id": "j{n}"}}"#)),
                2..=4 | 9 => Some(format!(r#"{{"key": "k{key}"}}"#)),
                7 => Some(format!(r#"{{"unique": {{"fingerprint": "u{fingerprint}", "until": "done"}}}}"#)),
                8 => Some(format!(r#"{{"after": ["j{decade}", "j{}"]}}"#, decade + 1)),
                _ => None,
            });
        }
        let push = "SELECT id, outcome FROM waterline.push_many('q', $1, $2, $3::text[]::jsonb[])";
        let answers = client.query(push, &[&kinds, &payloads, &settings]).unwrap();
        for ((n, settings), answer) in (first..end).zip(settings).zip(answers) {
            let (id, outcome): (String, String) = (answer.get(0), answer.get(1));
            if outcome == "duplicate" {
                self.duplicates += 1;
                continue;
            }
            assert_eq!(outcome, "added");
            if n % 10 == 8 {
                self.after.push((id.clone(), [format!("j{}", n - 8), format!("j{}", n - 7)]));
            }
            self.added.insert(id, settings.filter(|_| n % 10 == 7));
        }
        self.next = end;
    }
}

/// The users of the processes in the database.
const USERS: [&str; 3] = ["rust", "python", "node"];

/// Waits until a process has asked for jobs since its start.
fn wait_for_work(client: &mut Client, user: &str) {
    // The server may not have seen yet that the one before it was killed.
    let claims = "SELECT EXISTS (SELECT FROM pg_stat_activity JOIN started ON language = usename AND backend_start > at
        WHERE usename = $1 AND query ~ 'claim|turn')";
    common::eventually("a process that is at work", || client.query_one(claims, &[&user]).unwrap().get(0));
}

/// Lets something happen to one of the processes, once it is at work.
fn disturb(bench: &Bench, workers: &mut [Worker], random: &mut fastrand::Rng, kills: &mut BTreeMap<&str, u64>) {
    let (at, what, pause) = (random.usize(..workers.len()), random.u32(..10), random.u64(20..300));
    let mut client = bench.client();
    wait_for_work(&mut client, USERS[at]);
    std::thread::park_timeout(Duration::from_millis(pause));
    let name = match what {
        0 | 1 => {
            let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1";
            client.execute(cut, &[&USERS[at]]).unwrap();
            "cut"
        }
        2 => {
            // It stands still for longer than its leases, and goes on.
            workers[at].signal("STOP");
            std::thread::park_timeout(LEASE + Duration::from_millis(300));
            workers[at].signal("CONT");
            "stopped"
        }
        _ => {
            workers[at].kill();
            workers[at] = started(bench, PROCESSES[at]);
            "killed"
        }
    };
    *kills.entry(name).or_default() += 1;
}

/// Faults, each with the jobs or pairs of them that show it. The last run of a job is the
/// one whose end counted: one that did not count has another one behind it. A run of Python or Node
/// is written in the transaction of its end.
const FAULTS: [(&str, &str); 5] = [
    (
        "effects of a job were written twice",
        "SELECT job FROM runs WHERE language <> 'rust' GROUP BY job HAVING count(*) > 1",
    ),
    ("jobs ended without a run", "SELECT id FROM waterline.jobs WHERE id NOT IN (SELECT job FROM runs)"),
    (
        "jobs of one key ran at once",
        "SELECT a.job FROM last a JOIN last b ON a.key = b.key AND a.job < b.job AND a.begun < b.ended AND b.begun < a.ended",
    ),
    (
        "too many jobs of a kind ran at once",
        "SELECT a.job FROM last a JOIN last b ON b.begun <= a.begun AND a.begun < b.ended \
         WHERE a.kind = 'narrow' AND b.kind = 'narrow' GROUP BY a.job HAVING count(*) > 2",
    ),
    ("a job was run that never was there", "SELECT job FROM runs WHERE job NOT IN (SELECT id FROM waterline.jobs)"),
];

#[test]
fn three_languages_share_a_queue_and_each_job_ends_once_within_the_limits_whatever_dies() {
    let seed = if std::env::var_os("SEED").is_some() { common::seed() } else { fastrand::u64(..) };
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let bench = Bench::new("{}");
    let store = PgStore::connect(bench.database.config.clone(), NoTls, PgOptions::new()).unwrap();
    let queue = store.queue("q", options()).unwrap();
    let (begun, mut pushed, mut kills) = (Instant::now(), Pushed::default(), BTreeMap::new());
    let tens = size(40, 1_000);
    let tables = "CREATE TABLE started (language name PRIMARY KEY, at timestamptz); CREATE ROLE rust LOGIN SUPERUSER";
    bench.client().batch_execute(tables).unwrap();
    pushed.push(&mut bench.client(), &mut random, tens / 4);
    let mut workers = PROCESSES.map(|process| started(&bench, process));
    let events = size(12, 200);
    let crash = random.u64(..events);
    for at in 0..events {
        if at == crash {
            bench.server.stop(End::Immediate);
            bench.server.start_again();
        }
        disturb(&bench, &mut workers, &mut random, &mut kills);
        let more = (tens - pushed.next / 10).min(tens / 10);
        pushed.push(&mut bench.client(), &mut random, more);
    }
    let mut client = bench.client();
    pushed.push(&mut client, &mut random, tens - pushed.next / 10);
    let what = format!("all jobs to end, SEED={seed}");
    let logs = |workers: &[Worker]| workers.iter().map(|worker| tail(&worker.said())).collect::<Vec<_>>().join("\n");
    println!("{kills:?} after {:?}", begun.elapsed());
    let waits = Instant::now();
    while one::<i64>(&mut client, "count(*) FROM waterline.job") > 0 {
        if waits.elapsed() > crate::server::PATIENCE {
            let left: Vec<String> = one(&mut client, "array_agg(j::text) FROM waterline.job j");
            panic!("waited in vain for {what}: {left:#?}\n{}", logs(&workers));
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    check(&mut client, &pushed, seed);
    for (worker, process) in workers.iter_mut().zip(PROCESSES).filter(|(_, process)| process.is_some()) {
        wait_for_work(&mut client, process.map_or("rust", Language::name));
        worker.signal("TERM");
        assert!(worker.ended().success(), "{process:?}, SEED={seed}: {}", worker.said());
    }
    let by: BTreeMap<String, i64> = client
        .query("SELECT language, count(*) FROM runs GROUP BY 1", &[])
        .unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    assert_eq!(by.len(), 3, "workers of all languages had jobs: {by:?}, SEED={seed}\n{}", logs(&workers));
    let deadlocks = bench.server.log().matches("deadlock detected").count();
    assert_eq!(deadlocks, 0, "SEED={seed}: {}", bench.server.log());
    println!(
        "{} jobs and {} twins, runs {by:?}, {kills:?}, one crash of the server, {:?}",
        pushed.added.len(),
        pushed.duplicates,
        begun.elapsed()
    );
    drop(queue);
}

fn check(client: &mut Client, pushed: &Pushed, seed: u64) {
    let ended: BTreeMap<String, String> = client
        .query("SELECT id, state FROM waterline.jobs", &[])
        .unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    assert!(ended.keys().eq(pushed.added.keys()), "SEED={seed}: jobs were lost or made");
    assert!(ended.values().all(|state| state == "finished"), "SEED={seed}: {ended:?}");
    client
        .batch_execute(
            "CREATE TEMP TABLE last AS SELECT DISTINCT ON (job) job, begun, ended, key, kind
             FROM runs JOIN waterline.jobs ON id = job ORDER BY job, begun DESC",
        )
        .unwrap();
    for (what, found) in FAULTS {
        let found: Vec<String> = client.query(found, &[]).unwrap().iter().map(|row| row.get(0)).collect();
        assert!(found.is_empty(), "SEED={seed}: {what}: {found:?}");
    }
    let times: BTreeMap<String, [SystemTime; 2]> = client
        .query("SELECT job, begun, ended FROM last", &[])
        .unwrap()
        .iter()
        .map(|row| (row.get(0), [row.get(1), row.get(2)]))
        .collect();
    for (id, awaited) in &pushed.after {
        let early: Vec<_> = awaited.iter().filter(|awaited| times[*awaited][1] > times[id][0]).collect();
        assert!(early.is_empty(), "SEED={seed}: {id} began before {early:?} had ended");
    }
    let unique = pushed.added.iter().filter_map(|(id, fingerprint)| Some((fingerprint.as_ref()?, times[id])));
    let mut unique: Vec<_> = unique.collect();
    unique.sort_unstable();
    let twins = unique.windows(2).filter(|two| two[0].0 == two[1].0 && two[0].1[1] > two[1].1[0]);
    assert_eq!(twins.count(), 0, "SEED={seed}: unique jobs ran beside their twins");
}

/// The last lines.
fn tail(said: &str) -> String {
    let lines: Vec<_> = said.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
