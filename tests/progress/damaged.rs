//! Damages each record of a consumer in turn, in each way.
//!
//! Records have checksums, and a start reads all but the history and the time of the last move. So
//! damage to any other refuses the start by the consumer's name, even to the record of one parked
//! job, and changes nothing, until the record is restored or the progress removed. No other
//! consumer notices.

use crate::by_hand;
use common::damages;
use common::database::Database;
use common::numbers;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use waterline::fuzzing::{Disk, DiskRecord};
use waterline::{Consumer, ConsumerInfo, Error, Index, LogInfo, OnExhausted, Record, Retry, Store};

const JOBS: Index = 12;

/// The consumer whose records are damaged, behind its log, and the one beside it.
const OURS: [&str; 2] = ["l", "p"];
const BESIDE: [&str; 2] = ["m", "other"];

const PARKED: &str = "waterline.parked";

type Made = Result<(), Error>;

/// The calls that damage may refuse. The first is a start.
const CALLS: [fn(&Store) -> Made; 5] = [
    |store| run(store, OURS, JOBS, &[]).map(drop),
    |store| store.progress("p").seek(1, "a test"),
    |store| store.progress("p").skip(9, "a test"),
    |store| store.redrive("p", 8),
    |store| store.discard("p", 2),
];

fn disk<'a>(records: impl IntoIterator<Item = &'a DiskRecord>) -> Disk {
    let disk = Disk::default();
    disk.put(records);
    disk
}

fn open(disk: &Disk) -> Store {
    disk.open(&Store::options()).unwrap()
}

/// Runs a consumer of a log up to this job. Jobs that are `bad` fail, and are parked.
fn run(store: &Store, [log, name]: [&str; 2], last: Index, bad: &'static [Index]) -> Result<Vec<Index>, Error> {
    let builder = Consumer::builder(store.log::<u64>(log)?, store.progress(name)).stop_at(last).max_processing(1);
    let ran = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = ran.clone();
    let consumer = builder.retry(Retry::none()).on_exhausted(OnExhausted::Park { budget: 9 }).start(move |job| {
        assert!(seen.lock().insert(job.index), "job {} runs twice", job.index);
        if bad.contains(&job.index) { Err("it fails".into()) } else { Ok(()) }
    });
    consumer?.join()?;
    Ok(ran.lock().iter().copied().collect())
}

/// Returns the records of two consumers, of which one has records of all kinds.
fn sample() -> Vec<DiskRecord> {
    let disk = Disk::default();
    let store = open(&disk);
    for log in ["l", "m"] {
        store.log::<u64>(log).unwrap().push_all(&(1..=JOBS).collect::<Vec<_>>()).unwrap();
    }
    run(&store, BESIDE, 3, &[]).unwrap();
    run(&store, OURS, 5, &[2, 4]).unwrap();
    store.progress("p").seek(4, "a test").unwrap();
    store.progress("p").skip(8, "a test").unwrap();
    run(&store, OURS, 5, &[]).unwrap();
    run(&store, OURS, 6, &[]).unwrap();
    store.redrive("p", 2).unwrap();
    disk.records()
}

/// Returns what kind of record of ours this is: the first byte of its key, or `j` if a job is
/// parked.
fn kind((family, key, _): &DiskRecord, number: &[u8]) -> Option<u8> {
    match family.as_str() {
        PARKED => key.starts_with(b"\x01p").then_some(b'j'),
        "waterline.system" => {
            let is_ours = [&b"h\x01p"[..], &[&b"d"[..], number].concat()].iter().any(|of| key.starts_with(of));
            (is_ours || key == b"ll" || key.len() == 2 && key[1] == b'p').then_some(key[0])
        }
        _ => None,
    }
}

type Listed = (Vec<LogInfo>, Vec<ConsumerInfo>);

/// Returns the logs and the consumers that a store lists, without ours: of these, returns whether
/// they can be read.
fn listed(store: &Store) -> ([bool; 2], Listed) {
    let (mut logs, mut consumers) = (store.logs().unwrap(), store.consumers().unwrap());
    let (log, consumer) = (logs.remove(0), consumers.remove(1));
    assert_eq!([&*log.name, &*consumer.name], OURS);
    let reasons = [log.unreadable, consumer.unreadable];
    ([&reasons[0], &reasons[1]].map(Option::is_none), (logs, consumers))
}

/// Asserts that an error is about ours, and says what helps.
fn assert_named(error: &Error, kind: u8, case: &str) {
    let (name, helps) = if kind == b'l' { ("l", "another name for a log") } else { ("p", "StoreProgress::remove") };
    assert!(matches!(error, Error::Corrupt { name: of, .. } if of == name), "{case}: {error:?}");
    assert!(error.to_string().contains(helps), "{case}: {error}");
}

#[test]
fn each_damaged_record_is_named_and_skips_no_job() {
    let whole = sample();
    let left = run(&open(&disk(&whole)), OURS, JOBS, &[]).unwrap();
    let (_, others) = listed(&open(&disk(&whole)));
    let page = whole.iter().find(|(_, key, _)| key == b"pp").unwrap();
    let ours: Vec<_> = whole.iter().filter_map(|record| Some((kind(record, &page.2[1..5])?, record))).collect();
    let kinds: BTreeSet<_> = ours.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, b"dhjlmprs".iter().copied().collect(), "a kind of record is missing, or is new");
    for ((kind, record), (_, other)) in ours.iter().zip(ours.iter().cycle().skip(1)) {
        let (is_needed, is_log) = (b"djprs".contains(kind), *kind == b'l');
        let is_shown = is_needed || *kind == b'm';
        for (way, value) in damages(&record.2, &other.2) {
            let case = format!("{} {} {way}", record.0, record.1.escape_ascii());
            let damaged = (record.0.clone(), record.1.clone(), value);
            let bent = || disk(whole.iter().chain([&damaged]));
            for options in [Store::options(), Store::options().read_only()] {
                let (whole, rest) = listed(&bent().open(&options).unwrap());
                assert_eq!((whole, &rest), ([!is_log, !is_shown], &others), "{case}");
            }
            for (n, call) in CALLS.iter().enumerate() {
                let (disk, before) = (bent(), bent().records());
                let made = call(&open(&disk));
                // A move by hand reads no parked job, and writes over that of its own.
                let must_refuse = n == 0 && (is_needed || is_log) || b"dp".contains(kind) && n < 3;
                assert!(made.is_err() || !must_refuse, "{case}: call {n} is made");
                let Err(error) = made else { continue };
                assert_named(&error, *kind, &format!("{case}: call {n}"));
                assert_eq!(disk.records(), before, "{case}: call {n} is refused, and changes something");
            }
            if *kind == b'h' {
                assert_named(&open(&bent()).progress("p").history().unwrap_err(), *kind, &case);
            }
            if *kind == b'j' {
                let (store, index) = (open(&bent()), record.1[2..].try_into().map(Index::from_be_bytes).unwrap());
                assert_named(&store.parked("p").unwrap_err(), *kind, &case);
                assert_named(&store.redrive("p", index).unwrap_err(), *kind, &case);
                store.discard("p", index).unwrap();
                assert!(store.parked("p").unwrap().iter().all(|job| job.index != index), "{case}");
                assert!(matches!(store.discard("p", index), Err(Error::NotParked { .. })), "{case}");
            }
            let disk = bent();
            assert_eq!(run(&open(&disk), BESIDE, 4, &[]).unwrap(), [4], "{case}: the other one");
            if is_needed || is_log {
                disk.put([*record]);
            }
            assert_eq!(run(&open(&disk), OURS, JOBS, &[]).unwrap(), left, "{case}");
            if !is_log {
                let store = open(&bent());
                store.progress("p").remove().unwrap();
                assert_eq!(store.progress("p").history().unwrap(), [], "{case}");
                assert!(run(&store, OURS, JOBS, &[]).unwrap().into_iter().eq(1..=JOBS), "{case}: removed");
            }
        }
    }
}

#[test]
fn each_damaged_record_of_an_engine_is_refused_and_listed() {
    let database = Database::default();
    by_hand::park(&database, &[2, 5]);
    let whole = by_hand::saved(&database).records;
    let start = || Consumer::builder(numbers(9), database.engine().keeping_records()).start(|_| Ok(()));
    for (record, other) in whole.iter().zip(whole.iter().cycle().skip(1)) {
        let value = |of: &Record| of.value.clone().unwrap();
        for (way, left) in damages(&value(record), &value(other)) {
            database.put_record(&Record::new(&record.key, Some(&left)));
            let refused = start();
            assert!(matches!(refused, Err(Error::Corrupt { .. })), "{record:?} {way}: {refused:?}");
            let info = ConsumerInfo::of("p", Some(&by_hand::saved(&database)));
            assert!(info.unreadable.is_some() && info.last_processed.is_none(), "{record:?} {way}");
        }
        database.put_record(record);
    }
    start().unwrap().stop().unwrap();
}
