//! A real web log from end to end: it grows in torn pieces while a process reads it, which is
//! killed again and again. The result is compared with a loop over the file.
//!
//! `access.log` is what nginx wrote while 107 addresses read the pages of `docs`.

use common::dying::{Lines, child, dir_of_child};
use common::{a_directory, open_in};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use waterline::{BoxError, Consumer, Index, Jobs, Sparse, Store};
use waterline_queue::{Counts, JobState, NewJob, Outcome, Queue, QueueOptions, Retention, Runner, Unique};

const LOG: &[u8] = include_bytes!("access.log");
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The lines of a growing file. The index of a line is the offset of its first byte, so a reader
/// finds it at once; the other offsets of a line are gaps. A line is there once its end is.
struct LinesOf(PathBuf);

impl LinesOf {
    fn from(&self, offset: u64) -> Result<BufReader<File>, BoxError> {
        let mut file = File::open(&self.0)?;
        file.seek(SeekFrom::Start(offset))?;
        Ok(BufReader::new(file))
    }
}

impl Jobs for LinesOf {
    type Job = String;

    /// Returns the last byte of the last whole line, which is a gap like any other within a line.
    fn head(&self) -> Result<Option<Index>, BoxError> {
        let mut end = std::fs::metadata(&self.0)?.len();
        while end > 0 {
            let (begin, mut bytes) = (end.saturating_sub(4096), Vec::new());
            self.from(begin)?.take(end - begin).read_to_end(&mut bytes)?;
            if let Some(at) = bytes.iter().rposition(|byte| *byte == b'\n') {
                return Ok(Some(begin + at as u64));
            }
            end = begin;
        }
        Ok(None)
    }

    fn at_index(&self, index: Index) -> Result<Option<String>, BoxError> {
        let mut line = Vec::new();
        self.from(index)?.read_until(b'\n', &mut line)?;
        Ok(line.strip_suffix(b"\n").map(|line| String::from_utf8_lossy(line).into_owned()))
    }

    fn read_sparse(&self, run: RangeInclusive<Index>, most: usize, into: &mut Sparse<String>) -> Result<(), BoxError> {
        // The byte before the run says whether a line begins there.
        let mut at = run.start().saturating_sub(1);
        let (mut file, mut jobs) = (self.from(at)?, 0);
        while jobs < most {
            let mut line = Vec::new();
            file.read_until(b'\n', &mut line)?;
            let Some(text) = line.strip_suffix(b"\n").filter(|_| at <= *run.end()) else { break };
            if at >= *run.start() {
                into.job(at, String::from_utf8_lossy(text).into_owned());
                jobs += 1;
            }
            at += line.len() as u64;
            into.none_through(at - 1);
        }
        Ok(())
    }
}

/// Returns what a line counts for: its status, its path, and the bytes of its visitor.
fn counts(line: &str) -> Option<([(String, i64); 3], String)> {
    let (address, rest) = line.split_once(' ')?;
    let mut quoted = rest.split('"');
    let (_, request, numbers) = (quoted.next()?, quoted.next()?, quoted.next()?);
    let path = request.split(' ').nth(1)?.split('?').next()?;
    let (status, bytes) = numbers.trim().split_once(' ')?;
    let keys = [format!("status {status}"), format!("path {path}"), format!("bytes {address}")];
    let [status, path, sent] = keys;
    Some(([(status, 1), (path, 1), (sent, bytes.parse().ok()?)], address.to_owned()))
}

#[test]
#[ignore = "a child of the test below"]
fn reading_child() {
    let Some(dir) = dir_of_child() else { return };
    let lines = Lines::of_child();
    let store = open_in(dir.join("store")).unwrap();
    let queue = Queue::open(&store, "visitors", QueueOptions::default().retention(Retention::Keep)).unwrap();
    let (counted, greeted) = (store.table("counted").unwrap(), store.table("greeted").unwrap());
    let runner =
        Runner::builder(&queue).max_processing(2).on_transactional("greet", move |_, visitor: String, effects| {
            effects.add(&greeted, visitor, 1)?;
            Ok(Outcome::Done)
        });
    let runner = runner.start().unwrap();
    lines.say("open");
    let (last, visitors, saved) = (last_line(), queue.clone(), Arc::clone(&lines));
    Consumer::builder(LinesOf(dir.join("access.log")), store.progress("lines"))
        .max_processing(64)
        .max_search_ahead(16 * 1024)
        .poll_every(Duration::from_millis(1))
        .stop_at(last)
        .on_processed(move |range| saved.say(&format!("saved through {}", range.end())))
        .start_batched_transactional(16, Duration::ZERO, move |jobs, effects| {
            let mut sums = BTreeMap::<_, i64>::new();
            for job in &jobs {
                let (counts, visitor) =
                    counts(&job.payload).ok_or_else(|| format!("no line of a log: {}", job.payload))?;
                counts.into_iter().for_each(|(key, by)| *sums.entry(key).or_default() += by);
                visitors.push_with(effects, NewJob::new("greet", &visitor)?.unique(Unique::within(YEAR)))?;
            }
            sums.into_iter().try_for_each(|(key, by)| effects.add(&counted, key, by))?;
            lines.say("a batch has run");
            Ok(())
        })
        .unwrap()
        .join()
        .unwrap();
    // A job that ran at two of the kills is scheduled for a while before it is ready.
    let is_left = |counts: Counts| counts.scheduled + counts.ready + counts.running > 0;
    let mut watch = queue.watch();
    while is_left(queue.counts()) {
        watch.wait(YEAR);
    }
    runner.stop().unwrap();
}

fn last_line() -> Index {
    let (_, rest) = LOG.split_last().unwrap();
    rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1) as Index
}

/// Appends a piece that ends at least one line, and tears the next.
fn append(file: &mut File, written: &mut usize, random: &mut fastrand::Rng) {
    let rest = &LOG[*written..];
    let line = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |end| end + 1);
    let piece = (line + random.usize(1..4_000)).min(rest.len());
    file.write_all(&rest[..piece]).unwrap();
    *written += piece;
}

#[test]
fn kills_of_a_reader_count_a_growing_web_log_once() {
    let Some(dir) = a_directory() else { return };
    let seed = common::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut file = OpenOptions::new().create(true).append(true).open(dir.path().join("access.log")).unwrap();
    let (mut written, mut kills) = (0, 0);
    append(&mut file, &mut written, &mut random);
    loop {
        let mut process = child("weblog::reading_child", dir.path(), random.u64(1..40));
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let was_reached = lines.by_ref().any(|line| {
            append(&mut file, &mut written, &mut random);
            line.contains("reached")
        });
        if !was_reached {
            assert!(process.wait().unwrap().success(), "seed {seed}");
            break;
        }
        process.kill().unwrap();
        process.wait().unwrap();
        kills += 1;
    }
    assert!(kills > 5 && written == LOG.len(), "{kills} kills, {written} bytes, seed {seed}");
    check(dir.path(), seed);
}

fn check(dir: &Path, seed: u64) {
    let (mut expected, mut visitors) = (BTreeMap::<String, i64>::new(), BTreeSet::new());
    for line in String::from_utf8_lossy(LOG).lines() {
        let (counts, visitor) = counts(line).unwrap();
        counts.into_iter().for_each(|(key, by)| *expected.entry(key).or_default() += by);
        visitors.insert(visitor);
    }
    assert!(visitors.len() == 107 && expected["status 404"] == 142, "{expected:?}");
    let store: Store = open_in(dir.join("store")).unwrap();
    let counted = store.table("counted").unwrap();
    let found = counted.iter().map(|row| row.unwrap()).map(|(key, _)| String::from_utf8(key.to_vec()).unwrap());
    let found: BTreeMap<_, _> = found.map(|key| (key.clone(), counted.counter(key).unwrap())).collect();
    assert_eq!(found, expected, "seed {seed}");
    let queue = Queue::open(&store, "visitors", QueueOptions::default().retention(Retention::Keep)).unwrap();
    let greeted = store.table("greeted").unwrap();
    let finished = queue.list(JobState::Finished, None, usize::MAX).unwrap();
    assert_eq!((finished.len(), queue.counts().finished), (visitors.len(), visitors.len() as u64), "seed {seed}");
    for visitor in &visitors {
        assert_eq!(greeted.counter(visitor).unwrap(), 1, "{visitor}, seed {seed}");
    }
}
