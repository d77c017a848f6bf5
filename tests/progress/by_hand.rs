//! Requests of an operator that reach a consumer through its engine: moves, redrives, discards.

use common::database::Database;
use common::*;
use std::time::SystemTime;
use waterline::{Consumer, ConsumerInfo, Error, Index, MemoryJobs, MoveKind, OnExhausted, Record, Retry, Saved};

const PARK: OnExhausted = OnExhausted::Park { budget: 9 };

/// Runs 9 jobs, of which these fail and are parked.
pub fn park(database: &Database, bad: &'static [Index]) {
    let builder = Consumer::builder(numbers(9), database.engine().keeping_records());
    let consumer = builder.retry(Retry::none()).on_exhausted(PARK).stop_at(8).max_processing(1);
    let run = move |index: Index| if bad.contains(&index) { Err("refused".into()) } else { Ok(()) };
    consumer.start(move |job| run(job.index)).unwrap().join().unwrap();
}

pub fn saved(database: &Database) -> Saved {
    let content = database.content();
    let mut saved = content.saved.expect("something is saved");
    saved.records = content.records.iter().map(|(key, value)| Record::new(key, Some(value))).collect();
    saved
}

fn parked(saved: &Saved) -> Vec<(Index, bool)> {
    let parked = saved.records.iter().filter_map(Record::parked);
    parked.map(|parked| (parked.index, parked.redrive_wanted)).collect()
}

#[test]
fn a_tenure_redrives_and_discards_parked_jobs() {
    let database = Database::default();
    park(&database, &[2, 5, 7]);
    let builder = Consumer::builder(numbers(9), database.engine().keeping_records());
    let consumer = builder.on_exhausted(PARK).start(|_| Ok(())).unwrap();
    let tenure = database.tenure();
    tenure.discard(5);
    tenure.redrive(7);
    tenure.redrive(8);
    until(&consumer.handle(), "the redrive and the discard", |status| status.parked == 1);
    consumer.stop().unwrap();
    assert_eq!(parked(&saved(&database)), [(2, false)]);
    tenure.discard(2);
    tenure.redrive(2);
}

#[test]
fn a_stored_redrive_request_runs_in_the_next_life() {
    let database = Database::default();
    park(&database, &[2, 5]);
    let before = saved(&database);
    assert!(before.records.iter().filter(|record| record.parked().is_none()).all(|record| record.redriven().is_none()));
    for record in before.records.iter().filter(|record| record.parked().is_some_and(|parked| parked.index == 5)) {
        database.put_record(&record.redriven().unwrap());
    }
    assert_eq!(parked(&saved(&database)), [(2, false), (5, true)]);
    let builder = Consumer::builder(numbers(9), database.engine().keeping_records());
    let consumer = builder
        .on_exhausted(PARK)
        .start(|job| {
            assert_eq!(job.index, 5);
            Ok(())
        })
        .unwrap();
    until(&consumer.handle(), "the redrive", |status| status.parked == 1);
    consumer.stop().unwrap();
    assert_eq!(parked(&saved(&database)), [(2, false)]);
}

#[test]
fn an_engine_seeks_and_skips_as_a_store_does() {
    let jobs = || (0..9).collect::<MemoryJobs<u64>>();
    let database = Database::default();
    park(&database, &[2, 5]);
    let (store, _dir) = a_store();
    let builder = Consumer::builder(jobs(), store.progress("p")).retry(Retry::none()).on_exhausted(PARK);
    let fails = |index: Index| if [2, 5].contains(&index) { Err("refused".into()) } else { Ok(()) };
    builder.stop_at(8).start(move |job| fails(job.index)).unwrap().join().unwrap();

    let (before, at) = (saved(&database), SystemTime::now());
    let (after, made) = Saved::seek(Some(&before), 4, "the prices were wrong", at).unwrap();
    store.progress("p").seek(4, "the prices were wrong").unwrap();
    let history = store.progress("p").history().unwrap();
    assert_eq!((made.kind, made.from, made.to, &made.reason), (MoveKind::Seek, Some(9), 4, &history[0].reason));
    assert_eq!((history[0].from, history[0].to), (made.from, made.to));
    assert_eq!((after.last_processed, after.next), (store.progress("p").last_processed().unwrap(), 4));

    let (skipped, made) = after.skip("p", 6, "it is empty", at).unwrap();
    store.progress("p").skip(6, "it is empty").unwrap();
    assert_eq!((made.kind, made.from, made.to), (MoveKind::Skip, Some(4), 6));
    assert_eq!((skipped.next, &skipped.done[..]), (4, &[6..=6][..]));
    let ours: Vec<_> = skipped.records.iter().filter_map(Record::parked).map(|parked| parked.error).collect();
    assert_eq!(ours, [store.parked("p").unwrap()[2].error.clone()]);

    let name = |error: Error| error.to_string();
    assert_eq!(
        name(skipped.skip("p", 6, "again", at).unwrap_err()),
        name(store.progress("p").skip(6, "again").unwrap_err())
    );
    for (index, reason) in [(Index::MAX, "a reason"), (4, ""), (4 + (1 << 30), "too far")] {
        let refused = skipped.skip("p", index, reason, at).unwrap_err();
        assert_eq!(name(refused), name(store.progress("p").skip(index, reason).unwrap_err()));
    }
    assert!(matches!(Saved::seek(None, Index::MAX, "a reason", at), Err(Error::Config(_))));
    assert_eq!(Saved::seek(None, 0, "a reason", at).unwrap().0, Saved::new(None, 0, Vec::new()));
}

#[test]
fn an_engine_entry_counts_parked_jobs() {
    let database = Database::default();
    park(&database, &[2, 5]);
    let info = ConsumerInfo::of("p", Some(&saved(&database)));
    assert_eq!((info.last_processed, info.next, info.parked, info.life_open), (Some(8), Some(9), 2, Some(false)));
    assert_eq!((info.unreadable, info.last_halt), (None, None));
    let none = ConsumerInfo::of("p", None);
    assert_eq!((none.name.as_str(), none.next, none.unreadable), ("p", None, None));
}
