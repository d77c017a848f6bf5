//! Bad settings and bad parts: each is a typed error that says what to write instead, and nothing
//! is lost.

use common::database::Database;
use common::*;
use std::sync::Arc;
use std::time::Duration;
use waterline::ConfigError::*;
use waterline::{
    Builder, ConfigError, Consumer, Error, Index, Jobs, MemoryProgress, OnExhausted, Progress, Retry, Store, Watermark,
};

/// Starts a consumer whose jobs must not run.
fn never<J: Jobs, P: Progress>(builder: Builder<J, P>) -> Result<Consumer, Error> {
    builder.start(|_| panic!("nothing may run"))
}

/// A refused start, its reason, and the sentence that names it and what to write instead.
type Refused = (Result<Consumer, Error>, ConfigError, String);

#[track_caller]
fn check(cases: impl IntoIterator<Item = Refused>) {
    for (started, error, says) in cases {
        let Err(Error::Config(refused)) = started else { panic!("{started:?}, and not: {says}") };
        assert_eq!((&refused, refused.to_string()), (&error, says));
    }
}

fn unsupported(started: Result<Consumer, Error>, setting: &'static str, says: &str) -> Refused {
    (started, Unsupported { setting, why: says.to_owned() }, says.to_owned())
}

#[test]
fn impossible_numbers_are_refused_at_once() {
    let (progress, store) = (MemoryProgress::new(), Store::in_memory());
    let plain = || Consumer::builder(numbers(9), progress.clone()).max_processing(4);
    let first = |builder| {
        let (max, last) = (Index::MAX, Index::MAX - 1);
        let says = format!("the first index would be {max}, which is never a job: start at {last} or below");
        (never(builder), NoJob { setting: "start_at", why: says.clone() }, says)
    };
    check(
        [plain().start_at(Index::MAX), plain().start_after(Index::MAX), plain().start_after(Index::MAX - 1)].map(first),
    );
    let says =
        format!("stop_at is {}, which is never a job: leave `stop_at` out to follow the stream for ever", Index::MAX);
    check([(never(plain().stop_at(Index::MAX)), NoJob { setting: "stop_at", why: says.clone() }, says)]);
    let jitter = |value| {
        let says = format!("the retry's jitter is {value}: use a share between 0.0 (none) and 1.0 (full)");
        let error = Number { setting: "jitter", value, why: says.clone() };
        (never(plain().retry(Retry::fixed(HOUR).jitter(value))), error, says)
    };
    check([-0.1, 1.5].map(jitter));
    let (no_number, ..) = jitter(f64::NAN);
    assert!(matches!(no_number, Err(Error::Config(Number { setting: "jitter", .. }))), "{no_number:?}");
    let batch = |max| plain().start_batched(max, Duration::ZERO, |_| Ok(()));
    let too_large = |(started, max)| {
        let says = format!("the most jobs of a batch are {max}: use 1 to 4, which is max_processing, or raise that");
        (started, Size { setting: "batch", value: max, most: 4, why: says.clone() }, says)
    };
    check([0, 5, usize::MAX].map(|max| too_large((batch(max), max))));
    let stored = || Consumer::builder(numbers(9), store.progress("p")).max_processing(4);
    check([too_large((stored().start_batched_transactional(5, Duration::ZERO, |_, _| Ok(())), 5))]);
    let effects = |bytes| stored().max_effects(bytes).start_transactional(|_, _| Ok(()));
    let cannot_wait = |bytes| {
        let says = format!("max_effects is {bytes} bytes: use 1 to 1073741824 (1 GiB)");
        (effects(bytes), Size { setting: "max_effects", value: bytes, most: 1 << 30, why: says.clone() }, says)
    };
    check([0, (1 << 30) + 1].map(cannot_wait));
    // Each refusal leaves the progress free, and the nearest valid numbers are taken.
    for bytes in [1, 1 << 30] {
        effects(bytes).unwrap().stop().unwrap();
    }
    for max in [1, 4] {
        batch(max).unwrap().stop().unwrap();
    }
}

#[test]
fn zeros_are_refused_and_take_nothing() {
    let (progress, store, database) = (MemoryProgress::new(), Store::in_memory(), Database::default());
    let plain = || Consumer::builder(numbers(9), progress.clone());
    let stored = || Consumer::builder(numbers(9), store.progress("p"));
    let engine = || Consumer::builder(numbers(9), database.engine());
    let cases = [
        (
            never(plain().max_processing(0)),
            "max_processing",
            "max_processing is 0, so no job would ever run: use at least 1 (to hold a consumer or a queue back, use `pause`)",
        ),
        (
            never(plain().max_search_ahead(0)),
            "max_search_ahead",
            "max_search_ahead is 0, so no job would ever start: use 1 to run the jobs strictly one after the other, or \
             `unlimited_search_ahead()` for no limit",
        ),
        (
            never(plain().max_read_ahead(0)),
            "max_read_ahead",
            "max_read_ahead is 0 bytes, which has no room for any job: use 1 or more (with 1, jobs are read one at a time)",
        ),
        (
            never(plain().poll_every(Duration::ZERO)),
            "poll_every",
            "poll_every is zero, so the consumer would never sleep: use a millisecond or more, or let the source ring its \
             `Wakeup`",
        ),
        (
            never(plain().retry(Retry::fixed(HOUR).max_attempts(0))),
            "max_attempts",
            "the retry allows 0 attempts, and the first attempt counts: use `Retry::none()` for a single attempt",
        ),
        (
            never(plain().attempt_timeout(Duration::ZERO)),
            "attempt_timeout",
            "attempt_timeout is zero, so no attempt could end in time: leave it out for no timeout",
        ),
        (
            never(plain().on_stall(Duration::ZERO, |_| ())),
            "on_stall",
            "the time of on_stall is zero, so each job would be a stall: use a second or more",
        ),
        (
            plain().threads(0).start_deferred(|_, done| drop(done)),
            "threads",
            "threads is 0, so no job would ever run: use at least 1, or leave it out",
        ),
        (
            engine().max_unwritten(0).start_writing(|_| Ok(()), |_, _| Ok(())),
            "max_unwritten",
            "max_unwritten is 0, so no job would ever start: use 1 or more, or leave it out",
        ),
        (
            never(stored().on_exhausted(OnExhausted::Park { budget: 0 })),
            "budget",
            "the budget of parked jobs is 0, so none could be parked: use 1 or more, or `OnExhausted::Halt`",
        ),
        (
            never(stored().max_crashes(0)),
            "max_crashes",
            "max_crashes is 0, so a job that ran while its process died could never run again: use 1 or more",
        ),
    ];
    check(cases.map(|(started, setting, says)| (started, Zero { setting, why: says.to_owned() }, says.to_owned())));
    assert!(database.content().saved.is_none());
    for taken in [plain().start(|_| Ok(())), stored().start(|_| Ok(())), engine().start(|_| Ok(()))] {
        taken.unwrap().stop().unwrap();
    }
}

#[test]
fn settings_unfit_for_the_start_are_refused() {
    let (progress, store, database) = (MemoryProgress::new(), Store::in_memory(), Database::default());
    let plain = || Consumer::builder(numbers(9), progress.clone());
    let stored = || Consumer::builder(numbers(9), store.progress("p"));
    let engine = || Consumer::builder(numbers(9), database.engine());
    let threads = |started| {
        let says = "threads is only for `start_deferred`: leave it out, and limit the jobs in flight by max_processing instead";
        unsupported(started, "threads", says)
    };
    let one = Duration::ZERO;
    check([never(plain().threads(2)), plain().threads(1).start_batched(1, one, |_| Ok(()))].map(threads));
    let effects = |started| {
        let says = "max_effects is only for `start_transactional`, also in batches and with futures; here jobs have no effects: leave it out";
        unsupported(started, "max_effects", says)
    };
    check([never(stored().max_effects(9)), stored().max_effects(9).start_batched(1, one, |_| Ok(()))].map(effects));
    #[cfg(feature = "tokio")]
    {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let run = |_| async { Ok(()) };
        check([threads(plain().threads(2).start_async(runtime.handle(), run))]);
        check([effects(stored().max_effects(2).start_async(runtime.handle(), run))]);
    }
    let says =
        "max_unwritten is only for `start_writing`, also with futures; here no job waits to be written: leave it out";
    check([unsupported(never(engine().max_unwritten(5)), "max_unwritten", says)]);
    let park = OnExhausted::Park { budget: 1 };
    for refused in [never(plain().on_exhausted(park)), never(engine().on_exhausted(park))] {
        let says = "this progress cannot keep parked jobs: use `Store::progress` or one that keeps records, or `OnExhausted::Halt`";
        check([unsupported(refused, "on_exhausted", says)]);
    }
    for refused in [never(plain().max_crashes(1)), never(engine().max_crashes(1))] {
        let says = "this progress cannot count crashes: use `Store::progress` or one that keeps records, or leave max_crashes out";
        check([unsupported(refused, "max_crashes", says)]);
    }
    assert!(database.content().saved.is_none());
    for taken in [plain().start(|_| Ok(())), stored().start(|_| Ok(())), engine().start(|_| Ok(()))] {
        taken.unwrap().stop().unwrap();
    }
}

#[test]
fn bounded_source_retries_and_unkept_timeouts_are_refused() {
    let (progress, store) = (MemoryProgress::new(), Store::in_memory());
    let plain = || Consumer::builder(numbers(9), progress.clone());
    let bounded = |retry| {
        let says = "source_retry has a limit of attempts, but a source is asked until it answers: leave `max_attempts` out, and \
                    use `Retry::fixed` or `Retry::exponential` in place of `Retry::none`";
        unsupported(never(plain().source_retry(retry)), "source_retry", says)
    };
    check([Retry::none(), Retry::fixed(HOUR).max_attempts(u32::MAX)].map(bounded));
    let zero =
        |(started, setting, says): (_, _, &str)| (started, Zero { setting, why: says.to_owned() }, says.to_owned());
    let says = "source_retry has a pause of zero, so a source that is down would be asked all the time: use some milliseconds \
                at least";
    let without = [Retry::fixed(Duration::ZERO), Retry::exponential(HOUR, Duration::ZERO)];
    check(without.map(|retry| zero((never(plain().source_retry(retry)), "source_retry", says))));
    let says = "the retry's jitter is 1.5: use a share between 0.0 (none) and 1.0 (full)".to_owned();
    check([(
        never(plain().source_retry(Retry::fixed(HOUR).jitter(1.5))),
        Number { setting: "jitter", value: 1.5, why: says.clone() },
        says,
    )]);
    let says = "source_timeout is zero, so no call could end in time: leave it out for the default, or use `Duration::MAX` for \
                no limit";
    check([zero((never(plain().source_timeout(Duration::ZERO)), "source_timeout", says))]);

    // Blocking calls, also through each adapter.
    let (watermark, log) = (Watermark::new(), store.log::<u64>("out").unwrap());
    let gated = || numbers(9).gated_by(&watermark);
    let started = [
        never(plain().source_timeout(HOUR)),
        never(Consumer::builder(Arc::new(numbers(9)), progress.clone()).source_timeout(HOUR)),
        never(Consumer::builder(numbers(9).confirmed(2), progress.clone()).source_timeout(HOUR)),
        never(Consumer::builder(gated().gated_by(&watermark), progress.clone()).source_timeout(HOUR)),
        never(Consumer::builder(log.hold_back(numbers(9), 2), progress.clone()).source_timeout(HOUR)),
        never(Consumer::builder(log.clone(), progress.clone()).source_timeout(HOUR)),
    ];
    let says = "source_timeout cannot end a call of this source, which is a function on a thread: set a timeout in the client \
                that it calls, make it `AsyncJobs`, or let it implement `Jobs::call_timeout` (an adapter hands that on)";
    check(started.map(|started| unsupported(started, "source_timeout", says)));
    // `Duration::MAX` is fine: such calls have no limit anyway.
    let fine = plain().source_timeout(Duration::MAX).source_retry(Retry::fixed(HOUR).jitter(1.0));
    fine.start(|_| Ok(())).unwrap().stop().unwrap();
}

#[test]
fn names_unfit_for_the_store_are_refused() {
    let store = Store::in_memory();
    let long = "x".repeat(256);
    for name in ["", &long] {
        let started = Consumer::builder(numbers(1), store.progress(name)).start(|_| Ok(()));
        let Err(Error::Config(error)) = started else { panic!("{started:?}") };
        assert!(matches!(error, Length { what: "progress", length, .. } if length == name.len()));
        assert!(error.to_string().contains("1 to 255"), "{error}");
        assert!(matches!(store.table(name), Err(Error::Config(Length { what: "table", .. }))));
        assert!(matches!(store.parked(name), Err(Error::Config(Length { what: "progress", .. }))));
        assert!(matches!(store.redrive(name, 1), Err(Error::Config(Length { what: "progress", .. }))));
        assert!(matches!(store.discard(name, 1), Err(Error::Config(Length { what: "progress", .. }))));
    }
    for name in ["x", "ü/\0 name", &long[..255]] {
        Consumer::builder(numbers(1), store.progress(name)).stop_at(0).start(|_| Ok(())).unwrap().join().unwrap();
        store.table(name).unwrap();
    }
}

#[test]
fn a_source_without_a_first_index_fails_the_start() {
    struct Mute(bool);
    impl Jobs for Mute {
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
fn a_source_that_returns_too_many_jobs_is_an_error() {
    struct Generous;
    impl Jobs for Generous {
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
fn an_unloadable_progress_fails_the_start() {
    struct Broken(bool);
    impl Progress for Broken {
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
fn a_progress_without_its_name_saves_nothing() {
    use waterline::Progress;
    let store = Store::in_memory();
    let consumer = Consumer::builder(numbers(3), store.progress("p")).start(|_| Ok(())).unwrap();
    assert!(consumer.handle().wait_for(2, LONG));
    assert!(store.progress("p").save(&waterline::Checkpoint::new(0)).is_err());
    assert!(MemoryProgress::new().save(&waterline::Checkpoint::new(0)).is_err());
    consumer.stop().unwrap();
}

#[test]
fn failures_are_not_retried_in_a_busy_loop() {
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
    eventually("both fail", || reads() >= 4 && saves() >= 1);
    // Constant wakes do not make a failing source fail faster.
    for _ in 0..1_000 {
        script.ring();
        std::thread::yield_now();
    }
    // Two jobs are read before the one that fails, which is asked for again once, without a pause.
    // The clock stands still, so no pause ends, but a late call may hurry one save.
    assert!(reads() == 4 && saves() <= 2, "{} reads, {} saves", reads(), saves());
    time.steps(Duration::from_millis(1), "further tries", || reads() >= 7 && saves() >= 6);
    let (again, passed) = ([reads() - 4, saves() - 2], time.passed());
    // The pauses double, starting at 50 and at 20 ms.
    let pauses = |first: u32, again: u64| Duration::from_millis(first.into()) * (2_u32.pow(again as u32) - 1);
    assert!(pauses(50, again[0]) <= passed && pauses(20, again[1]) <= passed, "{again:?} in {passed:?}");
    consumer.stop().unwrap();
    assert!(unsaved.stop().is_err());
}

#[test]
fn a_watermark_in_use_is_readable_but_not_removable() {
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
    // Names that are prefixes of each other, and keys that look like names.
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
    // A walk sees the rows as of its start.
    let walk = a.iter();
    a.put("later", "3").unwrap();
    assert_eq!(walk.count(), 1);
}
