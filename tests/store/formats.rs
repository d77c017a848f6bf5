//! The stored bytes: a store that version 0.1.0 left (`formats/0.1.0.txt`) is read and goes on, and
//! a store of a newer version is refused.
//!
//! `make fixture` rewrites that file after a change of what is stored. Once the version is
//! published, the file is fixed, and the next version gets its own.

mod life;
mod queues;

use common::*;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;
use waterline::fuzzing::{Disk, DiskRecord};
use waterline::{Bytes, Codec, Consumer, Engine, Error, Index, JobLog, Jobs, MoveKind, Progress, Store, StoreOptions};

const FIXTURE: &str = include_str!("formats/0.1.0.txt");

/// A store of a future version. Only its seal is that of today: the checksum of `format`, the
/// version and the rest.
const NEWER_VERSION: &str = r#"waterline.system "format" "\x02newer\xb4m\x94\x03"
waterline.system "pblocks" "\x02whatever a page is by then"
waterline.tables "\x04rowskey" "value"
"#;

/// A store of today's version that uses a part of a future one.
const NEWER_PART: &str = r#"waterline.queue "a row" "whatever a row is by then"
waterline.system "format" "\x01\x05later\xc6j\x01T"
waterline.tables "\x04rowskey" "value"
"#;

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

fn records(fixture: &str) -> Vec<DiskRecord> {
    let lines = fixture.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| record(line).unwrap_or_else(|| panic!("no record: {line}"))).collect()
}

fn record(line: &str) -> Option<DiskRecord> {
    let (family, pair) = line.strip_suffix('"')?.split_once(" \"")?;
    // Quotes within a key or a value are escaped, so this is the gap between the two.
    let (key, value) = pair.split_once("\" \"")?;
    Some((family.to_owned(), unescaped(key)?, unescaped(value)?))
}

/// Returns the bytes that `escape_ascii` shows as this text.
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

fn shown(records: &[DiskRecord]) -> String {
    let lines = records.iter().map(|(family, key, value)| {
        let (key, value) = (key.escape_ascii(), value.escape_ascii());
        format!("{family} \"{key}\" \"{value}\"\n")
    });
    lines.collect()
}

fn format_of(records: &[DiskRecord]) -> &[u8] {
    &records.iter().find(|(family, key, _)| family == SYSTEM && key == b"format").unwrap().2
}

fn items<T: Send + 'static, C: Codec<T>>(log: &JobLog<T, C>) -> (Index, Option<Index>, Vec<T>) {
    let (first, head, mut items) = (log.first().unwrap(), log.head().unwrap(), Vec::new());
    if let Some(head) = head {
        log.read(first..=head, &mut items).unwrap();
    }
    (first, head, items)
}

/// Checks that everything a user can see is there, which changes nothing.
#[track_caller]
fn all_is_there(store: &Store) {
    for (name, watermark) in [
        ("transfers", Some(10)),
        ("ahead", None),
        ("bits", Some(1)),
        ("effects", Some(3)),
        ("moved", Some(0)),
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

    assert!(store.parked("transfers").unwrap().is_empty());

    let letters = store.log::<String>("letters").unwrap();
    assert_eq!(items(&letters), (1, Some(4), (0..4).map(|n| format!("letter {n}")).collect()));
    assert_eq!(items(&store.log::<u64>("cut").unwrap()), (3, Some(6), vec![30, 40, 50, 60]));
    assert_eq!(items(&store.log::<String>("emptied").unwrap()), (3, Some(2), vec![]));
    assert_eq!(items(&store.log::<u64>("swept").unwrap()), (16_385, Some(16_386), vec![16_384, 16_385]));
    assert_eq!(items(&store.log::<u64>("untouched").unwrap()), (1, None, vec![]));
    let below = store.log::<u64>("cut").unwrap().at_index(2).unwrap_err();
    assert!(matches!(below.downcast_ref(), Some(Error::Truncated { next: 2, first: 3 })), "{below:?}");
    all_codecs_are_there(store);
    all_moves_are_there(store);
}

#[track_caller]
fn all_codecs_are_there(store: &Store) {
    let others = store.log::<Vec<u8>>("blocks").unwrap_err();
    assert!(matches!(&others, Error::Codec { stored, .. } if stored == "bytes"), "{others:?}");
    let blocks = store.log_with::<Vec<u8>, _>("blocks", Bytes).unwrap();
    let left = vec![vec![], vec![0, 0xff, b'"', b'\\'], b"[1]".to_vec()];
    assert_eq!(items(&blocks), (2, Some(4), left));
    assert_eq!(items(&store.log_with::<Vec<u8>, _>("untouched bytes", Bytes).unwrap()), (1, None, vec![]));
    match store.log_with::<Vec<u8>, _>("letters", Bytes) {
        Err(Error::Codec { stored, .. }) => assert_eq!(stored, "json"),
        others => assert!(others.is_ok() && store.is_read_only(), "a look reads the bytes of each log: {others:?}"),
    }
}

/// Checks the moves by hand, and the jobs that they parked.
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
    let millis = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64;
    let times: Vec<_> = history.iter().map(|made| millis(made.at).to_be_bytes().to_vec()).collect();
    let is_move = |(family, key, _): &&DiskRecord| family == SYSTEM && key.starts_with(b"h");
    let stored: Vec<_> = records(FIXTURE).iter().filter(is_move).map(|(.., value)| value[2..10].to_vec()).collect();
    assert_eq!(times, stored);
    let parked = store.parked("moved").unwrap();
    let parked: Vec<_> = parked.iter().map(|job| (job.index, job.attempts, job.error.as_str())).collect();
    let by_hand = ["skipped by hand: ahead", "skipped by hand: broken", "skipped by hand: \u{2026}"];
    assert_eq!(parked, [(2, 0, by_hand[0]), (3, 0, by_hand[1]), (5, 0, by_hand[2])]);
}

/// Runs a life of this progress over `count` jobs, and returns those that ran.
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

/// Checks that everything goes on from where it was: done jobs do not run again, and nothing is
/// overwritten.
#[track_caller]
fn all_goes_on(store: &Store) {
    assert_eq!(run(store, "transfers", 20), [11, 12, 14, 15, 17, 18, 19]);
    assert_eq!(run(store, "ahead", 5), [0, 1, 3, 4]);
    assert_eq!(run(store, "bits", 64), (1..32).map(|half| 2 * half).collect::<Vec<_>>());
    assert_eq!(run(store, "moved", 8), [1, 3, 4, 5, 6, 7]);
    assert_eq!(run(store, "new", 3), [0, 1, 2]);
    for (name, watermark) in [("transfers", 19), ("ahead", 4), ("bits", 63), ("moved", 7), ("new", 2), ("effects", 3)] {
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

    let blocks = store.log_with::<Vec<u8>, _>("blocks", Bytes).unwrap();
    assert_eq!(blocks.push(&vec![5]).unwrap(), 5);
    blocks.trim(..=4).unwrap();
    assert_eq!(items(&blocks), (5, Some(5), vec![vec![5]]));

    store.progress("moved").seek(6, "on").unwrap();
    let history = store.progress("moved").history().unwrap();
    assert_eq!((history.len(), history[5].from, history[5].to), (6, Some(8), 6));
}

fn making(create: bool) -> StoreOptions {
    Store::options().create(create)
}

fn disk(records: &[DiskRecord]) -> Disk {
    let disk = Disk::default();
    disk.put(records);
    disk
}

/// Returns the records without what differs between lives: times of the machine with the checksums
/// over them, and what a runner leaves beside its durations.
fn steady(mut records: Vec<DiskRecord>) -> Vec<DiskRecord> {
    let timed = number_of(&records, "timed");
    records.retain(|(family, key, _)| {
        let is_of_runner = ["waterline.queue", "waterline.ready"].contains(&family.as_str()) && key.starts_with(&timed);
        !is_of_runner || family == "waterline.queue" && key[4] == b't'
    });
    for (family, key, value) in &mut records {
        let times = match (family.as_str(), key[0]) {
            (SYSTEM, b'm') => 1..9,
            (SYSTEM, b'h') => 2..10,
            ("waterline.parked", _) => 10..34,
            _ => continue,
        };
        let sum = value.len() - 4;
        value[times].fill(0);
        value[sum..].fill(0);
    }
    records
}

/// Returns the number of a queue, with which the keys of its records begin.
fn number_of(records: &[DiskRecord], name: &str) -> [u8; 4] {
    let key = [&[0xff; 4][..], name.as_bytes()].concat();
    let (.., value) = records.iter().find(|(_, of, _)| *of == key).expect("there is such a queue");
    value[1..5].try_into().unwrap()
}

#[test]
fn a_fixture_round_trips() {
    for fixture in [FIXTURE, NEWER_VERSION, NEWER_PART] {
        let lines: String =
            fixture.lines().filter(|line| !line.starts_with('#')).flat_map(|line| [line, "\n"]).collect();
        assert_eq!(shown(&records(fixture)), lines);
    }
}

/// With the variable that `make fixture` sets, the test writes the file instead.
#[test]
fn a_life_leaves_the_records_of_the_fixture() {
    let left = life::records();
    if std::env::var_os("WATERLINE_FIXTURE").is_some() {
        let comment: String =
            FIXTURE.lines().filter(|line| line.starts_with('#')).flat_map(|line| [line, "\n"]).collect();
        let file = tree::root().join("tests/store/formats/0.1.0.txt");
        return std::fs::write(file, comment + &shown(&left)).unwrap();
    }
    assert_eq!(shown(&steady(left)), shown(&steady(records(FIXTURE))), "if this is intended: make fixture");
}

#[test]
fn promise_08_opening_a_store_writes_nothing() {
    let disk = disk(&records(FIXTURE));
    for options in [making(true), making(false), Store::options().read_only()] {
        let store = disk.open(&options).unwrap();
        all_is_there(&store);
        store.refresh().unwrap();
        all_is_there(&store);
        let acquired = store.progress("transfers").acquire();
        assert_eq!(matches!(acquired, Err(Error::ReadOnly)), store.is_read_only(), "{acquired:?}");
        assert_eq!((shown(&disk.records()), disk.writes()), (shown(&records(FIXTURE)), 1));
    }
    // A look finds nothing where no store has been.
    let nowhere = Disk::default();
    let opened = nowhere.open(&Store::options().read_only());
    assert!(matches!(opened, Err(Error::NotFound { what: "store", .. })), "{opened:?}");
    assert_eq!(nowhere.writes(), 0);
}

#[test]
fn promise_10_the_store_goes_on_from_where_it_was() {
    let disk = disk(&records(FIXTURE));
    let store = disk.open(&making(true)).unwrap();
    Consumer::builder(numbers(11), store.progress("transfers")).start(|_| Ok(())).unwrap().stop().unwrap();
    assert_eq!(shown(&disk.records()), shown(&records(FIXTURE)), "a life without a job writes nothing");
    all_goes_on(&store);
    drop(store);
    let store = disk.open(&making(false)).unwrap();
    assert_eq!(run(&store, "transfers", 22), [20, 21]);
    let blocks = store.log_with::<Vec<u8>, _>("blocks", Bytes).unwrap();
    assert_eq!(items(&blocks), (5, Some(5), vec![vec![5]]));
}

#[test]
fn opening_makes_all_families_of_a_store() {
    let disk = Disk::default();
    drop(disk.open(&making(true)).unwrap());
    let families: BTreeSet<String> = disk.families().into_iter().collect();
    assert!(FAMILIES.iter().all(|name| families.contains(*name)), "{families:?}");
}

/// Checks the refusal of a store of a newer version.
#[track_caller]
fn newer(opened: Result<Store, Error>, words: &[&str]) {
    let Err(error) = opened else { panic!("it was opened") };
    let text = error.to_string();
    let words = words.iter().chain(&["newer version of waterline", "use that version", "a store of its own"]);
    assert!(words.clone().all(|word| text.contains(word)), "{text}");
    assert!(matches!(&error, Error::Format { .. }), "{error:?}");
}

#[test]
fn promise_08_a_newer_store_is_refused_unchanged() {
    for (fixture, words) in
        [(NEWER_VERSION, ["version 2", "knows version 1"]), (NEWER_PART, ["\"later\"", "knows \"codec\""])]
    {
        let before = records(fixture);
        let disk = disk(&before);
        for options in [making(true), making(false), Store::options().read_only()] {
            newer(disk.open(&options), &words);
            assert_eq!((shown(&disk.records()), disk.writes()), (shown(&before), 1));
        }
    }
}

#[cfg(feature = "_disk")]
mod on_disk {
    use super::*;
    use common::raw::Raw;
    use std::path::Path;

    fn has_theirs() -> bool {
        engine() != Some(Engine::Sqlite)
    }

    /// Returns the families of a store, and those of every database.
    pub fn families() -> Vec<String> {
        let others: &[&str] = if has_theirs() { &["default", "theirs"] } else { &[] };
        others.iter().chain(&FAMILIES).map(|name| (*name).to_owned()).collect()
    }

    /// Returns the records of a fixture that the engine has a place for.
    fn kept(fixture: &str) -> Vec<DiskRecord> {
        let mut records = records(fixture);
        records.retain(|(family, ..)| has_theirs() || family != "theirs");
        records
    }

    /// Returns a directory with the database of a fixture, which has only the families of its
    /// records, or `None` without a disk.
    pub fn directory(fixture: &str) -> Option<tempfile::TempDir> {
        let directory = a_directory()?;
        let names: BTreeSet<String> = kept(fixture).into_iter().map(|(family, ..)| family).collect();
        let raw = Raw::make(directory.path(), &names.into_iter().collect::<Vec<_>>());
        for (family, key, value) in kept(fixture) {
            raw.put(&family, &key, &value);
        }
        Some(directory)
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
    fn promise_08_opening_on_a_disk_makes_all_families() {
        for create in [true, false] {
            let Some(directory) = directory(FIXTURE) else { return };
            assert_ne!(families_in(directory.path()), families());
            for _ in 0..2 {
                all_is_there(&making(create).open(directory.path()).unwrap());
                assert_eq!(records_in(directory.path()), shown(&kept(FIXTURE)));
                assert_eq!(families_in(directory.path()), families());
            }
            all_goes_on(&making(true).open(directory.path()).unwrap());
        }
    }

    #[test]
    fn promise_08_a_read_only_look_changes_no_file() {
        let Some(directory) = directory(FIXTURE) else { return };
        let before = families_in(directory.path());
        let store = on_engine().read_only().open(directory.path()).unwrap();
        all_is_there(&store);
        assert_eq!(records_in(directory.path()), shown(&kept(FIXTURE)));
        assert_eq!(families_in(directory.path()), before);
        // The application makes the missing families.
        drop(open_in(directory.path()).unwrap());
        store.refresh().unwrap();
        all_is_there(&store);
        // A newer version takes over the store.
        Raw::open(directory.path()).put(SYSTEM, b"format", format_of(&records(NEWER_VERSION)));
        newer(store.refresh().map(|()| store), &["version 2"]);
    }

    #[test]
    fn promise_08_a_newer_store_keeps_bytes_and_families() {
        for (fixture, word) in [(NEWER_VERSION, "version 2"), (NEWER_PART, "\"later\"")] {
            let Some(directory) = directory(fixture) else { return };
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
    use super::on_disk::{directory, families_in, records_in};
    use super::*;
    use rocksdb::{ColumnFamilyDescriptor, DB, Options};
    use std::path::Path;

    fn options() -> Options {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options
    }

    /// Opens the user's database with the families of the store.
    fn theirs(path: &Path) -> Arc<DB> {
        let mut families = Store::column_families();
        families.push(ColumnFamilyDescriptor::new("theirs", Options::default()));
        Arc::new(DB::open_cf_descriptors(&options(), path, families).unwrap())
    }

    fn on_rocksdb(fixture: &str) -> Option<tempfile::TempDir> {
        directory(fixture).filter(|_| engine() == Some(Engine::RocksDb))
    }

    #[test]
    fn promise_08_attach_finds_all_records() {
        for create in [true, false] {
            let Some(directory) = on_rocksdb(FIXTURE) else { return };
            for _ in 0..2 {
                let store = making(create).attach(theirs(directory.path())).unwrap();
                all_is_there(&store);
                drop(store);
                assert_eq!(records_in(directory.path()), shown(&records(FIXTURE)));
            }
            all_goes_on(&Store::attach(theirs(directory.path())).unwrap());
        }
    }

    #[test]
    fn promise_08_a_look_by_attach_shows_anothers_writes() {
        let Some(directory) = on_rocksdb(FIXTURE) else { return };
        let db = theirs(directory.path());
        let looked = Store::options().read_only().attach(db.clone()).unwrap();
        all_is_there(&looked);
        let store = Store::attach(db).unwrap();
        assert_eq!(records_in(directory.path()), shown(&records(FIXTURE)));
        looked.refresh().unwrap();
        all_is_there(&looked);
        drop(looked);
        all_goes_on(&store);
        drop(store);
        // In a database with only the family of progress, all else is empty.
        let few = DB::open_cf_for_read_only(&options(), directory.path(), ["default", SYSTEM], false).unwrap();
        let few = Store::options().read_only().attach(Arc::new(few)).unwrap();
        assert!(few.progress("transfers").last_processed().unwrap() >= Some(10));
        assert!(matches!(few.table("accounts"), Err(Error::NotFound { what: "table", .. })));
        assert!(few.parked("moved").unwrap().is_empty());
    }

    #[test]
    fn attach_names_a_missing_family_and_changes_nothing() {
        let Some(directory) = on_rocksdb(FIXTURE) else { return };
        let families = families_in(directory.path());
        let db = DB::open_cf(&options(), directory.path(), &families).unwrap();
        let attached = Store::attach(Arc::new(db));
        let Err(Error::Config(refused)) = attached else { panic!("{attached:?}") };
        assert!(refused.to_string().contains("\"waterline.undo\""), "{refused}");
        assert_eq!(records_in(directory.path()), shown(&records(FIXTURE)));
        assert_eq!(families_in(directory.path()), families);
    }

    #[test]
    fn promise_08_attach_refuses_a_newer_store() {
        for (fixture, word) in [(NEWER_VERSION, "version 2"), (NEWER_PART, "\"later\"")] {
            let Some(directory) = on_rocksdb(fixture) else { return };
            newer(Store::attach(theirs(directory.path())), &[word]);
            assert_eq!(records_in(directory.path()), shown(&records(fixture)));
        }
    }
}
