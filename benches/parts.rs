//! Benchmarks of single parts, for work on one of them: run `cargo bench --bench parts` before and
//! after the change.
//!
//! Criterion keeps the times of the last run and shows the difference. The table of ratios (`make
//! bench`) is the one that is comparable across machines.

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use waterline::window::{Action, Limits, Window};
use waterline::{Checkpoint, Index, Jobs, MemoryJobs, Progress, Store};

const STEPS: u64 = 10_000;

/// Returns a window whose first job is stuck, and which has this many jobs done above it.
fn wide(done: u64) -> Window {
    let mut window = Window::begin(0, Limits { max_processing: 2, max_search_ahead: u64::MAX });
    window.handle_head(Some(Index::MAX - 1));
    step(&mut window);
    (0..done).for_each(|_| finish(&mut window));
    window
}

/// Does everything that the window asks for.
fn step(window: &mut Window) {
    while let Some(action) = window.poll() {
        if let Action::Fetch(run) = action {
            window.handle_fetched(run.end() - run.start() + 1);
        }
    }
}

fn finish(window: &mut Window) {
    while let Some(run) = window.poll_run() {
        if run.index > 0 {
            black_box(window.handle_done(run.index));
            break;
        }
    }
    step(window);
}

fn window(c: &mut Criterion) {
    let mut group = c.benchmark_group("window: start and finish a job above a stuck one");
    group.throughput(Throughput::Elements(STEPS));
    for width in [1_000, 100_000, 10_000_000] {
        group.bench_with_input(BenchmarkId::from_parameter(width), &width, |b, &width| {
            let run = |mut window: Window| {
                (0..STEPS).for_each(|_| finish(&mut window));
                window
            };
            b.iter_batched(|| wide(width), run, BatchSize::PerIteration);
        });
    }
}

fn source(c: &mut Criterion) {
    let jobs: MemoryJobs<Index> = (0..STEPS).collect();
    let mut group = c.benchmark_group("MemoryJobs: read");
    for run in [1, 64, 1024] {
        group.throughput(Throughput::Elements(run));
        group.bench_with_input(BenchmarkId::from_parameter(run), &run, |b, &run| {
            let mut into = Vec::new();
            b.iter(|| {
                into.clear();
                jobs.read(0..=run - 1, &mut into).expect("memory does not fail");
                black_box(into.len())
            });
        });
    }
}

#[cfg(feature = "rocksdb")]
fn on_disk(directory: &std::path::Path) -> Option<(&'static str, Store)> {
    Some(("on RocksDB", Store::open(directory).expect("the database opens")))
}

#[cfg(not(feature = "rocksdb"))]
fn on_disk(_directory: &std::path::Path) -> Option<(&'static str, Store)> {
    None
}

fn store(c: &mut Criterion) {
    let mut group = c.benchmark_group("store");
    let directory = tempfile::tempdir().expect("a directory for the database");
    let memory = std::iter::once(("in memory", Store::in_memory()));
    for (name, store) in memory.chain(on_disk(directory.path())) {
        let table = store.table("rows").expect("a good name");
        let mut progress = store.progress("bench");
        progress.acquire().expect("nobody else has it");
        let mut last = 0;
        group.bench_function(BenchmarkId::new("save", name), |b| {
            b.iter(|| {
                last += 1;
                progress.save(&Checkpoint::new(last)).expect("the store works");
            });
        });
        group.bench_function(BenchmarkId::new("put", name), |b| {
            b.iter(|| {
                last += 1;
                table.put(last.to_be_bytes(), [0; 100]).expect("the store works");
            });
        });
    }
}

criterion_group!(parts, window, source, store);
criterion_main!(parts);
