//! Random writes against a model in plain lists: all of them are made, or none.

use super::{Error, LeaseExt, WriteFault, Writes, new, source};
use crate::bench::bench;
use crate::size;
use std::collections::BTreeMap;
use std::time::Duration;
use waterline_queue::{Accept, QueueError, QueueOptions};
use waterline_redis::RedisStore;
use waterline_redis::redis::{self, from_redis_value};

/// A value: its type, its elements (in order, but those of a list), each with its field or score,
/// and whether it expires.
#[derive(Clone, Debug, PartialEq)]
struct Kept {
    of: String,
    all: Vec<[String; 2]>,
    expires: bool,
}

type Keys = BTreeMap<String, Kept>;

const WRITES: [&str; 12] =
    ["SET", "INCR", "DEL", "EXPIRE", "HSET", "HDEL", "RPUSH", "LPUSH", "SADD", "SREM", "ZADD", "ZREM"];
const TEXTS: [&str; 8] = ["a", "b", "0", "-7", "9223372036854775806", "-9223372036854775808", "+1", "1000000000"];
const NUMBERS: [i64; 7] = [1, -1, 999_999_999, -1_000_000_000, i64::MAX, i64::MIN, 0];

/// A write on a key with these arguments.
type Call = (&'static str, String, &'static str, i64);

fn call(w: &mut Writes, (write, key, text, number): &Call) {
    _ = match *write {
        "SET" => w.set(key, text),
        "INCR" => w.incr(key, *number),
        "DEL" => w.del(key),
        "EXPIRE" => w.expire(key, Duration::from_secs(600)),
        "HSET" => w.hset(key, text, number.to_string()),
        "HDEL" => w.hdel(key, text),
        "RPUSH" => w.rpush(key, text),
        "LPUSH" => w.lpush(key, text),
        "SADD" => w.sadd(key, text),
        "SREM" => w.srem(key, text),
        "ZADD" => w.zadd(key, *number as f64, text),
        _ => w.zrem(key, text),
    };
}

/// Makes a write. A value that it leaves empty keeps its type until the end of the list.
fn make(keys: &mut Keys, (write, key, text, number): &Call) -> Result<(), WriteFault> {
    let (of, value) = match *write {
        "SET" | "INCR" => ("string", String::new()),
        "HSET" | "HDEL" => ("hash", number.to_string()),
        "RPUSH" | "LPUSH" => ("list", String::new()),
        "SADD" | "SREM" => ("set", String::new()),
        _ => ("zset", (*number as f64).to_string()),
    };
    if matches!(*write, "SET" | "DEL") {
        keys.remove(key);
    }
    if *write == "EXPIRE" {
        keys.get_mut(key).into_iter().for_each(|kept| kept.expires = !kept.all.is_empty());
    }
    let removes = matches!(*write, "HDEL" | "SREM" | "ZREM");
    if matches!(*write, "DEL" | "EXPIRE") || removes && !keys.contains_key(key) {
        return Ok(());
    }
    let kept = keys.entry(key.clone()).or_insert_with(|| Kept { of: of.to_owned(), all: Vec::new(), expires: false });
    if kept.of != of {
        return Err(WriteFault::Type);
    }
    let element = [(*text).to_owned(), value];
    match *write {
        "INCR" => {
            let old = kept.all.first().map_or("0", |all| &*all[0]);
            let is_plain = |number: &i64| number.to_string() == old;
            let sum = old.parse().ok().filter(is_plain).and_then(|old: i64| old.checked_add(*number));
            kept.all = vec![[sum.ok_or(WriteFault::Number)?.to_string(), String::new()]];
        }
        "LPUSH" => kept.all.insert(0, element),
        "SET" | "RPUSH" => kept.all.push(element),
        _ => {
            kept.all.retain(|[name, _]| name != text);
            kept.all.extend((!removes).then_some(element));
            kept.all.sort();
        }
    }
    // The server has removed an empty value with its time.
    kept.expires &= !kept.all.is_empty();
    Ok(())
}

/// Reads these keys.
fn read(connection: &mut redis::Connection, keys: &[String]) -> Keys {
    let mut found = Keys::new();
    for key in keys {
        let mut ask = |command: &str, rest: &[&str]| redis::cmd(command).arg(key).arg(rest).query(connection).unwrap();
        let (of, time): (String, i64) =
            (from_redis_value(ask("TYPE", &[])).unwrap(), from_redis_value(ask("TTL", &[])).unwrap());
        let all = match &*of {
            "none" => continue,
            "string" => vec![from_redis_value(ask("GET", &[])).unwrap()],
            "hash" => from_redis_value::<Vec<_>>(ask("HGETALL", &[])).unwrap(),
            "list" => from_redis_value(ask("LRANGE", &["0", "-1"])).unwrap(),
            "set" => from_redis_value(ask("SMEMBERS", &[])).unwrap(),
            _ => from_redis_value(ask("ZRANGE", &["0", "-1", "WITHSCORES"])).unwrap(),
        };
        let mut all: Vec<[String; 2]> = match &*of {
            "hash" => all.chunks(2).map(|two: &[String]| [two[0].clone(), two[1].clone()]).collect(),
            "zset" => all.chunks(2).map(|two| [two[0].clone(), two[1].parse::<f64>().unwrap().to_string()]).collect(),
            _ => all.into_iter().map(|one| [one, String::new()]).collect(),
        };
        if of != "list" {
            all.sort();
        }
        found.insert(key.clone(), Kept { of, all, expires: time > 0 });
    }
    found
}

#[test]
fn random_writes_are_made_as_a_model_makes_them_or_not_at_all() {
    let (server, options) = bench();
    let (mut random, seed) = (fastrand::Rng::with_seed(common::seed()), common::seed());
    let names = [0; 4].map(|_| format!("of the model {}", fastrand::u64(..)));
    let queue = RedisStore::connect(server.url(), options).unwrap().queue("q", QueueOptions::default()).unwrap();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let (mut keys, mut pushed, mut faults) = (Keys::new(), 0, BTreeMap::new());
    for round in 0..size(500, 50_000) {
        queue.push(new("run")).unwrap();
        let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
        let calls: Vec<Call> = (0..random.usize(0..6))
            .map(|_| {
                let (write, key) = (random.choice(WRITES).unwrap(), random.choice(&names).unwrap().clone());
                (write, key, random.choice(TEXTS).unwrap(), random.choice(NUMBERS).unwrap())
            })
            .collect();
        let (pushes, is_refused) = (random.u64(0..3), random.u8(..8) == 0);
        let mut after = keys.clone();
        let made = calls.iter().try_for_each(|call| make(&mut after, call).map_err(|fault| (fault, call.1.clone())));
        let ended = lease.finish_with_redis(|w| {
            calls.iter().for_each(|one| call(w, one));
            let later = |n| new(&format!("{round} {n}")).delay(Duration::from_secs(86_400));
            (0..pushes).try_for_each(|n| w.push(&queue, later(n)).map(drop))?;
            if is_refused { w.push(&queue, new("x").after(["none"])).map(drop) } else { Ok(()) }
        });
        let context = format!("SEED={seed}, round {round}: {calls:?} gave {ended:?}");
        match (made, ended) {
            (Err((fault, key)), Err(error)) => {
                let found = source(&error);
                let is_it =
                    matches!(found, Some(Error::Write { fault: of, key: named, .. }) if *of == fault && *named == key);
                assert!(is_it, "{context}, and not {fault:?} of {key}");
                *faults.entry(format!("{fault:?}")).or_insert(0) += 1;
            }
            (Ok(()), Err(QueueError::NotFound { .. })) if is_refused => {}
            (Ok(()), Ok(_)) if !is_refused => {
                after.retain(|_, kept| !kept.all.is_empty());
                (keys, pushed) = (after, pushed + pushes);
            }
            _ => panic!("{context}"),
        }
        assert_eq!(read(&mut connection, &names), keys, "{context}");
        assert_eq!(queue.counts().scheduled, pushed, "{context}");
        _ = lease.finish(None);
    }
    assert!(faults.len() == 2 && pushed > 0, "{faults:?}");
}
