//! Connecting a store: what is refused, and what is kept.

use crate::server::sentinel::follow;
use crate::server::{Server, cluster::Cluster};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;
use waterline_queue::{Accept, JobState, NewJob, QueueOptions, Retention};
use waterline_redis::{Error, Persistence, RedisOptions, RedisStore};

fn refusal(outcome: Result<RedisStore, Error>) -> (Error, String) {
    let error = outcome.map(drop).unwrap_err();
    let text = error.to_string();
    (error, text)
}

#[test]
fn each_unfit_server_is_refused_with_what_to_do() {
    let new = RedisOptions::new;
    let server = |settings: &[(&str, &str)]| Server::start(settings);
    let acl = "user weak on >pw ~wl:* &wl:* +info +ping";
    let plain = server(&[]);
    for (server, options, path, says) in [
        (server(&[("maxmemory-policy", "allkeys-lru")]), new(), "", "maxmemory-policy noeviction"),
        (server(&[("appendonly", "no")]), new(), "", "`RedisOptions::allow_loss`"),
        (server(&[("requirepass", "secret")]), new(), "", "give a user and a password in the address"),
        (server(&[("requirepass", "secret")]), new().login("", "wrong"), "", "correct the user or the password"),
        (server(&[("user", &acl[5..])]), new().login("weak", "pw"), "", "by ACL SETUSER"),
        (server(&[]), new(), "/99", "correct the number of the database"),
        (server(&[("cluster-enabled", "yes")]), new(), "", "connect with `RedisStore::cluster`"),
        (server(&[("replicaof", &format!("127.0.0.1 {}", plain.port()))]), new(), "", "is a replica of 127.0.0.1"),
    ] {
        let (error, text) = refusal(RedisStore::connect(server.url() + path, options));
        assert!(matches!(error, Error::Server { .. } | Error::Refused { .. }), "{error:?}");
        assert!(text.contains(says) && text.contains(&server.port().to_string()), "{text}");
        assert!(!text.contains("secret") && !text.contains("wrong"), "{text}");
    }
    let (error, text) = refusal(RedisStore::cluster(plain.url(), new()));
    assert!(matches!(error, Error::Server { .. }) && text.contains("`RedisStore::connect`"), "{text}");
    let (error, text) = refusal(RedisStore::cluster(Cluster::node().url(), new()));
    assert!(matches!(error, Error::Server { .. }) && text.contains("--cluster create"), "{text}");
    let (error, text) = refusal(RedisStore::cluster(plain.url() + "/1", new()));
    assert!(matches!(error, Error::Config { .. }) && text.contains("take 0"), "{text}");
    let (error, text) = refusal(RedisStore::sentinel(plain.url(), "none", new()));
    assert!(matches!(error, Error::Refused { .. }) && text.contains("does not know or not allow"), "{text}");
    let (error, _) = refusal(RedisStore::connect("redis://127.0.0.1:1", new()));
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    let (error, _) = refusal(RedisStore::connect(plain.url(), new().prefix("")));
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
}

#[test]
fn servers_that_keep_less_or_evict_little_are_taken_on_demand() {
    for (settings, options) in [
        (&[("appendonly", "no")][..], RedisOptions::new().allow_loss()),
        (&[("maxmemory-policy", "volatile-ttl")], RedisOptions::new()),
        (&[("requirepass", "secret")], RedisOptions::new().login("", "secret")),
        (&[("requirepass", "secret")], RedisOptions::new().login("default", "secret")),
    ] {
        let server = Server::start(settings);
        RedisStore::connect(server.url() + "/3", options).unwrap();
    }
}

#[test]
fn a_policy_that_changes_while_it_runs_is_found_by_the_next_connection() {
    let (server, store) = Server::with_store(RedisOptions::new());
    store.fcall("q", "t_add", &[], false).unwrap();
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lfu"]);
    server.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let refused = || store.fcall("q", "t_count", &[], true).unwrap_err().to_string();
    assert!(refused().contains("(queue \"q\") evicts any key"), "{}", refused());
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    store.fcall("q", "t_count", &[], true).unwrap();
}

#[test]
fn what_a_server_keeps_is_what_it_says() {
    let quiet = "app on >pw ~* &* +@all -config";
    for (settings, login, kept) in [
        (&[("appendfsync", "always")][..], "", Persistence::Always),
        (&[("appendfsync", "everysec")], "", Persistence::EachSecond),
        (&[("appendfsync", "no")], "", Persistence::Log),
        (&[("appendfsync", "always"), ("user", quiet)], "app", Persistence::Log),
        (&[("appendonly", "no"), ("save", "60 1")], "", Persistence::Snapshots),
        (&[("appendonly", "no"), ("save", "")], "", Persistence::None),
        (&[("appendonly", "no"), ("save", "60 1"), ("user", quiet)], "app", Persistence::None),
    ] {
        let server = Server::start(settings);
        let options = RedisOptions::new().allow_loss();
        let options = if login.is_empty() { options } else { options.login(login, "pw") };
        let store = RedisStore::connect(server.url(), options).unwrap();
        assert_eq!(store.persistence().unwrap(), kept, "{settings:?}");
    }
}

#[test]
fn of_several_addresses_the_master_is_taken_and_the_worst_error_told() {
    let (master, replica) = (Server::start(&[]), Server::start(&[]));
    follow(&replica, &master);
    let nobody = "redis://127.0.0.1:1".to_owned();
    let store = RedisStore::connect([nobody.clone(), replica.url(), master.url()], RedisOptions::new()).unwrap();
    assert_eq!(store.node_of("q").unwrap(), format!("127.0.0.1:{}", master.port()));
    let (error, _) = refusal(RedisStore::connect([nobody, replica.url()], RedisOptions::new()));
    assert!(matches!(error, Error::Server { .. }), "{error:?}");
}

#[test]
fn what_is_no_redis_server_or_says_nothing_is_an_error_in_time() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let web = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        _ = client.read(&mut [0; 4096]);
        client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        listener
    });
    let (error, text) = refusal(RedisStore::connect(url.clone(), RedisOptions::new()));
    assert!(matches!(error, Error::Odd { .. }) && text.contains("whether it is a Redis server"), "{text}");
    let _silent = web.join().unwrap();
    let (error, _) = refusal(RedisStore::connect(url, RedisOptions::new().connect_timeout(Duration::from_millis(50))));
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
}

#[test]
fn a_valkey_keeps_queues_too() {
    let Some(server) = Server::of("valkey-server") else { return };
    let store = RedisStore::connect(server.url(), RedisOptions::new()).unwrap();
    store.migrate().unwrap();
    assert_eq!(store.persistence().unwrap(), Persistence::Always);
    let queue = store.queue("q", QueueOptions::default().retention(Retention::Keep)).unwrap();
    queue.push(NewJob::new("k", "a").unwrap().id("a")).unwrap();
    server.kill();
    server.start_again();
    let mut lease = None;
    common::eventually("the job is there", || {
        lease = queue.accept(Accept::new()).ok().flatten();
        lease.is_some()
    });
    assert_eq!(lease.unwrap().finish(None).unwrap(), Some(JobState::Finished));
}
