//! Ends with writes of the user's: all of it is made, or nothing, and once for a job.

use crate::bench::options;
use crate::server::Server;
use crate::server::cluster::Cluster;
use crate::server::proxy::{Fate, Proxy};
use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use waterline::{BoxError, Retry};
use waterline_queue::{
    Accept, DrainLimits, JobState, Lease, NewJob, Outcome, Queue, QueueError, QueueOptions, Retention, Runner, Running,
};
use waterline_redis::redis::{Value, from_redis_value};
use waterline_redis::{Error, LeaseExt, RedisStore, RunnerExt, WriteFault, Writes};

mod model;

/// A fault of this key, or an error of a push, and what is refused with it.
type Row = (Option<WriteFault>, &'static str, fn(&mut Writes, &Queue) -> Result<(), QueueError>);

/// Rows for writes that are refused by themselves.
macro_rules! faults {
    ($($fault:ident $key:literal $w:ident => $write:expr;)*) => {
        [$((Some(WriteFault::$fault), $key, |$w: &mut Writes, _: &Queue| { _ = $write; Ok(()) })),*]
    };
}

fn refusals() -> Vec<Row> {
    let faults: [Row; 20] = faults! {
        Type "list" w => w.incr("list", 1);
        Type "text" w => w.hset("text", "f", "v");
        Type "list" w => w.hdel("list", "f");
        Type "text" w => w.lpush("text", "e");
        Type "sorted" w => w.sadd("sorted", "m");
        Type "stream" w => w.zrem("stream", "m");
        Type "good" w => w.zadd("good", 1.0, "m");
        Type "text" w => w.del("text").sadd("text", "m").lpush("text", "m");
        Number "text" w => w.incr("text", 1);
        Number "zeros" w => w.incr("zeros", 1);
        Number "long" w => w.incr("long", 1);
        Number "most" w => w.incr("most", -1).incr("most", 2);
        Number "new" w => w.incr("new", i64::MIN).incr("new", -1);
        Number "sorted" w => w.zadd("sorted", f64::NAN, "m");
        Number "text" w => w.expire("text", Duration::from_micros(999));
        Number "text" w => w.expire("text", Duration::MAX);
        Queue "wl:{q}:head" w => w.del("wl:{q}:head");
        Queue "wl:{other}:job" w => w.set("wl:{other}:job", "");
        Bounds "last" w => {
            (0..997).for_each(|_| _ = w.set("many", "1"));
            w.set("last", "1")
        };
        Bounds "large" w => (0..65).for_each(|_| _ = w.set("large", vec![b'x'; 1 << 20]));
    };
    let pushes: [Row; 2] = [
        (None, "has no job \"none\"", |w, queue| {
            push(w, queue, "first")?.push(queue, new("x").after(["none"])).map(drop)
        }),
        (None, "is running", |w, queue| push(w, queue, "first")?.push(queue, new("job").after(["waiting"])).map(drop)),
    ];
    [&faults[..], &pushes].concat()
}

fn new(id: &str) -> NewJob {
    NewJob::new("k", "").unwrap().id(id)
}

fn push<'w>(w: &'w mut Writes, queue: &Queue, id: &str) -> Result<&'w mut Writes, QueueError> {
    w.push(queue, new(id))
}

/// All keys of a server with their values, but the number that was given last. (DUMP has no order
/// of the fields of a hash.)
fn keys_of(server: &Server) -> Value {
    let dump = "local function value(key)
            if key:find(':head$') then return redis.call('HGET', key, 'registers'):sub(9) end
            if redis.call('TYPE', key).ok ~= 'hash' then return redis.call('DUMP', key) end
            local fields = redis.call('HKEYS', key)
            table.sort(fields)
            for at, field in ipairs(fields) do fields[at] = field .. ' ' .. redis.call('HGET', key, field) end
            return table.concat(fields)
        end
        local all = redis.call('KEYS', '*')
        table.sort(all)
        for at, key in ipairs(all) do all[at] = key .. value(key) end
        return all";
    server.ask(&["EVAL", dump, "0"])
}

fn source(error: &QueueError) -> Option<&Error> {
    let mut all = std::iter::successors(error.source(), |error| (*error).source());
    all.find_map(|error| error.downcast_ref())
}

fn open(store: &RedisStore, name: &str) -> Queue {
    store.queue(name, QueueOptions::default()).unwrap()
}

fn job(queue: &Queue) -> Lease {
    queue.push(new("job")).unwrap();
    queue.accept(Accept::new()).unwrap().unwrap()
}

fn counter(server: &Server, key: &str) -> u64 {
    from_redis_value::<Option<u64>>(server.ask(&["GET", key])).unwrap().unwrap_or(0)
}

#[test]
fn whatever_is_refused_leaves_all_keys_and_the_job_as_they_are() {
    let (server, store) = Server::with_store(options());
    let seeds = "SET text abc|SET zeros 05|SET most 9223372036854775807|SET long 922337203685477580712|RPUSH list a|\
        ZADD sorted 1 m|XADD stream * f v";
    seeds.split('|').for_each(|command| _ = server.ask(&command.split(' ').collect::<Vec<_>>()));
    let queue = open(&store, "q");
    let mut lease = job(&queue);
    queue.push(new("waiting").delay(Duration::from_secs(600))).unwrap();
    let before = keys_of(&server);
    for (at, (fault, text, writes)) in refusals().into_iter().enumerate() {
        let refused = lease.finish_with_redis(|w| {
            w.set("good", "1").rpush("list", "b").publish("news", "1");
            writes(w, &queue)
        });
        let error = refused.unwrap_err();
        let is_it = match (fault, source(&error)) {
            (Some(fault), Some(Error::Write { fault: of, key, at, .. })) => {
                *of == fault && key == text && at.contains("\"q\"")
            }
            _ => fault.is_none() && error.to_string().contains(text),
        };
        assert!(is_it, "row {at}, {fault:?} {text}: {error:?}");
        assert!(keys_of(&server) == before, "row {at} has changed a key: {error:?}");
    }
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = lease.finish_with_redis(|w| push(w.set("good", "1"), &queue, "first").map(drop)).unwrap_err();
    assert!(matches!(source(&error), Some(Error::Refused { code, .. }) if code == "OOM"), "{error:?}");
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(keys_of(&server) == before);
    // (This process does not hear of it.)
    let other = RedisStore::connect(server.url(), options()).unwrap();
    open(&other, "q").remove("job").unwrap();
    let before = keys_of(&server);
    let lost = lease.finish_with_redis(|w| push(w.set("good", "1"), &queue, "first").map(drop));
    assert!(matches!(lost, Err(QueueError::Halt { .. })), "{lost:?}");
    assert!(keys_of(&server) == before, "a lost lease writes nothing");
}

#[test]
fn odd_calls_and_older_tokens_are_refused() {
    let (server, store) = Server::with_store(options());
    let queue = open(&store, "q");
    let mut lease = job(&queue);
    let all = store.keys_of("q");
    let number: String = from_redis_value::<Vec<_>>(server.ask(&["ZRANGE", &all[8], "0", "-1"])).unwrap().remove(0);
    let state: Vec<u8> = from_redis_value(server.ask(&["HGET", &all[2], &number])).unwrap();
    let token = state[8..15].iter().fold(0, |token, byte| token << 8 | u64::from(*byte));
    let before = keys_of(&server);
    for (code, queues, token, keys, writes) in [
        ("WQ007", 1, token - 1, "", "0"),
        ("WQ002", 2, token, "", "0"),
        ("WQ002", 0, token, "more", "0"),
        ("WQ002", 1, token, "k", "1 FLUSHALL k"),
        ("WQ002", 1, token, "", "1 SET k v"),
        ("WQ002", 1, token, "k", "1 SET k"),
        ("WQ002", 1, token, "", "1001"),
        ("WQ013", 1, token, "k", "1 ZADD k 1e999 m"),
        ("WQ013", 1, token, "k", "1 ZADD k 1e-400 m"),
        ("WQ013", 1, token, "k", "1 ZADD k 0x10 m"),
        ("WQ013", 1, token, "k", "1 PEXPIRE k 1.5"),
        ("WQ013", 1, token, "k", "1 INCRBY k 9223372036854775808"),
    ] {
        let keys: Vec<_> = all.iter().map(|key| &**key).chain(keys.split_ascii_whitespace()).collect();
        let (count, queues, token) = (keys.len().to_string(), queues.to_string(), token.to_string());
        let mut call =
            [&["FCALL", "wl_finish_with", &count], &keys[..], &["", &queues, &number, &token, "", "0"]].concat();
        call.extend(writes.split(' '));
        let refused = server.try_ask(&call).unwrap_err();
        assert_eq!(refused.code(), Some(code), "{writes}: {refused}");
        assert!(keys_of(&server) == before, "{writes}: {refused}");
    }
    assert_eq!(lease.finish_with_redis(|_| Ok(())).unwrap(), Some(JobState::Finished));
}

#[test]
fn missing_rights_are_refused_with_the_key() {
    let (server, store) = Server::with_store(options());
    open(&store, "q");
    server.ask(&["RPUSH", "list", "a"]);
    let refused = |rights: &str, write: fn(&mut Writes)| {
        let rights: Vec<_> = rights.split(' ').collect();
        server.ask(&[&["ACL", "SETUSER", "u", "reset", "on", ">p", "+@all"], &rights[..]].concat());
        let store = RedisStore::connect(format!("redis://u:p@127.0.0.1:{}", server.port()), options()).unwrap();
        let queue = open(&store, "q");
        let mut lease = job(&queue);
        let before = keys_of(&server);
        let error = lease.finish_with_redis(|w| {
            write(w.rpush("list", "b"));
            Ok(())
        });
        assert_eq!(keys_of(&server), before);
        assert_eq!(lease.finish(None).unwrap(), Some(JobState::Finished));
        queue.remove("job").unwrap();
        error.unwrap_err()
    };
    for (rights, write, of) in [
        ("~* &* -incrby", (|w| _ = w.incr("n", 1)) as fn(&mut Writes), "n"),
        ("~* &* -unlink", |w| _ = w.del("list"), "list"),
        ("~* &* -type", |w| _ = w.set("list", ""), "list"),
        ("~* &wl:*", |w| _ = w.publish("news", ""), "news"),
    ] {
        let error = refused(rights, write);
        let is_it = matches!(source(&error), Some(Error::Write { fault: WriteFault::Right, key, .. }) if key == of);
        assert!(is_it, "{rights}: {error:?}");
    }
    let error = refused("~wl:* ~list &*", |w| _ = w.set("other", ""));
    assert!(matches!(source(&error), Some(Error::Refused { code, .. }) if code == "NOPERM"), "{error:?}");
}

#[test]
fn in_a_cluster_the_keys_and_queues_of_an_end_are_in_its_slot() {
    let (cluster, store) = Cluster::with_store(options());
    let (queue, other) = (open(&store, "q"), open(&store, "o"));
    let mut lease = job(&queue);
    let error =
        lease.finish_with_redis(|w| push(w.set("{q}:a", "1").set("b", "1"), &queue, "x").map(drop)).unwrap_err();
    let is_it = matches!(source(&error), Some(Error::Write { fault: WriteFault::Slot, key, .. }) if key == "b");
    assert!(is_it && format!("{error:?}").contains("put {q} into the key"), "{error:?}");
    let error = lease.finish_with_redis(|w| push(w.set("{q}:a", "1"), &other, "x").map(drop)).unwrap_err();
    assert!(matches!(source(&error), Some(Error::Config { advice, .. }) if advice.contains("tag")), "{error:?}");
    let ended = lease.finish_with_redis(|w| push(w.incr("{q}:a", 7).publish("c", ""), &queue, "x").map(drop));
    assert_eq!((ended.unwrap(), queue.counts().ready), (Some(JobState::Finished), 1));
    assert_eq!(counter(cluster.at(&store.node_of("q").unwrap()), "{q}:a"), 7);
    let tagged = RedisStore::cluster(cluster.urls(), options().tag("t")).unwrap();
    let (queue, other) = (open(&tagged, "q"), open(&tagged, "o"));
    let ended = job(&queue).finish_with_redis(|w| push(w.incr("{t}:a", 1), &other, "x").map(drop));
    assert_eq!((ended.unwrap(), other.counts().ready), (Some(JobState::Finished), 1));
}

#[test]
fn a_lost_answer_is_settled_and_the_writes_are_made_once() {
    let server = Arc::new(Server::with_store(options()).0);
    let proxy = Proxy::start(server.port());
    let store = RedisStore::connect(proxy.url(), options()).unwrap();
    let kept = QueueOptions::default().retention(Retention::Keep);
    for (name, options) in [("q", kept), ("none", QueueOptions::default().retention(Retention::Drop))] {
        let queue = store.queue(name, options).unwrap();
        for (fate, of) in [(Fate::CutAnswer, "answer"), (Fate::Cut, "request")] {
            let (mut lease, key) = (job(&queue), format!("{name} {of}"));
            proxy.next("wl_finish_with", fate);
            let ended = lease.finish_with_redis(|w| push(w.incr(&key, 1), &queue, &key).map(drop));
            let finished = (name == "q").then_some(JobState::Finished);
            assert_eq!((ended.unwrap(), counter(&server, &key)), (finished, 1), "{key}");
            assert!(proxy.is_done() && lease.finish(None).is_err(), "{key}: the lease has ended");
            queue.remove(&*key).unwrap();
            assert_eq!(queue.remove("job").is_ok(), name == "q", "{key}");
        }
        let calls = Arc::new(AtomicU32::new(0));
        let called = Arc::clone(&calls);
        queue.push(new("run")).unwrap();
        proxy.next("wl_finish_with", Fate::CutAnswer);
        let builder = Runner::builder(&queue).on_writing_redis("k", move |_: &Running, _: String, w| {
            w.incr("runner", 1);
            called.fetch_add(1, Ordering::Relaxed);
            Ok(Outcome::done_with(&7)?)
        });
        let summary = builder.drain(DrainLimits::default()).unwrap();
        assert_eq!((summary.finished, calls.load(Ordering::Relaxed), proxy.is_done()), (1, 1, true), "{name}");
    }
    assert_eq!(counter(&server, "runner"), 2);

    let (mut lease, killed) = (job(&open(&store, "q")), Arc::clone(&server));
    proxy.next("wl_finish_with", Fate::After(Box::new(move || killed.kill())));
    let mut end = || lease.finish_with_redis(|w| Ok(_ = w.incr("late", 1)));
    let unsure = end();
    assert!(matches!(unsure, Err(QueueError::Unsure { .. })), "{unsure:?}");
    server.start_again();
    assert_eq!((end().unwrap(), counter(&server, "late")), (Some(JobState::Finished), 1));
}

#[test]
fn a_handler_writes_with_its_success_alone() {
    let (server, store) = Server::with_store(options());
    let queue = store.queue("q", QueueOptions::default().retry(Retry::fixed(Duration::ZERO).max_attempts(2))).unwrap();
    let ids = ["done", "data", "fails once", "refused", "dead"];
    queue.push_all(ids.map(|id| NewJob::new("k", id).unwrap().id(id))).unwrap();
    let handler = |job: &Running, id: String, w: &mut Writes| -> Result<Outcome, BoxError> {
        w.incr(format!("of {id}"), 1);
        match &*id {
            "data" => return Ok(Outcome::done_with(&id)?),
            "fails once" if job.attempt() == 1 => return Err("not in the first attempt".into()),
            "refused" => _ = w.set("s", "no number").incr("s", 1),
            "dead" => return Ok(Outcome::Dead("for good".to_owned())),
            _ => {}
        }
        Ok(Outcome::Done)
    };
    let summary = Runner::builder(&queue).on_writing_redis("k", handler).drain(DrainLimits::default()).unwrap();
    assert_eq!((summary.finished, queue.counts().dead), (3, 2), "{summary:?}");
    assert_eq!(ids.map(|id| counter(&server, &format!("of {id}"))), [1, 1, 1, 0, 0]);
    assert_eq!(queue.get("data").unwrap().unwrap().data, Some("data".into()));
    let error = queue.get("refused").unwrap().unwrap().error.unwrap();
    assert!(error.contains("INCRBY \"s\"") && error.contains("no whole number"), "{error}");
    assert_eq!(server.ask(&["EXISTS", "s"]), Value::Int(0));
}
