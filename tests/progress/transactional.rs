//! Effects, completion and watermark in one write: the changes of a job are applied exactly once or
//! not at all.

use common::*;
use waterline::testing::FaultyStore;
use waterline::{Blocked, Builder, ConfigError, Consumer, Error, MemoryJobs, Store, StoreProgress};

fn consumer(store: &Store, count: u64) -> Builder<MemoryJobs<u64>, StoreProgress> {
    Consumer::builder(numbers(count), store.progress("p")).max_processing(4).stop_at(count - 1)
}

#[test]
fn changes_of_one_job_are_made_in_order() {
    let store = Store::in_memory();
    let table = store.table("t").unwrap();
    table.put("before", 5i64.to_be_bytes()).unwrap();
    let t = table.clone();
    consumer(&store, 6)
        .max_search_ahead(1)
        .start_transactional(move |job, effects| {
            let count = |n: i64| n.to_be_bytes();
            match job.index {
                0 => {
                    effects.add(&t, "a", 1)?;
                    effects.put(&t, "a", count(100))?;
                    effects.add(&t, "b", 1)?;
                    effects.add(&t, "b", -3)?;
                    effects.add(&t, "before", 1)?;
                }
                1 => {
                    effects.add(&t, "a", 1)?;
                    effects.put(&t, "c", count(7))?;
                    effects.add(&t, "c", 1)?;
                }
                2 => {
                    effects.add(&t, "c", 1)?;
                    effects.delete(&t, "c")?;
                }
                3 => {
                    effects.delete(&t, "b")?;
                    effects.add(&t, "b", 4)?;
                }
                4 => {
                    effects.add(&t, "text", 1)?;
                    effects.put(&t, "text", "no counter any more")?;
                }
                _ => {}
            }
            Ok(())
        })
        .unwrap()
        .join()
        .unwrap();
    let counter = |key: &str| table.counter(key).unwrap();
    assert_eq!((counter("a"), counter("b"), counter("before")), (101, 4, 6));
    assert_eq!(table.get("c").unwrap(), None);
    assert_eq!(table.get("text").unwrap().as_deref(), Some(&b"no counter any more"[..]));
}

#[test]
fn counters_in_a_shared_write_add_up() {
    let faulty = FaultyStore::new().unwrap();
    let store = faulty.store();
    let table = store.table("sums").unwrap();
    // The failing store gathers the effects of all jobs, and then writes them together.
    faulty.fail(..);
    let consumers: Vec<Consumer> = (0..8)
        .map(|n| {
            let table = table.clone();
            Consumer::builder(numbers(100), store.progress(format!("p{n}")))
                .start_transactional(move |job, effects| {
                    effects.add(&table, "jobs", 1)?;
                    if job.index % 10 == 0 {
                        effects.put(&table, "last", job.index.to_be_bytes())?;
                    }
                    Ok(effects.add(&table, format!("of {n}"), job.payload as i64)?)
                })
                .unwrap()
        })
        .collect();
    for consumer in &consumers {
        until(&consumer.handle(), "all", |s| s.done == 100);
    }
    assert_eq!(table.iter().count(), 0, "nothing is written, so nothing is seen");
    faulty.heal();
    for consumer in consumers {
        assert!(consumer.handle().wait_for(99, LONG));
        consumer.stop().unwrap();
    }
    assert_eq!(table.counter("jobs").unwrap(), 800);
    assert!((0..8).all(|n| table.counter(format!("of {n}")).unwrap() == 99 * 100 / 2));
}

#[test]
fn a_foreign_table_fails_the_attempt_even_if_ignored() {
    let (store, other) = (Store::in_memory(), Store::in_memory());
    let (ours, foreign) = (store.table("t").unwrap(), other.table("theirs").unwrap());
    let (kept, refused) = (ours.clone(), foreign.clone());
    let error = consumer(&store, 3)
        .start_transactional(move |job, effects| {
            effects.put(&kept, job.index.to_be_bytes(), "")?;
            if job.index == 1 {
                // Ignored on purpose.
                let _ = effects.put(&refused, "k", "v");
                assert!(effects.add(&refused, "k", 1).is_err() && effects.delete(&refused, "k").is_err());
            }
            Ok(())
        })
        .unwrap()
        .join()
        .unwrap_err();
    let Error::Job { index: 1, source, .. } = &error else { panic!("{error:?}") };
    let source = source.downcast_ref::<Error>();
    assert!(
        matches!(source, Some(Error::Config(ConfigError::Foreign { what: "table", name })) if name == "theirs"),
        "{error:?}"
    );
    assert_eq!(ours.get(1u64.to_be_bytes()).unwrap(), None, "nothing of the attempt is half done");
    assert_eq!(foreign.iter().count(), 0);
}

#[test]
fn oversized_effects_are_refused_as_a_whole() {
    let store = Store::in_memory();
    let table = store.table("t").unwrap();
    let t = table.clone();
    let error = consumer(&store, 1)
        .max_effects(1_000)
        .start_transactional(move |_, effects| {
            for n in 0..100u8 {
                effects.put(&t, [n], [n; 100])?;
            }
            Ok(())
        })
        .unwrap()
        .join()
        .unwrap_err();
    let Error::Job { source, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(source.downcast_ref(), Some(Error::EffectsTooLarge { limit: 1_000 })), "{error:?}");
    assert_eq!(table.iter().count(), 0);
}

#[test]
fn waiting_effects_are_bounded_while_the_store_fails() {
    const EACH: usize = 1_000;
    let faulty = FaultyStore::new().unwrap();
    let store = faulty.store();
    let table = store.table("t").unwrap();
    faulty.fail(..);
    let t = table.clone();
    let consumer = Consumer::builder(numbers(5_000), store.progress("p"))
        .max_processing(4)
        .unlimited_search_ahead()
        .max_effects(50 * EACH)
        .start_transactional(move |job, effects| Ok(effects.put(&t, job.index.to_be_bytes(), [7; EACH])?))
        .unwrap();
    let handle = consumer.handle();
    let status = until(&handle, "the bound", |s| s.done >= 48 && s.processing == 0);
    assert!(status.done <= 50 + 4, "{} jobs of {EACH} bytes wait", status.done);
    until(&handle, "the reason", |s| matches!(s.blocked, Blocked::Progress { .. }));
    let writes = faulty.writes();
    eventually("further tries", || faulty.writes() > writes + 2);
    let done = handle.status().done;
    assert!(done <= 50 + 4, "{done} jobs of {EACH} bytes wait");
    faulty.heal();
    assert!(handle.wait_for(4_999, LONG), "{:?}", handle.status());
    consumer.stop().unwrap();
    assert_eq!(table.iter().count(), 5_000);
}

#[test]
fn a_slot_is_free_once_the_job_returns() {
    let faulty = FaultyStore::new().unwrap();
    let store = faulty.store();
    faulty.fail(..);
    let table = store.table("t").unwrap();
    let t = table.clone();
    let consumer = Consumer::builder(numbers(100), store.progress("p"))
        .max_processing(1)
        .start_transactional(move |job, effects| Ok(effects.put(&t, job.index.to_be_bytes(), "")?))
        .unwrap();
    until(&consumer.handle(), "all jobs, none of which is written", |s| s.done == 100 && s.saves == 0);
    faulty.heal();
    assert!(consumer.handle().wait_for(99, LONG));
    consumer.stop().unwrap();
}
