//! The tool at a real Redis server, started as in the tests of the engine, and beside a page.
#![cfg(unix)]

#[path = "../tool/program.rs"]
mod program;
#[path = "../../../../engines/redis/tests/server/mod.rs"]
mod server;

use program::{At, json};
use server::Server;
use server::cluster::Cluster;
use server::sentinel::{NAME, Watched};
use std::time::Duration;
use waterline_queue::{Accept, Every, NewJob, Queue, QueueOptions};
use waterline_redis::{RedisOptions, RedisStore};
use waterline_ui::Page;

/// A queue with a job in most states, and a worker.
fn mail(store: &RedisStore) -> Queue {
    let mail = store.queue("mail", QueueOptions::default().lease(Duration::from_secs(1))).unwrap();
    mail.push(NewJob::new("welcome", "carl").unwrap().id("carl")).unwrap();
    mail.accept(Accept::new()).unwrap().expect("it is ready").bury("no such customer").unwrap();
    mail.push(NewJob::new("welcome", "ann").unwrap().id("ann")).unwrap();
    mail.push(NewJob::new("digest", "bob").unwrap().id("bob").delay(Duration::from_secs(86_400))).unwrap();
    let daily = mail.periodic("daily", Every::new(Duration::from_secs(86_400)), NewJob::new("digest", "all").unwrap());
    daily.start_at_next().start().unwrap();
    mail
}

/// The answers of each look, in parts.
const LOOKS: &[(&str, &[&str])] = &[
    ("list", &["There is no consumer"]),
    ("queues", &["mail       1        0          1        0     1"]),
    ("jobs mail", &["carl  welcome  dead", "ann   welcome  ready", "bob   digest   scheduled", "no such customer"]),
    ("jobs mail --state dead", &["carl"]),
    ("job mail ann", &["kind      welcome", "\"ann\""]),
    ("schedules mail", &["daily"]),
    ("workers mail", &["rust"]),
];

#[test]
fn each_look_and_each_change_is_that_of_the_queue() {
    let server = Server::start(&[]);
    let store = RedisStore::connect(server.url(), RedisOptions::new()).unwrap();
    store.migrate().unwrap();
    let queue = mail(&store);
    let at = At::redis(&server.url());
    for (line, parts) in LOOKS {
        let out = at.text(line);
        for part in *parts {
            assert!(out.contains(part), "{line} has no {part:?}:\n{out}");
        }
        assert!(out.contains(&format!("read from Redis at 127.0.0.1:{}", server.port())), "{out}");
        at.text(&format!("{line} --json"));
    }
    let doctor = at.call("doctor");
    assert!(doctor.code == 1 && doctor.out.contains("has 1 dead job"), "{doctor:?}");
    let dry = at.text("pause mail");
    assert!(!queue.status().unwrap().sentence().contains("paused"), "without --yes nothing is done: {dry}");
    // What each change leaves: the ready, scheduled and dead jobs.
    for (line, left) in [
        ("run-now mail bob --yes", [2, 0, 1]),
        ("requeue mail carl --yes", [3, 0, 0]),
        ("cancel mail carl --yes", [2, 0, 0]),
        ("push mail welcome {} --yes", [3, 0, 0]),
        ("pause mail --yes", [3, 0, 0]),
        ("resume mail --yes", [3, 0, 0]),
    ] {
        at.text(line);
        let counts = queue.counts();
        assert_eq!([counts.ready, counts.scheduled, counts.dead], left, "{line}");
    }
    at.refused("job mail nobody", 1, &["has no job \"nobody\""]);
    at.refused("jobs mial", 1, &["did you mean \"mail\"?"]);
    at.refused("show blocks", 1, &["there is no consumer"]);
    drop((queue, store));
    common::eventually("no worker was heard of within a lease", || at.call("remove-queue mail --yes").code == 0);
    assert!(at.text("queues").contains("There is no queue."));
}

#[test]
fn sentinels_clusters_tags_and_passwords_are_named_on_the_line() {
    let cluster = Cluster::start();
    let store = RedisStore::cluster(cluster.urls(), RedisOptions::new().tag("shop").prefix("x")).unwrap();
    store.migrate().unwrap();
    let _mail = mail(&store);
    let at = At::redis(&cluster.urls().join(","));
    assert_eq!(at.records("queues --cluster --redis-prefix x --tag shop")[0]["name"], "mail");
    assert!(at.text("queues --cluster").contains("There is no queue."));
    at.refused("queues", 1, &["node of a cluster"]);
    at.refused("queues --cluster --sentinel m", 2, &["cannot be used with"]);

    let watched = Watched::start();
    let store = RedisStore::sentinel(watched.urls(), NAME, RedisOptions::new()).unwrap();
    store.migrate().unwrap();
    let _mail = mail(&store);
    assert_eq!(At::redis(&watched.urls().join(",")).records(&format!("queues --sentinel {NAME}"))[0]["name"], "mail");

    let master = &watched.servers[0];
    master.ask(&["ACL", "SETUSER", "eve", "on", ">s3cret", "+@all", "-fcall", "~*", "&*"]);
    master.ask(&["ACL", "SETUSER", "ann", "on", ">s3cret", "+@all", "~*", "&*"]);
    let of = |user: &str| At::redis(&master.url().replace("//", &format!("//{user}@")));
    assert_eq!(of("ann").with("REDISCLI_AUTH", "s3cret").records("queues")[0]["name"], "mail");
    of("eve").with("REDISCLI_AUTH", "s3cret").refused("queues", 1, &["NOPERM"]);
    of("ann").with("REDISCLI_AUTH", "wrong").refused("queues", 1, &["WRONGPASS"]);
    let known = of("ann:s3cret").call("queues");
    assert!(known.code == 1 && known.error.contains("REDISCLI_AUTH") && !known.error.contains("s3cret"), "{known:?}");
}

#[test]
fn the_page_shows_a_queue_in_redis() {
    let server = Server::start(&[]);
    let store = RedisStore::connect(server.url(), RedisOptions::new()).unwrap();
    store.migrate().unwrap();
    let queue = mail(&store);
    let page = Page::of([&queue]).allow_writes(true).token(program::TOKEN).serve("127.0.0.1:0").unwrap();
    let through = At::url(&format!("http://{}", page.addr()));
    for (line, parts) in LOOKS {
        let out = through.text(line);
        for part in *parts {
            assert!(out.contains(part), "{line} has no {part:?}:\n{out}");
        }
    }
    through.text("requeue mail carl --yes");
    assert_eq!(queue.counts().ready, 2);
    let dead = json(&through.text("jobs mail --state dead --json"));
    assert!(dead.is_empty(), "{dead:?}");
}
