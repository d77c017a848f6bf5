//! Queues in a cluster: several in one slot, slots that move under load, nodes that join, and
//! masters that die.

use crate::bench::{job, keeping, options};
use crate::server::cluster::Cluster;
use crate::size;
use crate::suite::suite_on;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use waterline::seam::describe;
use waterline_queue::{NewJob, Outcome, Queue, Runner, Running};
use waterline_redis::RedisStore;
use waterline_redis::redis::from_redis_value;

/// One of each kind of call: the soak runs all cases.
const SOME_CASES: [&str; 5] = [
    "c12_each_push_wakes_one_of_many_callers",
    "a_push_above_max_waiting_leaves_nothing",
    "a_held_job_resumes_when_the_dead_one_is_rerun_or_gone",
    "random_lives_of_all_calls_match_the_model",
    "random_lives_with_limits_match_the_model",
];

#[test]
fn the_suite_passes_on_a_cluster_in_one_slot() {
    let (cluster, _store) = Cluster::with_store(options());
    let (urls, made) = (cluster.urls(), AtomicU32::new(0));
    let in_one_slot = move || {
        let (options, urls) = (options().tag("suite"), urls.clone());
        let options = options.prefix(format!("c{}", made.fetch_add(1, Ordering::Relaxed)));
        (options, move |options| RedisStore::cluster(urls.clone(), options).unwrap())
    };
    let suite = suite_on(in_one_slot, size(200, 2_500));
    if size(0, 1) == 1 {
        suite.run();
    } else {
        SOME_CASES.iter().for_each(|case| suite.case(case));
    }
}

#[test]
fn a_push_into_several_queues_needs_one_slot_and_is_all_or_nothing() {
    let (cluster, store) = Cluster::with_store(options());
    let bounded = || keeping().max_waiting(2);
    let node = |queue: &str| store.node_of(queue).unwrap();
    let bill = ["bill", "bills", "invoices", "payments", "debts"].into_iter().find(|name| node(name) != node("mail"));
    let bill = bill.expect("three nodes share them");
    let group = |store: &RedisStore| {
        store.queue_group().queue("mail", ["mail"], bounded()).queue(bill, ["bill"], bounded()).open().unwrap()
    };
    let job = |kind: &str| NewJob::new(kind, &1).unwrap();
    let waiting = |store: &RedisStore| ["mail", bill].map(|name| store.queue(name, bounded()).unwrap().counts().ready);
    let apart = group(&store);
    let refused = describe(&apart.push_all([job("mail"), job("bill")]).unwrap_err());
    assert!(refused.contains(&format!("{:?}, which are in several slots", ["mail", bill])), "{refused}");
    assert!(refused.contains("`RedisOptions::tag`"), "{refused}");
    assert_eq!(waiting(&store), [0, 0]);
    apart.push(job("mail")).unwrap();
    apart.push(job("bill")).unwrap();
    assert_eq!(waiting(&store), [1, 1]);
    let tagged = RedisStore::cluster(cluster.urls(), options().tag("shop")).unwrap();
    let together = group(&tagged);
    together.push_all([job("mail"), job("bill"), job("mail")]).unwrap();
    together.push_all([job("bill"), job("mail").delay(Duration::from_secs(9))]).unwrap_err();
    assert_eq!(waiting(&tagged), [2, 1], "the other queue of a refused push has nothing");
    assert_eq!(waiting(&store), [1, 1], "they are other queues");
}

/// How often each job has run.
type Runs = Arc<Mutex<BTreeMap<String, u32>>>;

/// A runner that counts.
fn counting(queue: &Queue, runs: &Runs) -> Runner {
    let runs = Arc::clone(runs);
    let handler = move |job: &Running, _: String| {
        *runs.lock().entry(job.id().to_owned()).or_default() += 1;
        Ok(Outcome::Done)
    };
    Runner::builder(queue).max_processing(4).on("k", handler).start().unwrap()
}

/// Waits until each of these jobs has run, and checks that it ran once.
#[track_caller]
fn each_ran_once(queue: &Queue, runs: &Runs, pushed: u64) {
    common::eventually("all jobs to end", || queue.counts().finished == pushed);
    let runs = runs.lock();
    assert_eq!((runs.len() as u64, runs.values().max()), (pushed, Some(&1)));
}

#[test]
fn a_queue_whose_slot_moves_key_by_key_under_load_loses_and_repeats_nothing() {
    let (mut cluster, store) = Cluster::with_store(options().tag("t"));
    cluster.join();
    let impatient = RedisStore::cluster(cluster.urls(), options().tag("t").answer_timeout(Duration::from_millis(100)));
    let impatient = impatient.unwrap().queue("mail", keeping()).unwrap();
    let (queue, runs, stops) = (store.queue("mail", keeping()).unwrap(), Runs::default(), AtomicBool::new(false));
    let slot = store.place_of("mail").1;
    let runner = counting(&queue, &runs);
    let pushes = |from: &str| {
        let ids = (0..).map(|number| format!("{from}{number}"));
        ids.take_while(|_| !stops.load(Ordering::Relaxed)).inspect(|id| _ = queue.push(job(id)).unwrap()).count() as u64
    };
    let pushed: u64 = std::thread::scope(|scope| {
        let pushers = ["a", "b"].map(|from| scope.spawn(move || pushes(from)));
        for round in 0..size(2, 60) {
            let from = cluster.at(&store.node_of("mail").unwrap());
            let to = &cluster.nodes[(0..3).find(|at| cluster.nodes[*at].port() != from.port()).unwrap()];
            cluster.move_slot(slot, from, to, || {
                common::eventually("calls are told to try again", || from.says("errorstats", "TRYAGAIN"));
                let error = impatient.push(job(format!("late {round}"))).unwrap_err();
                assert!(describe(&error).contains("the slot of the queue moves to another node"), "{error:?}");
                assert!(describe(&error).contains(r#"queue "mail""#), "{error:?}");
            });
            from.ask(&["CONFIG", "RESETSTAT"]);
            let before = queue.counts().finished;
            common::eventually("workers go on", || queue.counts().finished > before + 10);
        }
        stops.store(true, Ordering::Relaxed);
        pushers.into_iter().map(|pusher| pusher.join().unwrap()).sum()
    });
    each_ran_once(&queue, &runs, pushed);
    // A node that joined later has no functions, and says so.
    let (from, to) = (cluster.at(&store.node_of("mail").unwrap()), &cluster.nodes[3]);
    cluster.move_slot(slot, from, to, || ());
    let error = describe(&queue.push(job("c")).unwrap_err());
    assert!(error.contains(r#"queue "mail""#) && error.contains("call `RedisStore::migrate`"), "{error}");
    store.migrate().unwrap();
    queue.push(job("c")).unwrap();
    each_ran_once(&queue, &runs, pushed + 1);
    runner.stop().unwrap();
    for node in &cluster.nodes {
        let keys: usize = from_redis_value(node.ask(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()])).unwrap();
        assert_eq!(keys > 0, node.port() == to.port(), "{keys} keys");
    }
}

#[test]
fn a_replica_takes_over_from_a_master_of_the_cluster() {
    let (mut cluster, store) = Cluster::with_store(options().replicas(1, Duration::from_secs(20)));
    let master =
        cluster.nodes.iter().position(|node| node.port() == cluster.at(&store.node_of("mail").unwrap()).port());
    let master = master.unwrap();
    cluster.join();
    let replica = &cluster.nodes[3];
    replica.ask(&["CLUSTER", "REPLICATE", &cluster.nodes[master].text(&["CLUSTER", "MYID"])]);
    common::eventually("the replica follows", || cluster.nodes[master].says("replication", "state=online"));
    let queue = store.queue("mail", keeping()).unwrap();
    let ids: Vec<_> = (0..50).map(|number| format!("j{number}")).collect();
    ids.iter().for_each(|id| _ = queue.push(job(id)).unwrap());
    cluster.nodes[master].kill();
    let elects = size(0, 1) == 1;
    if !elects {
        // (An election takes up to 20 seconds: the soak waits for it.)
        replica.ask(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
    }
    // Nobody follows the new master.
    let mut others = cluster.urls();
    others.remove(master);
    let (mut opened, mut said) = (None, String::new());
    common::eventually("the replica takes over", || {
        std::thread::park_timeout(Duration::from_millis(50));
        if !elects {
            // The others may know of a later epoch than the replica did when it took over.
            _ = replica.try_ask(&["CLUSTER", "BUMPEPOCH"]);
        }
        let store = RedisStore::cluster(others.clone(), options()).map_err(|error| error.to_string());
        let both = store.and_then(|store| {
            let queue = store.queue("mail", keeping()).map_err(|error| error.to_string())?;
            Ok((queue, store))
        });
        match both {
            Ok(both) => opened = Some(both),
            // (It is shown if this waits in vain.)
            Err(error) if error != said => {
                println!("{error}");
                said = error;
            }
            Err(_) => {}
        }
        opened.is_some()
    });
    let (queue, store) = opened.unwrap();
    assert_eq!(store.node_of("mail").unwrap(), format!("127.0.0.1:{}", replica.port()));
    let runs = Runs::default();
    let runner = counting(&queue, &runs);
    each_ran_once(&queue, &runs, 50);
    runner.stop().unwrap();
}
