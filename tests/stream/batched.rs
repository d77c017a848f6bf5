//! Batches (`start_batched` and `start_batched_transactional`): their size, their wait for more
//! jobs, their failures and their effects.

use common::*;
use crossbeam_channel::{Sender, bounded, unbounded};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use waterline::testing::FaultyStore;
use waterline::{
    AttemptOutcome, BoxError, Builder, Consumer, Error, Event, Index, Job, Jobs, MemoryJobs, MemoryProgress,
    OnExhausted, Retry, Sparse, State, Store, StoreProgress, Table,
};

const NOW: Retry = Retry::fixed(Duration::ZERO);
const ZERO: Duration = Duration::ZERO;

fn indices<T>(jobs: &[Job<T>]) -> Vec<Index> {
    jobs.iter().map(|job| job.index).collect()
}

/// A consumer of jobs 0 to `count - 1` with four slots. A batch that may wait for an hour starts
/// only when it is full, is the last one, or uses up all slots.
fn four(count: u64) -> Builder<MemoryJobs<u64>, MemoryProgress> {
    builder(numbers(count), &MemoryProgress::new()).max_processing(4).stop_at(count - 1)
}

type Small = Builder<MemoryJobs<u64>, MemoryProgress>;

fn sends(send: Sender<Vec<Index>>) -> impl Fn(Vec<Job<u64>>) -> Result<(), BoxError> + Send + Sync {
    move |jobs| Ok(send.send(indices(&jobs))?)
}

#[test]
fn promise_02_no_batch_exceeds_a_lowered_limit() {
    let (send, batches) = unbounded();
    let (go, wait) = bounded::<()>(0);
    let consumer = four(40)
        .start_batched(4, HOUR, move |jobs| {
            send.send(jobs.len())?;
            // Only the first one waits: the test drops the channel then.
            let _ = wait.recv();
            Ok(())
        })
        .unwrap();
    assert_eq!(batches.recv_timeout(LONG).unwrap(), 4);
    consumer.handle().set_max_processing(3).unwrap();
    drop(go);
    consumer.join().unwrap();
    assert_eq!(batches.iter().collect::<Vec<_>>(), [3; 12]);
}

#[test]
fn a_batch_waits_until_it_is_full() {
    let (send, batches) = unbounded();
    let jobs = numbers(0);
    let source = jobs.clone();
    let consumer =
        builder(source, &MemoryProgress::new()).max_processing(8).start_batched(4, HOUR, sends(send)).unwrap();
    let handle = consumer.handle();
    for index in 0..3 {
        jobs.push(index);
        until(&handle, "the job is seen", |status| status.head == Some(index));
    }
    jobs.push(3);
    assert_eq!(batches.recv_timeout(LONG).unwrap(), [0, 1, 2, 3]);
    assert!(handle.wait_for(3, LONG));
    jobs.push(4);
    jobs.push(5);
    until(&handle, "the jobs are seen", |status| status.head == Some(5));
    consumer.stop().unwrap();
    assert_eq!(batches.iter().count(), 0, "a stop waits for no linger, and starts nothing");
}

#[test]
fn a_partial_batch_starts_when_its_time_is_over() {
    const LINGER: Duration = Duration::from_millis(30);
    let (send, batches) = unbounded();
    let (jobs, time) = (numbers(0), Time::new());
    let builder = builder(jobs.clone(), &MemoryProgress::new()).clock(time.clock()).max_processing(8);
    let consumer = builder.start_batched(4, LINGER, sends(send)).unwrap();
    for index in 0..3 {
        let pushed = time.passed();
        jobs.push(index);
        time.steps(LINGER / 10, "the batch", || !batches.is_empty());
        assert_eq!(batches.recv().unwrap(), [index]);
        assert!(time.passed() - pushed >= LINGER);
        assert!(consumer.handle().wait_for(index, LONG), "an earlier batch delays no later one");
    }
    consumer.stop().unwrap();
}

#[test]
fn a_batch_that_nothing_can_join_starts_at_once() {
    // What ends the batches: the last job, the window, the slots, and the read-ahead.
    let ends: [fn(Small) -> Small; 4] = [
        |builder| builder.max_processing(100),
        |builder| builder.max_processing(100).max_search_ahead(3),
        |builder| builder.max_processing(5),
        |builder| builder.max_processing(100).max_read_ahead(1),
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let (send, batches) = unbounded();
        let consumer = end(four(10)).start_batched(if number == 2 { 5 } else { 100 }, HOUR, sends(send)).unwrap();
        assert!(consumer.handle().wait_end(LONG).is_some(), "end {number} was waited for");
        consumer.join().unwrap();
        let all: BTreeSet<_> = batches.iter().flatten().collect();
        assert_eq!(all, (0..10).collect(), "end {number}");
    }
}

#[test]
fn a_pause_holds_a_batch_until_the_resume() {
    let (send, batches) = unbounded();
    let jobs = numbers(3);
    let source = jobs.clone();
    let consumer =
        builder(source, &MemoryProgress::new()).max_processing(8).start_batched(4, HOUR, sends(send)).unwrap();
    let handle = consumer.handle();
    until(&handle, "the jobs are seen", |status| status.head == Some(2));
    handle.pause();
    jobs.push(3);
    until(&handle, "the last job is seen", |status| status.head == Some(3));
    assert_eq!((handle.status().processing, handle.status().state), (0, State::Paused));
    handle.resume();
    assert_eq!(batches.recv_timeout(LONG).unwrap(), [0, 1, 2, 3]);
    consumer.stop().unwrap();
}

#[test]
fn a_panic_in_on_job_done_fails_the_batch() {
    let (send, calls) = unbounded();
    let panicked = AtomicBool::new(false);
    let consumer = four(8)
        .on_job_done(move |index| {
            let _ = send.send(index);
            assert!(index != 1 || panicked.swap(true, Ordering::SeqCst), "once");
        })
        .start_batched(4, HOUR, |_| Ok(()))
        .unwrap();
    let handle = consumer.handle();
    consumer.join().unwrap();
    assert_eq!((handle.status().done, handle.status().failed), (8, 0), "the batch is no failed attempt");
    let calls: Vec<_> = calls.iter().collect();
    assert_eq!((&calls[..2], calls.len()), (&[0, 1][..], 10), "{calls:?}");
}

#[test]
fn an_observer_hears_of_each_job_of_a_batch() {
    let (send, heard) = unbounded();
    let failed = AtomicBool::new(false);
    let consumer = four(4)
        .observe(move |event: &Event<'_>| {
            let told = match *event {
                Event::AttemptBegun { index, attempt, .. } => (index, attempt, "begun".to_owned()),
                Event::AttemptEnded { index, attempt, outcome, .. } => match outcome {
                    AttemptOutcome::Done => (index, attempt, "done".to_owned()),
                    AttemptOutcome::BatchFailed { error, .. } => (index, attempt, error.to_owned()),
                    other => (index, attempt, format!("{other:?}")),
                },
                _ => return,
            };
            let _ = send.send(told);
        })
        .start_batched(
            4,
            HOUR,
            move |_| {
                if failed.swap(true, Ordering::SeqCst) { Ok(()) } else { Err("refused".into()) }
            },
        )
        .unwrap();
    consumer.join().unwrap();
    let mut told = BTreeMap::<Index, Vec<(u32, String)>>::new();
    heard.iter().for_each(|(index, attempt, text)| told.entry(index).or_default().push((attempt, text)));
    let each = ["begun", "refused", "begun", "done"].map(|text| (1, text.to_owned()));
    assert_eq!(told, (0..4).map(|index| (index, each.to_vec())).collect());
}

#[test]
fn a_gated_consumer_starts_batches_below_the_gate() {
    let (first, second) = (MemoryProgress::new(), MemoryProgress::new());
    let jobs = numbers(6);
    let (send, batches) = unbounded();
    let upstream = builder(jobs.clone(), &first).start(|_| Ok(())).unwrap();
    let gated = Jobs::gated_by(jobs, upstream.handle());
    let time = Time::new();
    let builder = builder(gated, &second).clock(time.clock()).max_processing(4).stop_at(5);
    let consumer = builder.start_batched(4, HOUR, sends(send)).unwrap();
    time.steps(HOUR, "all jobs", || consumer.handle().wait_for(5, ZERO));
    consumer.join().unwrap();
    upstream.stop().unwrap();
    assert_eq!(batches.iter().flatten().collect::<BTreeSet<_>>(), (0..6).collect());
}

fn transactional(store: &Store, count: u64) -> Builder<MemoryJobs<u64>, StoreProgress> {
    Consumer::builder(numbers(count), store.progress("p")).max_processing(64).stop_at(count - 1).retry(NOW)
}

/// Returns how often the effects of each job were applied.
fn times(table: &Table, count: u64) -> Vec<i64> {
    (0..count).map(|index| table.counter(index.to_be_bytes()).unwrap()).collect()
}

#[test]
fn promise_09_a_refused_add_undoes_its_batch() {
    on_store(|store| {
        let table = store.table("rows").unwrap();
        table.put("text", "no counter").unwrap();
        // The last job is bad, too: when it is refused, nothing else is left to run.
        let bad = |index: Index| index % 50 == 49;
        let rows = table.clone();
        let consumer = transactional(store, 500)
            .on_exhausted(OnExhausted::Park { budget: 100 })
            .start_batched_transactional(16, ZERO, move |jobs, effects| {
                for job in jobs {
                    effects.add(&rows, job.index.to_be_bytes(), 1)?;
                    effects.put(&rows, [b"row", &job.index.to_be_bytes()[..]].concat(), "x")?;
                    if bad(job.index) {
                        effects.add(&rows, "text", 1)?;
                    }
                }
                Ok(())
            })
            .unwrap();
        let handle = consumer.handle();
        consumer.join().unwrap();
        assert_eq!(times(&table, 500), (0..500).map(|index| i64::from(!bad(index))).collect::<Vec<_>>());
        assert_eq!(table.prefix("row").count(), 490);
        let parked: Vec<_> = store.parked("p").unwrap().into_iter().map(|job| job.index).collect();
        assert_eq!(parked, (0..500).filter(|index| bad(*index)).collect::<Vec<_>>());
        let status = handle.status();
        assert_eq!((status.done, status.parked, status.last_processed), (490, 10, Some(499)));
    });
}

#[test]
fn a_refused_add_in_a_batch_halts_at_its_own_job() {
    on_store(|store| {
        let table = store.table("rows").unwrap();
        table.put("text", "no counter").unwrap();
        let rows = table.clone();
        let consumer = transactional(store, 40)
            .start_batched_transactional(16, ZERO, move |jobs, effects| {
                for job in jobs {
                    effects.add(&rows, if job.index == 21 { "text" } else { "sum" }, 1)?;
                }
                Ok(())
            })
            .unwrap();
        let handle = consumer.handle();
        let Err(Error::Job { index: 21, attempt: 1, source }) = consumer.join() else { panic!("job 21 is bad") };
        assert!(matches!(source.downcast_ref(), Some(Error::Counter { .. })), "{source}");
        let status = handle.status();
        assert_eq!(table.counter("sum").unwrap() as u64, status.done);
        assert_eq!((status.last_processed, status.failed), (Some(20), 1));
    });
}

#[test]
fn a_batch_with_oversized_effects_runs_one_by_one() {
    on_store(|store| {
        let table = store.table("rows").unwrap();
        let rows = table.clone();
        let consumer = transactional(store, 32)
            .max_effects(4_096)
            .start_batched_transactional(16, ZERO, move |jobs, effects| {
                for job in jobs {
                    effects.put(&rows, job.index.to_be_bytes(), [7; 1_000])?;
                }
                Ok(())
            })
            .unwrap();
        consumer.join().unwrap();
        assert_eq!(table.iter().count(), 32);
    });
}

/// A row at every twentieth index. An answer says nothing about what is above the run.
struct Rows;

impl Jobs for Rows {
    type Job = u64;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(20 * 99))
    }

    fn at_index(&self, index: Index) -> Result<Option<u64>, BoxError> {
        Ok(index.is_multiple_of(20).then_some(index))
    }

    fn read_sparse(&self, run: RangeInclusive<Index>, most: usize, into: &mut Sparse<u64>) -> Result<(), BoxError> {
        let last = *run.end();
        let rows: Vec<_> = run.filter(|index| index.is_multiple_of(20)).take(most).collect();
        rows.iter().for_each(|row| into.job(*row, *row));
        if rows.len() < most {
            into.none_through(last);
        }
        Ok(())
    }
}

#[test]
fn after_a_crash_a_batch_waits_only_for_its_records() {
    let disk = FaultyStore::new().unwrap();
    let first = Consumer::builder(numbers(0), disk.store().progress("p")).max_crashes(3).start(|_| Ok(())).unwrap();
    let dead = disk.after_crash().unwrap();
    first.stop().unwrap();
    let (send, batches) = unbounded();
    let builder = Consumer::builder(Rows, dead.store().progress("p")).max_processing(10).stop_at(20 * 99);
    let consumer = builder.max_crashes(3).start_batched(7, HOUR, sends(send)).unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(20 * 99, LONG), "{}", handle.status());
    consumer.join().unwrap();
    let all: BTreeSet<_> = batches.iter().flatten().collect();
    assert_eq!(all, (0..100).map(|row| row * 20).collect());
}

/// The model of one life: the state of each job that was ever in a batch.
#[derive(Default)]
struct Model {
    running: BTreeSet<Index>,
    done: BTreeSet<Index>,
    /// The jobs of failed batches, with the number of attempts that failed alone.
    marked: BTreeMap<Index, u32>,
    /// How often each job will still fail alone.
    bad: BTreeMap<Index, u32>,
    wrong: Vec<String>,
}

impl Model {
    fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(what());
        }
    }

    fn begin(&mut self, jobs: &[Job<u64>], max: usize) {
        self.check((1..=max).contains(&jobs.len()), || format!("a batch of {} jobs", jobs.len()));
        for job in jobs {
            let index = job.index;
            let marked = self.marked.get(&index).copied();
            let (runs, done) = (!self.running.insert(index), self.done.contains(&index));
            self.check(!runs && !done, || format!("job {index} runs twice at once, or is done"));
            self.check(marked.is_none() || jobs.len() == 1, || format!("job {index} is not alone"));
            self.check(job.attempt == 1 + marked.unwrap_or(0), || format!("{job:?} after {marked:?}"));
            self.check(job.payload == index, || format!("{job:?}"));
        }
    }

    /// Ends a batch, and returns whether it fails.
    fn end(&mut self, jobs: &[Job<u64>], by_chance: bool) -> bool {
        let bad = jobs.iter().any(|job| self.bad.get(&job.index).is_some_and(|times| *times > 0));
        let fails = bad || by_chance && jobs.len() > 1;
        for job in jobs {
            self.running.remove(&job.index);
            if !fails {
                self.marked.remove(&job.index);
                self.done.insert(job.index);
                continue;
            }
            let failures = self.marked.entry(job.index).or_default();
            if jobs.len() == 1 {
                *failures += 1;
                self.bad.entry(job.index).and_modify(|times| *times -= 1);
            }
        }
        fails
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Pause,
    Resume,
    Processing(usize),
    Width(u64),
    Push(u64),
    Wait(Index),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        Just(Step::Pause),
        Just(Step::Resume),
        (1..20usize).prop_map(Step::Processing),
        (1..40u64).prop_map(Step::Width),
        (1..9u64).prop_map(Step::Push),
        (0..60u64).prop_map(Step::Wait),
        Just(Step::Restart),
    ];
    prop::collection::vec(step, 0..12)
}

struct Lives {
    store: Store,
    jobs: MemoryJobs<u64>,
    model: Arc<Mutex<Model>>,
    max: usize,
    linger: Duration,
    transactional: bool,
    luck: u64,
}

impl Lives {
    fn start(&self, stop_at: Option<Index>) -> Consumer {
        let (model, max, luck) = (self.model.clone(), self.max, self.luck);
        {
            // Marks last for one life.
            let model = &mut *model.lock();
            assert!(model.running.is_empty());
            model.marked.clear();
        }
        let builder = Consumer::builder(self.jobs.clone(), self.store.progress("p")).max_processing(max + 3).retry(NOW);
        let builder = stop_at.into_iter().fold(builder, Builder::stop_at);
        let run = move |jobs: &[Job<u64>]| {
            model.lock().begin(jobs, max);
            rest();
            let by_chance = jobs.iter().map(|job| job.index * 7 + luck).sum::<u64>() % 5 == 0;
            if model.lock().end(jobs, by_chance) { Err(BoxError::from("as planned")) } else { Ok(()) }
        };
        let table = self.store.table("times").unwrap();
        let consumer = match self.transactional {
            false => builder.start_batched(max, self.linger, move |jobs| run(&jobs)),
            true => builder.start_batched_transactional(max, self.linger, move |jobs, effects| {
                for job in &jobs {
                    effects.add(&table, job.index.to_be_bytes(), 1)?;
                }
                run(&jobs)
            }),
        };
        consumer.unwrap()
    }

    fn live(&self, steps: &[Step]) {
        let mut consumer = self.start(None);
        for step in steps {
            let handle = consumer.handle();
            match *step {
                Step::Pause => handle.pause(),
                Step::Resume => handle.resume(),
                Step::Processing(limit) => handle.set_max_processing(limit).unwrap(),
                Step::Width(width) => handle.set_max_search_ahead(width).unwrap(),
                Step::Push(count) => (0..count).for_each(|_| {
                    let next = Jobs::head(&self.jobs).unwrap().map_or(0, |head| head + 1);
                    assert_eq!(self.jobs.push(next), next);
                }),
                Step::Wait(index) => _ = handle.wait_for(index, LIMIT),
                Step::Restart => {
                    consumer.stop().unwrap();
                    consumer = self.start(None);
                }
            }
        }
        consumer.stop().unwrap();
        let Some(last) = Jobs::head(&self.jobs).unwrap() else { return };
        let consumer = self.start(Some(last));
        assert!(consumer.handle().wait_end(LONG).is_some(), "it stands still: {}", consumer.handle().status());
        consumer.join().unwrap();
        assert_eq!(self.store.progress("p").last_processed().unwrap(), Some(last));
        assert_eq!(self.model.lock().done, (0..=last).collect());
        if self.transactional {
            let table = self.store.table("times").unwrap();
            assert!(times(&table, last + 1).iter().all(|times| *times == 1));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(48)))]
    #[test]
    fn promise_01_and_promise_10_random_batches_agree_with_the_model(
        (count, max, linger, transactional) in (0..60u64, 1..9usize, 0..3u64, any::<bool>()),
        bad in prop::collection::btree_map(0..60u64, 1..4u32, 0..8),
        steps in steps(),
        luck in 0..5u64,
    ) {
        watch();
        let model = Arc::new(Mutex::new(Model { bad, ..Model::default() }));
        let lives = Lives {
            store: Store::in_memory(),
            jobs: numbers(count),
            model: model.clone(),
            max,
            linger: Duration::from_micros(300 * linger),
            transactional,
            luck,
        };
        lives.live(&steps);
        let wrong = model.lock().wrong.clone();
        prop_assert!(wrong.is_empty(), "{wrong:?}");
    }
}
