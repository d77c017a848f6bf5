//! Looks: a store that is read while another process writes it.

use common::raw::Raw;
use common::*;
#[cfg(feature = "rocksdb")]
use rocksdb::{ColumnFamilyDescriptor, DB, Options};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
#[cfg(feature = "rocksdb")]
use std::sync::Arc;
use std::time::Duration;
use waterline::{Bytes, Consumer, Engine, Error, Jobs, Store, Table};
use waterline_queue::{Accept, JobState, NewJob, Queue, QueueOptions};

fn look(path: &Path) -> Store {
    on_engine().read_only().open(path).unwrap()
}

/// Whether a look shows each write at once. On the other engine it takes a refresh.
fn moves_at_once() -> bool {
    engine() == Some(Engine::Sqlite)
}

/// Returns the names and contents of all files but the one by which processes share memory.
fn files(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
    let files = entries.map(|file| (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap()));
    files.filter(|(name, _)| !name.ends_with("-shm")).collect()
}

/// An application whose database moves from its log to other files when the test says so. On
/// RocksDB these are small and come and go.
struct Application {
    store: Store,
    #[cfg(feature = "rocksdb")]
    db: Option<Arc<DB>>,
    path: PathBuf,
}

impl Application {
    fn open(path: &Path) -> Self {
        #[cfg(feature = "rocksdb")]
        if engine() == Some(Engine::RocksDb) {
            let db = database(path, &[]);
            return Self { store: Store::attach(db.clone()).unwrap(), db: Some(db), path: path.to_owned() };
        }
        Self {
            store: open_in(path).unwrap(),
            #[cfg(feature = "rocksdb")]
            db: None,
            path: path.to_owned(),
        }
    }

    /// Moves everything from the write-ahead log and memory into files.
    fn flush(&self) {
        #[cfg(feature = "rocksdb")]
        if let Some(db) = &self.db {
            for family in Store::column_families() {
                let family = db.cf_handle(family.name()).unwrap();
                db.flush_cf(&family).unwrap();
                db.compact_range_cf(&family, None::<&[u8]>, None::<&[u8]>);
            }
        }
        #[cfg(feature = "sqlite")]
        if engine() == Some(Engine::Sqlite) {
            let beside = rusqlite::Connection::open(self.path.join("waterline.sqlite")).unwrap();
            beside.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
        }
    }
}

/// Opens a database with small files that come and go.
#[cfg(feature = "rocksdb")]
fn database(path: &Path, families: &[&str]) -> Arc<DB> {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_keep_log_file_num(2);
    let small = || {
        let mut options = Options::default();
        options.set_write_buffer_size(16 << 10);
        options.set_level_zero_file_num_compaction_trigger(2);
        options
    };
    let ours = Store::column_families().into_iter().map(|family| family.name().to_owned());
    let names = ours.chain(families.iter().map(|name| (*name).to_owned()));
    let descriptors = names.map(|name| ColumnFamilyDescriptor::new(name, small()));
    Arc::new(DB::open_cf_descriptors(&options, path, descriptors).unwrap())
}

fn text(table: &Table, key: &str) -> Option<String> {
    let value = table.get(key).unwrap();
    assert_eq!(table.multi_get([key]).unwrap(), std::slice::from_ref(&value));
    let row = table.prefix(key).next().map(|row| row.unwrap().1);
    assert_eq!(row, value, "a scan shows the same");
    value.map(|value| String::from_utf8(value).unwrap())
}

#[test]
fn a_look_shows_a_running_application() {
    let Some(directory) = a_directory() else { return };
    let application = open_in(directory.path()).unwrap();
    let rows = application.table("rows").unwrap();
    rows.put("k", "1").unwrap();
    let mails = Queue::open(&application, "mails", QueueOptions::default()).unwrap();
    mails.push_all(["a", "b"].map(|id| NewJob::new("welcome", &1).unwrap().id(id))).unwrap();
    let mut running = mails.accept(Accept::new()).unwrap();
    let ids = |queue: &Queue, state| -> Vec<_> {
        queue.list(state, None, 9).unwrap().into_iter().map(|job| job.id).collect()
    };
    let consumer = Consumer::builder(numbers(3), application.progress("p")).start(|_| Ok(())).unwrap();
    assert!(consumer.handle().wait_for(2, LONG));
    let before = files(directory.path());
    // Several looks at the same time, none of which waits for the lock.
    let beside = look(directory.path());
    let within = on_engine().read_only().open_within(directory.path(), Duration::ZERO).unwrap();
    for store in [&beside, &within] {
        assert_eq!(text(&store.table("rows").unwrap(), "k").as_deref(), Some("1"));
        assert_eq!(store.progress("p").last_processed().unwrap(), Some(2));
        assert!(matches!(store.table("others"), Err(Error::NotFound { what: "table", .. })));
        let mails = Queue::open(store, "mails", QueueOptions::default()).unwrap();
        assert_eq!(
            (ids(&mails, JobState::Running), ids(&mails, JobState::Ready)),
            (vec!["a".into()], vec!["b".into()])
        );
        assert_eq!((mails.counts().running, mails.get("b").unwrap().unwrap().state), (1, JobState::Ready));
        store.refresh().unwrap();
    }
    let seen = Queue::open(&beside, "mails", QueueOptions::default()).unwrap();
    assert!(files(directory.path()) == before, "looking changes no file");
    consumer.stop().unwrap();
    rows.put("k", "2").unwrap();
    running.take().expect("a job is ready").finish(None).unwrap();
    application.table("others").unwrap().put("k", "v").unwrap();
    let before = files(directory.path());
    if !moves_at_once() {
        assert_eq!(text(&beside.table("rows").unwrap(), "k").as_deref(), Some("1"), "nothing moves by itself");
        assert_eq!((ids(&seen, JobState::Finished), seen.counts().finished), (vec![], 0));
    }
    beside.refresh().unwrap();
    assert_eq!(text(&beside.table("rows").unwrap(), "k").as_deref(), Some("2"));
    assert_eq!(text(&beside.table("others").unwrap(), "k").as_deref(), Some("v"));
    assert_eq!((ids(&seen, JobState::Finished), seen.counts().finished), (vec!["a".into()], 1));
    drop((seen, beside, within));
    assert!(files(directory.path()) == before);
    drop((rows, mails, application));
    // A look also works while no application has the store open.
    let before = files(directory.path());
    assert_eq!(text(&look(directory.path()).table("rows").unwrap(), "k").as_deref(), Some("2"));
    assert!(files(directory.path()) == before);
}

#[test]
fn a_look_refuses_every_write() {
    let Some(directory) = a_directory() else { return };
    let application = open_in(directory.path()).unwrap();
    application.table("rows").unwrap().put("k", "v").unwrap();
    let before = files(directory.path());
    let beside = look(directory.path());
    let rows = beside.table("rows").unwrap();
    assert!(matches!(rows.put("k", "changed"), Err(Error::ReadOnly)));
    assert!(matches!(rows.delete("k"), Err(Error::ReadOnly)));
    let started = Consumer::builder(numbers(3), beside.progress("p")).start(|_| Ok(()));
    assert!(matches!(started, Err(Error::ReadOnly)), "{started:?}");
    beside.refresh().unwrap();
    assert_eq!(text(&rows, "k").as_deref(), Some("v"));
    assert!(files(directory.path()) == before);
    application.refresh().unwrap();
    assert_eq!(text(&application.table("rows").unwrap(), "k").as_deref(), Some("v"));
}

#[test]
fn a_refresh_hides_replaced_and_deleted_rows() {
    let Some(directory) = a_directory() else { return };
    let application = Application::open(directory.path());
    let rows = application.store.table("rows").unwrap();
    ["changed", "deleted", "kept"].iter().for_each(|key| rows.put(key, "old").unwrap());
    let beside = look(directory.path());
    let seen = beside.table("rows").unwrap();
    assert_eq!(text(&seen, "changed").as_deref(), Some("old"));
    rows.put("changed", "new").unwrap();
    rows.delete("deleted").unwrap();
    application.flush();
    beside.refresh().unwrap();
    let shown = ["changed", "deleted", "kept"].map(|key| text(&seen, key));
    assert_eq!(shown.each_ref().map(Option::as_deref), [Some("new"), None, Some("old")]);
    rows.put("changed", "newest").unwrap();
    beside.refresh().unwrap();
    assert_eq!(text(&seen, "changed").as_deref(), Some("newest"));
}

#[test]
fn a_refresh_follows_many_reopenings() {
    let Some(directory) = a_directory() else { return };
    let open = || open_in(directory.path()).unwrap();
    open().table("rows").unwrap().put("life", "first").unwrap();
    let beside = look(directory.path());
    let rows = beside.table("rows").unwrap();
    for round in 0..4 {
        for life in 0..round {
            let application = open();
            let rows = application.table("rows").unwrap();
            rows.put("life", format!("{round}.{life}")).unwrap();
            rows.put(format!("{round}.{life}"), "it was here").unwrap();
        }
        let application = open();
        application.table("rows").unwrap().put("round", round.to_string()).unwrap();
        beside.refresh().unwrap();
        assert_eq!(text(&rows, "round"), Some(round.to_string()));
        if round > 0 {
            assert_eq!(text(&rows, "life"), Some(format!("{round}.{}", round - 1)));
        }
        assert_eq!(rows.iter().count() as u64, 2 + (0..=round).sum::<u64>(), "round {round}");
    }
}

#[cfg(feature = "rocksdb")]
#[test]
fn a_refresh_shows_a_new_column_family() {
    let Some(directory) = a_directory_of(Engine::RocksDb) else { return };
    drop(Store::attach(database(directory.path(), &[])).unwrap());
    let beside = look(directory.path());
    let db = database(directory.path(), &["theirs"]);
    let application = Store::attach(db.clone()).unwrap();
    application.column_family("theirs").unwrap().put("k", "v").unwrap();
    assert!(matches!(beside.column_family("theirs"), Err(Error::Config(_))));
    beside.refresh().unwrap();
    let theirs = beside.column_family("theirs").unwrap();
    assert_eq!(text(&theirs, "k").as_deref(), Some("v"));
    assert!(matches!(theirs.put("k", "changed"), Err(Error::ReadOnly)));
    application.table("rows").unwrap().put("k", "v").unwrap();
    beside.refresh().unwrap();
    assert_eq!(text(&beside.table("rows").unwrap(), "k").as_deref(), Some("v"));
}

#[test]
fn an_iterator_keeps_showing_its_moment() {
    let Some(directory) = a_directory() else { return };
    let application = Application::open(directory.path());
    let rows = application.store.table("rows").unwrap();
    let fill = |value: &str| (0..2000u64).for_each(|row| rows.put(row.to_be_bytes(), value).unwrap());
    fill("old");
    let beside = look(directory.path());
    let seen = beside.table("rows").unwrap();
    for flushes in [false, true] {
        let value = seen.iter().next().unwrap().unwrap().1;
        let mut walks = [seen.iter(), seen.range_rev::<&[u8]>(..)];
        walks.iter_mut().for_each(|walk| assert!(walk.next().is_some()));
        fill(&format!("new {flushes}"));
        rows.delete(1000u64.to_be_bytes()).unwrap();
        if flushes {
            application.flush();
        }
        beside.refresh().unwrap();
        assert_eq!(seen.iter().count(), 1999);
        for walk in walks {
            let values: Vec<_> = walk.map(|row| row.unwrap().1).collect();
            assert_eq!(values.len(), if flushes { 1998 } else { 1999 });
            assert!(values.iter().all(|other| *other == value));
        }
    }
}

#[test]
fn a_look_without_a_store_makes_nothing() {
    let Some(directory) = a_directory() else { return };
    let look = |path: &Path| on_engine().read_only().open(path);
    let missing = directory.path().join("missing").join("deep");
    for _ in 0..2 {
        assert!(matches!(look(&missing), Err(Error::NotFound { what: "store", name }) if name.ends_with("deep")));
        assert!(matches!(look(directory.path()), Err(Error::NotFound { what: "store", .. })));
        let within = on_engine().read_only().create(true).open_within(&missing, HOUR);
        assert!(matches!(within, Err(Error::NotFound { what: "store", .. })), "{within:?}");
    }
    assert!(files(directory.path()).is_empty());
    let file = directory.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    assert!(matches!(look(&file), Err(Error::Store(_))));
    assert_eq!(files(directory.path()).len(), 1);
    // A foreign database.
    let theirs = directory.path().join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    let others = Raw::make(&theirs, &["theirs"]);
    let before = files(&theirs);
    assert!(matches!(look(&theirs), Err(Error::NotFound { what: "store", .. })));
    assert!(files(&theirs) == before);
    #[cfg(feature = "rocksdb")]
    if let Raw::RocksDb(db) = others {
        let attached = Store::options().read_only().attach(Arc::new(db));
        assert!(matches!(attached, Err(Error::NotFound { what: "store", .. })), "{attached:?}");
        return;
    }
    drop(others);
}

#[test]
fn a_look_outlives_its_directory_and_says_so() {
    let Some(directory) = a_directory_of(Engine::RocksDb) else { return };
    let path = directory.path().join("data");
    open_in(&path).unwrap().table("rows").unwrap().put("k", "v").unwrap();
    let beside = look(&path);
    let rows = beside.table("rows").unwrap();
    std::fs::rename(&path, directory.path().join("moved")).unwrap();
    for _ in 0..2 {
        assert!(matches!(beside.refresh(), Err(Error::Store(_))));
        assert_eq!(text(&rows, "k").as_deref(), Some("v"), "the last state is still shown");
    }
    std::fs::rename(directory.path().join("moved"), &path).unwrap();
    beside.refresh().unwrap();
    assert_eq!(text(&rows, "k").as_deref(), Some("v"));
}

#[cfg(feature = "rocksdb")]
#[test]
fn a_read_only_handle_leaves_another_writable() {
    let Some(directory) = a_directory_of(Engine::RocksDb) else { return };
    let db = database(directory.path(), &[]);
    let application = Store::attach(db.clone()).unwrap();
    application.table("rows").unwrap().put("k", "v").unwrap();
    let beside = Store::options().read_only().attach(db.clone()).unwrap();
    let rows = beside.table("rows").unwrap();
    assert!(matches!(rows.put("k", "changed"), Err(Error::ReadOnly)));
    application.table("rows").unwrap().put("k", "changed").unwrap();
    beside.refresh().unwrap();
    assert_eq!(text(&rows, "k").as_deref(), Some("changed"));
    // A refresh catches up a secondary that the user opened.
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::default();
    options.set_max_open_files(-1);
    let names: Vec<_> = DB::list_cf(&options, directory.path()).unwrap();
    let secondary = DB::open_cf_as_secondary(&options, directory.path(), folder.path(), names).unwrap();
    let theirs = Store::options().read_only().attach(Arc::new(secondary)).unwrap();
    application.table("rows").unwrap().put("k", "once more").unwrap();
    let rows = theirs.table("rows").unwrap();
    assert_eq!(text(&rows, "k").as_deref(), Some("changed"));
    theirs.refresh().unwrap();
    assert_eq!(text(&rows, "k").as_deref(), Some("once more"));
}

#[test]
fn a_consumer_of_a_look_keeps_its_progress_elsewhere() {
    let Some(directory) = a_directory() else { return };
    let application = Application::open(directory.path());
    let pushed = application.store.log::<u64>("log").unwrap();
    pushed.push(&10).unwrap();
    let beside = look(directory.path());
    let mine = Store::in_memory();
    let seen = mine.table("seen").unwrap();
    let rows = seen.clone();
    let log = beside.log::<u64>("log").unwrap();
    let consumer = Consumer::builder(log.clone(), mine.progress("follower"))
        .poll_every(HOUR)
        .start(move |job| Ok(rows.put(job.index.to_be_bytes(), job.payload.to_string())?))
        .unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(1, LONG));
    for round in 1..=6u64 {
        let end = pushed.push_all(&[10 * round + 1, 10 * round + 2]).unwrap().end;
        if round % 2 == 0 {
            application.flush();
        }
        assert_eq!(log.head().unwrap(), Some(end - 3), "nothing moves by itself");
        beside.refresh().unwrap();
        assert!(handle.wait_for(end - 1, LONG));
    }
    pushed.trim(..=13).unwrap();
    beside.refresh().unwrap();
    assert_eq!((log.first().unwrap(), log.head().unwrap()), (14, Some(13)));
    consumer.stop().unwrap();
    let values: Vec<_> = seen.iter().map(|row| String::from_utf8(row.unwrap().1).unwrap()).collect();
    assert_eq!(values.join(" "), "10 11 12 21 22 31 32 41 42 51 52 61 62");
    assert!(matches!(log.push(&1), Err(Error::ReadOnly)));
}

#[test]
fn the_lists_are_as_of_the_last_refresh() {
    let Some(directory) = a_directory() else { return };
    let application = open_in(directory.path()).unwrap();
    let beside = look(directory.path());
    let lists = |store: &Store| (store.tables().unwrap(), store.logs().unwrap(), store.consumers().unwrap());
    assert_eq!(lists(&beside), (vec![], vec![], vec![]));
    for table in ["heights", "a", "widths"] {
        application.table(table).unwrap().put("k", "v").unwrap();
    }
    application.table("widths").unwrap().delete("k").unwrap();
    application.log_with::<Vec<u8>, _>("blocks", Bytes).unwrap().push_all(&[vec![], vec![]]).unwrap();
    application.log::<u64>("empty").unwrap();
    let consumer = Consumer::builder(numbers(3), application.progress("p")).start(|_| Ok(())).unwrap();
    assert!(consumer.handle().wait_for(2, LONG));
    beside.refresh().unwrap();
    for store in [&beside, &application] {
        let (tables, logs, consumers) = lists(store);
        assert_eq!(tables, ["a", "heights"], "an emptied table is not listed");
        let logs: Vec<_> = logs.iter().map(|log| (&*log.name, log.first, log.head, &*log.codec)).collect();
        assert_eq!(logs, [("blocks", 1, Some(2), "bytes"), ("empty", 1, None, "json")]);
        assert_eq!((&*consumers[0].name, consumers[0].last_processed, consumers[0].next), ("p", Some(2), Some(3)));
        assert_eq!((consumers.len(), consumers[0].done_ahead, &consumers[0].unreadable), (1, 0, &None));
    }
    let before = files(directory.path());
    lists(&beside);
    assert!(files(directory.path()) == before);
}

#[cfg(unix)]
mod beside_another_process {
    use super::*;
    use std::io::{BufRead, BufReader, Lines};
    use std::process::{Child, ChildStdout, Command, Stdio};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use waterline::{BoxError, Effects, Index, Job, JobLog};

    const DIR: &str = "WATERLINE_LOOK_DIR";
    /// The variable with the number of lives before the child's.
    const LIFE: &str = "WATERLINE_LOOK_LIFE";
    /// The number of jobs after which a row is deleted. Its job is below the watermark by then.
    const ROWS: u64 = 200;

    struct Endless;

    impl Jobs for Endless {
        type Job = Index;

        fn head(&self) -> Result<Option<Index>, BoxError> {
            Ok(Some(Index::MAX - 1))
        }

        fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
            Ok(Some(index))
        }
    }

    /// In one write, each job puts a row, deletes that of an earlier job, counts both in further
    /// rows, and pushes an item.
    fn work(effects: &mut Effects, job: &Job<Index>, rows: &Table, log: &JobLog<u64>) -> Result<(), BoxError> {
        effects.push(log, &job.index)?;
        let value = vec![b'x'; 100 + (job.index % 400) as usize];
        effects.put(rows, job.index.to_be_bytes(), value)?;
        effects.add(rows, "jobs", 1)?;
        effects.add(rows, "rows", 1)?;
        if let Some(before) = job.index.checked_sub(ROWS) {
            effects.delete(rows, before.to_be_bytes())?;
            effects.add(rows, "rows", -1)?;
        }
        Ok(())
    }

    /// The application. In every second life its files are small and come and go all the time.
    #[test]
    #[ignore = "a child of the test below"]
    fn application_child() {
        let Some(dir) = std::env::var_os(DIR) else { return };
        let life: u64 = std::env::var(LIFE).unwrap().parse().unwrap();
        let dir = Path::new(&dir);
        let store = if life.is_multiple_of(2) { open_in(dir).unwrap() } else { Application::open(dir).store };
        let rows = store.table("rows").unwrap();
        let log = store.log::<u64>("log").unwrap();
        let pushed = log.clone();
        let consumer = Consumer::builder(Endless, store.progress("p"))
            .max_processing(4)
            .max_search_ahead(ROWS / 2)
            .start_transactional(move |job, effects| work(effects, &job, &rows, &pushed))
            .unwrap();
        log.retain([consumer.handle()]);
        println!("started");
        let enough = consumer.handle().status().next + 2_000;
        assert!(consumer.handle().wait_for(enough, LONG));
        println!("enough is done");
        consumer.join().unwrap();
    }

    fn application(dir: &Path, life: u64) -> (Child, Lines<BufReader<ChildStdout>>) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "look::beside_another_process::application_child", "--nocapture", "--include-ignored"])
            .env(DIR, dir)
            .env(LIFE, life.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("started")), "it ended before it started");
        (child, lines)
    }

    /// Checks that the application really had this state, and returns the number of done jobs.
    /// Where a look moves at once, each read is of its own moment.
    fn check(store: &Store) -> u64 {
        let below = store.progress("p").last_processed().unwrap().map_or(0, |last| last + 1);
        let Ok(rows) = store.table("rows") else { return 0 };
        let all: Vec<_> = rows.iter().map(Result::unwrap).collect();
        let (all, sums) = all.split_at(all.iter().filter(|(key, _)| key.len() == 8).count());
        let sums: Vec<_> = sums.iter().map(|(key, sum)| (&key[..], number(sum))).collect();
        let [(b"jobs", jobs), (b"rows", count)] = sums[..] else { panic!("{sums:?}") };
        assert_eq!(all.len() as u64, count, "a part of a write is shown, of {jobs} jobs");
        assert!(below <= jobs, "{below} is below the watermark, and {jobs} jobs are done");
        let log = store.log::<u64>("log").unwrap();
        let head = log.head().unwrap();
        if moves_at_once() {
            assert!(head >= Some(jobs).filter(|jobs| *jobs > 0), "an item for each job");
            return jobs;
        }
        assert!(all.iter().all(|(key, value)| rows.get(key).unwrap().as_ref() == Some(value)));
        assert_eq!(head, Some(jobs).filter(|jobs| *jobs > 0), "an item for each job");
        let (first, mut items) = (log.first().unwrap().max(jobs.saturating_sub(500)).max(1), Vec::new());
        log.read(first..=jobs, &mut items).unwrap();
        assert_eq!(items.len() as u64, jobs + 1 - first, "the items have no gap");
        let lowest = all.iter().map(|(key, _)| number(key)).filter(|index| *index < below).count() as u64;
        assert!(lowest >= below.min(ROWS / 2), "a job below the watermark is skipped");
        jobs
    }

    fn number(bytes: &[u8]) -> u64 {
        u64::from_be_bytes(bytes.try_into().unwrap())
    }

    /// How long a look retries before it gives up.
    const LOOK: Duration = Duration::from_secs(10);

    /// Repeats a look until it succeeds. The small files come and go so fast that on a busy machine
    /// a look may find no moment between two changes for ten seconds, which is an error of its own.
    fn patient<R>(look: impl Fn() -> Result<R, Error>) -> R {
        loop {
            match look() {
                Ok(seen) => return seen,
                Err(error) => {
                    let report = error.report();
                    assert!(report.contains("the application replaced its files in each try"), "{report}");
                }
            }
        }
    }

    /// Ends the looks, even when a check fails.
    struct Over<'a>(&'a AtomicBool);

    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }

    #[test]
    fn a_look_beside_kills_shows_only_real_states() {
        let Some(directory) = a_directory() else { return };
        let (dir, lives) = (directory.path(), size(2, 8));
        let mut child;
        let mut lines;
        (child, lines) = application(dir, 0);
        let (over, looks, done) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            // One look is refreshed all the time, the other is opened all the time.
            let looker = scope.spawn(|| {
                let store = look(dir);
                while !over.load(Ordering::Acquire) {
                    patient(|| store.refresh());
                    let jobs = check(&store);
                    let before = done.fetch_max(jobs, Ordering::AcqRel);
                    assert!(jobs >= before, "it went back from {before} to {jobs}");
                    looks.fetch_add(1, Ordering::AcqRel);
                }
                store.refresh().unwrap();
                check(&store)
            });
            let opener = scope.spawn(|| {
                let mut before = 0;
                while !over.load(Ordering::Acquire) {
                    let jobs = check(&patient(|| on_engine().read_only().open(dir)));
                    assert!(jobs >= before, "it went back from {before} to {jobs}");
                    before = jobs;
                }
            });
            let end = Over(&over);
            for life in 1..=lives {
                if life % 3 > 0 {
                    assert!(lines.any(|line| line.unwrap().contains("enough is done")));
                }
                let (before, since) = (looks.load(Ordering::Acquire), std::time::Instant::now());
                let wait = || looks.load(Ordering::Acquire) < before + 2 && since.elapsed() < 2 * LOOK;
                while wait() && !looker.is_finished() && !opener.is_finished() {
                    std::thread::park_timeout(Duration::from_micros(fastrand::u64(..5_000)));
                }
                child.kill().unwrap();
                child.wait().unwrap();
                (child, lines) = application(dir, life);
                assert!(!looker.is_finished() && !opener.is_finished(), "a look has failed");
            }
            child.kill().unwrap();
            child.wait().unwrap();
            drop(end);
            let jobs = looker.join().unwrap();
            opener.join().unwrap();
            assert_eq!(jobs, check(&look(dir)), "the last refresh shows all that is there");
            assert!(jobs > 1_000 * lives);
            let application = open_in(dir).unwrap();
            assert_eq!(check(&application), jobs, "and all of it was written");
        });
    }
}
