//! Bad values and bad surroundings: each is a typed error that says what to write instead, and
//! nothing is lost.

use common::*;
use std::time::Duration;
use waterline::{Blocked, Builder, ConfigError, Consumer, Error, Index, MemoryJobs, MemoryProgress, Retry, Store};

type Plain = Builder<MemoryJobs<u64>, MemoryProgress>;

fn refused(set: impl FnOnce(Plain) -> Plain) -> (ConfigError, String) {
    let progress = MemoryProgress::new();
    let started = set(Consumer::builder(numbers(3), progress.clone())).start(|_| panic!("nothing may run"));
    let Err(Error::Config(error)) = started else { panic!("{started:?}") };
    // A refusal leaves the progress free.
    Consumer::builder(numbers(3), progress).start(|_| Ok(())).unwrap().stop().unwrap();
    (error.clone(), error.to_string())
}

#[test]
fn values_that_make_no_sense_are_refused_and_say_what_to_write() {
    let (error, text) = refused(|b| b.max_processing(0));
    assert!(error == ConfigError::MaxProcessingZero && text.contains("at least 1"), "{text}");
    let (error, text) = refused(|b| b.max_search_ahead(0));
    assert!(error == ConfigError::SearchAheadZero && text.contains("unlimited_search_ahead()"), "{text}");
    let (error, text) = refused(|b| b.start_at(Index::MAX));
    assert!(error == ConfigError::StartAtMax && text.contains(&(Index::MAX - 1).to_string()), "{text}");
    for last in [Index::MAX, Index::MAX - 1] {
        assert_eq!(refused(|b| b.start_after(last)).0, ConfigError::StartAtMax);
    }
    assert_eq!(refused(|b| b.stop_at(Index::MAX)).0, ConfigError::StopAtMax);
    let (error, text) = refused(|b| b.retry(Retry::fixed(HOUR).max_attempts(0)));
    assert!(error == ConfigError::MaxAttemptsZero && text.contains("Retry::none()"), "{text}");
    for jitter in [-0.1, 1.5, f64::NAN] {
        let (error, _) = refused(|b| b.retry(Retry::fixed(HOUR).jitter(jitter)));
        assert!(matches!(error, ConfigError::Jitter { .. }), "{error:?}");
    }
    assert_eq!(refused(|b| b.poll_every(Duration::ZERO)).0, ConfigError::PollEveryZero);
    let (error, text) = refused(|b| b.attempt_timeout(Duration::ZERO));
    assert!(error == ConfigError::AttemptTimeoutZero && text.contains("leave it out"), "{text}");
    assert_eq!(refused(|b| b.on_stall(Duration::ZERO, |_| ())).0, ConfigError::OnStallZero);
    let (error, text) = refused(|b| b.threads(2));
    assert!(error == ConfigError::ThreadsWithoutDeferred && text.contains("start_deferred"), "{text}");
    let effects = Consumer::builder(numbers(1), Store::in_memory().progress("p")).max_effects(9);
    let Err(Error::Config(error)) = effects.start(|_| Ok(())) else { panic!("max_effects was ignored") };
    assert!(error == ConfigError::EffectsWithoutTransactional && error.to_string().contains("start_transactional"));
    let deferred = Consumer::builder(numbers(1), MemoryProgress::new()).threads(0).start_deferred(|_, done| drop(done));
    assert!(matches!(deferred, Err(Error::Config(ConfigError::ThreadsZero))));
}

#[test]
fn names_that_the_store_cannot_take_are_refused() {
    let store = Store::in_memory();
    let long = "x".repeat(256);
    for name in ["", &long] {
        let started = Consumer::builder(numbers(1), store.progress(name)).start(|_| Ok(()));
        let Err(Error::Config(error)) = started else { panic!("{started:?}") };
        assert!(matches!(error, ConfigError::Name { what: "progress", length } if length == name.len()));
        assert!(error.to_string().contains("1 to 255"), "{error}");
        assert!(matches!(store.table(name), Err(Error::Config(ConfigError::Name { what: "table", .. }))));
    }
    for name in ["x", "ü/\0 name", &long[..255]] {
        Consumer::builder(numbers(1), store.progress(name)).stop_at(0).start(|_| Ok(())).unwrap().join().unwrap();
        store.table(name).unwrap();
    }
}

#[test]
fn a_source_that_begins_above_the_next_index_is_refused_at_start() {
    let progress = MemoryProgress::new();
    Consumer::builder(numbers(6), progress.clone()).stop_at(5).start(|_| Ok(())).unwrap().join().unwrap();
    let script = Script::up_to(20);
    script.set_first(9);
    let started = Consumer::builder(script.clone(), progress.clone()).start(|_| panic!("nothing may run"));
    assert!(matches!(&started, Err(Error::Truncated { next: 6, first: 9 })), "{started:?}");
    let text = started.unwrap_err().to_string();
    assert!(text.contains("from 6 to 8"), "{text}");
    assert_eq!(script.ring(), [false], "a source that was subscribed to learns that nobody listens");
    let explicit = Consumer::builder(script.clone(), MemoryProgress::new()).start_at(3).start(|_| Ok(()));
    assert!(matches!(explicit, Err(Error::Truncated { next: 3, first: 9 })));
    script.set_first(6);
    Consumer::builder(script, progress.clone()).stop_at(20).start(|_| Ok(())).unwrap().join().unwrap();
    assert_eq!(progress.last_processed(), Some(20));
}

#[test]
fn a_source_that_is_pruned_below_a_running_consumer_halts_it_and_nothing_is_skipped() {
    let script = Script::up_to(10);
    script.gap(4);
    let progress = MemoryProgress::new();
    let consumer = Consumer::builder(script.clone(), progress.clone()).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    until(&handle, "the gap", |s| matches!(s.blocked, Blocked::Missing { index: 4 }));
    script.set_first(8);
    handle.check();
    let error = consumer.join().unwrap_err();
    assert!(matches!(error, Error::Truncated { next: 4, first: 8 }), "{error:?}");
    assert!(matches!(handle.status().blocked, Blocked::Halted { index: 4, .. }));
    assert_eq!(progress.last_processed(), Some(3));
}

#[test]
fn a_source_that_does_not_say_where_it_begins_is_an_error_at_start() {
    struct Mute(bool);
    impl waterline::Jobs for Mute {
        type Job = ();
        fn first(&self) -> Result<Index, waterline::BoxError> {
            if self.0 { panic!("mute") } else { Err("mute".into()) }
        }
        fn head(&self) -> Result<Option<Index>, waterline::BoxError> {
            Ok(None)
        }
        fn at_index(&self, _: Index) -> Result<Option<()>, waterline::BoxError> {
            Ok(None)
        }
    }
    for panics in [false, true] {
        let started = Consumer::builder(Mute(panics), MemoryProgress::new()).start_at(7).start(|_| Ok(()));
        let Err(Error::Source { index: 7, source }) = started else { panic!("{started:?}") };
        assert!(source.to_string().contains("mute"));
    }
}

#[test]
fn a_source_that_returns_more_than_it_was_asked_for_is_told_so() {
    struct Generous;
    impl waterline::Jobs for Generous {
        type Job = Index;
        fn head(&self) -> Result<Option<Index>, waterline::BoxError> {
            Ok(Some(4))
        }
        fn at_index(&self, index: Index) -> Result<Option<Index>, waterline::BoxError> {
            Ok(Some(index))
        }
        fn read(&self, run: std::ops::RangeInclusive<Index>, into: &mut Vec<Index>) -> Result<(), waterline::BoxError> {
            into.extend(*run.start()..=run.end() + 3);
            Ok(())
        }
    }
    let progress = MemoryProgress::new();
    Consumer::builder(Generous, progress.clone())
        .stop_at(4)
        .start(|job| {
            assert_eq!(job.index, job.payload);
            Ok(())
        })
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(progress.last_processed(), Some(4));
}

#[test]
fn a_progress_that_cannot_be_loaded_is_an_error_at_start() {
    struct Broken(bool);
    impl waterline::Progress for Broken {
        fn acquire(&mut self) -> Result<Option<waterline::Checkpoint>, Error> {
            if self.0 {
                panic!("broken")
            }
            Ok(Some(waterline::Checkpoint::new(Index::MAX)))
        }
        fn save(&mut self, _: &waterline::Checkpoint) -> Result<(), waterline::BoxError> {
            unreachable!()
        }
    }
    let started = Consumer::builder(numbers(1), Broken(true)).start(|_| Ok(()));
    assert!(matches!(started, Err(Error::Progress { .. })), "{started:?}");
    let started = Consumer::builder(numbers(1), Broken(false)).start(|_| Ok(()));
    assert!(matches!(started, Err(Error::Corrupt { .. })), "{started:?}");
}

#[test]
fn a_progress_that_does_not_hold_its_name_saves_nothing() {
    use waterline::Progress;
    let store = Store::in_memory();
    let consumer = Consumer::builder(numbers(3), store.progress("p")).start(|_| Ok(())).unwrap();
    assert!(consumer.handle().wait_for(2, LONG));
    assert!(store.progress("p").save(&waterline::Checkpoint::new(0)).is_err());
    assert!(MemoryProgress::new().save(&waterline::Checkpoint::new(0)).is_err());
    consumer.stop().unwrap();
}

#[test]
fn nothing_that_fails_is_retried_in_a_busy_loop() {
    let (script, time) = (Script::up_to(9).subscribing(), Time::new());
    script.fail_at(2, Fault::Error);
    let builder = Consumer::builder(script.clone(), MemoryProgress::new()).clock(time.clock());
    let consumer = builder.start(|_| Ok(())).unwrap();
    let progress = FaultyProgress::in_memory();
    progress.faults().fail(..);
    let builder = Consumer::builder(numbers(9), progress.clone()).clock(time.clock());
    let unsaved = builder.start(|_| Ok(())).unwrap();
    let reads = || script.calls().reads.load(std::sync::atomic::Ordering::SeqCst);
    let saves = || progress.faults().writes();
    eventually("both fail", || reads() >= 3 && saves() >= 1);
    // A user who rings all the time does not make a failing source fail faster.
    for _ in 0..1_000 {
        script.ring();
        std::thread::yield_now();
    }
    // Two jobs are read before the one that fails. No pause ends while no time passes, but a save
    // may be hurried once by a call that comes late.
    assert!(reads() == 3 && saves() <= 2, "{} reads, {} saves", reads(), saves());
    time.steps(Duration::from_millis(1), "further tries", || reads() >= 6 && saves() >= 6);
    let (again, passed) = ([reads() - 3, saves() - 2], time.passed());
    // The pauses double, from 50 and from 20 ms on.
    let pauses = |first: u32, again: u64| Duration::from_millis(first.into()) * (2_u32.pow(again as u32) - 1);
    assert!(pauses(50, again[0]) <= passed && pauses(20, again[1]) <= passed, "{again:?} in {passed:?}");
    consumer.stop().unwrap();
    assert!(unsaved.stop().is_err());
}

#[test]
fn a_watermark_can_be_read_and_removed_but_not_under_a_consumer() {
    let store = Store::in_memory();
    assert_eq!(store.progress("p").last_processed().unwrap(), None);
    let consumer = Consumer::builder(numbers(3), store.progress("p")).start(|_| Ok(())).unwrap();
    assert!(consumer.handle().wait_for(2, LONG));
    assert_eq!(store.progress("p").last_processed().unwrap(), Some(2));
    assert!(matches!(store.progress("p").remove(), Err(Error::InUse { .. })));
    consumer.stop().unwrap();
    store.progress("p").remove().unwrap();
    assert_eq!(store.progress("p").last_processed().unwrap(), None);
    assert!(matches!(store.progress("").last_processed(), Err(Error::Config(_))));
}

#[test]
fn a_table_is_a_key_space_of_its_own() {
    let store = Store::in_memory();
    // Names that are prefixes of one another, and keys that look like names.
    let (a, ab) = (store.table("a").unwrap(), store.table("ab").unwrap());
    a.put("bkey", "1").unwrap();
    ab.put("key", "2").unwrap();
    a.put("", "empty").unwrap();
    let rows = |table: &waterline::Table| table.iter().map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(rows(&a), [(b"".to_vec(), b"empty".to_vec()), (b"bkey".to_vec(), b"1".to_vec())]);
    assert_eq!(rows(&ab), [(b"key".to_vec(), b"2".to_vec())]);
    assert_eq!(a.prefix("b").count(), 1);
    assert_eq!(a.prefix("c").count(), 0);
    assert_eq!(store.table("a").unwrap().get("bkey").unwrap().as_deref(), Some(b"1".as_slice()));
    a.delete("bkey").unwrap();
    a.delete("never was").unwrap();
    assert_eq!(a.get("bkey").unwrap(), None);
    // A walk sees the rows that were there when it began.
    let walk = a.iter();
    a.put("later", "3").unwrap();
    assert_eq!(walk.count(), 1);
}
