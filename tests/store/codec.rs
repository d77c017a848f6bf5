//! Codecs of logs: the same items come back, a log keeps its codec, and a codec that fails or
//! panics damages nothing.

use common::*;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::sync::Arc;
use waterline::fuzzing::Disk;
use waterline::{
    Blocked, BoxError, Bytes, Codec, ConfigError, Consumer, Error, Index, JobLog, Jobs, Json, MemoryJobs, Store,
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Letter {
    to: u8,
    text: Vec<u8>,
}

/// A codec that replaces the whole buffer. The default letter has no bytes.
struct Tagged;

impl Codec<Letter> for Tagged {
    const NAME: &'static str = "letter-1";

    fn encode(&self, letter: &Letter, into: &mut Vec<u8>) -> Result<(), BoxError> {
        assert!(into.is_empty(), "a codec gets an empty buffer");
        if *letter != Letter::default() {
            *into = [&[letter.to], &letter.text[..]].concat();
        }
        Ok(())
    }

    fn decode(&self, bytes: &[u8]) -> Result<Letter, BoxError> {
        let Some((to, text)) = bytes.split_first() else { return Ok(Letter::default()) };
        Ok(Letter { to: *to, text: text.to_vec() })
    }
}

/// A codec that takes only even numbers: it fails at low odd ones, and panics at high ones.
struct Even;

impl Even {
    fn check(number: u8) -> Result<u8, BoxError> {
        assert!(number.is_multiple_of(2) || number < 100, "far too odd");
        if number.is_multiple_of(2) { Ok(number) } else { Err("it is odd".into()) }
    }
}

impl Codec<u8> for Even {
    const NAME: &'static str = "number";

    fn encode(&self, number: &u8, into: &mut Vec<u8>) -> Result<(), BoxError> {
        into.push(*number);
        Self::check(*number).map(drop)
    }

    fn decode(&self, bytes: &[u8]) -> Result<u8, BoxError> {
        Self::check(*bytes.first().ok_or("it is empty")?)
    }
}

/// A codec with the same name that takes every number.
struct Any;

impl Codec<u8> for Any {
    const NAME: &'static str = "number";

    fn encode(&self, number: &u8, into: &mut Vec<u8>) -> Result<(), BoxError> {
        into.push(*number);
        Ok(())
    }

    fn decode(&self, bytes: &[u8]) -> Result<u8, BoxError> {
        Ok(*bytes.first().ok_or("it is empty")?)
    }
}

/// Defines a JSON codec with this name.
macro_rules! named {
    ($codec:ident, $name:expr) => {
        struct $codec;

        impl Codec<String> for $codec {
            const NAME: &'static str = $name;

            fn encode(&self, text: &String, into: &mut Vec<u8>) -> Result<(), BoxError> {
                <Json as Codec<String>>::encode(&Json, text, into)
            }

            fn decode(&self, bytes: &[u8]) -> Result<String, BoxError> {
                Json.decode(bytes)
            }
        }
    };
}

named!(Nameless, "");
named!(Longest, "12345678901234567890123456789012");
named!(TooLong, "123456789012345678901234567890123");
named!(AlsoJson, "json");

fn items<T: Send + 'static, C: Codec<T>>(log: &JobLog<T, C>) -> Vec<T> {
    let mut items = Vec::new();
    if let Some(head) = log.head().unwrap() {
        log.read(log.first().unwrap()..=head, &mut items).unwrap();
    }
    items
}

#[derive(Clone, Debug)]
enum Step {
    Push(Vec<u8>),
    PushAll(Vec<Vec<u8>>),
    Job(Vec<Vec<u8>>),
    Trim(u64),
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = || prop_oneof![1 => Just(vec![]), 4 => prop::collection::vec(any::<u8>(), 0..40)];
    let block = move || prop::collection::vec(bytes(), 0..6);
    let step = prop_oneof![
        3 => bytes().prop_map(Step::Push),
        3 => block().prop_map(Step::PushAll),
        3 => block().prop_map(Step::Job),
        1 => (0..4u64).prop_map(Step::Trim),
        2 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 0..16)
}

/// Pushes these items in one job.
fn push_by_a_job<T, C>(store: &Store, name: &str, log: &JobLog<T, C>, items: Vec<T>)
where
    T: Send + Sync + 'static,
    C: Codec<T>,
{
    let log = log.clone();
    let consumer = Consumer::builder(numbers(1), store.progress(name)).stop_at(0);
    let run =
        move |_, effects: &mut waterline::Effects| Ok(items.iter().try_for_each(|item| effects.push(&log, item))?);
    consumer.start_transactional(run).unwrap().join().unwrap();
}

/// Takes these steps on a log with this codec, and compares the log with a list.
fn take<T, C>(place: &Place, codec: impl Fn() -> C, steps: &[Step], item: impl Fn(&[u8]) -> T)
where
    T: Clone + std::fmt::Debug + PartialEq + Send + Sync + 'static,
    C: Codec<T>,
{
    let all = |block: &[Vec<u8>]| block.iter().map(|bytes| item(bytes)).collect::<Vec<_>>();
    let (mut pushed, mut first) = (Vec::new(), 0);
    let mut open = None;
    for (at, step) in steps.iter().chain([&Step::Reopen]).enumerate() {
        let (store, log) = open.get_or_insert_with(|| {
            let store = place.open();
            let log = store.log_with("l", codec()).unwrap();
            (store, log)
        });
        let end = pushed.len() as Index + 1;
        match step {
            Step::Push(bytes) => {
                assert_eq!(log.push(&item(bytes)).unwrap(), end);
                pushed.push(item(bytes));
            }
            Step::PushAll(block) => {
                assert_eq!(log.push_all(&all(block)).unwrap(), end..end + block.len() as Index);
                pushed.extend(all(block));
            }
            Step::Job(block) => {
                push_by_a_job(store, &format!("{at}"), log, all(block));
                pushed.extend(all(block));
            }
            Step::Trim(count) => {
                first = pushed.len().min(first + *count as usize);
                log.trim(..=first as Index).unwrap();
            }
            Step::Reopen => {
                assert_eq!(items(log), pushed[first..]);
                open = None;
            }
        }
        if let Some((_, log)) = &open {
            assert_eq!(items(log), pushed[first..]);
        }
    }
    let store = place.open_with(&Store::options().create(false));
    assert_eq!(items(&store.log_with("l", codec()).unwrap()), pushed[first..]);
}

proptest! {
    // Reopening a database on a disk is slow.
    #![proptest_config(ProptestConfig { cases: cases(if engine().is_some() { 12 } else { 64 }), ..ProptestConfig::default() })]

    #[test]
    fn items_come_back_however_they_were_pushed(steps in steps()) {
        let place = Place::default();
        take(&place, || Bytes, &steps, <[u8]>::to_vec);
        let place = Place::default();
        let letter = |bytes: &[u8]| match bytes.split_first() {
            Some((to, text)) => Letter { to: *to, text: text.to_vec() },
            None => Letter::default(),
        };
        take(&place, || Tagged, &steps, letter);
    }
}

#[track_caller]
fn is_other_codec<T, C>(opened: Result<JobLog<T, C>, Error>, wanted: [&str; 2]) {
    let error = opened.unwrap_err();
    let Error::Codec { log, stored, asked } = &error else { panic!("{error:?}") };
    assert_eq!((log.as_str(), [stored.as_str(), asked]), ("l", wanted));
}

#[test]
fn a_log_opens_with_its_own_codec_only() {
    let place = Place::default();
    let store = place.open();
    let log = store.log_with::<Vec<u8>, _>("l", Bytes).unwrap();
    log.push(&b"[1]".to_vec()).unwrap();
    // The codec is compared before the item type, whether or not the log is open.
    is_other_codec(store.log::<Vec<u8>>("l"), ["bytes", "json"]);
    is_other_codec(store.log_with::<Letter, _>("l", Tagged), ["bytes", "letter-1"]);
    drop((log, store));
    for create in [true, false] {
        let store = place.open_with(&Store::options().create(create));
        is_other_codec(store.log::<Vec<u8>>("l"), ["bytes", "json"]);
        is_other_codec(store.log_with::<Letter, _>("l", Tagged), ["bytes", "letter-1"]);
        // The refusals have left the log free.
        assert_eq!(items(&store.log_with::<Vec<u8>, _>("l", Bytes).unwrap()), [b"[1]".to_vec()]);
    }
}

#[test]
fn a_log_without_a_codec_is_json() {
    let place = Place::default();
    let store = place.open();
    store.log::<Vec<u8>>("l").unwrap().push(&vec![1, 2]).unwrap();
    is_other_codec(store.log_with::<Vec<u8>, _>("l", Bytes), ["json", "bytes"]);
    drop(store);
    let store = place.open();
    is_other_codec(store.log_with::<Vec<u8>, _>("l", Bytes), ["json", "bytes"]);
    assert_eq!(items(&store.log_with::<Vec<u8>, _>("l", Json).unwrap()), [[1, 2]]);
}

#[test]
fn codecs_of_one_name_are_one_codec() {
    let place = Place::default();
    let store = place.open();
    let even = store.log_with("l", Even).unwrap();
    let any = store.log_with("l", Any).unwrap();
    any.push(&8).unwrap();
    assert_eq!(items(&even), [8]);
    // The item type is still compared.
    let text = store.log::<String>("text").unwrap();
    let same = store.log_with("text", AlsoJson).unwrap();
    same.push(&"hello".to_owned()).unwrap();
    assert_eq!(items(&text), ["hello"]);
    assert!(matches!(store.log_with::<u8, _>("text", Json), Err(Error::LogType { .. })));
}

#[test]
fn a_codec_with_an_unfit_name_makes_no_log() {
    let place = Place::default();
    let store = place.open();
    for (error, name) in
        [(store.log_with("l", Nameless).unwrap_err(), ""), (store.log_with("l", TooLong).unwrap_err(), TooLong::NAME)]
    {
        let Error::Config(ConfigError::Length { what: "codec", length, .. }) = error else { panic!("{error:?}") };
        assert_eq!(length, name.len());
        assert!(error.to_string().contains("1 to 32 bytes"), "{error}");
    }
    let nameless = store.log_with("", Nameless).unwrap_err();
    assert!(matches!(nameless, Error::Config(ConfigError::Length { .. })), "the log's name comes first");
    drop(store);
    assert!(matches!(
        place.open_with(&Store::options().create(false)).log_with("l", Longest),
        Err(Error::NotFound { .. })
    ));
    place.open().log_with("l", Longest).unwrap().push(&"text".to_owned()).unwrap();
    assert_eq!(items(&place.open_with(&Store::options().create(false)).log_with("l", Longest).unwrap()), ["text"]);
}

#[test]
fn an_item_that_fails_to_encode_is_not_pushed() {
    let place = Place::default();
    let store = place.open();
    let log = store.log_with("l", Even).unwrap();
    log.push(&2).unwrap();
    for (bad, reason) in [(1, "it is odd"), (101, "panicked: far too odd")] {
        for pushed in [log.push(&bad).map(drop), log.push_all(&[4, bad, 6]).map(drop)] {
            let error = pushed.unwrap_err();
            assert!(matches!(&error, Error::Item { log, .. } if log == "l"), "{error:?}");
            assert!(error.report().ends_with(reason), "{error:?}");
        }
        // Nor can a job push it: the job fails even if it returns `Ok`, and nothing is written.
        let (into, name) = (log.clone(), format!("{bad}"));
        let consumer = Consumer::builder(numbers(1), store.progress(&name)).start_transactional(move |_, effects| {
            effects.push(&into, &8)?;
            let _ = effects.push(&into, &bad);
            Ok(())
        });
        let error = consumer.unwrap().join().unwrap_err();
        assert!(matches!(error, Error::Job { index: 0, .. }), "{error:?}");
        let report = error.report();
        assert!(report.contains("cannot be encoded, and nothing was pushed") && report.ends_with(reason), "{report}");
        assert_eq!(store.progress(&name).last_processed().unwrap(), None);
        assert_eq!(items(&log), [2]);
    }
    assert_eq!(log.push_all(&[4, 6]).unwrap(), 2..4);
}

/// A codec that refuses every item with its own error type.
struct Refusing;

impl Codec<u8> for Refusing {
    const NAME: &'static str = "refusing";

    fn encode(&self, _: &u8, _: &mut Vec<u8>) -> Result<(), BoxError> {
        Err(std::fmt::Error.into())
    }

    fn decode(&self, _: &[u8]) -> Result<u8, BoxError> {
        Err("it was never encoded".into())
    }
}

#[test]
fn a_codec_error_keeps_its_type() {
    let store = Store::in_memory();
    let log = store.log_with("l", Refusing).unwrap();
    let refused =
        [log.push(&1).map(drop), log.push_all(&[1, 2]).map(drop), store.write(|effects| effects.push(&log, &1))];
    for refused in refused {
        let Err(Error::Item { source, .. }) = refused else { panic!("{refused:?}") };
        assert!(source.is::<std::fmt::Error>(), "{source:?}");
    }
}

#[test]
fn an_item_that_fails_to_decode_stops_the_stream() {
    let place = Place::default();
    for (bad, reason) in [(1, "it is odd"), (101, "panicked: far too odd")] {
        let store = place.open();
        let name = format!("with {bad}");
        store.log_with(&name, Any).unwrap().push_all(&[2, 4, bad, 6]).unwrap();
        let log = store.log_with(&name, Even).unwrap();
        let text = format!("item 3 of the log: {reason}");
        let is_corrupt = |read: Result<(), BoxError>| {
            let error = read.unwrap_err().downcast::<Error>().unwrap();
            assert!(
                matches!(&*error, Error::Corrupt { name: of, reason } if *of == name && *reason == text),
                "{error:?}"
            );
        };
        // Each read delivers what is before the item.
        for _ in 0..2 {
            let mut before = Vec::new();
            is_corrupt(log.read(1..=4, &mut before));
            assert_eq!(before, [2, 4]);
        }
        is_corrupt(log.at_index(3).map(drop));
        is_corrupt(log.read(3..=4, &mut Vec::new()));
        assert_eq!(log.at_index(4).unwrap(), Some(6));

        let ran = Arc::new(Mutex::new(Vec::new()));
        let seen = ran.clone();
        let consumer = Consumer::builder(log, store.progress(&name)).start(move |job| {
            seen.lock().push(job.payload);
            Ok(())
        });
        let consumer = consumer.unwrap();
        let status = until(&consumer.handle(), "the bad one", |s| s.blocked.to_string().contains(&text));
        assert!(matches!(status.blocked, Blocked::Source { .. }), "{status:?}");
        assert!(consumer.handle().wait_for(2, LONG));
        consumer.stop().unwrap();
        ran.lock().sort_unstable();
        assert_eq!(*ran.lock(), [2, 4]);
    }
}

#[test]
fn the_format_notes_codecs_before_their_first_log() {
    let in_use = |disk: &Disk| {
        let records = disk.records();
        let has = |key: &[u8], part: &[u8]| {
            records.iter().any(|(_, k, value)| k == key && value.windows(part.len()).any(|window| window == part))
        };
        (has(b"format", b"\x05codec"), has(b"ll", b"bytes"))
    };
    let disk = Disk::default();
    let store = disk.open(&Store::options()).unwrap();
    store.log::<u8>("json").unwrap().push(&1).unwrap();
    assert!(matches!(
        disk.open(&Store::options().create(false)).unwrap().log_with("l", Bytes),
        Err(Error::NotFound { .. })
    ));
    assert_eq!(in_use(&disk), (false, false));
    // Each write of the opening fails once, in turn.
    let mut seen = Vec::new();
    for at in 0..9 {
        disk.fail(at..at + 1);
        let opened = store.log_with("l", Bytes);
        seen.push(in_use(&disk));
        if let Ok(log) = opened {
            disk.fail(0..0);
            log.push(&vec![7]).unwrap();
            break;
        }
    }
    seen.dedup();
    assert_eq!(seen, [(false, false), (true, false), (true, true)]);
}

#[test]
fn a_byte_log_joins_stages_with_backpressure() {
    let place = Place::default();
    let store = place.open();
    let log = store.log_with::<Vec<u8>, _>("l", Bytes).unwrap();
    let chunks = log.clone();
    let blocks = log.hold_back((0..50).collect::<MemoryJobs<u8>>(), 4);
    let first = Consumer::builder(blocks, store.progress("first"))
        .stop_at(49)
        .start_transactional(move |job, effects| Ok(effects.push(&chunks, &vec![job.payload; 3])?))
        .unwrap();
    let sums = store.table("sums").unwrap();
    let total = sums.clone();
    let second = Consumer::builder(log.clone(), store.progress("second"))
        .stop_at(50)
        .start_transactional(move |job, effects| {
            Ok(effects.add(&total, "", job.payload.iter().map(|byte| i64::from(*byte)).sum())?)
        })
        .unwrap();
    log.retain([second.handle()]);
    first.join().unwrap();
    second.join().unwrap();
    assert_eq!(sums.counter("").unwrap(), 3 * 49 * 50 / 2);
    eventually("the trim", || log.first().unwrap() == 51);
}

#[test]
fn logs_share_a_stateful_codec() {
    #[derive(Default)]
    struct Counting(std::sync::atomic::AtomicU64);

    impl Codec<u64> for Counting {
        const NAME: &'static str = "counting";

        fn encode(&self, item: &u64, into: &mut Vec<u8>) -> Result<(), BoxError> {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            into.extend_from_slice(&item.to_be_bytes());
            Ok(())
        }

        fn decode(&self, bytes: &[u8]) -> Result<u64, BoxError> {
            Ok(u64::from_be_bytes(bytes.try_into()?))
        }
    }

    let (store, codec) = (Store::in_memory(), Arc::new(Counting::default()));
    let logs = ["a", "b"].map(|name| store.log_with::<u64, _>(name, codec.clone()).unwrap());
    assert_eq!(logs.each_ref().map(|log| log.push_all(&[7, 8]).unwrap()), [1..3, 1..3]);
    assert_eq!((logs[1].at_index(2).unwrap(), codec.0.load(std::sync::atomic::Ordering::Relaxed)), (Some(8), 4));
    drop(logs);
    assert!(store.log_with::<u64, _>("a", Counting::default()).is_ok(), "it is the same codec");
}
