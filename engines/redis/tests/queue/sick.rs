//! Servers that are sick: each call is an error that names the queue and the cure, and once the
//! server is well, runners go on.

use crate::bench::{bench, claim, finish, job, keeping, options, registers, renew};
use crate::server::proxy::{Fate, Proxy};
use crate::server::{FUNCTIONS, Server, ask_at};
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use waterline::seam::describe;
use waterline_queue::{Accept, JobState, NewJob, Outcome, PushOutcome, QueueError, Runner};
use waterline_redis::{RedisOptions, RedisStore, redis};

/// A user whom no sickness keeps out.
const ADMIN: &str = "admin on >pw ~* &* +@all";
const FLUSHED: &str = "there is no such queue, or its keys were removed: open it";

const MENDED: &str = "CONFIG SET maxmemory-policy noeviction";

/// How a server falls sick, what a push says then, and what makes it well: commands, and the words
/// of [`do_all`].
const SICKNESSES: [(&str, &str, &str); 13] = [
    // A snapshot cannot take the place of a folder.
    ("mkdir dump.rdb/a; BGSAVE", "make room, or mend it", "rmdir dump.rdb; BGSAVE"),
    // The next file of the log is on a disk that is full.
    ("link appendonlydir/appendonly.aof.2.incr.aof /dev/full; BGREWRITEAOF", "make room, or mend it", "rewrite"),
    ("REPLICAOF 127.0.0.1 1", "connect to the master", "REPLICAOF NO ONE"),
    ("fill; aside DEBUG RELOAD", "it takes calls once it is done", "CONFIG SET key-load-delay 0"),
    ("CONFIG SET busy-reply-threshold 1; aside FCALL t_spin 0", "FUNCTION KILL ends it", "FUNCTION KILL"),
    ("CONFIG SET maxmemory 1", "raise `maxmemory`", "CONFIG SET maxmemory 0"),
    ("CONFIG SET min-replicas-to-write 1", "lower `min-replicas-to-write`", "CONFIG SET min-replicas-to-write 0"),
    ("CONFIG SET requirepass secret; close", "redis://user:password@host", "CONFIG SET requirepass -"),
    ("ACL SETUSER default -fcall", "by ACL SETUSER", "ACL SETUSER default +fcall"),
    ("CONFIG SET maxmemory-policy allkeys-lru; close", MENDED, MENDED),
    ("FUNCTION FLUSH", "call `RedisStore::migrate`", "migrate"),
    ("kill", "look whether the server runs", "start"),
    ("FLUSHALL", FLUSHED, "open"),
];

fn do_all(server: &Server, steps: &'static str) {
    let url = server.url().replace("redis://", "redis://admin:pw@");
    let ask = |words: &[&str]| ask_at(&url, words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
    let file = |name: &str| server.directory().join(name);
    let store = || RedisStore::connect(&*url, RedisOptions::new()).unwrap();
    for step in steps.split("; ") {
        let words: Vec<_> = step.split(' ').map(|word| if word == "-" { "" } else { word }).collect();
        match &words[..] {
            ["mkdir", name] => std::fs::create_dir_all(file(name)).unwrap(),
            ["rmdir", name] => std::fs::remove_dir_all(file(name)).unwrap(),
            ["link", name, to] => std::os::unix::fs::symlink(to, file(name)).unwrap(),
            ["rewrite"] => common::eventually("the log is written anew", || {
                server.says("persistence", "aof_rewrite_in_progress:0") && ask_at(&url, &["BGREWRITEAOF"]).is_ok()
            }),
            ["aside", words @ ..] => {
                let (url, words) = (url.clone(), words.to_vec());
                std::thread::spawn(move || ask_at(&url, &words));
            }
            ["fill"] => {
                ask(&["DEBUG", "POPULATE", "100", "filler", "4096"]);
                ask(&["CONFIG", "SET", "loading-process-events-interval-bytes", "1024", "key-load-delay", "100000"]);
            }
            // The next connections look at the server anew.
            ["close"] => _ = ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]),
            ["migrate"] => store().migrate().unwrap(),
            ["kill"] => server.kill(),
            ["start"] => server.start_again(),
            ["open"] => {
                common::eventually("the log says it", || LINES.lock().iter().any(|line| line.contains(FLUSHED)));
                store().queue("mail", keeping()).unwrap();
            }
            words => _ = ask(words),
        }
    }
}

#[test]
fn each_sickness_is_told_with_its_cure_and_runners_go_on_afterwards() {
    tracing::subscriber::set_global_default(Log).unwrap();
    // (With `always` a server ends when its disk is full.)
    let server = Server::start(&[
        ("enable-debug-command", "yes"),
        ("appendfsync", "everysec"),
        ("save", "3600 1"),
        ("user", ADMIN),
    ]);
    server.ask(&["FUNCTION", "LOAD", FUNCTIONS]);
    let store = RedisStore::connect(server.url(), options()).unwrap();
    store.migrate().unwrap();
    let queue = store.queue("mail", keeping()).unwrap();
    let runner = Runner::builder(&queue).on("k", |_, _: String| Ok(Outcome::Done)).start().unwrap();
    let finished = |id: &str| queue.get(id).unwrap().is_some_and(|job| job.state == JobState::Finished);
    for (at, (begins, says, ends)) in SICKNESSES.into_iter().enumerate() {
        println!("{begins}");
        let fails = |id: &str| queue.push(job(id)).map_or_else(|error| describe(&error), |_| String::new());
        do_all(&server, begins);
        common::eventually(says, || {
            let said = fails(&format!("sick {at}"));
            said.contains(says) && said.contains(r#"queue "mail""#)
        });
        do_all(&server, ends);
        common::eventually("pushes go on", || fails(&format!("well {at}")).is_empty());
        common::eventually("the runner goes on", || finished(&format!("well {at}")));
    }
    server.ask(&["SCRIPT", "FLUSH"]);
    queue.push(job("nothing is lost by that")).unwrap();
    runner.stop().unwrap();
}

#[test]
fn after_a_flush_each_call_is_an_error_until_the_queue_is_opened_anew() {
    let (server, options) = bench();
    let store = RedisStore::connect(server.url(), options).unwrap();
    let queue = store.queue("mail", keeping()).unwrap();
    queue.push(job("a")).unwrap();
    let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
    let (head, keys) = (store.place_of("mail").0, store.keys_of("mail"));
    keys.iter().for_each(|key| _ = server.ask(&["DEL", key]));
    let notes = queue.notes("n").unwrap();
    type Call<'c> = &'c dyn Fn() -> Result<(), QueueError>;
    let calls: [(&str, Call<'_>); 7] = [
        ("push", &|| queue.push(job("b")).map(drop)),
        ("push without an id", &|| queue.push(NewJob::new("k", "c")?).map(drop)),
        ("claim", &|| queue.accept(Accept::new()).map(drop)),
        ("get", &|| queue.get("a").map(drop)),
        ("pause", &|| queue.pause(None)),
        ("status", &|| queue.status().map(drop)),
        ("note", &|| notes.add("a", 1).map(drop)),
    ];
    let flushed = |what: &str, outcome: Result<(), QueueError>| {
        let text = outcome.map_or_else(|error| describe(&error), |()| "it is done".to_owned());
        assert!(text.contains("open it") && text.contains(r#"queue "mail""#), "{what}: {text}");
    };
    calls.iter().for_each(|(what, call)| flushed(what, call()));
    assert_eq!(server.ask(&["EXISTS", &head]), redis::Value::Int(0), "no call makes a part of a queue");
    // In the process that has it open, too.
    let anew = store.queue("mail", keeping()).unwrap();
    calls.iter().for_each(|(what, call)| call().unwrap_or_else(|error| panic!("{what}: {error:?}")));
    assert!(matches!(lease.finish(None), Err(QueueError::Halt { .. })), "its job is gone");
    assert!(anew.get("b").unwrap().is_some() && anew.get("a").unwrap().is_none());
}

#[test]
fn a_full_server_drains() {
    let (server, store) = Server::with_store(options());
    let queue = store.queue("q", keeping().lease(Duration::from_secs(60))).unwrap();
    let ids: Vec<_> = (0..40).map(|number| format!("j{number}")).collect();
    ids.iter().for_each(|id| _ = queue.push(job(id)).unwrap());
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = |outcome: Result<(), QueueError>| {
        let text = describe(&outcome.unwrap_err());
        assert!(text.contains("OOM") && text.contains("raise `maxmemory`"), "{text}");
    };
    refused(queue.push(job("one more")).map(drop));
    refused(queue.push(NewJob::new("k", "plain").unwrap()).map(drop));
    let run = claim(&store, "q", 1)[0];
    assert!(renew(&store, "q", run) && finish(&store, "q", run));
    queue.accept(Accept::new()).unwrap().unwrap().bury("no").unwrap();
    assert_eq!((queue.counts().dead, queue.list(JobState::Ready, None, 99).unwrap().len()), (1, 38));
    queue.remove(&*ids[5]).unwrap();
    let runner = Runner::builder(&queue).on("k", |_, _: String| Ok(Outcome::Done)).start().unwrap();
    common::eventually("it is empty", || queue.counts().finished == 38);
    runner.stop().unwrap();
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    queue.push(job("one more")).unwrap();
}

#[test]
fn a_call_that_is_cut_off_is_made_once_and_its_caller_knows_what_is_unknown() {
    let (server, store) = Server::with_store(options());
    let line = Proxy::start(server.port());
    let far = RedisStore::connect(line.url(), options()).unwrap();
    let (queue, near) = (far.queue("q", keeping()).unwrap(), store.queue("q", keeping()).unwrap());
    for (at, (fate, is_made)) in [(Fate::Cut, false), (Fate::CutAnswer, true)].into_iter().enumerate() {
        let id = format!("j{at}");
        line.next("wl_push", fate);
        let unsure = queue.push(job(&id)).unwrap_err();
        assert!(matches!(&unsure, QueueError::Unsure { queue, .. } if queue == "q") && line.is_done(), "{unsure:?}");
        assert_eq!(near.get(&*id).unwrap().is_some(), is_made);
        let again = queue.push(job(&id)).unwrap().outcome;
        assert_eq!(again, if is_made { PushOutcome::Duplicate(id.clone()) } else { PushOutcome::Added });
    }
    for (at, fate) in [Fate::Cut, Fate::CutAnswer].into_iter().enumerate() {
        let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
        line.next("finished", fate);
        let unsure = lease.finish(None).unwrap_err();
        assert!(matches!(unsure, QueueError::Unsure { .. }) && line.is_done(), "{unsure:?}");
        assert_eq!(lease.finish(None).unwrap(), Some(JobState::Finished));
        assert_eq!((near.counts().finished, near.counts().running), (at as u64 + 1, 0), "its lease has settled it");
    }
    // A claim whose answer is lost comes back with its lease. Reads are made again.
    near.push(job("claimed")).unwrap();
    line.next("wl_turn", Fate::CutAnswer);
    assert!(queue.accept(Accept::new()).is_err() && line.is_done());
    assert_eq!(near.counts().running, 1);
    line.next("wl_get", Fate::CutAnswer);
    assert!(queue.get("claimed").unwrap().is_some() && line.is_done());
}

#[test]
fn an_idle_worker_is_rung_and_waits_for_no_look() {
    let (server, options) = bench();
    let connect = || RedisStore::connect(server.url(), options.clone()).unwrap();
    let (store, other) = (connect(), connect());
    let (queue, worker) = (store.queue("q", keeping()).unwrap(), other.queue("q", keeping()).unwrap());
    let armed_until = || registers(server, &store, "q")[4];
    let fastest = (0..5).map(|round| {
        let before = armed_until();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| worker.accept(Accept::new().timeout(common::LONG)).unwrap().unwrap());
            common::eventually("the bell is armed", || armed_until() > before);
            let pushed = Instant::now();
            queue.push(job(format!("j{round}"))).unwrap();
            waits.join().unwrap().finish(None).unwrap();
            pushed.elapsed()
        })
    });
    // Without a bell it looks once a second.
    assert!(fastest.min().unwrap() < Duration::from_millis(400));
}

/// What this process says in its log.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Log;

impl tracing::field::Visit for Log {
    fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        LINES.lock().push(format!("{value:?}"));
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN && metadata.is_event()
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Self);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
