//! Two stages with a log between them, killed about every second: every chunk of every block is
//! counted exactly once.

use common::*;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use waterline::{BoxError, Consumer, Error, Index, JobLog, Jobs, Retry, Store, Table};

const DIR: &str = "WATERLINE_STAGES_DIR";
const CHUNKS: u64 = 10;
/// The longest life; the average is a second.
const LONGEST_LIFE_MS: u64 = 2_000;
/// How far the first stage may be ahead, in blocks, so that the rest takes seconds at the end.
const BACKLOG: u64 = 300_000;
const MEMORY_MB: u64 = 400;

struct Blocks;

impl Jobs for Blocks {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(Index::MAX - 1))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(Some(index))
    }
}

struct Stages {
    store: Store,
    chunks: JobLog<(Index, u64)>,
    counts: Table,
    total: Table,
}

impl Stages {
    fn open(dir: &Path) -> Self {
        let store = open_in(dir).unwrap();
        let (counts, total) = (store.table("counts").unwrap(), store.table("total").unwrap());
        Self { chunks: store.log("chunks").unwrap(), counts, total, store }
    }

    /// Starts the stages, the second one first, so that it is there when the first pushes.
    fn start(&self, last_block: Index, slow: bool) -> Result<(Consumer, Consumer), Error> {
        let (counts, total) = (self.counts.clone(), self.total.clone());
        let second = Consumer::builder(self.chunks.clone(), self.store.progress("chunks"))
            .max_processing(4)
            .retry(Retry::fixed(Duration::from_millis(1)))
            .start_transactional(move |job, effects| {
                let (block, chunk) = job.payload;
                effects.add(&counts, [block.to_be_bytes(), chunk.to_be_bytes()].concat(), 1)?;
                effects.add(&total, "chunks", 1)?;
                if slow {
                    std::thread::park_timeout(Duration::from_micros(200));
                }
                if job.index % 101 == 0 && job.attempt == 1 { Err("the first attempt fails".into()) } else { Ok(()) }
            })?;
        self.chunks.retain([second.handle()]);
        let chunks = self.chunks.clone();
        let first = Consumer::builder(self.chunks.hold_back(Blocks, BACKLOG), self.store.progress("blocks"))
            .max_processing(4)
            .max_search_ahead(1_000)
            .retry(Retry::fixed(Duration::from_millis(1)))
            .stop_at(last_block)
            .start_transactional(move |job, effects| {
                (0..CHUNKS).try_for_each(|chunk| effects.push(&chunks, &(job.index, chunk)))?;
                if job.index % 97 == 0 && job.attempt == 1 { Err("the first attempt fails".into()) } else { Ok(()) }
            })?;
        Ok((first, second))
    }

    /// Returns the number of counted chunks, cheaply.
    fn total(&self) -> u64 {
        self.total.counter("chunks").unwrap().try_into().unwrap()
    }

    /// Checks that no chunk is counted twice, and returns their number.
    fn check(&self) -> u64 {
        let mut chunks = 0;
        for row in &self.counts {
            let (key, count) = row.unwrap();
            assert_eq!(count, 1i64.to_be_bytes(), "promise 9: chunk {key:?}");
            chunks += 1;
        }
        assert_eq!(chunks, self.total(), "promise 9: what one job adds to two counters is there together");
        chunks
    }
}

#[test]
#[ignore = "a child of the test below"]
fn stages_child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let stages = Stages::open(dir.as_ref());
    let (first, second) = stages.start(Index::MAX - 1, fastrand::bool()).unwrap();
    println!("started");
    first.join().unwrap();
    drop(second);
}

fn child(dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "stages::stages_child", "--nocapture", "--include-ignored"])
        .env(DIR, dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn most_memory_mb(child: &Child) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? / 1024)
}

#[test]
fn promise_09_kills_of_two_stages_count_each_chunk_once() {
    let Some(dir) = a_directory() else { return };
    let (mut before, lives) = (0, size(4, 60));
    for life in 0..lives {
        let mut child = child(dir.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line.contains("started"))));
        let ms = fastrand::u64(..LONGEST_LIFE_MS);
        std::thread::park_timeout(Duration::from_millis(ms));
        let memory = most_memory_mb(&child);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(memory.is_none_or(|mb| mb < MEMORY_MB), "{memory:?} MB in life {life}");
        let stages = Stages::open(dir.path());
        // A chunk that is counted twice stays so; checking all rows now and then only narrows down
        // the life.
        let now = if life % 10 == 5 { stages.check() } else { stages.total() };
        assert!(now >= before, "promise 7");
        println!("life {life} of {ms} ms: {now} chunks, at most {memory:?} MB");
        before = now;
    }
    assert!(before > 1_000, "the lives were too short to prove anything: {before} chunks");
    let stages = Stages::open(dir.path());
    let blocks = stages.store.progress("blocks").last_processed().unwrap().map_or(0, |last| last + 1) + 2_000;
    let (first, second) = stages.start(blocks - 1, false).unwrap();
    first.join().unwrap();
    let head = stages.chunks.head().unwrap().unwrap();
    assert_eq!(head, blocks * CHUNKS, "each block pushed its chunks once");
    assert!(second.handle().wait_for(head, 10 * LONG), "{:?}", second.handle().status());
    second.stop().unwrap();
    assert_eq!(stages.check(), blocks * CHUNKS);
    eventually("the trim", || stages.chunks.first().unwrap() == head + 1);
    println!("{lives} lives, {before} chunks; {} in the end", blocks * CHUNKS);
}
