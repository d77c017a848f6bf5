//! A watch of a queue, in which other processes work, too.

use crate::bench::{bench, call, job, keeping, options};
use crate::server::Server;
use std::collections::BTreeSet;
use std::time::Duration;
use waterline_queue::{Accept, NewJob, Queue, QueueChange, QueueOptions, Watch};
use waterline_redis::redis::{self, Value, from_redis_value};
use waterline_redis::{RedisOptions, RedisStore};

/// Longer than any wait of a test that succeeds.
const LONG: Duration = Duration::from_secs(60);

/// Each call makes a handle with connections of its own, as another process has.
fn process(server: &Server, options: &RedisOptions) -> Queue {
    RedisStore::connect(server.url(), options.clone()).unwrap().queue("q", keeping()).unwrap()
}

fn told(watch: &mut Watch) -> String {
    said(watch.wait(LONG))
}

fn said(change: Option<QueueChange>) -> String {
    match change.expect("it hangs") {
        QueueChange::Job { id, state, .. } => {
            format!("{id} {}", state.map_or("gone".to_owned(), |state| state.to_string()))
        }
        QueueChange::Paused { .. } => "paused".to_owned(),
        QueueChange::Resumed => "resumed".to_owned(),
        other => format!("{other:?}"),
    }
}

/// A server of one test, which sees all that it is asked.
fn own_server() -> (Server, RedisStore) {
    let server = Server::start(&[]);
    let store = RedisStore::connect(server.url(), options()).unwrap();
    store.migrate().unwrap();
    (server, store)
}

#[test]
fn a_watch_tells_what_all_processes_do_in_the_order_of_the_server() {
    let (server, options) = bench();
    let [own, other] = [0; 2].map(|_| process(server, &options));
    own.push(job("before")).unwrap();
    let mut watch = own.watch();
    other.push_all([job("a"), job("b").delay(LONG)]).unwrap();
    own.push(job("c")).unwrap();
    other.remove("before").unwrap();
    let mut lease = other.accept(Accept::new()).unwrap().unwrap();
    lease.update(Some("half".into())).unwrap();
    own.pause(None).unwrap();
    lease.finish(None).unwrap();
    other.resume().unwrap();
    own.accept(Accept::new()).unwrap().unwrap().bury("no").unwrap();
    other.requeue("c").unwrap();
    let all = "a ready, b scheduled, c ready, before gone, a running, a running, paused, a finished, resumed, \
        c running, c dead, c ready";
    for expected in all.split(", ") {
        assert_eq!(told(&mut watch), expected);
    }
    let id = other.push(NewJob::new("k", "plain").unwrap()).unwrap().id;
    assert_eq!(told(&mut watch), format!("{id} ready"));
    assert_eq!(watch.wait(Duration::ZERO), None, "each is told once");
}

#[test]
fn a_watch_as_a_future_tells_of_other_processes_and_may_be_dropped() {
    let (server, options) = bench();
    let [own, other] = [0; 2].map(|_| process(server, &options));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let mut watch = own.watch();
        for n in 0..30 {
            let mut wait = Box::pin(watch.wait_async(LONG));
            // It has been asked for, and the server too, if there was time for that.
            let early = tokio::time::timeout(Duration::from_millis(n % 4), &mut wait).await;
            assert_eq!(early.ok(), None);
            other.push(job(format!("j{n}"))).unwrap();
            let change = if n % 2 == 0 {
                wait.await
            } else {
                drop(wait);
                watch.wait_async(LONG).await
            };
            assert_eq!(said(change), format!("j{n} ready"));
        }
        assert_eq!(watch.wait_async(Duration::ZERO).await, None, "each is told once");
    });
}

/// What the server is asked, and when by its own clock.
struct Monitor(redis::Connection);

impl Monitor {
    fn new(server: &Server) -> Self {
        let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        redis::cmd("MONITOR").exec(&mut connection).unwrap();
        connection.set_read_timeout(Some(LONG)).unwrap();
        Self(connection)
    }

    /// The time of the next call of this function, in seconds.
    fn time_of(&mut self, function: &str) -> f64 {
        loop {
            let line: String = from_redis_value(self.0.recv_response().expect("it hangs")).unwrap();
            if line.contains(function) {
                return line.split(' ').next().unwrap().parse().unwrap();
            }
        }
    }

    /// How long after each of many pushes the changes of the queue are read.
    fn lags(&mut self, by: &Queue) -> Vec<f64> {
        let lag = |n: u32| {
            by.push(job(format!("j{n}"))).unwrap();
            let pushed = self.time_of("wl_push");
            self.time_of("wl_told") - pushed
        };
        (0..20).map(lag).collect()
    }
}

#[test]
fn a_change_is_read_when_it_rings() {
    let (server, store) = own_server();
    let (own, other) = (store.queue("q", keeping()).unwrap(), process(&server, &options()));
    let mut watch = own.watch();
    // The pause between looks that nothing rings for has grown by then.
    let lags = Monitor::new(&server).lags(&other);
    assert!(lags[10..].iter().any(|lag| *lag < 0.2), "{lags:?}");
    (0..20).for_each(|n| assert_eq!(told(&mut watch), format!("j{n} ready")));
}

#[test]
fn no_change_is_lost_with_the_connection_that_hears_of_them() {
    let (server, options) = bench();
    let [own, other] = [0; 2].map(|_| process(server, &options));
    let mut watch = own.watch();
    for n in 0..20 {
        server.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        other.push(job(format!("j{n}"))).unwrap();
        assert_eq!(told(&mut watch), format!("j{n} ready"));
    }
}

#[test]
fn a_change_whose_ring_is_lost_is_read_within_a_second() {
    let (server, _) = own_server();
    // No message comes to this one.
    server.ask(&["ACL", "SETUSER", "deaf", "reset", "on", ">pw", "~*", "&*", "+@all", "-ssubscribe"]);
    let deaf = RedisStore::connect(server.url().replace("//", "//deaf:pw@"), options()).unwrap();
    let (own, other) = (deaf.queue("q", keeping()).unwrap(), process(&server, &options()));
    let mut watch = own.watch();
    let mut lags = Monitor::new(&server).lags(&other);
    (0..20).for_each(|n| assert_eq!(told(&mut watch), format!("j{n} ready")));
    // A machine that is loaded may be late, but not always.
    lags.sort_by(f64::total_cmp);
    assert!(lags[15] < 1.1, "{lags:?}");
}

#[test]
fn a_queue_that_nobody_watches_keeps_and_publishes_no_change() {
    let (server, store) = own_server();
    let queue = store.queue("q", QueueOptions::default()).unwrap();
    let published = || {
        let said = server.text(&["INFO", "commandstats"]);
        let calls = said.lines().find_map(|line| line.strip_prefix("cmdstat_spublish:calls="));
        calls.map_or(0, |calls| calls.split(',').next().unwrap().parse::<u64>().unwrap())
    };
    let kept = || from_redis_value::<u64>(server.ask(&["HLEN", &store.keys_of("q")[22]])).unwrap();
    queue.push(job("a")).unwrap();
    assert_eq!((published(), kept()), (0, 0));
    // For a millisecond, as of a watch that has ended.
    call(&store, "q", "wl_told", &[b"1", b""]).unwrap();
    let mut before = published();
    let mut pushed = 0;
    common::eventually("the server to tell no watcher", || {
        queue.push(job(format!("b{pushed}"))).unwrap();
        pushed += 1;
        std::mem::replace(&mut before, published()) == published()
    });
    let mut watch = queue.watch();
    let before = published();
    queue.push(job("c")).unwrap();
    assert_eq!((told(&mut watch), published()), ("c ready".to_owned(), before + 1));
    let listens = || format!("{:?}", server.ask(&["PUBSUB", "SHARDCHANNELS", "*:told"])).contains("bulk-string");
    common::eventually("it listens", listens);
    drop(watch);
    common::eventually("it listens no more", || !listens());
}

#[test]
fn a_watch_says_how_many_changes_the_server_no_longer_keeps() {
    let (server, options) = bench();
    let store = RedisStore::connect(server.url(), options).unwrap();
    let queue = store.queue("q", keeping()).unwrap();
    let told = |behind: &str| -> Vec<Vec<Value>> {
        from_redis_value(call(&store, "q", "wl_told", &[b"60000", behind.as_bytes()]).unwrap()).unwrap()
    };
    let number = |row: &[Value]| from_redis_value::<u64>(row[1].clone()).unwrap();
    let begin = number(&told("")[0]);
    queue.push_all((0..5_000).map(|n| job(format!("j{n}")))).unwrap();
    let rows = told(&begin.to_string());
    let ids: BTreeSet<String> = rows[1..4_097].iter().map(|row| from_redis_value(row[2].clone()).unwrap()).collect();
    assert_eq!((number(&rows[0]), ids.len(), ids.contains("j903")), (begin + 5_000, 4_096, false));
    assert_eq!((rows.len(), number(&rows[4_097])), (4_098, 904));
    // After a failover the server may know less.
    let rows = told(&(begin + 6_000).to_string());
    assert_eq!((rows.len(), number(&rows[0]), number(&rows[1])), (2, begin + 5_000, 1));
}
