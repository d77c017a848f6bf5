//! Real kills and a disk that is really full: after each life nothing up to the watermark is
//! missing.
//!
//! Each test runs this program again as its child, with a directory to work in.

use common::*;
use parking_lot::Mutex;
#[cfg(feature = "rocksdb")]
use rocksdb::{ColumnFamilyDescriptor, DB, Options};
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use waterline::{
    Blocked, Consumer, Done, Durability, Effects, Engine, Error, Index, Job, Jobs, Progress, Retry, Status, Store,
    Table,
};

const DIR: &str = "WATERLINE_CRASH_DIR";
/// The variable with the number of lives before the child's.
const LIFE: &str = "WATERLINE_CRASH_LIFE";

struct Endless;

impl Jobs for Endless {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, waterline::BoxError> {
        Ok(Some(Index::MAX - 1))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, waterline::BoxError> {
        Ok(Some(index))
    }
}

/// The number of jobs that every second life saves, so that lives prove something at any speed.
const ENOUGH: u64 = 100;
/// The same for jobs saved as done ahead.
const ENOUGH_AHEAD: u64 = 300;

/// Tells the test when enough jobs are saved, and waits to be killed.
fn until_killed(consumer: Consumer, enough: impl Fn(&Status) -> bool) {
    let handle = consumer.handle();
    while !enough(&handle.status()) {
        std::thread::park_timeout(Duration::from_micros(200));
    }
    println!("enough is saved");
    consumer.join().unwrap();
}

/// Returns the number of lives of a test: more on SQLite, which opens faster.
fn lives(small: u32, whole: u32) -> u32 {
    size(if engine() == Some(Engine::Sqlite) { 3 * small } else { small }, whole)
}

/// Runs the child of `promise_01_…`: jobs that each write a row, finish out of order and sometimes
/// fail first, until it is killed.
fn endless_life(dir: &Path, durability: Durability) {
    let store = on_engine().durability(durability).open(dir).unwrap();
    let table = store.table("rows").unwrap();
    // Read before the start: the watermark may move at once.
    let first = store.progress("p").last_processed().unwrap();
    let consumer = Consumer::builder(Endless, store.progress("p"))
        .max_processing(4)
        .max_search_ahead(500)
        .retry(Retry::fixed(Duration::from_millis(1)))
        .start(move |job| {
            if job.index % 97 == 0 && job.attempt == 1 {
                return Err("the first attempt fails".into());
            }
            (0..fastrand::u8(..8)).for_each(|_| std::thread::yield_now());
            Ok(table.put(job.index.to_be_bytes(), job.attempt.to_string())?)
        })
        .unwrap();
    println!("started at {first:?}");
    until_killed(consumer, |status| status.done.saturating_sub(status.unsaved) >= ENOUGH);
}

/// Runs this program again as the child with this role.
fn child(role: &str, dir: &Path, life: u32, shell: &str) -> Child {
    let program = std::env::current_exe().unwrap();
    Command::new("sh")
        .args(["-c", &format!("{shell} exec \"$0\" --exact \"$1\" --nocapture --include-ignored")])
        .arg(program)
        .arg(role)
        .env(DIR, dir)
        .env(LIFE, life.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn dir_of_child() -> Option<std::path::PathBuf> {
    std::env::var_os(DIR).map(Into::into)
}

#[test]
#[ignore = "a child of the tests below"]
fn buffered_child() {
    let Some(dir) = dir_of_child() else { return };
    endless_life(&dir, Durability::Buffered);
}

#[test]
#[ignore = "a child of the tests below"]
fn synced_child() {
    let Some(dir) = dir_of_child() else { return };
    endless_life(&dir, Durability::Synced);
}

/// Runs the child, kills it at a random moment, and checks where it began.
fn live_and_die(role: &str, dir: &Path, life: u32, before: Option<Index>) {
    let mut child = child(role, dir, life, "");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let started = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("started at"))).unwrap().unwrap();
    assert!(started.contains(&format!("{before:?}")), "{started}, and the last life had saved {before:?}");
    die(child, lines, life, "enough is saved", 60);
}

/// Kills the child: in every second life soon after it has printed `reached`, and in the others at
/// a random moment.
fn die(mut child: Child, mut lines: Lines<BufReader<ChildStdout>>, life: u32, reached: &str, most_ms: u64) {
    if life % 2 == 1 {
        assert!(lines.any(|line| line.is_ok_and(|line| line.contains(reached))), "it ended before {reached:?}");
    }
    let most = if life % 2 == 1 { 2 } else { most_ms };
    std::thread::park_timeout(Duration::from_micros(fastrand::u64(..1000 * most)));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Runs and kills the child many times. Returns its last watermark.
fn kill_again_and_again(role: &str, lives: u32) -> Option<Index> {
    let dir = a_directory()?;
    let mut before = None;
    for life in 0..lives {
        live_and_die(role, dir.path(), life, before);
        let store = open_in(dir.path()).unwrap();
        let saved = store.progress("p").acquire().unwrap().map(|checkpoint| checkpoint.last_processed);
        assert!(saved >= before, "promise 7: progress went back from {before:?} to {saved:?} in life {life}");
        let table = store.table("rows").unwrap();
        let mut rows = table.iter();
        for index in 0..saved.map_or(0, |last| last + 1) {
            let (key, _) = rows.next().expect("a row for each index").unwrap();
            assert_eq!(key, index.to_be_bytes(), "promise 1: skipped in life {life}");
        }
        before = saved;
    }
    Some(before.expect("some jobs were processed"))
}

#[test]
fn promise_01_kills_skip_no_job() {
    let Some(reached) = kill_again_and_again("crash::buffered_child", lives(8, 50)) else { return };
    assert!(reached > size(100, 1_000), "the lives were too short to prove anything: {reached}");
}

#[test]
fn promise_01_kills_skip_no_job_with_synced_writes() {
    kill_again_and_again("crash::synced_child", lives(3, 10));
}

/// Returns the engine's words for a full disk.
fn full() -> &'static str {
    if engine() == Some(Engine::Sqlite) { "look if it is full" } else { "File too large" }
}

#[test]
#[ignore = "a child of the test below"]
fn full_disk_child() {
    let Some(dir) = dir_of_child() else { return };
    let store = open_in(dir).unwrap();
    let table = store.table("rows").unwrap();
    let consumer = Consumer::builder(Endless, store.progress("p"))
        .max_processing(2)
        .max_search_ahead(100)
        .retry(Retry::fixed(Duration::from_millis(20)))
        .start(move |job| Ok(table.put(job.index.to_be_bytes(), [7; 1000])?))
        .unwrap();
    let handle = consumer.handle();
    // The status names which cannot be written, the rows or the progress.
    let status = until(&handle, "the full disk", |s| {
        let (Blocked::Progress { error } | Blocked::Retrying { error, .. }) = &s.blocked else { return false };
        // On a busy machine it may name a slow write first.
        error.contains(full()) && s.failed > 0
    });
    println!("blocked: {}", status.blocked);
    let saved = handle.last_processed_index();
    match consumer.stop() {
        Ok(()) | Err(Error::Progress { .. }) => println!("stopped at {saved:?}"),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn a_full_disk_is_named_and_loses_no_job() {
    let Some(dir) = a_directory() else { return };
    // Limits files to half a megabyte, and ignores the signal that would kill the process, so that
    // writes fail.
    let child = child("crash::full_disk_child", dir.path(), 0, "trap '' XFSZ; ulimit -f 1024;");
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(full()) && text.contains("stopped at"), "{text}");

    let store = open_in(dir.path()).unwrap();
    let table = store.table("rows").unwrap();
    let saved = store.progress("p").acquire().unwrap().map_or(0, |checkpoint| checkpoint.last_processed + 1);
    assert!((0..saved).all(|index| table.get(index.to_be_bytes()).unwrap().is_some()), "nothing is skipped");
    // It goes on once there is free space.
    let rows = table.clone();
    Consumer::builder(Endless, store.progress("p"))
        .stop_at(saved + 1_000)
        .start(move |job| Ok(rows.put(job.index.to_be_bytes(), [7; 1000])?))
        .unwrap()
        .join()
        .unwrap();
    assert!((0..saved + 1_000).all(|index| table.get(index.to_be_bytes()).unwrap().is_some()));
}

/// The limit of `stuck_child` for jobs in flight, and how many finish before it waits for a save.
const IN_FLIGHT: usize = 64;
const BURST: usize = 200;
/// About how many jobs finish in a life at most, so that some are left for later lives.
const MOST: u64 = 2_000;
/// The room above the stuck job, for all lives.
const WINDOW: u64 = 100_000;

#[test]
#[ignore = "a child of the test below"]
fn stuck_child() {
    let Some(dir) = dir_of_child() else { return };
    let mut book = OpenOptions::new().create(true).append(true).open(dir.join("book")).unwrap();
    let started = Mutex::new(book.try_clone().unwrap());
    let store = open_in(dir.join("db")).unwrap();
    let tokens = Arc::<Mutex<Vec<(Index, Done)>>>::default();
    let hand = tokens.clone();
    let consumer = Consumer::builder(Endless, store.progress("p"))
        .max_processing(IN_FLIGHT)
        .max_search_ahead(WINDOW)
        .threads(1)
        .start_deferred(move |job, done| {
            started.lock().write_all(format!("started {}\n", job.index).as_bytes()).unwrap();
            hand.lock().push((job.index, done));
        })
        .unwrap();
    println!("started at {:?}", consumer.handle().last_processed_index());
    loop {
        for _ in 0..fastrand::usize(1..=BURST) {
            let mut waiting = tokens.lock();
            let at = fastrand::usize(..waiting.len().max(1));
            // The first job is stuck.
            if waiting.get(at).is_none_or(|(index, _)| *index == 0) {
                continue;
            }
            let (index, done) = waiting.swap_remove(at);
            drop(waiting);
            done.complete();
            book.write_all(format!("finished {index}\n").as_bytes()).unwrap();
        }
        let status = until(&consumer.handle(), "a save", |status| status.unsaved == 0);
        book.write_all(b"settled\n").unwrap();
        if status.done >= ENOUGH {
            println!("enough is settled");
        }
        if status.done >= MOST {
            return consumer.join().unwrap();
        }
    }
}

/// What the children wrote down.
#[derive(Default)]
struct Book {
    lines: usize,
    started: BTreeSet<Index>,
    finished: BTreeSet<Index>,
    /// The finished jobs whose save the child has seen.
    settled: BTreeSet<Index>,
}

impl Book {
    /// Reads the next life, and returns how many of its jobs an earlier life had started, too.
    fn read_life(&mut self, dir: &Path) -> usize {
        let text = std::fs::read_to_string(dir.join("book")).unwrap();
        // The last line may be incomplete.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let (mut started, mut finished) = (BTreeSet::new(), BTreeSet::new());
        let mut settled = BTreeSet::new();
        for line in whole.lines().skip(self.lines) {
            match line.split_once(' ') {
                Some(("started", index)) => assert!(started.insert(index.parse().unwrap()), "{line} twice"),
                Some((_, index)) => assert!(finished.insert(index.parse().unwrap()), "{line} twice"),
                None => settled.clone_from(&finished),
            }
        }
        self.lines = whole.lines().count();
        let again: Vec<_> = started.intersection(&self.settled).collect();
        assert!(again.is_empty(), "promise 10: {again:?} were saved as done and ran again");
        let repeated = started.intersection(&self.started).count();
        self.started.append(&mut started);
        self.finished.append(&mut finished);
        self.settled.append(&mut settled);
        repeated
    }
}

#[test]
fn promise_10_a_kill_repeats_only_unsaved_jobs() {
    let lives = lives(8, 40);
    assert!(u64::from(lives) * (MOST + BURST as u64) < WINDOW);
    let Some(dir) = a_directory() else { return };
    let (mut book, mut total) = (Book::default(), 0);
    for life in 0..lives {
        let mut child = child("crash::stuck_child", dir.path(), 0, "");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line.contains("started at None"))), "0 is stuck");
        die(child, lines, life, "enough is settled", 80);
        let repeated = book.read_life(dir.path());
        // One job may have finished before the child wrote that down.
        assert!(repeated <= IN_FLIGHT + BURST + 1, "{repeated} jobs ran again in life {life}");
        total += repeated;
    }
    let (done, last) = (book.settled.len(), *book.started.last().unwrap());
    assert!(
        done > size(100, 1_000) && total > 0,
        "the lives were too short to prove anything: {done} settled, {total} again"
    );
    println!("{lives} lives: {done} jobs settled above a stuck one, {total} starts were repeated");

    let store = open_in(dir.path().join("db")).unwrap();
    let ran = Arc::<Mutex<BTreeSet<Index>>>::default();
    let record = ran.clone();
    let consumer =
        Consumer::builder(Endless, store.progress("p")).max_search_ahead(200_000).stop_at(last).start(move |job| {
            record.lock().insert(job.index);
            Ok(())
        });
    consumer.and_then(Consumer::join).unwrap();
    let ran = ran.lock();
    assert!(ran.is_disjoint(&book.settled), "promise 10, in the last life");
    assert!(ran.len() <= IN_FLIGHT + BURST + 1, "{} of {last} were left", ran.len());
    let unsure = (0..=last).filter(|index| !ran.contains(index) && !book.finished.contains(index)).count();
    assert!(unsure as u64 <= u64::from(lives), "promise 1: {unsure} jobs never finished, by what the children wrote");
    assert!(store.progress("p").last_processed().unwrap() >= Some(last));
}

/// A store with a counter for each index, and their sums.
struct Counted {
    store: Store,
    each: Table,
    sums: Table,
}

impl Counted {
    fn open(dir: &Path, durability: Durability) -> Self {
        let store = on_engine().durability(durability).open(dir).unwrap();
        Self { each: store.table("each").unwrap(), sums: store.table("sums").unwrap(), store }
    }

    /// The same in a database of the user: with counters in a column family, or beside own tables.
    fn attach(dir: &Path) -> Self {
        #[cfg(feature = "sqlite")]
        if engine() == Some(Engine::Sqlite) {
            let file = dir.join("theirs.db");
            let mine = rusqlite::Connection::open(&file).unwrap();
            mine.busy_timeout(LONG).unwrap();
            mine.execute_batch("CREATE TABLE IF NOT EXISTS lives (life); INSERT INTO lives VALUES (1)").unwrap();
            let store = Store::attach_sqlite(&file).unwrap();
            return Self { each: store.table("each").unwrap(), sums: store.table("sums").unwrap(), store };
        }
        #[cfg(feature = "rocksdb")]
        return Self::in_family(dir);
        #[cfg(not(feature = "rocksdb"))]
        unreachable!("the tests run in {}", dir.display());
    }

    #[cfg(feature = "rocksdb")]
    fn in_family(dir: &Path) -> Self {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        let mut families = Store::column_families();
        families.push(ColumnFamilyDescriptor::new("each", Options::default()));
        let store = Store::attach(Arc::new(DB::open_cf_descriptors(&options, dir, families).unwrap())).unwrap();
        Self { each: store.column_family("each").unwrap(), sums: store.table("sums").unwrap(), store }
    }

    /// Counts a job, which must count once however often it runs.
    fn count(&self, job: &Job<Index>, effects: &mut Effects) -> Result<(), Error> {
        effects.add(&self.each, job.index.to_be_bytes(), 1)?;
        effects.add(&self.sums, "jobs", 1)?;
        effects.add(&self.sums, "indices", job.index as i64)
    }

    /// Runs the child of `promise_09_…`: it counts until it is killed. Jobs finish out of order,
    /// some fail or panic after they counted, and in every third life one is stuck until the end.
    fn endless_life(self) {
        // Planned panics need no backtrace.
        std::panic::set_hook(Box::new(|_| {}));
        let life: u64 = std::env::var(LIFE).unwrap().parse().unwrap();
        let (progress, first) = (self.store.progress("p"), self.store.progress("p").last_processed().unwrap());
        // A job that no earlier life has done.
        let undone = |index: &Index| self.each.get(index.to_be_bytes()).unwrap().is_none();
        let stuck = (first.map_or(0, |last| last + 1) + 13 * life..).find(undone).unwrap();
        let consumer = Consumer::builder(Endless, progress)
            .max_processing(4)
            .max_search_ahead(3_000)
            .retry(Retry::fixed(Duration::from_millis(1)))
            .start_transactional(move |job, effects| {
                if life % 3 == 2 && job.index == stuck {
                    loop {
                        std::thread::park();
                    }
                }
                (0..fastrand::u8(..8)).for_each(|_| std::thread::yield_now());
                self.count(&job, effects)?;
                match (job.index % 97, job.attempt) {
                    (0, 1) => Err("the first attempt fails".into()),
                    (1, 1) => panic!("the first attempt panics"),
                    _ => Ok(()),
                }
            })
            .unwrap();
        println!("started at {first:?}");
        until_killed(consumer, |status| {
            if life % 3 == 2 {
                status.done_ahead.saturating_sub(status.unsaved) >= ENOUGH_AHEAD
            } else {
                status.done.saturating_sub(status.unsaved) >= ENOUGH
            }
        });
    }

    /// Checks that no job is counted twice or in part, and that none up to the watermark is
    /// missing. Returns the watermark and the number of done jobs.
    #[track_caller]
    fn check(&self, life: u32) -> (Option<Index>, u64) {
        let saved = self.store.progress("p").last_processed().unwrap();
        let (mut jobs, mut indices, mut below) = (0, 0, 0);
        for row in &self.each {
            let (key, count) = row.unwrap();
            let index = Index::from_be_bytes(key.try_into().unwrap());
            assert_eq!(count, 1i64.to_be_bytes(), "promise 9: job {index} counts otherwise in life {life}");
            (jobs, indices) = (jobs + 1, indices + index as i64);
            below += u64::from(Some(index) <= saved);
        }
        assert_eq!(below, saved.map_or(0, |last| last + 1), "promise 1: skipped in life {life}, saved {saved:?}");
        let sums = ["jobs", "indices"].map(|key| self.sums.counter(key).unwrap());
        assert_eq!(sums, [jobs as i64, indices], "promise 9: half a job in life {life}");
        (saved, jobs)
    }

    /// Runs the rest, and checks that exactly the undone jobs run, and each is done once.
    fn finish(self, (saved, done): (Option<Index>, u64)) {
        let last = saved.map_or(0, |last| last + 1) + 5_000;
        let Self { store, each, sums } = &self;
        let counted = Self { store: store.clone(), each: each.clone(), sums: sums.clone() };
        let runs = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let counter = runs.clone();
        Consumer::builder(Endless, store.progress("p"))
            .stop_at(last)
            .start_transactional(move |job, effects| {
                counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Ok(counted.count(&job, effects)?)
            })
            .unwrap()
            .join()
            .unwrap();
        let ran = runs.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(done + ran, last + 1, "what was done ahead is not done again");
        assert_eq!(self.check(u32::MAX), (Some(last), last + 1));
    }
}

#[test]
#[ignore = "a child of the tests below"]
fn counting_child() {
    let Some(dir) = dir_of_child() else { return };
    Counted::open(&dir, Durability::Buffered).endless_life();
}

#[test]
#[ignore = "a child of the tests below"]
fn synced_counting_child() {
    let Some(dir) = dir_of_child() else { return };
    Counted::open(&dir, Durability::Synced).endless_life();
}

#[test]
#[ignore = "a child of the tests below"]
fn attached_counting_child() {
    let Some(dir) = dir_of_child() else { return };
    Counted::attach(&dir).endless_life();
}

/// Runs and kills the child many times. Returns the number of done jobs, and of those that were
/// done ahead at a kill.
fn count_again_and_again(role: &str, lives: u32, open: impl Fn(&Path) -> Counted) -> Option<(u64, u64)> {
    let dir = a_directory()?;
    let (mut before, mut ahead) = ((None, 0), 0);
    for life in 0..lives {
        live_and_die(role, dir.path(), life, before.0);
        let now = open(dir.path()).check(life);
        assert!(now >= before && now.1 >= before.1, "promise 7: from {before:?} back to {now:?} in life {life}");
        before = now;
        ahead += now.1 - now.0.map_or(0, |last| last + 1);
    }
    open(dir.path()).finish(before);
    Some((before.1, ahead))
}

#[test]
fn promise_09_kills_apply_effects_once() {
    let open = |dir: &Path| Counted::open(dir, Durability::Buffered);
    let Some((done, ahead)) = count_again_and_again("crash::counting_child", lives(8, 36), open) else { return };
    assert!(
        done > size(100, 1_000) && ahead > size(100, 1_000),
        "the lives prove nothing: {done} jobs, {ahead} of them done ahead"
    );
}

#[test]
fn promise_09_kills_apply_effects_once_with_synced_writes() {
    count_again_and_again("crash::synced_counting_child", lives(3, 6), |dir| Counted::open(dir, Durability::Synced));
}

#[test]
fn promise_09_kills_apply_effects_once_in_a_users_database() {
    count_again_and_again("crash::attached_counting_child", lives(3, 9), Counted::attach);
}

/// Returns the consumer whose jobs count one after the other, and push to a log.
fn counting(store: &Store) -> waterline::Builder<Endless, waterline::StoreProgress> {
    Consumer::builder(Endless, store.progress("p")).max_processing(1)
}

#[test]
#[ignore = "a child of the test below"]
fn beginning_anew_child() {
    let Some(dir) = dir_of_child() else { return };
    let store = open_in(dir).unwrap();
    let (sums, log) = (store.table("sums").unwrap(), store.log::<Index>("out").unwrap());
    println!("started at {:?}", store.progress("p").last_processed().unwrap());
    for round in 0.. {
        let next = store.progress("p").last_processed().unwrap().map_or(0, |last| last + 1);
        let (into, out) = (sums.clone(), log.clone());
        let count = move |job: Job<Index>, effects: &mut Effects| {
            effects.add(&into, "jobs", 1)?;
            Ok(effects.push(&out, &job.index)?)
        };
        // A short round, then one of some milliseconds with saves: the kill hits near an end of a
        // round and far from one.
        let most = next + fastrand::u64(1..[40, 4_000][round % 2]);
        counting(&store).stop_at(most).start_transactional(count).unwrap().join().unwrap();
        let anew = store.progress("p").remove_with(|effects| {
            effects.clear(&sums)?;
            effects.clear_log(&log)
        });
        anew.unwrap();
        if round == 10 {
            println!("began anew often");
        }
    }
}

#[test]
fn promise_09_kills_leave_remove_with_whole_or_undone() {
    let lives = lives(8, 30);
    let Some(dir) = a_directory() else { return };
    let (mut between, mut items) = (0, 0);
    for life in 0.. {
        // A kill between two rounds proves less, so lives go on until some hit one.
        if life >= lives && between > 0 && items > 300 {
            break;
        }
        assert!(life < 100, "the lives prove nothing: {between} ended within a round, {items} items");
        let mut child = child("crash::beginning_anew_child", dir.path(), life, "");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line.contains("started at"))));
        die(child, lines, life, "began anew often", 20);
        let store = open_in(dir.path()).unwrap();
        let (sums, log) = (store.table("sums").unwrap(), store.log::<Index>("out").unwrap());
        let processed = store.progress("p").last_processed().unwrap().map_or(0, |last| last + 1);
        let (jobs, (first, head)) = (sums.counter("jobs").unwrap() as u64, (log.first().unwrap(), log.head().unwrap()));
        assert_eq!((jobs, log.backlog()), (processed, processed), "promise 9: in life {life}");
        for index in first..head.map_or(first, |head| head + 1) {
            assert_eq!(log.at_index(index).unwrap(), Some(index - first), "promise 9: in life {life}");
        }
        assert!(head >= Some(items).filter(|items| *items > 0), "the log goes on counting");
        items = head.unwrap_or(0);
        between += u32::from(processed > 0);
    }
}
