//! Values of a queue that cannot be read, as of another program: they stop no other job.

use crate::bench::{bench, claim, claim_for, finish, job, keeping};
use std::collections::BTreeSet;
use waterline_queue::{JobState, Limit, OnDead, Queue};
use waterline_redis::RedisStore;
use waterline_redis::redis::Value;

const VALUES: [&[u8]; 9] = [
    b"",
    b"x",
    b"\xff\xff\xff\xff\xff",
    &[0; 40],
    b"r",
    &[7; 46],
    b"\x07garbage garbage garbage",
    &[120; 30],
    // (One that has a key, but for its end.)
    b"\x0a\0\0\0\0\0\0\0\x01k\x09ke",
];

/// The keys of which a value is damaged, and how: the value of the job's field, or a member beside
/// the others.
const PLACES: [(&str, &str); 19] = [
    ("job", "field"),
    ("state", "field"),
    ("data", "field"),
    ("meta", "field"),
    ("shown", "field"),
    ("index", "field"),
    ("tick", "new"),
    ("seen", "new"),
    ("use", "new"),
    ("lane2", "list"),
    ("due", "set"),
    ("run", "set"),
    ("done", "set"),
    ("dead", "set"),
    ("expires", "set"),
    ("forget", "set"),
    ("held", "lexical"),
    ("before", "lexical"),
    ("note", "lexical"),
];

/// Reads everything that an operator looks at. Returns the jobs that are there, by their ids.
fn seen(queue: &Queue) -> BTreeSet<(String, JobState)> {
    queue.status().unwrap();
    queue.limits().unwrap();
    queue.workers().unwrap();
    queue.periodics().unwrap();
    use JobState::*;
    let states = [Scheduled, Ready, Waiting, Running, Finished, Dead];
    let lists = states.map(|state| queue.list(state, None, 100).unwrap());
    lists.into_iter().flatten().map(|info| (info.id, info.state)).collect()
}

#[test]
fn a_damaged_value_stops_no_other_job() {
    let (server, options) = bench();
    let store = RedisStore::connect(server.url(), options).unwrap();
    let mut round = 0;
    for (key, how) in PLACES {
        // A member beside the others says nothing of the job.
        let states = [JobState::Ready, JobState::Running, JobState::Finished];
        let (values, states) = if how == "field" { (&VALUES[..], &states[..]) } else { (&VALUES[1..4], &states[..1]) };
        for &value in values {
            for state in states {
                round += 1;
                let (name, what) = (format!("q{round}"), format!("{state:?}: {key} {how} {value:?}"));
                let queue = store.queue(&name, keeping().limit(Limit::each_key().at_once(1))).unwrap();
                queue.push(job("bad").key("a")).unwrap();
                let runs = if *state == JobState::Ready { Vec::new() } else { claim_for(&store, &name, 1, "1") };
                if *state == JobState::Finished {
                    assert!(finish(&store, &name, runs[0]));
                }
                queue.push(job("keyed").key("a")).unwrap();
                queue.push(job("plain")).unwrap();
                queue.push(job("behind").after(["bad"]).on_dead(OnDead::Run)).unwrap();
                let place = store.place_of(&name).0.replace("head", key);
                let number =
                    queue_number(&server.ask(&["HGET", &store.place_of(&name).0.replace("head", "index"), "nbad"]));
                let command: &[&[u8]] = match how {
                    "field" if key == "index" => &[b"HSET", place.as_bytes(), b"nbad", value],
                    "field" => &[b"HSET", place.as_bytes(), &number, value],
                    "new" => &[b"HSET", place.as_bytes(), &[b"w", value].concat(), value],
                    "list" => &[b"LPUSH", place.as_bytes(), value],
                    "set" => &[b"ZADD", place.as_bytes(), b"1", value],
                    _ => &[b"ZADD", place.as_bytes(), b"0", value],
                };
                server.ask_bytes(command);
                seen(&queue);
                let mut done = 0;
                common::eventually(&format!("the others run ({what})"), || {
                    claim(&store, &name, 16).into_iter().for_each(|run| _ = finish(&store, &name, run));
                    done += 1;
                    assert!(done < 1_000, "{what}");
                    ["keyed", "plain", "behind"]
                        .iter()
                        .all(|id| queue.get(id).unwrap().is_some_and(|info| info.state == JobState::Finished))
                });
                // What cannot be read is dead, with the reason, and can be removed.
                for (id, state) in seen(&queue) {
                    if state == JobState::Dead {
                        let info = queue.get(&id).unwrap().unwrap();
                        assert!(info.error.unwrap().starts_with("its record is damaged: "), "{what}");
                        queue.remove(&id).unwrap();
                    }
                }
                let counts = queue.counts();
                let left = (counts.ready, counts.running, counts.waiting, counts.dead);
                // A member that is no job is counted until its time has come.
                assert!(left == (0, 0, 0, 0) || how == "set", "{what}: {counts:?}");
                let used: u64 = queue.limits().unwrap().iter().map(|limit| limit.running).sum();
                assert!(used == 0 || key == "use", "{what}: a place was never left");
            }
        }
    }
}

fn queue_number(value: &Value) -> Vec<u8> {
    let Value::BulkString(number) = value else { panic!("{value:?} is no number of a job") };
    number.clone()
}
