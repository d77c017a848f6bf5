//! The calls of an operator, with and without a consumer that has the name.

use crate::server::Server;
use std::time::Duration;
use waterline::{Consumer, Error as Refused, Index, MemoryJobs, MoveKind, OnExhausted, Progress, Retry, Saved, Status};
use waterline_postgres::{Error, PgOptions, PgStore};

const PARK: OnExhausted = OnExhausted::Park { budget: 9 };

fn jobs() -> MemoryJobs<u64> {
    (0..9).collect()
}

/// Starts a consumer whose jobs fail as this says, and are then parked.
fn start(store: &PgStore, fails: impl Fn(Index) -> bool + Send + Sync + 'static) -> Consumer {
    let builder = Consumer::builder(jobs(), store.progress("p")).retry(Retry::none()).on_exhausted(PARK);
    builder.start(move |job| if fails(job.index) { Err("refused".into()) } else { Ok(()) }).unwrap()
}

fn until(consumer: &Consumer, is_so: impl Fn(&Status) -> bool) {
    common::until(&consumer.handle(), "the end of the jobs", is_so);
}

fn parked(store: &PgStore) -> Vec<(Index, bool)> {
    store.parked("p").unwrap().iter().map(|parked| (parked.index, parked.redrive_wanted)).collect()
}

#[test]
fn parked_jobs_are_redriven_and_discarded_without_a_consumer() {
    let store = Server::shared().database().store(PgOptions::new());
    let consumer = start(&store, |index| [2, 5, 7].contains(&index));
    until(&consumer, |status| status.last_processed == Some(8));
    consumer.stop().unwrap();
    assert_eq!(parked(&store), [(2, false), (5, false), (7, false)]);
    assert_eq!(store.parked("p").unwrap()[0].error, "refused");
    assert!(store.parked("other").unwrap().is_empty());
    store.redrive("p", 5).unwrap();
    store.discard("p", 2).unwrap();
    assert_eq!(parked(&store), [(5, true), (7, false)]);
    for refused in [store.redrive("p", 2), store.discard("p", 8), store.redrive("other", 5)] {
        assert!(matches!(refused, Err(Error::Refused(Refused::NotParked { .. }))), "{refused:?}");
    }
    let again = start(&store, |index| index != 5);
    until(&again, |status| status.parked == 1);
    again.stop().unwrap();
    assert_eq!(parked(&store), [(7, false)]);
}

#[test]
fn a_running_consumer_takes_up_only_redrives_and_discards() {
    let database = Server::shared().database();
    let store = database.store(PgOptions::new().holder("node a"));
    let consumer = start(&store, |index| [2, 5, 7].contains(&index));
    until(&consumer, |status| status.last_processed == Some(8));
    consumer.stop().unwrap();
    let consumer = start(&store, |index| index != 5);
    // Another process has a store of its own.
    let operator = database.store(PgOptions::new().holder("an operator"));
    operator.redrive("p", 5).unwrap();
    operator.discard("p", 2).unwrap();
    until(&consumer, |status| status.parked == 1);
    let leased = |outcome: Result<(), Error>| match outcome {
        Err(Error::Leased { holder, expires_in, .. }) => holder == "node a" && expires_in > Duration::ZERO,
        _ => false,
    };
    assert!(leased(operator.seek("p", 0, "a reason")) && leased(operator.skip("p", 20, "a reason")));
    assert!(leased(operator.remove("p")) && leased(store.remove("p")));
    consumer.stop().unwrap();
    assert_eq!(parked(&operator), [(7, false)]);
    let wishes = database.client().query_one("SELECT count(*) FROM waterline.wish", &[]).unwrap();
    assert_eq!(wishes.get::<_, i64>(0), 0);
}

#[test]
fn seeks_and_skips_are_recorded_and_followed() {
    let store = Server::shared().database().store(PgOptions::new());
    assert!(matches!(store.skip("p", 2, "a reason"), Err(Error::Refused(Refused::NothingSaved { .. }))));
    let consumer = start(&store, |_| false);
    until(&consumer, |status| status.last_processed == Some(8));
    consumer.stop().unwrap();
    store.seek("p", 5, "the prices were wrong").unwrap();
    store.skip("p", 6, "this block is empty").unwrap();
    assert!(matches!(store.skip("p", 6, "again"), Err(Error::Refused(Refused::AlreadyDone { .. }))));
    assert!(matches!(store.seek("p", 1, ""), Err(Error::Refused(Refused::Config(_)))));
    let history = store.history("p").unwrap();
    let moves: Vec<_> = history.iter().map(|made| (made.kind, made.from, made.to, made.reason.as_str())).collect();
    let seek = (MoveKind::Seek, Some(9), 5, "the prices were wrong");
    assert_eq!(moves, [seek, (MoveKind::Skip, Some(5), 6, "this block is empty")]);
    let info = &store.consumers().unwrap()[0];
    assert_eq!((info.name.as_str(), info.last_processed, info.next), ("p", Some(4), Some(5)));
    assert_eq!((info.done_ahead, info.parked, info.moved_at.is_some()), (1, 1, true));
    let (say, ran) = crossbeam_channel::unbounded();
    let consumer = Consumer::builder(jobs(), store.progress("p")).max_processing(1).stop_at(8);
    consumer.start(move |job| Ok(say.send(job.index)?)).unwrap().join().unwrap();
    assert_eq!(ran.iter().collect::<Vec<_>>(), [5, 7, 8]);
}

#[test]
fn removed_progress_gets_a_higher_fence_and_damage_is_listed() {
    let database = Server::shared().database();
    let store = database.store(PgOptions::new());
    for name in ["p", "q"] {
        Consumer::builder(jobs(), store.progress(name)).stop_at(8).start(|_| Ok(())).unwrap().join().unwrap();
    }
    store.remove("p").unwrap();
    database.client().batch_execute("INSERT INTO waterline.record VALUES ('q', 'l', 'damaged')").unwrap();
    let consumers = store.consumers().unwrap();
    assert_eq!(consumers.iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["q"]);
    assert!(consumers[0].unreadable.is_some(), "{consumers:?}");
    let consumer = Consumer::builder(jobs(), store.progress("p")).stop_at(8);
    let fence = |fence: u64| if fence == 3 { Ok(()) } else { Err(format!("it is life {fence}").into()) };
    consumer.start(move |job| fence(job.fence)).unwrap().join().unwrap();
    assert!(store.history("p").unwrap().is_empty());
}

#[test]
fn a_wish_with_a_missed_notification_is_taken_up() {
    let database = Server::shared().database();
    let store = database.store(PgOptions::new().ttl(Duration::from_millis(900)));
    let mut progress = store.progress("p");
    progress.acquire_all().unwrap();
    let mut client = database.client();
    let mut next = 1;
    // The first one may be there before the first read.
    for _ in 0..3 {
        client.batch_execute("INSERT INTO waterline.wish (name, kind, index) VALUES ('p', 'redrive', 5)").unwrap();
        common::eventually("the end of the wish", || {
            progress.save_all(&Saved::new(Some(next - 1), next, Vec::new())).unwrap();
            next += 1;
            client.query_one("SELECT count(*) FROM waterline.wish", &[]).unwrap().get::<_, i64>(0) == 0
        });
    }
}
