//! Connections over TLS. The servers have no other port, so nothing comes through in the clear.

use crate::server::tls::Certificates;
use crate::server::{FUNCTIONS, Server};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use waterline_queue::{Accept, JobState, NewJob, QueueOptions, Retention};
use waterline_redis::redis::Value;
use waterline_redis::{Error, RedisOptions, RedisStore};

/// A server with the certificate of this name, and with further settings.
fn server(certificates: &Certificates, name: &str, more: &[(&str, &str)]) -> Server {
    let own = certificates.settings(name);
    let own = own.iter().map(|(name, value)| (*name, value.as_str()));
    Server::start(&own.chain(more.iter().copied()).collect::<Vec<_>>())
}

fn options(certificates: &Certificates) -> RedisOptions {
    trusting(certificates).identity(certificates.file("client.crt"), certificates.file("client.key"))
}

fn trusting(certificates: &Certificates) -> RedisOptions {
    RedisOptions::new().authority(certificates.file("authority.crt")).connect_timeout(Duration::from_secs(30))
}

#[test]
fn calls_bells_and_queues_work_and_go_on_after_a_loss() {
    let certificates = Certificates::new();
    let server = server(&certificates, "server", &[]);
    server.ask(&["FUNCTION", "LOAD", FUNCTIONS]);
    let store = RedisStore::connect(server.url(), options(&certificates)).unwrap();
    store.migrate().unwrap();
    let rung = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&rung);
    let _listens = store.listen("q", Arc::new(move || _ = counts.fetch_add(1, Ordering::Relaxed))).unwrap();
    let mut heard = 0;
    let mut more = |what| {
        common::eventually(what, || rung.load(Ordering::Relaxed) > heard);
        heard = rung.load(Ordering::Relaxed);
    };
    more("the begin");
    store.fcall("q", "t_ring", &[], false).unwrap();
    more("the bell");
    let queue = store.queue("q", QueueOptions::default().retention(Retention::Keep)).unwrap();
    // Many records of TLS.
    let large = "x".repeat(200_000);
    let id = queue.push(NewJob::new("k", &large).unwrap()).unwrap().id;
    server.kill();
    server.start_again();
    more("a ring after the loss");
    let mut lease = None;
    common::eventually("the job", || {
        lease = queue.accept(Accept::new()).ok().flatten();
        lease.is_some()
    });
    let mut lease = lease.unwrap();
    assert_eq!((lease.payload::<String>().unwrap() == large, lease.id()), (true, &*id));
    assert_eq!(lease.finish(None).unwrap(), Some(JobState::Finished));
}

#[test]
fn whoever_is_not_trusted_is_refused_with_what_to_do() {
    let (ours, others) = (Certificates::new(), Certificates::new());
    let plain = Server::start(&[]);
    let [own, other, open] = [("server", "yes"), ("other", "yes"), ("server", "no")]
        .map(|(name, asks)| server(&ours, name, &[("tls-auth-clients", asks)]));
    let clear = |server: &Server| server.url().replace("rediss:", "redis:");
    let soon = || options(&ours).connect_timeout(Duration::from_millis(500));
    for (url, options, says) in [
        (own.url(), RedisOptions::new(), "unknown authority"),
        (own.url(), trusting(&others), "`RedisOptions::authority`"),
        (other.url(), options(&ours), "connect by a name in its certificate"),
        (own.url(), trusting(&ours), "`RedisOptions::identity`"),
        (own.url(), trusting(&ours).identity(others.file("client.crt"), others.file("client.key")), "identity`"),
        (clear(&own), RedisOptions::new(), "both sides speak TLS (rediss://) or none"),
        // The server waits for the rest of what it takes for a command.
        (plain.url().replace("redis://127.0.0.1", "rediss://localhost"), soon(), "both sides speak TLS"),
    ] {
        let began = Instant::now();
        let error = RedisStore::connect(url.clone(), options).map(drop).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Server { .. } | Error::Lost { .. }) && error.may_pass(), "{error:?}");
        assert!(text.contains(says) && text.contains(url.rsplit('/').next().unwrap()), "{says}: {text}");
        assert!(began.elapsed() < Duration::from_secs(20), "{says} after {:?}", began.elapsed());
    }
    RedisStore::connect(open.url(), trusting(&ours)).unwrap();
}

#[test]
fn settings_that_cannot_make_a_safe_connection_are_refused_before_one() {
    let [ours, others] = [(); 2].map(|()| Certificates::new());
    let (certificate, key) = (ours.file("client.crt"), ours.file("client.key"));
    let new = RedisOptions::new;
    for (url, options, says) in [
        ("redis://h", new().authority(ours.file("authority.crt")), "begin the address with rediss://"),
        ("unix:///s", new().identity(certificate.clone(), key.clone()), "begin the address with rediss://"),
        ("rediss://h/#insecure", new(), "take #insecure out of it"),
        ("rediss://h", new().authority("no PEM"), "no certificate in that of the authority"),
        ("rediss://h", new().identity("", key), "no certificate in that of this process"),
        ("rediss://h", new().identity(certificate.clone(), ""), "the key of this process cannot be read"),
        ("rediss://h", new().identity(certificate, others.file("client.key")), "do not fit"),
    ] {
        for outcome in [
            RedisStore::connect(url, options.clone()),
            RedisStore::sentinel(url, "name", options.clone()),
            RedisStore::cluster(url, options),
        ] {
            let error = outcome.map(drop).unwrap_err();
            assert!(matches!(error, Error::Config { .. }) && error.to_string().contains(says), "{error}");
        }
    }
}

#[test]
fn sentinels_and_the_master_that_they_name_are_reached_over_tls() {
    let certificates = Certificates::new();
    let encrypts = ("tls-replication", "yes");
    let master = server(&certificates, "server", &[encrypts]);
    let own = certificates.settings("server");
    let own: Vec<_> = own.iter().map(|(name, value)| (*name, value.as_str())).chain([encrypts]).collect();
    let sentinel = Server::start_as(&["--sentinel"], &own);
    for name in ["resolve-hostnames", "announce-hostnames"] {
        sentinel.ask(&["SENTINEL", "CONFIG", "SET", name, "yes"]);
    }
    sentinel.ask(&["SENTINEL", "MONITOR", "m", "localhost", &master.port().to_string(), "1"]);
    let store = RedisStore::sentinel(sentinel.url(), "m", options(&certificates)).unwrap();
    store.migrate().unwrap();
    assert_eq!(store.node_of("q").unwrap(), format!("localhost:{}", master.port()));
}

#[test]
fn the_nodes_of_a_cluster_are_found_and_followed_over_tls() {
    let certificates = Certificates::new();
    let named = [("cluster-announce-hostname", "localhost"), ("cluster-preferred-endpoint-type", "hostname")];
    let settings = [&named[..], &[("cluster-enabled", "yes"), ("tls-cluster", "yes")]].concat();
    let nodes = [(); 2].map(|()| server(&certificates, "server", &settings));
    for (node, slots) in nodes.iter().zip([("0", "8191"), ("8192", "16383")]) {
        node.ask(&["CLUSTER", "ADDSLOTSRANGE", slots.0, slots.1]);
        node.ask(&["FUNCTION", "LOAD", FUNCTIONS]);
    }
    let port = nodes[0].port().to_string();
    common::eventually("the nodes know each other", || {
        nodes[1].ask(&["CLUSTER", "MEET", "127.0.0.1", &port]);
        let knows = |node: &Server| format!("{:?}", node.ask(&["CLUSTER", "SLOTS"])).matches("localhost").count();
        nodes.iter().all(|node| node.text(&["CLUSTER", "INFO"]).contains("cluster_state:ok") && knows(node) > 1)
    });
    let store = RedisStore::cluster(nodes[0].url(), options(&certificates)).unwrap();
    store.migrate().unwrap();
    let names: Vec<_> = (0..8).map(|number| format!("q{number}")).collect();
    names.iter().for_each(|name| _ = store.fcall(name, "t_add", &[], false).unwrap());
    let mut places: Vec<_> = names.iter().map(|name| store.node_of(name).unwrap()).collect();
    places.sort_unstable();
    places.dedup();
    assert!(places.len() == 2 && places.iter().all(|place| place.starts_with("localhost:")), "{places:?}");
    // A redirection leads to a server of TLS, too.
    let slot = store.place_of("q0").1;
    let at = store.node_of("q0").unwrap();
    let [from, to] = if at.ends_with(&port) { [&nodes[0], &nodes[1]] } else { [&nodes[1], &nodes[0]] };
    from.ask(&["DEL", &store.place_of("q0").0]);
    // One that imports it has a newer epoch then. Else what the other one has sent takes it back.
    let [id, former] = [to, from].map(|node| node.text(&["CLUSTER", "MYID"]));
    to.ask(&["CLUSTER", "SETSLOT", &slot.to_string(), "IMPORTING", &former]);
    for node in [to, from] {
        node.ask(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &id]);
    }
    assert_eq!(store.fcall("q0", "t_add", &[], false).unwrap(), Value::Int(1));
    assert_eq!(store.node_of("q0").unwrap(), format!("localhost:{}", to.port()));
}
