//! The tokens of leases, as another language gives them.

use crate::bench::{bench, call, claim, claim_for, finish, job, keeping, renew};
use std::time::{Duration, SystemTime};
use waterline::{Clock, Retry};
use waterline_queue::{Accept, Limit, NewJob};
use waterline_redis::RedisStore;

#[test]
fn a_token_counts_until_its_lease_is_over_and_a_dead_worker_holds_no_place() {
    let (server, options) = bench();
    let store = RedisStore::connect(server.url(), options).unwrap();
    let queue = store.queue("q", keeping().limit(Limit::each_key().at_once(1))).unwrap();
    queue.push(job("kept")).unwrap();
    let kept = claim_for(&store, "q", 1, "1")[0];
    assert!(renew(&store, "q", kept), "nobody has taken it back");
    queue.push(NewJob::new("k", "plain").unwrap()).unwrap();
    queue.push(job("keyed").key("a")).unwrap();
    let old = claim_for(&store, "q", 9, "1");
    assert_eq!(old.len(), 2);
    let mut new = Vec::new();
    common::eventually("their leases end, and both are claimed again", || {
        new.extend(claim(&store, "q", 9));
        new.len() == 2
    });
    new.sort_unstable();
    for (old, new) in old.into_iter().zip(new) {
        assert!(old.0 == new.0 && old.1 < new.1, "{old:?} {new:?}");
        // (The end of a job without data is another one than below.)
        assert!(!finish(&store, "q", old));
        assert_eq!((renew(&store, "q", old), renew(&store, "q", new)), (false, true));
        let edit = |token: i64| {
            let (number, token) = (old.0.to_string(), token.to_string());
            let args = ["id", &number, &token, "data", "", "=1", "", ""].map(str::as_bytes);
            call(&store, "q", "wl_edit", &args).is_ok()
        };
        assert_eq!((edit(old.1), edit(new.1)), (false, true));
        assert_eq!([old, new, new].map(|run| finish(&store, "q", run)), [false, true, false]);
    }
    assert!(finish(&store, "q", kept), "its lease was renewed");
}

#[test]
fn a_job_with_nothing_but_a_key_waits_until_that_has_a_place() {
    let (server, options) = bench();
    let store = RedisStore::connect(server.url(), options).unwrap();
    let queue = store.queue("q", keeping().limit(Limit::each_key().at_once(1))).unwrap();
    for key in ["a", "a", "b", "a", ""] {
        let job = NewJob::new("k", key).unwrap();
        queue.push(if key.is_empty() { job } else { job.key(key) }).unwrap();
    }
    let keys_of = |runs: &[(i64, i64)]| -> Vec<_> {
        let key_of = |(number, _): &_| queue.get(&*format!("~{number}")).unwrap().unwrap().key.unwrap_or_default();
        runs.iter().map(key_of).collect()
    };
    let first = claim(&store, "q", 9);
    assert_eq!(keys_of(&first), ["a", "b", ""]);
    assert!(claim(&store, "q", 9).is_empty(), "the key is full");
    let mut run = first[0];
    for _ in 0..2 {
        assert!(finish(&store, "q", run));
        let next = claim(&store, "q", 9);
        assert_eq!(keys_of(&next), ["a"]);
        run = next[0];
    }
    assert!(finish(&store, "q", run) && claim(&store, "q", 9).is_empty());
    let used: u64 = queue.limits().unwrap().iter().map(|limit| limit.running).sum();
    assert_eq!(used, 1, "b has its place");
}

#[test]
fn the_pauses_before_retries_are_those_of_the_rules_in_rust() {
    let (server, options) = bench();
    let store = RedisStore::connect(server.url(), options).unwrap();
    let clock = Clock::manual(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    let queue = store.queue("q", keeping().clock(clock.clone())).unwrap();
    let (first, cap) = (Duration::from_micros(1_500), Duration::from_secs(2));
    for (at, retry) in [
        Retry::fixed(first),
        Retry::exponential(first, cap),
        Retry::exponential(first, cap).factor(1.7).jitter(0.5),
        Retry::quadratic(first, cap).jitter(1.0),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("j{at}");
        queue.push(job(&id).retry(retry.max_attempts(40))).unwrap();
        for attempt in 1..40 {
            let now = clock.wall_time();
            queue.accept(Accept::new()).unwrap().unwrap().retry("no").unwrap();
            let pause = queue.get(&*id).unwrap().unwrap().run_at.unwrap().duration_since(now).unwrap();
            // A call of a test has the longest one. Times are whole milliseconds.
            let expected = retry.delay(attempt, 1.0).unwrap().as_secs_f64() * 1e3;
            assert_eq!(pause.as_millis(), expected.ceil() as u128, "{retry:?} after {attempt}");
            clock.advance(pause);
        }
        queue.accept(Accept::new()).unwrap().unwrap().bury("enough").unwrap();
    }
}
