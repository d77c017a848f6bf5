//! The marks of unique jobs.

use crate::bench::{bench, job, keeping};
use std::time::Duration;
use waterline_queue::{Accept, NewJob, PushOutcome, Unique};
use waterline_redis::RedisStore;
use waterline_redis::redis::from_redis_value;

#[test]
fn a_job_that_is_unique_until_its_claim_leaves_no_fingerprint() {
    let (server, options) = bench();
    let store = RedisStore::connect(server.url(), options).unwrap();
    let queue = store.queue("q", keeping()).unwrap();
    let fingerprints = || -> usize {
        let fields: Vec<Vec<u8>> = from_redis_value(server.ask(&["HKEYS", &store.keys_of("q")[13]])).unwrap();
        fields.iter().filter(|field| field.starts_with(b"u")).count()
    };
    queue.push(job("a").unique(Unique::until_claimed())).unwrap();
    assert_eq!(fingerprints(), 1);
    let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
    assert_eq!(fingerprints(), 0);
    lease.finish(None).unwrap();
}

#[test]
fn the_mark_of_a_job_goes_once_its_id_is_that_of_another_job() {
    let (server, options) = bench();
    let queue = RedisStore::connect(server.url(), options).unwrap().queue("q", keeping()).unwrap();
    let unique = || Unique::within(Duration::from_secs(3_600));
    let twin = || NewJob::new("k", "a").unwrap().unique(unique());
    for ends in [false, true] {
        let id = format!("a{ends}");
        let first = queue.push(twin().id(&id)).unwrap();
        assert_eq!(first.outcome, PushOutcome::Added, "{ends}");
        assert_eq!(queue.push(twin()).unwrap().outcome, PushOutcome::Duplicate(id.clone()));
        if ends {
            let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
            assert_eq!(lease.id(), id);
            lease.bury("no").unwrap();
        }
        queue.push(job("other").id(&id).delay(Duration::from_secs(60))).unwrap();
        let next = queue.push(twin()).unwrap();
        assert_eq!(next.outcome, PushOutcome::Added, "{ends}");
        queue.remove(&next.id).unwrap();
        queue.remove(&id).unwrap();
    }
}
