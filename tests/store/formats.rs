//! Stores of every version, as records in `tests/formats`: what is in them is read for good, and a
//! store that a newer version made is refused.
//!
//! A fixture is never changed. A program that writes another version, or another kind of record,
//! adds a fixture of its own.

mod life;

use common::*;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use waterline::fuzzing::{Disk, Record};
use waterline::queue::{Accept, Every, JobState, NewJob, Queue, QueueError, QueueOptions, Waits};
use waterline::{Bytes, Codec, Consumer, Engine, Error, Index, JobLog, Jobs, MoveKind, Progress, Store, StoreOptions};

const VERSION_1: &str = include_str!("formats/version-1.txt");
const VERSION_2: &str = include_str!("formats/version-2.txt");
const CODECS: &str = include_str!("formats/codecs.txt");
const MOVES: &str = include_str!("formats/moves.txt");
const QUEUES: &str = include_str!("formats/queues.txt");
const DURATIONS: &str = include_str!("formats/durations.txt");
const SETTINGS: &str = include_str!("formats/settings.txt");
const PERIODIC: &str = include_str!("formats/periodic.txt");
const NEWER_VERSION: &str = include_str!("formats/newer-version.txt");
const NEWER_PART: &str = include_str!("formats/newer-part.txt");

/// The time of all moves in their fixture, in milliseconds since 1970.
const MADE_AT: u128 = 1_795_344_985_248;

const SYSTEM: &str = "waterline.system";
const FAMILIES: [&str; 7] = [
    "waterline.logs",
    "waterline.parked",
    "waterline.queue",
    "waterline.ready",
    "waterline.system",
    "waterline.tables",
    "waterline.undo",
];

/// The records of a fixture.
fn records(fixture: &str) -> Vec<Record> {
    let lines = fixture.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| record(line).unwrap_or_else(|| panic!("no record: {line}"))).collect()
}

fn record(line: &str) -> Option<Record> {
    let (family, pair) = line.strip_suffix('"')?.split_once(" \"")?;
    // A quote within a key or a value stands behind a backslash, so this is the gap between the
    // two.
    let (key, value) = pair.split_once("\" \"")?;
    Some((family.to_owned(), unescaped(key)?, unescaped(value)?))
}

/// The bytes that `escape_ascii` shows so.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        bytes.push(match (byte, byte == b'\\') {
            (plain, false) => plain,
            (_, true) => match rest.next()? {
                b't' => b'\t',
                b'n' => b'\n',
                b'r' => b'\r',
                b'x' => {
                    let digits = [rest.next()?, rest.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                quoted => quoted,
            },
        });
    }
    Some(bytes)
}

fn shown(records: &[Record]) -> String {
    let lines = records.iter().map(|(family, key, value)| {
        let (key, value) = (key.escape_ascii(), value.escape_ascii());
        format!("{family} \"{key}\" \"{value}\"\n")
    });
    lines.collect()
}

/// The value under `format`.
fn format_of(records: &[Record]) -> &[u8] {
    &records.iter().find(|(family, key, _)| family == SYSTEM && key == b"format").unwrap().2
}

/// The records as a store of the present version has them: another format, and otherwise the same
/// bytes.
fn raised(mut records: Vec<Record>) -> Vec<Record> {
    let present = format_of(&self::records(VERSION_2)).to_vec();
    let format = records.iter_mut().find(|(family, key, _)| family == SYSTEM && key == b"format").unwrap();
    format.2 = present;
    records
}

fn items<T: Send + 'static, C: Codec<T>>(log: &JobLog<T, C>) -> (Index, Option<Index>, Vec<T>) {
    let (first, head, mut items) = (log.first().unwrap(), log.head().unwrap(), Vec::new());
    if let Some(head) = head {
        log.read(first..=head, &mut items).unwrap();
    }
    (first, head, items)
}

/// Everything that a user can see is there, and looking changes nothing.
#[track_caller]
fn all_is_there(store: &Store) {
    for (name, watermark) in [
        ("transfers", Some(10)),
        ("ahead", None),
        ("bits", Some(1)),
        ("effects", Some(3)),
        ("blocks", Some(41)),
        ("new", None),
    ] {
        assert_eq!(store.progress(name).last_processed().unwrap(), watermark, "{name}");
    }
    let rows = |name: &str| {
        let table = store.table(name).unwrap();
        table.iter().map(Result::unwrap).collect::<Vec<_>>()
    };
    let row = |key: &[u8], value: &[u8]| (key.to_vec(), value.to_vec());
    let accounts = [row(b"", b"the empty key"), row(&[0, 0xff, b'"', b'\\', b' '], &[0xff, 0]), row(b"alice", b"7")];
    assert_eq!(rows("accounts"), accounts);
    assert_eq!(rows("acc"), [row(b"ountsalice", b"")]);
    match store.column_family("theirs") {
        Ok(theirs) => assert_eq!(theirs.get("raw").unwrap().as_deref(), Some(&b"key"[..])),
        Err(error) => assert_eq!(engine(), Some(Engine::Sqlite), "it has no families of the user's: {error}"),
    }
    let sums = store.table("sums").unwrap();
    assert_eq!((sums.counter("up").unwrap(), sums.counter("down").unwrap()), (20, -4));

    // A store of version 1 that is looked at has no family for these.
    assert!(store.parked("transfers").unwrap().is_empty());

    let letters = store.log::<String>("letters").unwrap();
    assert_eq!(items(&letters), (1, Some(4), (0..4).map(|n| format!("letter {n}")).collect()));
    assert_eq!(items(&store.log::<u64>("cut").unwrap()), (3, Some(6), vec![30, 40, 50, 60]));
    assert_eq!(items(&store.log::<String>("emptied").unwrap()), (3, Some(2), vec![]));
    assert_eq!(items(&store.log::<u64>("swept").unwrap()), (16_385, Some(16_386), vec![16_384, 16_385]));
    assert_eq!(items(&store.log::<u64>("untouched").unwrap()), (1, None, vec![]));
    let below = store.log::<u64>("cut").unwrap().at_index(2).unwrap_err();
    assert!(matches!(below.downcast_ref(), Some(Error::Truncated { next: 2, first: 3 })), "{below:?}");
}

/// Every item of the fixture with codecs is there, each log has its codec, and looking changes
/// nothing.
#[track_caller]
fn all_codecs_are_there(store: &Store) {
    let others = store.log::<Vec<u8>>("blocks").unwrap_err();
    assert!(matches!(&others, Error::Codec { stored, .. } if stored == "bytes"), "{others:?}");
    let blocks = store.log_with::<Vec<u8>, _>("blocks", Bytes).unwrap();
    let left = vec![vec![], vec![0, 0xff, b'"', b'\\'], b"[1]".to_vec()];
    assert_eq!(items(&blocks), (2, Some(4), left));
    assert_eq!(items(&store.log_with::<Vec<u8>, _>("untouched", Bytes).unwrap()), (1, None, vec![]));
    let others = store.log_with::<Vec<u8>, _>("letters", Bytes).unwrap_err();
    assert!(matches!(&others, Error::Codec { stored, .. } if stored == "json"), "{others:?}");
    assert_eq!(items(&store.log::<String>("letters").unwrap()), (1, Some(1), vec!["letter 0".to_owned()]));
}

/// The logs of the fixture with codecs take items and trims, and keep their codecs.
#[track_caller]
fn all_codecs_go_on(open: impl Fn() -> Store) {
    let store = open();
    let blocks = store.log_with::<Vec<u8>, _>("blocks", Bytes).unwrap();
    assert_eq!(blocks.push(&vec![5]).unwrap(), 5);
    blocks.trim(..=4).unwrap();
    drop((blocks, store));
    let blocks = open().log_with::<Vec<u8>, _>("blocks", Bytes).unwrap();
    assert_eq!(items(&blocks), (5, Some(5), vec![vec![5]]));
}

/// The moves of the fixture with moves, and the jobs that they have parked.
#[track_caller]
fn all_moves_are_there(store: &Store) {
    let history = store.progress("moved").history().unwrap();
    let moves: Vec<_> = history.iter().map(|made| (made.kind, made.from, made.to, made.reason.as_str())).collect();
    let (seek, skip) = (MoveKind::Seek, MoveKind::Skip);
    let expected = [
        (seek, None, 3, "the stream begins with job 3"),
        (skip, Some(3), 5, "\u{2026}"),
        (skip, Some(3), 3, "broken"),
        (seek, Some(4), 1, "back"),
        (skip, Some(1), 2, "ahead"),
    ];
    assert_eq!(moves, expected);
    let millis = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    assert!(history.iter().all(|made| millis(made.at) == MADE_AT));
    let parked = store.parked("moved").unwrap();
    let parked: Vec<_> = parked.iter().map(|job| (job.index, job.attempts, job.error.as_str())).collect();
    let by_hand = ["skipped by hand: ahead", "skipped by hand: broken", "skipped by hand: \u{2026}"];
    assert_eq!(parked, [(2, 0, by_hand[0]), (3, 0, by_hand[1]), (5, 0, by_hand[2])]);
    assert_eq!(store.progress("moved").last_processed().unwrap(), Some(0));
}

/// The records of the family of the system without the times of moves and their checksums.
fn without_times(mut records: Vec<Record>) -> Vec<Record> {
    records.retain(|(family, ..)| family == SYSTEM);
    for (_, _, value) in records.iter_mut().filter(|(_, key, _)| key.starts_with(b"h")) {
        let sum = value.len() - 4;
        [2..10, sum..sum + 4].into_iter().for_each(|bytes| value[bytes].fill(0));
    }
    records
}

/// The jobs of a life of this progress, to the last one of so many.
fn run(store: &Store, name: &str, count: u64) -> Vec<Index> {
    let ran = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = ran.clone();
    let consumer = Consumer::builder(numbers(count), store.progress(name)).stop_at(count - 1).start(move |job| {
        assert!(seen.lock().insert(job.index));
        Ok(())
    });
    consumer.unwrap().join().unwrap();
    ran.lock().iter().copied().collect()
}

/// Everything goes on from where it was: what was done does not run again, and nothing is
/// overwritten.
#[track_caller]
fn all_goes_on(store: &Store) {
    assert_eq!(run(store, "transfers", 20), [11, 12, 14, 15, 17, 18, 19]);
    assert_eq!(run(store, "ahead", 5), [0, 1, 3, 4]);
    assert_eq!(run(store, "bits", 64), (1..32).map(|half| 2 * half).collect::<Vec<_>>());
    assert_eq!(run(store, "blocks", 45), [42, 43, 44]);
    assert_eq!(run(store, "new", 3), [0, 1, 2]);
    for (name, watermark) in [("transfers", 19), ("ahead", 4), ("bits", 63), ("blocks", 44), ("new", 2), ("effects", 3)]
    {
        assert_eq!(store.progress(name).last_processed().unwrap(), Some(watermark), "{name}");
    }
    store.log::<u64>("new").unwrap().push(&7).unwrap();
    assert_eq!(store.log::<String>("letters").unwrap().push(&"more".to_owned()).unwrap(), 5);
    assert_eq!(store.log::<String>("emptied").unwrap().push(&"c".to_owned()).unwrap(), 3);
    assert_eq!(store.log::<u64>("swept").unwrap().push(&1).unwrap(), 16_387);
    assert_eq!(store.log::<u64>("untouched").unwrap().push(&1).unwrap(), 1);
    let cut = store.log::<u64>("cut").unwrap();
    cut.trim(..=4).unwrap();
    assert_eq!(items(&cut), (5, Some(6), vec![50, 60]));
    assert_eq!(items(&store.log::<u64>("new").unwrap()), (1, Some(1), vec![7]));
    let sums = store.table("sums").unwrap();
    let adding = Consumer::builder(numbers(5), store.progress("effects")).stop_at(4);
    adding
        .start_transactional(move |_, effects| effects.add(&sums, "up", 1).map_err(Into::into))
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(store.table("sums").unwrap().counter("up").unwrap(), 21);
}

fn making(create: bool) -> StoreOptions {
    Store::options().create(create)
}

fn disk(records: &[Record]) -> Disk {
    let disk = Disk::default();
    disk.put(records);
    disk
}

#[test]
fn every_fixture_reads_and_is_shown_as_it_stands_in_its_file() {
    for fixture in [VERSION_1, VERSION_2, CODECS, MOVES, QUEUES, SETTINGS, PERIODIC, NEWER_VERSION, NEWER_PART] {
        let lines: String =
            fixture.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
        assert_eq!(shown(&records(fixture)), lines);
        assert!(fixture.starts_with("# "), "a fixture says how it was made");
    }
}

/// Leaves out the records that say when a watermark moved, since they change from run to run.
fn timeless(mut records: Vec<Record>) -> Vec<Record> {
    records.retain(|record| !shown(std::slice::from_ref(record)).starts_with("waterline.system \"m"));
    records
}

#[test]
fn a_life_leaves_the_records_of_version_2_to_the_byte() {
    let left = timeless(life::records());
    assert_eq!(shown(&left), shown(&records(VERSION_2)));
    assert_eq!(
        shown(&raised(records(VERSION_1))),
        shown(&left),
        "version 2 differs from version 1 in its format alone"
    );
}

#[test]
fn a_life_leaves_the_records_of_a_store_with_codecs_to_the_byte() {
    assert_eq!(shown(&life::records_with_codecs()), shown(&records(CODECS)));
}

#[test]
fn a_life_leaves_the_records_of_a_store_with_moves_but_for_the_times() {
    let left = without_times(life::records_with_moves());
    assert_eq!(shown(&left), shown(&without_times(records(MOVES))));
}

#[test]
fn a_life_leaves_the_records_of_a_store_with_queues_to_the_byte() {
    assert_eq!(shown(&life::records_with_queues()), shown(&records(QUEUES)));
}

#[test]
fn a_life_leaves_the_records_of_jobs_with_each_setting_to_the_byte() {
    assert_eq!(shown(&life::records_with_settings()), shown(&records(SETTINGS)));
}

#[test]
fn promise_08_jobs_with_each_setting_are_read_and_go_on_from_where_they_were() {
    let queue = queue(&disk(&records(SETTINGS)).open(&making(false)).unwrap(), "pages").unwrap();
    let info = |id: &str| queue.get(id).unwrap().unwrap_or_else(|| panic!("there is no {id}"));
    assert_eq!((ids(&queue, JobState::Waiting), info("waits").waits_for), (vec!["holds on".into(), "waits".into()], 2));
    assert_eq!((info("runs").meta["by"].as_str(), info("runs").crashes), (Some("ann"), 1));
    assert_eq!(info("runs").progress.map(|progress| progress.note), Some("a quarter".to_owned()));
    assert_eq!((info("first of a key").cost, info("held").key), (3, Some("tenant:7".to_owned())));
    let notes = queue.notes("page").unwrap();
    assert_eq!((notes.get("seen").unwrap(), notes.get("last").unwrap()), (Some(3.into()), Some("/".into())));
    let twin = NewJob::new("page", "unique").unwrap().unique(waterline::queue::Unique::until_done());
    assert_eq!(queue.push(twin).unwrap().id, "unique");
    let mut ran = Vec::new();
    while let Some(mut lease) = queue.accept(Accept::new()).unwrap() {
        ran.push(lease.id().to_owned());
        lease.finish(None).unwrap();
    }
    ran.sort();
    assert_eq!(ran, ["done twin", "first of a key", "held", "holds on", "runs", "unique", "waits"]);
}

/// The records of durations; the others are those of any queue.
fn durations(mut records: Vec<Record>) -> Vec<Record> {
    records.retain(|(family, key, _)| family == "waterline.queue" && key[4] == b't' && !key.starts_with(&[0xff; 4]));
    records
}

#[test]
fn a_life_leaves_the_records_of_durations_to_the_byte() {
    let left = durations(life::records_with_durations());
    assert_eq!((left.len(), shown(&left)), (2, shown(&durations(records(DURATIONS)))));
}

#[test]
fn promise_08_the_durations_of_a_queue_are_read_and_a_damaged_record_of_them_stops_no_queue() {
    let (whole, seconds) = (records(DURATIONS), Duration::from_secs);
    let queue = |records: &[Record]| queue(&disk(records).open(&making(false)).unwrap(), "mail").unwrap();
    let read = queue(&whole).durations();
    let all: Vec<_> = read.iter().map(|(kind, of)| (kind.as_str(), of.count, of.mean, of.last)).collect();
    assert_eq!(all, [("digest", 1, seconds(1), seconds(1)), ("welcome", 2, seconds(16), seconds(20))]);
    let at = whole.iter().position(|record| durations(vec![record.clone()]).len() == 1).unwrap();
    for bit in 0..8 * whole[at].2.len() {
        let mut bent = whole.clone();
        bent[at].2[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(queue(&bent).durations().len(), 1, "bit {bit} is seen");
    }
}

fn queue(store: &Store, name: &str) -> Result<Queue, QueueError> {
    Queue::open(store, name, QueueOptions::default().clock(life::clock()))
}

/// The ids of the jobs in a state.
fn ids(queue: &Queue, state: JobState) -> Vec<String> {
    queue.list(state, None, usize::MAX).unwrap().into_iter().map(|job| job.id).collect()
}

/// A queue that is opened takes over from a process that has died, so that is a write.
/// Takes away the checksums of entries, which they had not from the beginning.
fn without_checksums(mut records: Vec<Record>) -> Vec<Record> {
    for (_, _, value) in records.iter_mut().filter(|(_, _, value)| value.first() == Some(&u8::MAX)) {
        *value = value[1..value.len() - 4].to_vec();
    }
    records
}

#[test]
fn promise_08_a_store_with_queues_is_opened_by_one_write_a_queue_and_all_is_there() {
    all_queues_are_there(&records(QUEUES));
    all_queues_are_there(&without_checksums(records(QUEUES)));
}

fn all_queues_are_there(records: &[Record]) {
    let disk = disk(records);
    let store = disk.open(&making(false)).unwrap();
    assert_eq!(disk.writes(), 1);
    let (mail, other) = (queue(&store, "mail").unwrap(), queue(&store, "other").unwrap());
    assert_eq!(disk.writes(), 3);
    assert_eq!(ids(&mail, JobState::Scheduled), ["failed", "later"]);
    assert_eq!(ids(&mail, JobState::Ready), ["moved", "running", "bare", "~0"]);
    assert_eq!(ids(&mail, JobState::Finished), ["finished", "kept"]);
    assert_eq!(ids(&mail, JobState::Dead), ["dead"]);
    let get = |id: &str| mail.get(id).unwrap().unwrap();
    let (running, dead) = (get("running"), get("dead"));
    assert_eq!((running.crashes, running.resubmitted, running.data), (1, true, Some([1, 2].as_slice().into())));
    assert_eq!((dead.failures, dead.error.as_deref()), (1, Some("no such address")));
    assert_eq!((get("kept").kept_until, get("~0").payload::<u32>().unwrap()), (None, 7));
    assert!(other.accept(Accept::new()).unwrap().is_none());
    assert!(matches!(other.status().unwrap().waits, Waits::Paused { left: None }));
    let pushed = mail.push(NewJob::new("digest", &8).unwrap()).unwrap();
    assert_eq!(pushed.id, "~1", "no id is given out twice");
}

#[test]
fn a_life_leaves_the_records_of_a_store_with_periodic_jobs_to_the_byte() {
    assert_eq!(shown(&life::records_with_periodic_jobs()), shown(&records(PERIODIC)));
}

fn digest(queue: &Queue, name: &str) -> Result<(), QueueError> {
    queue.periodic(name, Every::hours(1), NewJob::new("digest", &7)?).start()
}

#[test]
fn promise_08_a_store_with_periodic_jobs_goes_on_from_the_last_ticks() {
    let disk = disk(&records(PERIODIC));
    let mail = queue(&disk.open(&making(false)).unwrap(), "mail").unwrap();
    let infos = mail.periodics().unwrap();
    let seen: Vec<_> = infos.iter().map(|info| (&*info.name, info.last_run.as_deref(), info.skipped)).collect();
    assert_eq!(seen, [("digest", Some("~0"), 1), ("later", None, 0), ("new", Some("~1"), 0)]);
    ["digest", "later", "new"].iter().for_each(|name| digest(&mail, name).unwrap());
    // The clock is where that life began: all ticks are in its future.
    assert_eq!(ids(&mail, JobState::Ready), ["~0", "~1"]);
    assert!(mail.periodics().unwrap().iter().all(|info| info.next_tick.is_some_and(|next| next > info.last_tick)));
}

#[test]
fn promise_08_a_record_of_a_periodic_job_with_a_flipped_bit_is_refused_and_stays_as_it_is() {
    let whole = records(PERIODIC);
    let mut flipped = 0;
    for (number, (family, key, value)) in whole.iter().enumerate() {
        if family != "waterline.queue" || key[4] != b'y' {
            continue;
        }
        let name = std::str::from_utf8(&key[5..]).unwrap();
        for bit in 0..8 * value.len() {
            let mut bent = whole.clone();
            bent[number].2[bit / 8] ^= 1 << (bit % 8);
            let disk = disk(&bent);
            let mail = queue(&disk.open(&making(false)).unwrap(), "mail").unwrap();
            let Err(QueueError::Store(Error::Corrupt { reason, .. })) = digest(&mail, name) else {
                panic!("{name}, {bit}");
            };
            assert!(reason.contains(name), "{reason}");
            // The list has the others as they are.
            for info in mail.periodics().unwrap() {
                assert_eq!(info.damaged.is_some(), info.name == name, "{info:?}, {bit}");
            }
            assert!(disk.records().contains(&bent[number]), "{name}, {bit}: it was written over");
            // The other jobs of the queue run, and the name can be used anew.
            assert!(mail.accept(Accept::new()).unwrap().is_some());
            assert!(mail.remove_periodic(name).unwrap());
            digest(&mail, name).unwrap();
            flipped += 1;
        }
    }
    assert!(flipped > 500, "{flipped} bits");
}

/// Each bit of the records that are sealed, one after the other.
#[test]
fn promise_08_a_record_of_a_queue_with_a_flipped_bit_is_refused_and_stays_as_it_is() {
    let whole = records(QUEUES);
    let id_of = |key: &[u8]| (key[4] == b'j').then(|| String::from_utf8(key[5..].to_vec()).unwrap());
    let mut flipped = 0;
    for (number, (family, key, value)) in whole.iter().enumerate() {
        let is_name = key.starts_with(&[0xff; 4]);
        if family != "waterline.queue" || !is_name && !b"hj".contains(&key[4]) {
            continue;
        }
        for bit in (0..8 * value.len()).step_by(3) {
            let mut bent = whole.clone();
            bent[number].2[bit / 8] ^= 1 << (bit % 8);
            let disk = disk(&bent);
            let store = disk.open(&making(false)).unwrap();
            let opened = ["mail", "other"].map(|name| queue(&store, name));
            let refused = match (opened, id_of(key).filter(|_| !is_name)) {
                ([Ok(mail), Ok(_)], Some(id)) => mail.get(id).map(drop),
                ([mail, other], _) => mail.and(other).map(drop),
            };
            let Err(QueueError::Store(Error::Corrupt { .. })) = refused else { panic!("{key:?}, {bit}: {refused:?}") };
            let kept = disk.records();
            assert!(kept.contains(&bent[number]), "{key:?}, {bit}: it was written over");
            flipped += 1;
        }
    }
    assert!(flipped > 2000, "{flipped} bits");
}

#[test]
fn promise_08_a_store_with_moves_is_opened_without_a_write_and_all_is_there() {
    let disk = disk(&records(MOVES));
    for options in [making(true), making(false), Store::options().read_only()] {
        all_moves_are_there(&disk.open(&options).unwrap());
        assert_eq!(disk.writes(), 1);
    }
    assert_eq!(shown(&disk.records()), shown(&records(MOVES)));
    let store = disk.open(&making(false)).unwrap();
    assert_eq!(run(&store, "moved", 8), [1, 3, 4, 5, 6, 7]);
    store.progress("moved").seek(6, "on").unwrap();
    let history = store.progress("moved").history().unwrap();
    assert_eq!((history.len(), history[5].from, history[5].to), (6, Some(8), 6));
}

#[test]
fn promise_08_a_store_of_version_1_is_raised_by_one_write_and_all_is_there() {
    for create in [true, false] {
        let before = records(VERSION_1);
        let disk = disk(&before);
        assert_eq!((format_of(&before), disk.writes()), (&[1][..], 1));
        for life in 0..3 {
            let store = disk.open(&making(create)).unwrap();
            assert_eq!(disk.writes(), 2, "life {life}: one write raises it, and later lives write nothing");
            all_is_there(&store);
            drop(store);
            assert_eq!(shown(&disk.records()), shown(&raised(before.clone())));
        }
        assert_eq!(format_of(&disk.records())[0], 2);
    }
}

#[test]
fn promise_08_a_store_of_version_2_is_opened_without_a_write_and_all_is_there() {
    let disk = disk(&records(VERSION_2));
    for create in [true, false, true] {
        all_is_there(&disk.open(&making(create)).unwrap());
        assert_eq!(disk.writes(), 1);
    }
    assert_eq!(shown(&disk.records()), shown(&records(VERSION_2)));
}

#[test]
fn promise_08_a_store_with_codecs_is_opened_without_a_write_and_all_is_there() {
    let disk = disk(&records(CODECS));
    for create in [true, false, true] {
        all_codecs_are_there(&disk.open(&making(create)).unwrap());
        assert_eq!(disk.writes(), 1);
    }
    assert_eq!(shown(&disk.records()), shown(&records(CODECS)));
    all_codecs_go_on(|| disk.open(&making(false)).unwrap());
}

#[test]
fn promise_08_a_store_of_each_version_is_looked_at_and_stays_as_it_is() {
    for fixture in [VERSION_1, VERSION_2] {
        let disk = disk(&records(fixture));
        let store = disk.open(&Store::options().read_only()).unwrap();
        all_is_there(&store);
        store.refresh().unwrap();
        all_is_there(&store);
        assert!(matches!(store.progress("transfers").acquire(), Err(Error::ReadOnly)));
        assert_eq!((shown(&disk.records()), disk.writes()), (shown(&records(fixture)), 1));
    }
    // Where no store has lived, there is nothing to look at.
    let nowhere = Disk::default();
    let opened = nowhere.open(&Store::options().read_only());
    assert!(matches!(opened, Err(Error::NotFound { what: "store", .. })), "{opened:?}");
    assert_eq!(nowhere.writes(), 0);
}

#[test]
fn promise_10_stores_of_both_versions_go_on_from_where_they_were() {
    for fixture in [VERSION_1, VERSION_2] {
        let disk = disk(&records(fixture));
        let store = disk.open(&making(true)).unwrap();
        let before = disk.records();
        for name in ["transfers", "blocks"] {
            let source = numbers(if name == "blocks" { 42 } else { 11 });
            Consumer::builder(source, store.progress(name)).start(|_| Ok(())).unwrap().stop().unwrap();
        }
        assert_eq!(shown(&disk.records()), shown(&before), "a life without a job writes nothing");
        all_goes_on(&store);
        drop(store);
        let records = disk.records();
        let page = records.iter().find(|(_, key, _)| key == b"pblocks").unwrap();
        assert_eq!(page.2[0], 2, "a progress of the first kind is written anew by its first save");
        let store = disk.open(&making(false)).unwrap();
        assert_eq!(run(&store, "transfers", 22), [20, 21]);
        assert_eq!(run(&store, "blocks", 46), [45]);
    }
}

#[test]
fn opening_makes_all_families_of_a_store() {
    for disk in [Disk::default(), disk(&records(VERSION_1))] {
        drop(disk.open(&making(true)).unwrap());
        let families: BTreeSet<String> = disk.families().into_iter().collect();
        assert!(FAMILIES.iter().all(|name| families.contains(*name)), "{families:?}");
    }
}

/// The refusal of a store that a newer version made.
#[track_caller]
fn newer(opened: Result<Store, Error>, words: &[&str]) {
    let Err(error) = opened else { panic!("it was opened") };
    let text = error.to_string();
    let words = words.iter().chain(&["newer version of waterline", "use that version", "a store of its own"]);
    assert!(words.clone().all(|word| text.contains(word)), "{text}");
    assert!(matches!(&error, Error::Format { .. }), "{error:?}");
}

#[test]
fn promise_08_a_store_of_a_newer_version_is_refused_and_not_one_byte_of_it_changes() {
    for (fixture, words) in
        [(NEWER_VERSION, ["version 3", "versions 1 and 2"]), (NEWER_PART, ["\"later\"", "knows \"codec\""])]
    {
        let before = records(fixture);
        let disk = disk(&before);
        for options in [making(true), making(false), Store::options().read_only()] {
            newer(disk.open(&options), &words);
            assert_eq!((shown(&disk.records()), disk.writes()), (shown(&before), 1));
        }
    }
}

#[cfg(feature = "disk")]
mod on_disk {
    use super::*;
    use common::raw::Raw;
    use std::path::Path;

    fn has_theirs() -> bool {
        engine() != Some(Engine::Sqlite)
    }

    /// The families of a store of a fixture's version, beside those that each database has.
    pub fn families(fixture: &str) -> Vec<String> {
        let ours: &[&str] =
            if fixture == VERSION_1 { &["waterline.logs", SYSTEM, "waterline.tables"] } else { &FAMILIES };
        let others: &[&str] = if has_theirs() { &["default", "theirs"] } else { &[] };
        others.iter().chain(ours).map(|name| (*name).to_owned()).collect()
    }

    /// The records of a fixture, without those that an engine has no place for.
    fn kept(fixture: &str) -> Vec<Record> {
        let mut records = records(fixture);
        records.retain(|(family, ..)| has_theirs() || family != "theirs");
        records
    }

    /// A directory with the database of a fixture, with these families; `None` where there is no
    /// disk.
    fn directory_with(fixture: &str, families: &[String]) -> Option<tempfile::TempDir> {
        let directory = a_directory()?;
        let raw = Raw::make(directory.path(), families);
        for (family, key, value) in kept(fixture) {
            raw.put(&family, &key, &value);
        }
        Some(directory)
    }

    pub fn directory(fixture: &str) -> Option<tempfile::TempDir> {
        directory_with(fixture, &families(fixture))
    }

    pub fn families_in(path: &Path) -> Vec<String> {
        Raw::look(path).families()
    }

    pub fn records_in(path: &Path) -> String {
        shown(&Raw::look(path).records())
    }

    fn making(create: bool) -> StoreOptions {
        on_engine().create(create)
    }

    #[test]
    fn promise_08_a_store_of_each_version_is_opened_raised_and_has_all_families_then() {
        for fixture in [VERSION_1, VERSION_2] {
            for create in [true, false] {
                let Some(directory) = directory(fixture) else { return };
                for _ in 0..2 {
                    all_is_there(&making(create).open(directory.path()).unwrap());
                    assert_eq!(records_in(directory.path()), shown(&raised(kept(fixture))));
                    assert_eq!(families_in(directory.path()), families(VERSION_2));
                }
                all_goes_on(&making(true).open(directory.path()).unwrap());
            }
        }
    }

    #[test]
    fn promise_08_a_store_with_codecs_is_opened_on_the_disk_and_all_is_there() {
        let Some(directory) = directory(CODECS) else { return };
        for create in [true, false] {
            all_codecs_are_there(&making(create).open(directory.path()).unwrap());
            assert_eq!(records_in(directory.path()), shown(&records(CODECS)));
        }
        all_codecs_go_on(|| making(false).open(directory.path()).unwrap());
    }

    #[test]
    fn promise_08_a_store_of_each_version_is_looked_at_on_disk_and_stays_as_it_is() {
        for fixture in [VERSION_1, VERSION_2] {
            let Some(directory) = directory(fixture) else { return };
            let before = families_in(directory.path());
            let store = on_engine().read_only().open(directory.path()).unwrap();
            all_is_there(&store);
            assert_eq!(records_in(directory.path()), shown(&kept(fixture)));
            assert_eq!(families_in(directory.path()), before);
            // The application raises the store, and makes families.
            drop(open_in(directory.path()).unwrap());
            store.refresh().unwrap();
            all_is_there(&store);
            // A newer version does that.
            Raw::open(directory.path()).put(SYSTEM, b"format", format_of(&records(NEWER_VERSION)));
            newer(store.refresh().map(|()| store), &["version 3"]);
        }
    }

    #[test]
    fn promise_08_a_store_of_a_newer_version_keeps_every_byte_and_its_families() {
        for (fixture, word) in [(NEWER_VERSION, "version 3"), (NEWER_PART, "\"later\"")] {
            // Those that this program would make are not there.
            let names: BTreeSet<String> = kept(fixture).into_iter().map(|(family, ..)| family).collect();
            let Some(directory) = directory_with(fixture, &names.into_iter().collect::<Vec<_>>()) else { return };
            let names = families_in(directory.path());
            let place = directory.path().display().to_string();
            for options in [making(true), making(false), on_engine().read_only()] {
                newer(options.open(directory.path()), &[word, &place]);
            }
            assert_eq!(records_in(directory.path()), shown(&kept(fixture)));
            assert_eq!(families_in(directory.path()), names);
        }
    }
}

#[cfg(feature = "rocksdb")]
mod attached {
    use super::on_disk::{directory, families, families_in, records_in};
    use super::*;
    use rocksdb::{ColumnFamilyDescriptor, DB, Options};
    use std::path::Path;

    fn options() -> Options {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options
    }

    /// The user's database, opened with the families of the store.
    fn theirs(path: &Path) -> Arc<DB> {
        let mut families = Store::column_families();
        families.push(ColumnFamilyDescriptor::new("theirs", Options::default()));
        Arc::new(DB::open_cf_descriptors(&options(), path, families).unwrap())
    }

    fn on_rocksdb(fixture: &str) -> Option<tempfile::TempDir> {
        directory(fixture).filter(|_| engine() == Some(Engine::RocksDb))
    }

    #[test]
    fn promise_08_a_store_of_each_version_that_is_attached_to_is_raised_and_all_is_there() {
        for fixture in [VERSION_1, VERSION_2] {
            for create in [true, false] {
                let Some(directory) = on_rocksdb(fixture) else { return };
                for _ in 0..2 {
                    let store = making(create).attach(theirs(directory.path())).unwrap();
                    all_is_there(&store);
                    drop(store);
                    assert_eq!(records_in(directory.path()), shown(&raised(records(fixture))));
                }
                all_goes_on(&Store::attach(theirs(directory.path())).unwrap());
            }
        }
    }

    #[test]
    fn promise_08_a_store_that_is_looked_at_through_attach_is_raised_by_a_later_one_that_writes() {
        let Some(directory) = on_rocksdb(VERSION_1) else { return };
        let db = theirs(directory.path());
        let looked = Store::options().read_only().attach(db.clone()).unwrap();
        all_is_there(&looked);
        assert_eq!(records_in(directory.path()), shown(&records(VERSION_1)));
        let store = Store::attach(db).unwrap();
        assert_eq!(records_in(directory.path()), shown(&raised(records(VERSION_1))));
        looked.refresh().unwrap();
        all_is_there(&looked);
        drop(looked);
        all_goes_on(&store);
        drop(store);
        // A database with the family of progress alone has the progress, and all else is empty.
        let few = DB::open_cf_for_read_only(&options(), directory.path(), ["default", SYSTEM], false).unwrap();
        let few = Store::options().read_only().attach(Arc::new(few)).unwrap();
        assert!(few.progress("transfers").last_processed().unwrap() >= Some(10));
        assert!(matches!(few.table("accounts"), Err(Error::NotFound { what: "table", .. })));
    }

    #[test]
    fn a_database_that_was_opened_without_the_newer_families_is_refused_by_their_name_and_stays_as_it_was() {
        let Some(directory) = on_rocksdb(VERSION_1) else { return };
        let db = DB::open_cf(&options(), directory.path(), families(VERSION_1)).unwrap();
        let attached = Store::attach(Arc::new(db));
        let Err(Error::Config(refused)) = attached else { panic!("{attached:?}") };
        assert!(refused.to_string().contains("\"waterline.parked\""), "{refused}");
        assert_eq!(records_in(directory.path()), shown(&records(VERSION_1)));
        assert_eq!(families_in(directory.path()), families(VERSION_1));
    }

    #[test]
    fn promise_08_a_store_of_a_newer_version_is_refused_by_attach_too() {
        for (fixture, word) in [(NEWER_VERSION, "version 3"), (NEWER_PART, "\"later\"")] {
            let Some(directory) = on_rocksdb(fixture) else { return };
            newer(Store::attach(theirs(directory.path())), &[word]);
            assert_eq!(records_in(directory.path()), shown(&records(fixture)));
        }
    }
}
