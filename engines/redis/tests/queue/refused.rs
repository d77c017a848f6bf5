//! Bad input: each call is refused at once, in words, with nothing changed; and what is odd but
//! good is taken, and shown as it was given.

use crate::bench::{bench, call, claim, keeping};
use crate::server::Server;
use crate::size;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use waterline_queue::{Accept, DrainLimits, JobState, NewJob, Outcome, Queue, QueueOptions, Runner};
use waterline_redis::redis::{self, Value};
use waterline_redis::{Error, RedisOptions, RedisStore};

/// All that is stored with this prefix: what DUMP says of each key, or for a hash its fields, which
/// Valkey moves at a read. Of the registers of a queue the last number and the latest time may go
/// on.
fn stored(server: &Server, prefix: &str) -> BTreeMap<String, Vec<u8>> {
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg(format!("{prefix}:*")).query(&mut connection).unwrap();
    let mut stored = BTreeMap::new();
    for key in keys {
        let of: String = redis::cmd("TYPE").arg(&key).query(&mut connection).unwrap();
        if of != "hash" {
            stored.insert(key.clone(), redis::cmd("DUMP").arg(key).query(&mut connection).unwrap());
            continue;
        }
        let mut fields: BTreeMap<String, Vec<u8>> = redis::cmd("HGETALL").arg(&key).query(&mut connection).unwrap();
        if let Some(registers) = fields.get_mut("registers").filter(|_| key.ends_with(":head")) {
            registers[..8].fill(0);
            registers[24..32].fill(0);
        }
        stored.extend(fields.into_iter().map(|(field, value)| (format!("{key} {field}"), value)));
    }
    stored
}

fn prefix_of(store: &RedisStore) -> String {
    store.place_of("q").0.split(':').next().unwrap().to_owned()
}

/// A queue with a job in each state, and whatever may be beside it.
fn filled(server: &Server, options: &RedisOptions) -> (RedisStore, Queue) {
    let store = RedisStore::connect(server.url(), options.clone()).unwrap();
    let settings: QueueOptions = keeping().max_payload(1_000);
    let settings = settings.limit(waterline_queue::Limit::each_key().at_once(1));
    let queue = store.queue("q", settings).unwrap();
    let job = |id: &str| NewJob::new("k", id).unwrap().id(id).key("a");
    for id in ["dead", "done", "runs", "held"] {
        queue.push(job(id)).unwrap();
    }
    let take = || queue.accept(Accept::new()).unwrap().unwrap();
    take().bury("no").unwrap();
    take().finish(None).unwrap();
    take().lose();
    queue.push(job("ready").meta("a", &1).unwrap()).unwrap();
    queue.push(job("late").delay(Duration::from_secs(3600))).unwrap();
    queue.push(job("after").after(["ready"]).unique(waterline_queue::Unique::until_done())).unwrap();
    let notes = queue.notes("n").unwrap();
    notes.set("text", "no number").unwrap();
    notes.set("most", i64::MAX).unwrap();
    _ = queue.accept(Accept::new()).unwrap();
    (store, queue)
}

/// The settings of one job that each push refuses, and what it says.
const SETTINGS: [(&str, &str); 29] = [
    ("{", "is no JSON"),
    ("[1]", "is a JSON object"),
    (r#"{"ids": 1}"#, r#"and not "ids""#),
    (r#"{"id": ""}"#, "1 to 255 bytes, and not 0"),
    (r#"{"id": 5}"#, "1 to 255 bytes"),
    (r#"{"id": "~1"}"#, "begins with `~`"),
    (r#"{"key": ""}"#, "the key of a job has 1 to 255 bytes"),
    (r#"{"skip": ""}"#, "a fingerprint has 1 to 255 bytes"),
    (r#"{"skip": "a", "unique": {"fingerprint": "b", "until": "done"}}"#, "one fingerprint"),
    (r#"{"unique": {"fingerprint": "a", "until": "never"}}"#, "is unique until"),
    (r#"{"unique": {"fingerprint": "a", "until": "within"}}"#, "`within_ms`"),
    (r#"{"unique": {"fingerprint": "a", "until": "done", "clash": "win"}}"#, "keep, replace or earliest"),
    (r#"{"root": {"at": 1}}"#, "a root has a `signature`"),
    (r#"{"root": {"signature": "", "at": 1}}"#, "the signature of a root has 1 to 255 bytes"),
    (r#"{"priority": 4}"#, "from 0 to 3"),
    (r#"{"priority": 0.5}"#, "a whole number"),
    (r#"{"cost": 0}"#, "from 1"),
    (r#"{"delay_ms": -1}"#, "`delay_ms`"),
    (r#"{"run_at": "soon"}"#, "`run_at`"),
    (r#"{"retention_ms": -2}"#, "from -1"),
    (r#"{"expires_ms": 0.1}"#, "`expires_ms`"),
    (r#"{"retry": {"growth": "up"}}"#, "fixed, doubling, factor or quadratic"),
    (r#"{"retry": {"jitter": 2}}"#, "the jitter of a retry"),
    (r#"{"on_dead": "live"}"#, "die, run or hold"),
    (r#"{"after": "ready"}"#, "`after` is a list of ids"),
    (r#"{"after": ["nobody"]}"#, r#"no job "nobody" to wait for"#),
    (r#"{"id": "ready", "after": ["after"]}"#, "would wait for itself"),
    (r#"{"id": "runs", "after": ["ready"]}"#, "is running"),
    (r#"{"meta": "[]"}"#, "the text of a JSON object"),
];

/// Calls that are refused, and what each says. `.` is empty, `LONG` has 256 bytes, `HUGE` 1,001.
const CALLS: [(&str, &str); 39] = [
    ("wl_push . 1 . 1 .", "the kind of a job has 1 to 255 bytes, and not 0"),
    ("wl_push . 1 LONG 1 .", "the kind of a job has 1 to 255 bytes, and not 256"),
    ("wl_push . 1 k HUGE .", "takes 1000 at most"),
    ("wl_push . 1 k 1", "needs more"),
    ("wl_push yes 1 k 1 .", "a flag is 1 or 0"),
    ("wl_push . one k 1 .", "no whole number"),
    ("wl_push . 10001", "10000 at most, and not 10001"),
    ("wl_push . 99999999999999999999", "no whole number of 64 bits"),
    ("wl_push_plain 10001", "10000 at most"),
    ("wl_push_across . 10001", "10000 at most"),
    ("wl_turn 0 0 . . . . . . . . 1 5 . finished . . .", "a token"),
    ("wl_turn 0 0 . . . . . . . . 1 5 6 lost . . .", r#"no end "lost""#),
    ("wl_turn 0 0 . . . . . . . . 1 5 6 finished . . =HUGE", "the data of a job"),
    ("wl_turn 1 1 . 0 . . . . . . 0", "a lease has 1 millisecond or more"),
    ("wl_turn 1 1 . . =LONG . . . . . 0", "the name of a worker"),
    ("wl_turn 1 1 . . w . . . . . 0", "begins with `=`"),
    ("wl_renew -1 . . . 0", "a lease has 1 millisecond or more"),
    ("wl_renew . . . . 257", "256 at most"),
    ("wl_edit nobody . . data . =1 . .", "no job"),
    ("wl_edit ready . . all . . . .", "data, meta, progress, resubmit or nothing"),
    ("wl_edit ready 5 6 data . =1 . .", "the lease of the job"),
    ("wl_edit ready . . data . =HUGE . .", "the data of a job"),
    ("wl_edit ready . . meta . =1 . .", "metadata has a key"),
    ("wl_edit ready . . meta =LONG =1 . .", "the key of metadata has 1 to 255 bytes"),
    ("wl_edit ready . . meta =a ={ . .", "is no JSON"),
    ("wl_edit ready . . progress . . . half", "a fraction"),
    ("wl_steer sing . .", r#"no call "sing""#),
    ("wl_steer remove . .", "needs the id of a job"),
    ("wl_steer purge =finished .", "needs a state"),
    ("wl_steer pause . -1", "a pause is 0 milliseconds"),
    ("wl_note n:a sing =1 .", "set, add, keep or remove"),
    ("wl_note . set =1 .", "the place of a note"),
    ("wl_note n:a set . .", "null is none"),
    ("wl_open other . .", "these are the keys of the queue"),
    (r#"wl_open q ={"lease":1} ."#, r#"and not "lease""#),
    (r#"wl_open q ={"max_payload":268435457} ."#, "to 268435456"),
    (r#"wl_set_options {"limits":[{"of":"queue"}]}"#, "has `at_once`, `rate` or both"),
    ("wl_register_periodic LONG . 1000 k 1 . . .", "the name of a schedule"),
    ("wl_list lost . . . . .", r#"no state "lost""#),
];

#[test]
fn each_bad_call_is_refused_in_words_and_changes_nothing() {
    let (server, options) = bench();
    let (store, _queue) = filled(server, &options);
    let prefix = prefix_of(&store);
    let before = stored(server, &prefix);
    let is_refused = |function: &str, args: &[&[u8]], says: &str| {
        let error = call(&store, "q", function, args).map(drop).expect_err(says);
        let Error::Function { queue, message, code, .. } = &error else { panic!("{says}: {error:?}") };
        assert!(&**queue == "q" && message.contains(says) && &**code != "WQ000", "{says}: {error:?}");
        assert_eq!(stored(server, &prefix), before, "{function} {says}");
    };
    for (settings, says) in SETTINGS {
        is_refused("wl_push", &["", "1", "k", "1", settings].map(str::as_bytes), says);
        // A good one before it, with all that leaves traces, and one behind it.
        let good = r#"{"id": "good", "key": "b", "root": {"signature": "r", "at": 9}, "expires_ms": 9000, "meta": "{}",
            "unique": {"fingerprint": "f", "until": "within", "within_ms": 9}}"#;
        let moves = r#"{"id": "late", "run_at": 9000000000000}"#;
        let again = r#"{"id": "good", "run_at": 9000000000000}"#;
        let five = ["", "5", "k", "1", good, "k", "1", moves, "k", "1", again, "k", "1", settings, "k", "1", ""];
        is_refused("wl_push", &five.map(str::as_bytes), says);
    }
    for (words, says) in CALLS {
        let (long, huge) = ("n".repeat(256), "1".repeat(1_001));
        let words: Vec<_> = words.split(' ').map(|word| word.replace("LONG", &long).replace("HUGE", &huge)).collect();
        let args = words[1..].iter().map(|word| if word == "." { &b""[..] } else { word.as_bytes() });
        is_refused(&words[0], &args.collect::<Vec<_>>(), says);
    }
    // Another number of keys than those of its queues, as only another language can send.
    let head = store.place_of("q").0;
    for (function, keys) in [("wl_push", 0), ("wl_push", 25), ("wl_get", 27), ("wl_turn", 52), ("wl_push_across", 27)] {
        let count = keys.to_string();
        let args = [&["FCALL", function, &count][..], &vec![&*head; keys], &["", "", "0"]].concat();
        let error = server.try_ask(&args).expect_err(function).to_string();
        assert!(error.contains("WQ002") && error.contains("26 keys"), "{function} {keys}: {error}");
    }
    assert_eq!(stored(server, &prefix), before);
}

#[test]
fn a_call_of_one_queue_may_declare_its_first_key_alone() {
    let (server, options) = bench();
    let (store, _queue) = filled(server, &options);
    let all = store.keys_of("q");
    let call = |keys: &[String], function: &str, args: &[&str]| {
        let count = keys.len().to_string();
        let keys = keys.iter().map(|key| &**key);
        let words: Vec<_> = ["FCALL", function, &count].into_iter().chain(keys).chain(args.iter().copied()).collect();
        server.ask(&words)
    };
    let counts = |keys: &[String]| call(keys, "wl_counts", &[""]);
    let before = counts(&all);
    for keys in [&all[..1], &all] {
        call(keys, "wl_push", &["", "", "1", "k", "1", ""]);
        assert!(counts(&all[..1]) == counts(&all) && counts(&all) != before);
    }
    let error = server.try_ask(&["FCALL", "wl_counts", "1", &all[1], ""]).unwrap_err().to_string();
    assert!(error.contains("the first key of a queue ends with `:head`, and is not"), "{error}");
}

#[test]
fn notes_are_whole_numbers_of_64_bits_that_are_never_rounded() {
    let (server, options) = bench();
    let (_store, queue) = filled(server, &options);
    let notes = queue.notes("n").unwrap();
    let beyond = (1_i64 << 53) + 1;
    notes.set("a", beyond).unwrap();
    assert_eq!(notes.add("a", 2).unwrap(), beyond + 2);
    assert_eq!(notes.add("b", i64::MIN).unwrap(), i64::MIN);
    assert_eq!(notes.get("a").unwrap(), Some((beyond + 2).into()));
    for (key, by, says) in
        [("most", 1, "more than 64 bits"), ("text", 1, "no whole number"), ("b", -1, "more than 64 bits")]
    {
        let before = notes.get(key).unwrap();
        let error = waterline::seam::describe(&notes.add(key, by).unwrap_err());
        assert!(error.contains(says), "{error}");
        assert_eq!(notes.get(key).unwrap(), before);
    }
}

#[test]
fn odd_names_and_bytes_are_shown_as_they_were_given() {
    let (server, options) = bench();
    let store = RedisStore::connect(server.url(), options).unwrap();
    let long = "n".repeat(255);
    for name in ["a\0b\0", "{", "}{x}", "%7B", "line\nline\r\n", "é=\u{1f600}", "\0\u{1}\0", &long] {
        let queue = store.queue(name, keeping()).unwrap();
        // (In Rust, no text of a job has the character NUL.)
        let meta = json!({ name: name }).to_string();
        let settings = json!({ "id": name, "key": name, "root": { "signature": name, "at": 9 }, "meta": meta });
        let push = ["", "1", name, &json!(name).to_string(), &settings.to_string()];
        call(&store, name, "wl_push", &push.map(str::as_bytes)).unwrap();
        let job = queue.get(name).unwrap().unwrap();
        assert_eq!((&*job.id, &*job.kind, job.key.as_deref()), (name, name, Some(name)));
        assert_eq!((&*job.root.unwrap().signature, &job.meta[name]), (name, &name.into()));
        assert_eq!(queue.list(JobState::Ready, None, 9).unwrap()[0].id, name);
        let mut lease = queue.accept(Accept::new().kinds([name])).unwrap().unwrap();
        assert_eq!((lease.id(), lease.payload::<String>().unwrap()), (name, name.to_owned()));
        lease.finish(None).unwrap();
        assert_eq!(queue.get(name).unwrap().unwrap().state, JobState::Finished);
    }
    assert_eq!(store.queue_names().unwrap().len(), 8);
}

#[test]
fn payloads_of_no_byte_and_of_many_come_back_byte_for_byte() {
    let (server, options) = bench();
    let store = RedisStore::connect(server.url(), options).unwrap();
    let most = size(4, 64) as usize * 1_024 * 1_024;
    let queue = store.queue("q", keeping().max_payload(most)).unwrap();
    let huge: Vec<u8> = (0..=255).collect::<Vec<u8>>().repeat(most / 256);
    let not_utf8 = b"\"\xff\0\r\n\xc3\"";
    for (payload, is_json) in [(&b""[..], false), (not_utf8, false), (&huge, false), (b"7", true)] {
        call(&store, "q", "wl_push_plain", &[b"1", b"k", payload]).unwrap();
        let (number, token) = claim(&store, "q", 1)[0];
        let (number, token) = (number.to_string(), token.to_string());
        let loaded = call(&store, "q", "wl_load", &[b"1", number.as_bytes(), token.as_bytes()]).unwrap();
        let rows: Vec<Vec<Value>> = redis::from_redis_value(loaded).unwrap();
        assert!(rows[0][4] == Value::BulkString(payload.to_vec()), "{} bytes", payload.len());
        // A handler in Rust, which reads JSON, fails for good with what is none.
        let back = ["0", "0", "", "", "=w", "", "", "", "", "", "1", &number, &token, "put_back", "", "", ""];
        call(&store, "q", "wl_turn", &back.map(str::as_bytes)).unwrap();
        Runner::builder(&queue).on("k", |_, _: u32| Ok(Outcome::Done)).drain(DrainLimits::default()).unwrap();
        let state = queue.get(format!("~{number}")).unwrap().unwrap().state;
        assert_eq!(state == JobState::Finished, is_json, "{} bytes", payload.len());
    }
    let one_more = [&huge[..], b"1"].concat();
    let error = call(&store, "q", "wl_push_plain", &[b"1", b"k", &one_more]).unwrap_err();
    assert!(error.to_string().contains(&format!("the payload of a job has {} bytes", most + 1)), "{error}");
}

#[test]
fn times_beyond_the_calendar_are_the_latest_one() {
    let (server, options) = bench();
    let store = RedisStore::connect(server.url(), options).unwrap();
    let queue = store.queue("q", keeping()).unwrap();
    let settings = r#"{"id": "late", "run_at": 1e300, "expires_ms": 1e300, "retention_ms": 1e300}"#;
    call(&store, "q", "wl_push", &["", "1", "k", "1", settings].map(str::as_bytes)).unwrap();
    call(&store, "q", "wl_steer", &["pause", "", "9223372036854775807"].map(str::as_bytes)).unwrap();
    let job = queue.get("late").unwrap().unwrap();
    assert_eq!(job.state, JobState::Scheduled);
    assert!(job.run_at.is_none_or(|at| at > SystemTime::now() + Duration::from_secs(1 << 30)), "{job:?}");
    assert!(queue.run_now("late").unwrap());
    assert!(queue.accept(Accept::new()).unwrap().is_none(), "it is paused");
    queue.resume().unwrap();
    queue.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
    assert_eq!(queue.get("late").unwrap().unwrap().state, JobState::Finished);
}

#[test]
fn a_user_without_a_right_is_refused_with_nothing_changed() {
    let (server, options) = bench();
    let (store, _queue) = filled(server, &options);
    let prefix = prefix_of(&store);
    let before = stored(server, &prefix);
    let rights = ["+@all -fcall ~*", "+@all ~other:*", "+@all -@write +fcall ~*", "+@all %R~*"];
    for (at, rights) in rights.into_iter().enumerate() {
        let user = format!("{prefix}-{at}");
        let set = ["ACL", "SETUSER", &user, "reset", "on", ">pw", "&*"];
        server.ask(&set.into_iter().chain(rights.split(' ')).collect::<Vec<_>>());
        let push = |function: &str, args: &[&str]| {
            let store = RedisStore::connect(server.url(), options.clone().login(&user, "pw"))?;
            call(&store, "q", function, &args.iter().map(|arg| arg.as_bytes()).collect::<Vec<_>>())
        };
        for (function, args) in [("wl_push", &["", "1", "k", "1", ""][..]), ("wl_push_plain", &["1", "k", "1"])] {
            let error = push(function, args).expect_err("it has not all rights").to_string();
            assert!(error.contains("by ACL SETUSER"), "{error}");
            assert_eq!(stored(server, &prefix), before, "{rights:?}: {error}");
        }
    }
}
