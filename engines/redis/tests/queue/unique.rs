//! The marks of unique jobs.

use crate::bench::{bench, job, keeping};
use std::time::Duration;
use waterline_queue::{Accept, NewJob, PushOutcome, Unique};
use waterline_redis::RedisStore;

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
