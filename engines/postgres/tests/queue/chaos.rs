//! Workers in Rust, Python and Node on one queue, while everything fails that can: workers are
//! killed or frozen, connections are cut in a COMMIT, the server crashes, its disk is full, and a
//! replica takes its place. No job is lost, and none ends twice.

use crate::bench::wait_for_all_ends;
use crate::languages::one;
use crate::size;
use cluster::{Cluster, USERS, wait_for_work};
use postgres::Client;
use pushing::{Pushed, Pusher};
use settings::Event;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

mod cluster;
mod lagging;
mod life;
mod pushing;
mod settings;
mod stopped;
mod stopping;
mod workers;

/// The events of a run, each with a number of times, and the worker that it happens to.
fn events(random: &mut fastrand::Rng) -> Vec<(Event, usize)> {
    use Event::*;
    let times = [
        (Kill, 6, 220),
        (Stop, 1, 12),
        (Disconnect, 2, 20),
        (Crash, 1, 8),
        (FullDisk, 1, 6),
        (FullLog, 1, 6),
        (Failover, 1, 8),
    ];
    let mut events = Vec::new();
    for (event, few, many) in times {
        events.extend((0..size(few, many)).map(|_| (event, random.usize(..USERS.len()))));
    }
    // Each worker has its end cut before the server gets it, or after. A soak does both.
    for at in 0..USERS.len() {
        let answers = if size(0, 1) == 0 { vec![random.bool()] } else { [true, false].repeat(5) };
        events.extend(answers.into_iter().map(|answer| (CutEnd(answer), at)));
    }
    random.shuffle(&mut events);
    events
}

/// Faults, each with the jobs or pairs of them that show it. All runs except those that are `noted`
/// are written in the transaction of the end, so such a run is the one whose end counted. (A
/// process of `rust` may lose its lease before the handler begins, and so begin last.) Otherwise it
/// is the last run.
const FAULTS: [(&str, &str); 6] = [
    (
        "effects of a job were written twice",
        "SELECT job FROM runs WHERE language NOT LIKE '%noted' GROUP BY job HAVING count(*) > 1",
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
    (
        "a job has failed, and no handler said so",
        "SELECT id || ': ' || error FROM waterline.jobs WHERE failures > (payload::bigint % 13 = 0)::int",
    ),
];

#[test]
fn no_job_is_lost_or_ends_twice_whatever_dies() {
    let seed = if std::env::var_os("SEED").is_some() { common::seed() } else { fastrand::u64(..) };
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut cluster = Cluster::start(random.u64(..));
    let (begun, mut seen) = (Instant::now(), BTreeMap::new());
    let pusher = Pusher::start(cluster.config(), random.u64(..));
    let events = events(&mut random);
    let tens = size(40, 1_200);
    pusher.push(tens / 4);
    let mut workers = [0, 1, 2, 3].map(|at| cluster.worker(at));
    for (at, (event, of)) in events.iter().enumerate() {
        wait_for_work(&mut cluster.client(), USERS[*of]);
        std::thread::park_timeout(Duration::from_millis(random.u64(20..200)));
        println!("{:?}: {event:?} {}", begun.elapsed(), USERS[*of]);
        let failovers = events[at..].iter().filter(|(event, _)| *event == Event::Failover).count();
        cluster.bring_about(*event, *of, &mut workers, &pusher, failovers > 1);
        *seen.entry(event).or_insert(0) += 1;
        pusher.push((tens / 2 / events.len() as u64).max(1));
    }
    println!("{seen:?} after {:?}", begun.elapsed());
    pusher.push(tens / 4);
    let pushed = pusher.end();
    let mut client = cluster.client();
    client.batch_execute("DELETE FROM waterline.ended WHERE queue = 0").unwrap();
    wait_for_all_ends(&mut client);
    check(&mut client, &pushed, seed);
    check_told(&cluster, &mut client, seed);
    for (worker, user) in workers.iter_mut().zip(USERS) {
        wait_for_work(&mut client, user);
        worker.signal("TERM");
        let ended = worker.ended();
        // The workers in Rust die of the signal.
        assert!(ended.success() || ["rust", "writer"].contains(&user), "{user}, SEED={seed}: {}", worker.said());
    }
    let by = client.query("SELECT language, count(*) FROM runs GROUP BY 1", &[]).unwrap();
    let by: BTreeMap<String, i64> = by.iter().map(|row| (row.get(0), row.get(1))).collect();
    // The workers in Python and Node end their jobs in both ways.
    assert_eq!(by.len(), USERS.len() + 2, "all workers had jobs: {by:?}, SEED={seed}");
    assert!(!cluster.logs().contains("deadlock detected"), "SEED={seed}: {}", cluster.logs());
    let (jobs, twins) = (pushed.added.len(), pushed.duplicates);
    println!("{jobs} jobs and {twins} twins, runs {by:?}, {seen:?}, {:?}", begun.elapsed());
}

fn check(client: &mut Client, pushed: &Pushed, seed: u64) {
    let rows = client.query("SELECT id, state FROM waterline.jobs", &[]).unwrap();
    let ended: BTreeMap<String, String> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert!(ended.keys().eq(pushed.added.keys()), "SEED={seed}: jobs were lost or made");
    assert!(ended.values().all(|state| state == "finished"), "SEED={seed}: {ended:?}");
    client
        .batch_execute(
            "CREATE TEMP TABLE last AS SELECT DISTINCT ON (job) job, begun, ended, key, kind
             FROM runs JOIN waterline.jobs ON id = job ORDER BY job, language LIKE '%noted', begun DESC",
        )
        .unwrap();
    for (what, found) in FAULTS {
        let found: Vec<String> = client.query(found, &[]).unwrap().iter().map(|row| row.get(0)).collect();
        assert!(found.is_empty(), "SEED={seed}: {what}: {found:?}");
    }
    let times = client.query("SELECT job, begun, ended FROM last", &[]).unwrap();
    let times: BTreeMap<String, [SystemTime; 2]> =
        times.iter().map(|row| (row.get(0), [row.get(1), row.get(2)])).collect();
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

/// Checks what the runners were told: each end that counts is told once at most, and is there.
fn check_told(cluster: &Cluster, client: &mut Client, seed: u64) {
    let told = cluster.told();
    let ids: BTreeSet<_> = told.iter().map(String::as_str).collect();
    let mut twice = told.clone();
    twice.sort_unstable();
    let twice: Vec<_> = twice.windows(2).filter(|two| two[0] == two[1]).map(|two| &two[0]).collect();
    assert!(twice.is_empty(), "SEED={seed}: runners were told twice that these have finished: {twice:?}");
    let there: BTreeSet<String> =
        one::<Vec<String>>(client, "array_agg(id) FROM waterline.jobs WHERE state = 'finished'").into_iter().collect();
    let lost: Vec<_> = ids.iter().filter(|id| !there.contains(**id)).collect();
    assert!(!ids.is_empty() && lost.is_empty(), "SEED={seed}: runners were told that these have finished: {lost:?}");
}
