//! Models of handing out and reporting, in every order in which the threads can meet.
//!
//! All parts are the real ones: driver, window, worker loop, reader, saver and bell. One thread
//! makes the steps of both the reader and the saver, and sleeps for both. Loom reports a deadlock
//! for a lost wake-up and for a thread that does not end.

mod handoff;

use super::*;
use crate::base::sync::{explore, spawn};
use crate::base::time::{Sleep, model};
use crate::base::{BoxError, Index, caught::Caught, retry::Retry};
use crate::commit::changes::Changes;
use crate::driver::tenure::NameInUse;
use crate::progress::{MemoryProgress, Progress, SavePort};
use crate::reader::{Reader, SharedSource, hashed};
use crate::run::ordered::{Ordered, Sink};
use crate::run::worker::{Done, Job, Report, Reported};
use crate::run::{Assignment, Runner, work};
use crate::saver::{Keeps, SaverHandle, SaverThread, saver};
use crate::source::{Jobs, wakeup::Wakeup};
use crate::window::{Limits, Window};
use ::loom::thread;
use std::ops::RangeInclusive;
use std::time::Duration;

/// A source whose job at an index is the index.
struct IndexSource {
    jobs: u64,
    /// True if workers may read.
    quick: bool,
    /// True if all jobs have one key.
    by_key: bool,
}

impl IndexSource {
    fn of(jobs: u64) -> Self {
        Self { jobs, quick: false, by_key: false }
    }
}

impl Jobs for IndexSource {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(self.jobs - 1))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(Some(index))
    }

    /// Reads one job at a time, so that jobs come while workers fall asleep.
    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Index>) -> Result<(), BoxError> {
        if !self.quick {
            model::pass(Duration::from_millis(1));
        }
        into.push(*run.start());
        Ok(())
    }

    /// Claims to ring. It never has to, since its head never moves.
    fn subscribe(&self, _: Wakeup) -> bool {
        true
    }
}

/// Rings the reader's bell for each save, since one thread makes the steps of both.
struct RingsReader<S>(S, Arc<Bell>);

impl<S: SaveBackend> SaveBackend for RingsReader<S> {
    fn save(&self, port: Arc<dyn SavePort>, hurry: bool) {
        self.0.save(port, hurry);
        self.1.work();
    }

    fn hurry(&self) {
        self.0.hurry();
    }

    fn takes_help(&self) -> bool {
        self.0.takes_help()
    }

    fn help(&self) {
        self.0.help();
    }
}

/// Stands for a store whose saves workers help with. Its writer has a model of its own.
#[derive(Clone, Default)]
struct Helped(Arc<Mutex<Option<Arc<dyn SavePort>>>>);

impl SaveBackend for Helped {
    fn save(&self, port: Arc<dyn SavePort>, _hurry: bool) {
        *self.0.lock() = Some(port);
    }

    fn hurry(&self) {}

    fn takes_help(&self) -> bool {
        true
    }

    fn help(&self) {
        let due = self.0.lock().take();
        if let Some(port) = due
            && port.checkpoint().is_some()
        {
            port.saved();
        }
    }
}

enum SavingSteps {
    Thread(SaverThread<MemoryProgress>),
    Store(Helped),
}

impl SavingSteps {
    /// Saves what is due, and lets time pass until then.
    fn save(&mut self) {
        match self {
            Self::Store(store) => store.help(),
            Self::Thread(saver) => loop {
                match saver.step(&Now::when_asked()) {
                    Sleep::No | Sleep::Spin | Sleep::Awhile(_) => {}
                    Sleep::Until(Some(until)) => model::reach(until),
                    Sleep::Until(None) | Sleep::End => return,
                }
            },
        }
    }
}

/// Counts how often each job was run.
struct Count(Mutex<Vec<u32>>);

impl Runner<Index> for Count {
    fn run(&self, Assignment { token, job }: Assignment<Index>, _: &mut Changes) -> Option<Report> {
        assert_eq!(job.index, job.payload);
        self.0.lock()[job.index as usize] += 1;
        Some(Report { token, index: job.index, outcome: Ok(()) })
    }
}

/// Counts how often each job was run in a batch, and the jobs of the largest batch.
struct Together(Mutex<(Vec<u32>, usize)>);

impl Together {
    fn new(jobs: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new((vec![0; jobs], 0))))
    }
}

impl Runner<Index> for Together {
    fn runs_batches(&self) -> bool {
        true
    }

    fn run_batch(&self, jobs: Vec<Job<Index>>, _: &mut Changes) -> Result<(), Box<Caught>> {
        let mut counts = self.0.lock();
        counts.1 = counts.1.max(jobs.len());
        jobs.iter().for_each(|job| counts.0[job.index as usize] += 1);
        Ok(())
    }
}

/// Gives each job to the thread that waits for it.
struct HandedJobs(Mutex<Option<Done>>, Arc<dyn Reported>);

impl Runner<Index> for HandedJobs {
    fn run(&self, Assignment { token, job }: Assignment<Index>, _: &mut Changes) -> Option<Report> {
        *self.0.lock() = Some(Done::new(self.1.clone(), token, job.index, None));
        None
    }
}

/// A driver with this many jobs and workers, and its reader and saver.
struct Model {
    driver: Arc<Driver>,
    reader: Reader,
    saving: SavingSteps,
}

impl Model {
    fn new(jobs: u64, workers: usize, max_processing: usize) -> Self {
        Self::with(IndexSource::of(jobs), workers, max_processing, false)
    }

    fn with(jobs: IndexSource, workers: usize, max_processing: usize, helps: bool) -> Self {
        model::begin();
        let mut window = Window::begin(0, Limits { max_processing, max_search_ahead: 2 });
        window.stop_at(jobs.jobs - 1);
        let mut core = Core::new(window, Retry::none(), usize::MAX, model::now());
        core.workers.threads = workers;
        core.workers.cap = Some(workers);
        let key = jobs.by_key.then(|| hashed(|_: &Index| Some(0)));
        if key.is_some() {
            core.order_by_key(false);
        }
        let bell = Arc::<Bell>::default();
        let (saves, saving): (Arc<dyn SaveBackend>, _) = if helps {
            let store = Helped::default();
            (Arc::new(RingsReader(store.clone(), bell.clone())), SavingSteps::Store(store))
        } else {
            let mut progress = MemoryProgress::new();
            assert_eq!(progress.acquire().unwrap(), None);
            let (handle, saver): (SaverHandle, _) =
                saver(Arc::new(Mutex::new(progress)), Keeps::Watermark, Clock::default());
            (Arc::new(RingsReader(handle, bell.clone())), SavingSteps::Thread(saver))
        };
        let driver = Driver::new(core, bell.clone(), Watermark::new(), saves);
        let source = Arc::new(SharedSource::new(jobs, Clock::default()).by_key(key));
        driver.set_source(source.clone());
        let reader = Reader::new(source, driver.clone(), bell, None);
        Self { driver, reader, saving }
    }

    /// Makes the steps of the reader and the saver until both have nothing left to do.
    fn serve(mut self) {
        self.driver.begin();
        loop {
            self.saving.save();
            match self.reader.step(&Now::when_asked()) {
                Sleep::No => {}
                Sleep::Spin => self.driver.bell.spin(),
                // Time does not pass: the workers have to do without the reader.
                Sleep::Until(_) | Sleep::Awhile(_) => self.driver.bell.sleep(None),
                Sleep::End => break,
            }
        }
        // The saver outlives the reader.
        while !self.driver.core.lock().window.has_ended() {
            self.saving.save();
            thread::yield_now();
        }
    }

    fn worker(&self, runner: &Arc<impl Runner<Index>>) -> thread::JoinHandle<()> {
        let (driver, runner) = (self.driver.clone(), runner.clone());
        spawn(move || work(&*driver, &*runner))
    }
}

/// Checks that this many workers run each job once, and that every thread ends.
fn runs_each_job_once(jobs: usize, workers: usize, model: impl Fn() -> Model + Send + Sync + 'static) {
    explore(2, move || {
        let model = model();
        let count = Arc::new(Count(Mutex::new(vec![0; jobs])));
        let workers: Vec<_> = (0..workers).map(|_| model.worker(&count)).collect();
        let watermark = model.driver.watermark.clone();
        model.serve();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(*count.0.lock(), vec![1; jobs]);
        assert_eq!(watermark.last_processed(), Some(jobs as Index - 1));
    });
}

#[test]
fn loom_each_job_runs_once_and_each_thread_ends() {
    runs_each_job_once(2, 2, || Model::new(2, 2, 2));
}

#[test]
fn loom_workers_and_the_reader_take_turns_to_read() {
    runs_each_job_once(3, 1, || Model::with(IndexSource { quick: true, ..IndexSource::of(3) }, 1, 1, false));
}

#[test]
fn loom_workers_help_the_saver_to_save() {
    runs_each_job_once(2, 2, || Model::with(IndexSource::of(2), 2, 2, true));
}

/// Runs two jobs, each of which another thread reports. The worker waits for the first report:
/// there is one slot, or both jobs have one key.
fn foreign_reports(by_key: bool) {
    explore(2, move || {
        let model = Model::with(IndexSource { by_key, ..IndexSource::of(2) }, 1, 1 + usize::from(by_key), false);
        let handed = Arc::new(HandedJobs(Mutex::default(), model.driver.clone()));
        let worker = model.worker(&handed);
        let elsewhere = {
            let (driver, handed) = (model.driver.clone(), handed.clone());
            spawn(move || {
                while !driver.core.lock().window.has_ended() {
                    let done = handed.0.lock().take();
                    done.map_or_else(thread::yield_now, Done::complete);
                }
            })
        };
        let watermark = model.driver.watermark.clone();
        model.serve();
        worker.join().unwrap();
        elsewhere.join().unwrap();
        assert_eq!(watermark.last_processed(), Some(1));
    });
}

#[test]
fn loom_a_foreign_report_wakes_the_waiting_worker() {
    foreign_reports(false);
}

#[test]
fn loom_a_report_that_frees_a_key_wakes_the_worker() {
    foreign_reports(true);
}

#[test]
fn loom_a_stop_reaches_a_thread_falling_asleep() {
    // `make soak` explores further.
    explore(2, || {
        let model = Model::new(2, 1, 1);
        let count = Arc::new(Count(Mutex::new(vec![0; 2])));
        let worker = model.worker(&count);
        let driver = model.driver.clone();
        let stopper = spawn(move || driver.request_stop());
        let watermark = model.driver.watermark.clone();
        model.serve();
        worker.join().unwrap();
        stopper.join().unwrap();
        let run = count.0.lock().iter().sum::<u32>();
        assert_eq!(watermark.last_processed().map_or(0, |last| last + 1), u64::from(run));
    });
}

/// Three jobs in batches of two, and this many workers. Time never passes, so the linger never
/// ends.
fn in_batches(workers: usize) -> (Model, Arc<Together>, Vec<thread::JoinHandle<()>>) {
    let (model, together) = (Model::new(3, workers, 2), Together::new(3));
    model.driver.set_batches(2, Duration::from_secs(1));
    let workers = (0..workers).map(|_| model.worker(&together)).collect();
    (model, together, workers)
}

#[test]
fn loom_a_lingering_batch_runs_when_full_or_last() {
    explore(2, || {
        let (model, together, workers) = in_batches(2);
        let watermark = model.driver.watermark.clone();
        model.serve();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        let counts = together.0.lock();
        assert_eq!((&counts.0[..], counts.1), (&[1; 3][..], 2), "the first two jobs wait for each other");
        assert_eq!(watermark.last_processed(), Some(2));
    });
}

#[test]
fn loom_a_stop_reaches_a_lingering_worker() {
    explore(2, || {
        let (model, together, mut threads) = in_batches(1);
        let driver = model.driver.clone();
        threads.push(spawn(move || driver.request_stop()));
        let watermark = model.driver.watermark.clone();
        model.serve();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let run = together.0.lock().0.iter().sum::<u32>();
        assert_eq!(watermark.last_processed().map_or(0, |last| last + 1), u64::from(run));
    });
}

#[test]
fn loom_the_published_watermark_never_goes_back() {
    explore(2, || {
        let model = Model::new(2, 1, 1);
        let count = Arc::new(Count(Mutex::new(vec![0; 2])));
        let worker = model.worker(&count);
        let driver = model.driver.clone();
        let waiter = spawn(move || {
            let before = driver.watermark.last_processed();
            assert!(driver.wait_for(0, Duration::MAX));
            let after = driver.watermark.last_processed();
            assert!(after >= Some(0) && after >= before, "{before:?} {after:?}");
        });
        model.serve();
        worker.join().unwrap();
        waiter.join().unwrap();
    });
}

#[test]
fn loom_a_turn_held_by_a_pause_is_taken_up_after_it() {
    explore(2, || {
        let model = Model::new(2, 1, 1);
        let taken = Arc::new(Mutex::new(Vec::new()));
        let sink = taken.clone();
        let into_sink = move |index, ()| {
            sink.lock().push(index);
            Ok(())
        };
        let ordered =
            Arc::new(Ordered { sink: Sink::new(into_sink), spans: model.driver.spans(), work: |_: Job<Index>| Ok(()) });
        let worker = model.worker(&ordered);
        let driver = model.driver.clone();
        let pauser = spawn(move || {
            driver.set_paused(true);
            driver.set_paused(false);
        });
        model.serve();
        worker.join().unwrap();
        pauser.join().unwrap();
        assert_eq!(*taken.lock(), [0, 1]);
    });
}

/// A consumer on standby.
fn standby() -> Arc<Driver> {
    model::begin();
    let window = Window::begin(0, Limits { max_processing: 1, max_search_ahead: 1 });
    let mut core = Core::new(window, Retry::none(), usize::MAX, model::now());
    let refusal = NameInUse::of(Error::InUse { name: "blocks".to_owned() }).expect("the name is in use");
    core.await_name(refusal, &Now::when_asked());
    Driver::waiting(core, Arc::default(), Watermark::new())
}

/// Makes this call while a standby falls asleep. Returns true if it then tries to acquire its name.
fn wakes(call: impl FnOnce(&Driver) + Send + 'static) -> bool {
    let driver = standby();
    let caller = {
        let driver = driver.clone();
        spawn(move || call(&driver))
    };
    // Time never passes for sleepers, so the next try never comes by itself.
    let tries = driver.sleep_until_try(model::now() + Duration::from_secs(1));
    caller.join().unwrap();
    tries
}

#[test]
fn loom_a_standby_hears_that_its_name_is_free() {
    explore(3, || assert!(wakes(|driver| driver.hear_of_free("unnamed"))));
}

#[test]
fn loom_a_standby_hears_that_it_is_stopped() {
    explore(3, || assert!(!wakes(|driver| driver.request_stop())));
}
