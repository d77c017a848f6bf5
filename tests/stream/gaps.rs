//! Sources whose indices have gaps: a gap never runs and blocks nothing.

use common::*;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use waterline::testing::FaultyStore;
use waterline::{
    Blocked, BoxError, Builder, ConfigError, Consumer, Error, Gate, Index, Item, Job, Jobs, MemoryProgress,
    OnExhausted, Progress, Retry, Sparse, State, Store, StripCell,
};

/// A table with ascending ids, some of which are missing. The job is the id.
#[derive(Clone, Default)]
struct Rows(Arc<Mutex<Table>>);

struct Table {
    rows: BTreeSet<Index>,
    head: Option<Index>,
    gate: Index,
    reads: u64,
    /// Whether an answer says nothing about indices above the run.
    ends_with_run: bool,
}

impl Default for Table {
    fn default() -> Self {
        Self { rows: BTreeSet::new(), head: None, gate: Index::MAX, reads: 0, ends_with_run: false }
    }
}

impl Rows {
    fn new(rows: impl IntoIterator<Item = Index>, head: Index) -> Self {
        watch();
        let rows = rows.into_iter().collect();
        Self(Arc::new(Mutex::new(Table { rows, head: Some(head), ..Table::default() })))
    }

    fn remove(&self, index: Index) {
        self.0.lock().rows.remove(&index);
    }
}

impl Jobs for Rows {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(self.0.lock().head)
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(self.0.lock().rows.get(&index).copied())
    }

    fn read_sparse(&self, run: RangeInclusive<Index>, most: usize, into: &mut Sparse<Index>) -> Result<(), BoxError> {
        let mut table = self.0.lock();
        table.reads += 1;
        let rows: Vec<_> = table.rows.range(run.clone()).take(most).copied().collect();
        let full = rows.len() == most;
        rows.into_iter().for_each(|row| into.job(row, row));
        if !full && let Some(head) = table.head {
            // The gap ends at the next row, however far away.
            let above = table.rows.range(run.end() + 1..).next().map_or(head, |row| row - 1);
            into.none_through(if table.ends_with_run { *run.end() } else { above.min(head) });
        }
        Ok(())
    }

    fn gate(&self) -> Gate {
        Gate::UpTo(self.0.lock().gate)
    }
}

fn park() -> OnExhausted {
    OnExhausted::Park { budget: 9 }
}

#[test]
fn a_gap_is_passed_counted_and_never_runs() {
    let progress = MemoryProgress::new();
    let announced = Announced::default();
    let ran = Arc::new(Mutex::new(BTreeSet::new()));
    let consumer = builder(Rows::new([3, 4, 9], 12), &progress)
        .stop_at(12)
        .on_processed(announced.callback())
        .start({
            let ran = ran.clone();
            move |job| {
                assert!(ran.lock().insert(job.index));
                Ok(())
            }
        })
        .unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(12, LONG), "{}", handle.status());
    consumer.join().unwrap();
    let status = handle.status();
    assert_eq!((status.absent, status.done, status.lag()), (10, 3, 0));
    assert_eq!((ran.lock().iter().copied().collect::<Vec<_>>(), announced.all()), (vec![3, 4, 9], Some(0..=12)));
    assert_eq!(progress.last_processed(), Some(12));
}

#[test]
fn a_gap_of_two_to_the_fifty_costs_a_few_calls() {
    let far = 1 << 50;
    for with in [
        (|builder| builder) as fn(Builder<Rows, MemoryProgress>) -> Builder<Rows, MemoryProgress>,
        |builder| builder.max_search_ahead(1),
        |builder| builder.max_search_ahead(10).unlimited_search_ahead(),
    ] {
        let rows = Rows::new([0, far, far + 5], far + 8);
        let builder = with(builder(rows.clone(), &MemoryProgress::new()));
        let consumer = builder.stop_at(far + 8).start(|_| Ok(())).unwrap();
        let handle = consumer.handle();
        assert!(handle.wait_for(far / 2, LONG), "{}", handle.status());
        assert!(handle.wait_for(far + 8, LONG), "{}", handle.status());
        consumer.join().unwrap();
        let status = handle.status();
        assert_eq!((status.absent, status.done), (far - 1 + 4 + 3, 3));
        assert!(status.saves < 10 && rows.0.lock().reads < 20, "{} reads: {status:?}", rows.0.lock().reads);
    }
}

#[test]
fn a_gap_above_a_running_job_is_settled_in_the_window() {
    let far = 1 << 50;
    for unlimited in [false, true] {
        let (worker, stage) = manual_worker();
        let builder = builder(Rows::new([5, far], far), &MemoryProgress::new()).stop_at(far);
        let consumer = if unlimited { builder.unlimited_search_ahead() } else { builder }.start_worker(worker).unwrap();
        let handle = consumer.handle();
        let stuck = stage.next();
        assert_eq!(stuck.index, 5);
        let width = if unlimited { 1 << 27 } else { 10_000 };
        let status = until(&handle, "the gap", |status| status.next == 5 + width);
        assert_eq!((status.last_processed, status.done_ahead), (Some(4), width - 1));
        stuck.succeed();
        stage.next().succeed();
        consumer.join().unwrap();
        assert!(handle.status().saves < 10, "{:?}", handle.status());
    }
}

#[test]
fn a_strip_tells_gaps_from_done_jobs() {
    use StripCell::{Done, Gap, PartlyDone, Running};
    let (worker, stage) = manual_worker();
    let rows = Rows::new([0, 1, 4, 6], 9);
    let builder = builder(rows, &MemoryProgress::new()).max_processing(4).stop_at(9);
    let consumer = builder.start_worker(worker).unwrap();
    let handle = consumer.handle();
    let mut jobs = [0; 4].map(|_| stage.next());
    // The workers hand them over in any order.
    jobs.sort_by_key(|job| job.index);
    let [stuck, one, four, six] = jobs;
    assert_eq!([stuck.index, one.index, four.index, six.index], [0, 1, 4, 6]);
    one.succeed();
    six.succeed();
    until(&handle, "the ends, and the gap at the head", |status| status.done == 2 && status.absent == 6);
    let all = [Running, Done, Gap, Gap, Running, Gap, Done, Gap, Gap, Gap];
    assert_eq!(handle.strip(10).cells, all);
    assert_eq!(serde_json::json!(handle.strip(10))["cells"], "rdggrgdggg");
    // A cell with a gap and a done job shows as done.
    assert_eq!(handle.strip(5).cells, [Running, Gap, Running, Done, Gap]);
    four.succeed();
    until(&handle, "its end", |status| status.done == 3);
    assert_eq!(handle.strip(5).cells, [Running, Gap, Done, Done, Gap]);
    assert!(!handle.strip(3).cells.contains(&PartlyDone));
    stuck.succeed();
    consumer.join().unwrap();
    assert_eq!(handle.strip(10).cells, []);
}

#[test]
fn saves_go_on_after_a_jump_over_a_gap() {
    // Some jobs finish out of order, so bits are set below the jump and above it.
    let rows = Rows::new((0..70).chain([200, 201, 300]).chain(100_000..100_200), 100_199);
    let store = Store::in_memory();
    let consumer = Consumer::builder(rows, store.progress("p"))
        .max_processing(3)
        .max_search_ahead(100)
        .stop_at(100_199)
        .start(|job| {
            if job.index % 2 == 0 {
                rest();
            }
            Ok(())
        })
        .unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(100_199, LONG), "{}", handle.status());
    consumer.join().unwrap();
    assert_eq!((handle.status().done, handle.status().absent), (273, 100_200 - 273));
}

#[test]
fn a_stream_of_only_gaps_is_saved() {
    let store = Store::in_memory();
    for head in [0, 63, 64, 9_999, 10_000, 1 << 40] {
        let consumer = Consumer::builder(Rows::new([], head), store.progress(format!("p{head}")))
            .start(|job| Err(format!("job {} ran", job.index).into()))
            .unwrap();
        let handle = consumer.handle();
        assert!(handle.wait_for(head, LONG), "{}", handle.status());
        assert_eq!(until(&handle, "the end", |status| status.blocked == Blocked::CaughtUp).absent, head + 1);
        consumer.stop().unwrap();
    }
}

#[test]
fn a_gap_is_cut_off_at_end_gate_and_head() {
    let rows = Rows::new([0, 5_000], 5_000);
    rows.0.lock().gate = 700;
    let progress = MemoryProgress::new();
    let start = |rows: &Rows, stop_at| builder(rows.clone(), &progress).stop_at(stop_at).start(|_| Ok(())).unwrap();
    let consumer = start(&rows, 4_000);
    let handle = consumer.handle();
    assert!(handle.wait_for(700, LONG));
    let status = until(&handle, "the gate", |status| matches!(status.blocked, Blocked::Upstream { .. }));
    assert_eq!(status.last_processed, Some(700), "a gate holds gaps back, too");
    rows.0.lock().gate = Index::MAX;
    handle.check();
    consumer.join().unwrap();
    assert_eq!((progress.last_processed(), handle.status().absent), (Some(4_000), 4_000));
    // The head is inside the gap.
    let consumer = start(&rows, 9_000);
    assert!(consumer.handle().wait_for(5_000, LONG));
    let status = until(&consumer.handle(), "the head", |status| status.blocked == Blocked::CaughtUp);
    assert_eq!((status.last_processed, status.absent), (Some(5_000), 999));
    consumer.stop().unwrap();
}

#[test]
fn a_failed_job_that_became_a_gap_is_passed() {
    for ordered in [false, true] {
        let rows = Rows::new(0..20, 19);
        let builder = builder(rows.clone(), &MemoryProgress::new())
            .max_processing(4)
            .retry(Retry::fixed(Duration::from_millis(1)))
            .stop_at(19);
        let run = move |index: Index, attempt| {
            if index.is_multiple_of(7) {
                // The row is deleted between two attempts.
                if attempt == 3 {
                    rows.remove(index);
                }
                return Err(BoxError::from("poison"));
            }
            Ok(())
        };
        let taken = Arc::new(Mutex::new(Vec::new()));
        let sink = taken.clone();
        let consumer = if ordered {
            builder.start_ordered(
                move |job| run(job.index, job.attempt),
                move |index, ()| {
                    sink.lock().push(index);
                    Ok(())
                },
            )
        } else {
            builder.start(move |job| run(job.index, job.attempt))
        };
        let consumer = consumer.unwrap();
        let handle = consumer.handle();
        assert!(handle.wait_for(19, LONG), "{}", handle.status());
        consumer.join().unwrap();
        let status = handle.status();
        assert_eq!((status.absent, status.done, status.failed), (3, 17, 9), "{status:?}");
        let expected: Vec<_> = (0..20).filter(|index| index % 7 > 0).collect();
        assert!(!ordered || *taken.lock() == expected, "{:?}", taken.lock());
    }
}

#[test]
fn a_redriven_job_that_became_a_gap_stays_parked() {
    let store = Store::in_memory();
    let rows = Rows::new(0..20, 19);
    let consumer = Consumer::builder(rows.clone(), store.progress("p"))
        .on_exhausted(park())
        .start(|job| if job.index == 7 { Err("poison".into()) } else { Ok(()) })
        .unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(19, LONG));
    rows.remove(7);
    handle.redrive(7).unwrap();
    eventually("the source was asked", || store.parked("p").unwrap()[0].error.contains("no longer has this job"));
    let status = handle.status();
    assert_eq!((status.parked, status.absent, status.failed), (1, 0, 1), "{status:?}");
    consumer.stop().unwrap();
}

/// A source that breaks a rule at index 5. The answer depends on the first index of the read, so
/// each retry breaks the same rule, and the status keeps the error.
struct Broken(Answer);

type Answer = fn(Index, &mut Sparse<Index>);

impl Jobs for Broken {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(20))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(Some(index))
    }

    fn read_sparse(&self, run: RangeInclusive<Index>, most: usize, into: &mut Sparse<Index>) -> Result<(), BoxError> {
        if *run.start() < 5 {
            (*run.start()..5).take(most).for_each(|index| into.job(index, index));
            return Ok(());
        }
        (self.0)(*run.start(), into);
        Ok(())
    }
}

#[test]
fn a_source_answer_that_breaks_a_rule_skips_nothing() {
    let broken: [(Answer, &str); 4] = [
        (
            |start, into| [5, 7, 6].into_iter().filter(|at| *at >= start || *at == 6).for_each(|at| into.job(at, at)),
            "shows job 6 after it has said what is there below 8",
        ),
        (
            |start, into| [5, 21].into_iter().filter(|at| *at >= start).for_each(|at| into.job(at, at)),
            "shows job 21, which is outside of the run that ends at 20",
        ),
        (|_, into| into.job(4, 4), "shows job 4 after it has said what is there below 5"),
        (
            |_, into| {
                into.none_through(9);
                into.job(8, 8);
            },
            "call an index missing for good only if no job will ever be there",
        ),
    ];
    for (broken, error) in broken {
        let consumer = builder(Broken(broken), &MemoryProgress::new()).start(|_| Ok(())).unwrap();
        let handle = consumer.handle();
        assert!(handle.wait_for(4, LONG));
        let status = until(&handle, error, |status| match &status.blocked {
            Blocked::Source { error: said, .. } => said.contains(error),
            _ => false,
        });
        assert_eq!(status.state, State::Running);
        assert!(status.last_processed >= Some(4), "{status}");
        consumer.stop().unwrap();
    }
}

#[test]
fn an_empty_answer_is_missing_and_asked_again() {
    let consumer = builder(Broken(|_, _| ()), &MemoryProgress::new()).start(|_| Ok(())).unwrap();
    until(&consumer.handle(), "it is missing", |status| status.blocked == Blocked::Missing { index: 5 });
    assert_eq!(consumer.handle().last_processed_index(), Some(4));
    consumer.stop().unwrap();
}

#[test]
fn a_read_of_at_most_zero_jobs_is_refused() {
    let store = Store::in_memory();
    let log = store.log::<u64>("log").unwrap();
    log.push(&7).unwrap();
    let refused = |read: Result<(), BoxError>| {
        let error = read.unwrap_err();
        assert!(
            matches!(error.downcast_ref(), Some(Error::Config(ConfigError::Zero { setting: "most", .. }))),
            "{error}"
        );
    };
    refused(numbers(9).read_sparse(0..=8, 0, &mut Sparse::new(0)));
    refused(Arc::new(numbers(9)).read_sparse(0..=8, 0, &mut Sparse::new(0)));
    refused(numbers(9).confirmed(2).read_sparse(0..=8, 0, &mut Sparse::new(0)));
    refused(log.hold_back(numbers(9), 2).read_sparse(0..=8, 0, &mut Sparse::new(0)));
    refused(log.read_sparse(1..=8, 0, &mut Sparse::new(1)));
    let mut read = Sparse::new(1);
    log.read_sparse(1..=8, 4, &mut read).unwrap();
    assert_eq!(read.into_iter().collect::<Vec<_>>(), [Item::Job(1, 7)]);
}

#[test]
fn a_sparse_read_brings_as_many_jobs_as_a_dense_one() {
    let jobs: Index = 1_000;
    let rows = Rows::new((1..=jobs).map(|job| job * 1_000), jobs * 1_000);
    let consumer = builder(rows.clone(), &MemoryProgress::new())
        .max_search_ahead(1_000_000)
        .stop_at(jobs * 1_000)
        .start(|_| Ok(()));
    consumer.unwrap().join().unwrap();
    let reads = rows.0.lock().reads;
    assert!(reads * 10 <= jobs, "{reads} reads for {jobs} jobs");
}

#[test]
fn a_gap_between_failed_jobs_is_reread_at_once() {
    const LAST: Index = 999_999;
    for dies in [false, true] {
        let disk = FaultyStore::new().unwrap();
        // The first save has everything that is done. It has no gap, since none is known by then.
        let rows = Rows::new([0, 1, LAST - 1, LAST], 1);
        let start = |disk: &FaultyStore, retry: Retry| {
            let builder = Consumer::builder(rows.clone(), disk.store().progress("p"));
            let builder = builder.max_search_ahead(LAST + 1).max_processing(1).max_crashes(3);
            let run = |job: Job<Index>| {
                if job.attempt == 1 && job.index.is_multiple_of(2) { Err("no".into()) } else { Ok(()) }
            };
            builder.stop_at(LAST).retry(retry).start(run).unwrap()
        };
        let first = start(&disk, Retry::fixed(HOUR));
        until(&first.handle(), "job 1 is saved", |status| status.done == 1 && status.unsaved == 0);
        rows.0.lock().head = Some(LAST);
        first.handle().check();
        // The save of the last job has the records of the others, too.
        until(&first.handle(), "the last job is saved", |status| status.done == 2 && status.unsaved == 0);
        let disk = if dies {
            let dead = disk.after_crash().unwrap();
            first.stop().unwrap();
            dead
        } else {
            first.stop().unwrap();
            disk
        };
        let before = rows.0.lock().reads;
        let second = start(&disk, Retry::fixed(Duration::ZERO));
        let handle = second.handle();
        assert!(handle.wait_for(LAST, LONG), "{}", handle.status());
        second.join().unwrap();
        let (reads, status) = (rows.0.lock().reads - before, handle.status());
        assert!(reads < 100, "{reads} reads: {status:?}");
        assert_eq!((status.done, status.retries, status.failed, status.absent), (2, 2, 0, LAST - 3), "{status:?}");
    }
}

#[test]
fn gaps_recorded_before_they_were_read_are_no_suspects() {
    let disk = FaultyStore::new().unwrap();
    // The first save has everything that is done. It has no gap, since none is known by then.
    let rows = Rows::new([0, 1, 9], 1);
    let life = |disk: &FaultyStore, pause: Duration| {
        let builder = Consumer::builder(rows.clone(), disk.store().progress("p")).max_processing(2).max_crashes(3);
        builder.retry(Retry::fixed(pause)).start(|job| if job.index == 0 { Err("no".into()) } else { Ok(()) }).unwrap()
    };
    // The jobs that a life knows from its records, before it reads any.
    let known = |disk: &FaultyStore| {
        rows.0.lock().head = None;
        let life = life(disk, HOUR);
        let size = life.handle().size();
        life.stop().unwrap();
        rows.0.lock().head = Some(9);
        size
    };
    let first = life(&disk, HOUR);
    until(&first.handle(), "job 1 is saved", |status| status.done == 1 && status.failed == 1 && status.unsaved == 0);
    let dead = disk.after_crash().unwrap();
    first.stop().unwrap();
    rows.0.lock().head = Some(9);
    let second = life(&dead, HOUR);
    until(&second.handle(), "all gaps are settled", |status| status.absent == 7);
    eventually("jobs 0, 1 and 9 alone are known", || known(&dead.after_crash().unwrap()) == 3);
    second.stop().unwrap();
}

#[test]
fn a_deleted_suspect_inside_a_new_gap_is_passed() {
    let disk = FaultyStore::new().unwrap();
    let rows = Rows::new((0..=20).map(|row| row * 100), 2_000);
    let start = |disk: &FaultyStore, waits: bool| {
        let (say, said) = crossbeam_channel::unbounded();
        let (go, wait) = crossbeam_channel::bounded::<()>(0);
        let builder = Consumer::builder(rows.clone(), disk.store().progress("p")).max_processing(2).max_crashes(3);
        let run = move |job: Job<Index>| {
            say.send(job.index)?;
            if waits {
                let _ = wait.recv();
            }
            Ok(())
        };
        (builder.stop_at(2_000).start(run).unwrap(), said, go)
    };
    // Two lives die while jobs 0 and 100 run. The second has recorded them, and some above.
    let mut disk = disk;
    for _ in 0..2 {
        let (life, said, go) = start(&disk, true);
        let both: BTreeSet<_> = (0..2).map(|_| said.recv_timeout(LONG).unwrap()).collect();
        assert_eq!(both, [0, 100].into());
        let dead = disk.after_crash().unwrap();
        drop(go);
        life.stop().unwrap();
        disk = dead;
    }
    rows.remove(100);
    rows.remove(200);
    let (last, said, _go) = start(&disk, false);
    let handle = last.handle();
    assert!(handle.wait_for(2_000, LONG), "{}", handle.status());
    last.join().unwrap();
    let ran: BTreeSet<_> = said.iter().collect();
    assert_eq!(ran, (0..=20).filter(|row| ![1, 2].contains(row)).map(|row| row * 100).collect());
}

#[test]
fn after_a_crash_a_gap_is_read_up_to_the_window() {
    const LAST: Index = 99_999;
    let disk = FaultyStore::new().unwrap();
    let rows = Rows::new((0..=LAST).step_by(10_000).chain([LAST]), LAST);
    rows.0.lock().ends_with_run = true;
    let life = |disk: &FaultyStore| {
        let builder = Consumer::builder(rows.clone(), disk.store().progress("p")).stop_at(LAST);
        builder.max_search_ahead(LAST + 1).max_processing(2).max_crashes(3).start(|_| Ok(())).unwrap()
    };
    rows.0.lock().head = None;
    let first = life(&disk);
    let dead = disk.after_crash().unwrap();
    first.stop().unwrap();
    rows.0.lock().head = Some(LAST);
    let second = life(&dead);
    let handle = second.handle();
    assert!(handle.wait_for(LAST, LONG), "{}", handle.status());
    second.join().unwrap();
    let (reads, status) = (rows.0.lock().reads, handle.status());
    assert!(reads < 20, "{reads} reads: {status:?}");
    assert_eq!((status.done, status.absent), (11, LAST + 1 - 11));
}

#[test]
fn a_consumer_stays_behind_the_newest_blocks() {
    let chain = numbers(0);
    let progress = MemoryProgress::new();
    let consumer = builder(chain.clone().confirmed(3), &progress).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    until(&handle, "an empty chain", |status| status.blocked == Blocked::CaughtUp && status.head.is_none());
    for block in 0..20 {
        chain.push(block);
        if block >= 3 {
            assert!(handle.wait_for(block - 3, LONG), "a push wakes the consumer");
        }
        assert_eq!(handle.last_processed_index(), block.checked_sub(3));
    }
    consumer.stop().unwrap();
}

#[derive(Clone, Debug)]
struct Plan {
    mode: u8,
    processing: usize,
    width: u64,
    /// The gate, and the end.
    gate: Index,
    stop_at: Option<Index>,
    stopped: bool,
}

fn plan() -> impl Strategy<Value = Plan> {
    let (stop_at, gate) = (proptest::option::of(0..300u64), prop_oneof![0..300u64, Just(Index::MAX)]);
    (0..4u8, 1..6usize, prop_oneof![1..70u64, Just(10_000)], gate, stop_at, proptest::bool::weighted(0.2)).prop_map(
        |(mode, processing, width, gate, stop_at, stopped)| Plan { mode, processing, width, gate, stop_at, stopped },
    )
}

/// What the jobs of all lives did.
#[derive(Default)]
struct Seen {
    ran: Mutex<BTreeMap<Index, u32>>,
    taken: Mutex<Vec<Index>>,
}

fn start<P: Progress>(
    plan: &Plan,
    builder: Builder<Rows, P>,
    rows: &Rows,
    poison: &BTreeSet<Index>,
    seen: &Arc<Seen>,
) -> Consumer {
    let (rows, poison, work) = (rows.clone(), poison.clone(), seen.clone());
    let run = move |index: Index, attempt: u32| {
        if poison.contains(&index) {
            if attempt >= 2 {
                rows.remove(index);
            }
            return Err(BoxError::from("poison"));
        }
        rest();
        *work.ran.lock().entry(index).or_default() += 1;
        Ok(())
    };
    let builder = builder.max_processing(plan.processing).max_search_ahead(plan.width);
    let mut builder = builder.retry(Retry::fixed(Duration::from_micros(50)));
    if let Some(end) = plan.stop_at {
        builder = builder.stop_at(end);
    }
    let consumer = match plan.mode {
        0 | 1 => builder.start(move |job| run(job.index, job.attempt)),
        _ => {
            seen.taken.lock().clear();
            let seen = seen.clone();
            builder.start_ordered(
                move |job| run(job.index, job.attempt),
                move |index, ()| {
                    let mut taken = seen.taken.lock();
                    assert!(taken.last().is_none_or(|last| *last < index), "the sink gets {index} after {taken:?}");
                    taken.push(index);
                    Ok(())
                },
            )
        }
    };
    consumer.unwrap()
}

/// Runs this life until nothing is left to do, and returns the watermark. `highest` is the highest
/// index within reach of any life so far: a stopped one may have settled gaps up to there, above a
/// job that it had not done.
fn live(
    plan: &Plan,
    consumer: Consumer,
    rows: &Rows,
    before: Option<Index>,
    highest: &mut Option<Index>,
) -> Option<Index> {
    let handle = consumer.handle();
    let head = rows.0.lock().head.unwrap();
    let last = head.min(plan.gate).min(plan.stop_at.unwrap_or(Index::MAX));
    *highest = Some(last).max(*highest);
    if !plan.stopped {
        assert!(before >= Some(last) || handle.wait_for(last, LONG), "{plan:?} up to {last}: {:#?}", handle.status());
        assert!(handle.last_processed_index() >= before.max(Some(last)), "{plan:?}");
    }
    consumer.stop().unwrap();
    assert!(handle.last_processed_index() <= *highest, "{plan:?}");
    handle.last_processed_index()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(40), ..ProptestConfig::default() })]

    #[test]
    fn random_gaps_hide_no_job_in_any_life(
        // Jobs and gaps in turns.
        lengths in proptest::collection::vec((0..20u64, prop_oneof![4 => 0..20u64, 1 => 100..300u64]), 1..12),
        poison in proptest::collection::btree_set(0..200u64, 0..6),
        plans in proptest::collection::vec(plan(), 1..5),
        keeps in 0..3u8,
    ) {
        let (mut all, mut end) = (BTreeSet::new(), 0);
        for (jobs, gap) in lengths {
            all.extend(end..end + jobs);
            end += jobs + gap;
        }
        let rows = Rows::new(all.iter().copied(), end.max(1) - 1);
        let (memory, store, seen) = (MemoryProgress::new(), Store::in_memory(), Arc::new(Seen::default()));
        let last = Plan { mode: 3, processing: 4, width: 50, gate: Index::MAX, stop_at: None, stopped: false };
        let (mut watermark, mut highest, mut dropped) = (None, None, false);
        for plan in plans.iter().chain([&last]) {
            rows.0.lock().gate = plan.gate;
            let announced = Announced::default();
            let consumer = match keeps {
                0 => start(plan, builder(rows.clone(), &memory).on_processed(announced.callback()), &rows, &poison, &seen),
                1 => {
                    let builder = Consumer::builder(rows.clone(), store.progress("p"));
                    start(plan, builder.on_processed(announced.callback()), &rows, &poison, &seen)
                }
                _ => {
                    let builder = Consumer::builder(rows.clone(), store.progress("p")).max_crashes(3).on_exhausted(park());
                    start(plan, builder.on_processed(announced.callback()), &rows, &poison, &seen)
                }
            };
            let before = watermark;
            watermark = live(plan, consumer, &rows, before, &mut highest);
            if watermark > before {
                let first = before.map_or(0, |before| before + 1);
                prop_assert_eq!(announced.all(), watermark.map(|last| first..=last));
            }
            let ran = seen.ran.lock();
            prop_assert!(ran.keys().all(|index| all.contains(index)), "a gap ran");
            let passed = all.iter().filter(|index| Some(**index) <= watermark && !poison.contains(index));
            prop_assert!(passed.clone().all(|index| ran.contains_key(index)), "a job was skipped");
            // A stop drops results that wait for the sink.
            dropped |= plan.stopped && plan.mode > 1;
            if keeps > 0 && !dropped {
                prop_assert!(passed.clone().all(|index| ran[index] == 1), "a clean life runs a job once");
            }
        }
        prop_assert_eq!(watermark, Some(end.max(1) - 1));
    }

    #[test]
    fn effects_between_random_gaps_are_once_at_any_crash(
        ids in proptest::collection::btree_set(0..400u64, 0..80),
        poison in 0..400u64,
        freezes in proptest::collection::vec(0..30u64, 0..5),
        width in prop_oneof![1..40u64, Just(10_000)],
    ) {
        let rows = Rows::new(ids.iter().copied(), 400);
        let mut disk = FaultyStore::new().unwrap();
        for freeze in freezes.into_iter().map(Some).chain([None]) {
            if let Some(writes) = freeze {
                disk.freeze_at(writes);
            }
            let run = || -> Result<(), Error> {
                let counts = disk.store().table("counts")?;
                let rows_of_jobs = rows.clone();
                let consumer = Consumer::builder(rows.clone(), disk.store().progress("p"))
                    .max_search_ahead(width)
                    .retry(Retry::fixed(Duration::from_micros(50)))
                    .stop_at(400)
                    .start_transactional(move |job, effects| {
                        if job.index == poison {
                            rows_of_jobs.remove(poison);
                            return Err("poison".into());
                        }
                        Ok(effects.add(&counts, job.index.to_be_bytes(), 1)?)
                    })?;
                consumer.join()
            };
            let ended = run();
            if freeze.is_none() {
                ended.unwrap();
                break;
            }
            disk = disk.after_crash().unwrap();
        }
        let counts = disk.store().table("counts").unwrap();
        for index in 0..=400 {
            let expected = (ids.contains(&index) && index != poison).then_some(1);
            prop_assert_eq!(counts.counter(index.to_be_bytes()).unwrap(), expected.unwrap_or(0), "index {}", index);
        }
    }
}
