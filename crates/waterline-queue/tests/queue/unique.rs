//! Unique, needless and expiring jobs: in writes, and over crashes.

use common::every_write::{DEATHS, Trial, every_write};
use common::queues::{DAY, MINUTE, SECOND, job, noon, on_store};
use serde_json::json;
use waterline::fuzzing::Disk;
use waterline::{Error, Store};
use waterline_queue::{
    Accept, Clock, ConfigError, NewJob, PushOutcome, Queue, QueueError, QueueOptions, Retention, Unique,
};

/// A job whose twins have the same page.
fn page(id: &str, page: &str, unique: Unique) -> NewJob {
    NewJob::new("page", &json!({ "page": page, "by": id })).unwrap().id(id).unique(unique.ignoring(["by"]))
}

fn until_done(id: &str) -> NewJob {
    page(id, "/", Unique::until_done())
}

fn executed(id: &str) -> NewJob {
    NewJob::new("page", "/").unwrap().id(id).skip_if_executed()
}

#[test]
fn q29_a_refused_job_registers_nothing() {
    on_store(|bench| {
        bench.push(job("x"));
        // The whole write fails, so its first job registers nothing either.
        let both =
            [until_done("a"), NewJob::new("page", &json!({})).unwrap().unique(Unique::until_done().only(["page"]))];
        let refused = bench.queue.push_all(both);
        assert!(
            matches!(&refused, Err(QueueError::Config(ConfigError::FingerprintField { field })) if field == "page")
        );
        assert_eq!(bench.push(until_done("b")), PushOutcome::Added);
        let store = bench.store().clone();
        let given_up = store.write(|effects| {
            bench.queue.push_with(effects, page("c", "/c", Unique::until_done()))?;
            Err(Error::Stopped)
        });
        assert!(given_up.is_err());
        assert_eq!(bench.push(page("d", "/c", Unique::until_done())), PushOutcome::Added);
    });
}

#[test]
fn p07_a_job_that_ends_in_time_leaves_no_expiry_entry() {
    let disk = Disk::default();
    let clock = Clock::manual(noon());
    let queue = Queue::open(&disk.open(&Store::options()).unwrap(), "q", QueueOptions::default().clock(clock)).unwrap();
    let entries =
        || disk.records().iter().filter(|(family, key, _)| family == "waterline.ready" && key[4] == b'e').count();
    queue.push_all(["a", "b", "c"].map(|id| job(id).expires(MINUTE))).unwrap();
    assert_eq!(entries(), 3);
    queue.accept(Accept::new()).unwrap().expect("a is ready").finish(None).unwrap();
    queue.accept(Accept::new()).unwrap().expect("b is ready").bury("no").unwrap();
    queue.remove("c").unwrap();
    assert_eq!(entries(), 0);
}

#[test]
fn expired_registrations_leave_no_records() {
    let disk = Disk::default();
    let clock = Clock::manual(noon());
    let store = disk.open(&Store::options()).unwrap();
    let queue = Queue::open(&store, "q", QueueOptions::default().clock(clock.clone())).unwrap();
    // Ready log entries stay for a while: their byte after the queue's number is the priority.
    let written = || {
        disk.records()
            .into_iter()
            .filter(|(family, key, _)| family == "waterline.queue" || family == "waterline.ready" && key[4] > 3)
    };
    let written = || written().map(|(_, key, _)| String::from_utf8_lossy(&key[4..]).into_owned()).collect::<Vec<_>>();
    let before = written();
    for id in ["a", "b", "c"] {
        let job = page(id, id, Unique::within(SECOND)).expires(MINUTE).skip_if_executed().root(id, noon());
        queue.push(job).unwrap();
    }
    queue.push(until_done("d").expires(MINUTE)).unwrap();
    queue.push(page("e", "e", Unique::until_claimed()).expires(SECOND)).unwrap();
    queue.push(executed("f")).unwrap();
    queue.push(executed("g")).unwrap();
    clock.advance(SECOND);
    let mut ran = 0;
    while let Some(mut lease) = queue.accept(Accept::new()).unwrap() {
        lease.finish(None).unwrap();
        ran += 1;
    }
    assert_eq!(ran, 5, "e has expired, and g is skipped");
    for _ in 0..3 {
        clock.advance(15 * DAY);
        assert!(queue.accept(Accept::new()).unwrap().is_none());
    }
    assert_eq!(written(), before);
}

#[test]
fn a_crash_at_any_write_keeps_one_unique_job() {
    let options = |clock: &Clock| QueueOptions::default().clock(clock.clone()).retention(Retention::Drop);
    let live = |trial: &Trial| {
        let clock = Clock::manual(noon());
        let queue = Queue::open(&trial.store(), "q", options(&clock)).unwrap();
        let claim = || queue.accept(Accept::new()).unwrap().expect("a job is ready");
        queue.push_all([until_done("a"), executed("x"), executed("y"), job("z").expires(SECOND)]).unwrap();
        queue.push(until_done("b")).unwrap();
        claim().finish(None).unwrap();
        queue.push(until_done("b")).unwrap();
        claim().finish(None).unwrap();
        clock.advance(SECOND);
        claim().bury("no").unwrap();
        queue.push(until_done("c")).unwrap();
        clock
    };
    let lives = every_write(&DEATHS, live, |next, clock| {
        let queue = Queue::open(&next.store(), "q", options(&clock)).unwrap();
        // At most one twin is left, and it can finish and be replaced.
        let outcome = queue.push(until_done("last")).unwrap().outcome;
        let mut twins = 0;
        while let Some(mut lease) = queue.accept(Accept::new()).unwrap() {
            twins += usize::from(["a", "b", "c", "last"].contains(&lease.id()));
            lease.finish(None).unwrap();
        }
        assert_eq!(twins, 1, "{outcome:?}");
        assert_eq!(queue.push(until_done("after all")).unwrap().outcome, PushOutcome::Added);
    });
    assert!(lives > 8, "only {lives} writes");
}
