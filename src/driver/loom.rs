//! Claiming and reporting, in every order in which the threads can meet.
//!
//! The real driver, window, workers' loop and bell; only the reader and the saver are a few lines here, on one thread. A lost
//! wake-up is a deadlock, which loom reports; so is a thread that does not end.

use super::*;
use crate::base::sync::explore;
use crate::driver::control::Control;
use crate::progress::SaveDesk;
use crate::reader::{Due, Fetched, Order, ReadDesk, Then, Weights};
use crate::run::ordered::Ordered;
use crate::run::worker::{Done, Job};
use crate::run::{Assignment, work};
use crate::source::Gate;
use crate::window::{Limits, Window};
use loom::thread;
use std::time::Duration;

/// A source whose job at an index is the index.
struct Numbers;

/// One at a time, so that jobs come while workers fall asleep.
fn read(run: &RangeInclusive<Index>, quick: bool) -> Fetched<Index> {
    Fetched { jobs: vec![*run.start()], weights: Weights::equal(1, 8), then: Then::Unasked, quick }
}

impl ReadRuns<Index> for Numbers {
    fn read_run(&self, run: RangeInclusive<Index>) -> Fetched<Index> {
        read(&run, true)
    }
}

/// Remembers who has something to save, and rings the reader, which saves here.
struct Desks {
    due: Arc<Mutex<Option<Arc<dyn SaveDesk>>>>,
    bell: Arc<Bell>,
    /// Whether workers save for themselves.
    helps: bool,
}

impl Saves for Desks {
    fn save(&self, desk: Arc<dyn SaveDesk>, _hurry: bool) {
        *self.due.lock() = Some(desk);
        self.bell.work();
    }

    fn hurry(&self) {}

    fn takes_help(&self) -> bool {
        self.helps
    }

    fn help(&self) {
        save(&self.due);
    }
}

fn save(due: &Mutex<Option<Arc<dyn SaveDesk>>>) {
    let due = due.lock().take();
    if let Some(desk) = due
        && desk.checkpoint().is_some()
    {
        desk.saved();
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

/// Gives each job to whoever waits for it.
struct Handed(Mutex<Option<Done>>, Arc<dyn Reported>);

impl Runner<Index> for Handed {
    fn run(&self, Assignment { token, job }: Assignment<Index>, _: &mut Changes) -> Option<Report> {
        *self.0.lock() = Some(Done::new(self.1.clone(), token, job.index));
        None
    }
}

/// A driver with this many jobs and workers, and what the reader's side of it needs.
struct Model {
    driver: Arc<Driver<Index>>,
    due: Arc<Mutex<Option<Arc<dyn SaveDesk>>>>,
    jobs: u64,
    /// Whether workers read for themselves.
    quick: bool,
}

impl Model {
    fn new(jobs: u64, workers: usize, max_processing: usize) -> Self {
        Self::with(jobs, workers, max_processing, false)
    }

    fn with(jobs: u64, workers: usize, max_processing: usize, helps: bool) -> Self {
        let mut window = Window::begin(0, Limits { max_processing, max_search_ahead: 2 });
        window.stop_at(jobs - 1);
        let mut core = Core::new(window, crate::Retry::none(), usize::MAX);
        core.workers.threads = workers;
        core.workers.cap = Some(workers);
        let (bell, due) = (Arc::<Bell>::default(), Arc::default());
        let saves = Arc::new(Desks { due: Arc::clone(&due), bell: bell.clone(), helps });
        let driver = Driver::new(core, bell, Watermark::new(), saves);
        driver.set_source(Arc::new(Numbers));
        Self { driver, due, jobs, quick: false }
    }

    /// What the reader and the saver do.
    fn serve(&self) {
        self.driver.begin();
        let mut fetched = None;
        let mut look = Due::Now;
        loop {
            self.save();
            match self.driver.order(fetched.take(), Instant::now(), std::mem::replace(&mut look, Due::No)) {
                Order::Look => _ = self.driver.looked(Some(self.jobs - 1), Gate::Open),
                Order::Read(run) => fetched = Some(read(&run, self.quick)),
                Order::Note(_) => unreachable!("every read goes well"),
                Order::Wait(_) => {
                    // On watch it looks twice, and then leaves the workers alone.
                    let _ = !self.driver.bell.watch() && self.driver.watch_on(Instant::now()).is_some();
                    if self.driver.bell.wait(None).closed {
                        return;
                    }
                }
                Order::End => {
                    // As the saver would, beyond the reader's end.
                    while !self.driver.core.lock().window.has_ended() {
                        self.save();
                        thread::yield_now();
                    }
                    return;
                }
            }
        }
    }

    fn save(&self) {
        save(&self.due);
    }

    fn worker(&self, runner: &Arc<impl Runner<Index>>) -> thread::JoinHandle<()> {
        let (driver, runner) = (self.driver.clone(), runner.clone());
        thread::spawn(move || work(&*driver, &*runner))
    }
}

#[test]
fn loom_every_job_is_run_once_and_every_thread_ends() {
    explore(2, || {
        let model = Model::new(2, 2, 2);
        let count = Arc::new(Count(Mutex::new(vec![0; 2])));
        let workers = [model.worker(&count), model.worker(&count)];
        model.serve();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(*count.0.lock(), [1, 1]);
        assert_eq!(model.driver.watermark.last_processed(), Some(1));
    });
}

#[test]
fn loom_workers_that_read_for_themselves_take_turns_with_the_reader() {
    explore(2, || {
        let model = Model { quick: true, ..Model::new(3, 1, 1) };
        let count = Arc::new(Count(Mutex::new(vec![0; 3])));
        let worker = model.worker(&count);
        model.serve();
        worker.join().unwrap();
        assert_eq!(*count.0.lock(), [1, 1, 1]);
        assert_eq!(model.driver.watermark.last_processed(), Some(2));
    });
}

#[test]
fn loom_workers_that_save_for_themselves_meet_whoever_saves() {
    explore(2, || {
        let model = Model::with(2, 2, 2, true);
        let count = Arc::new(Count(Mutex::new(vec![0; 2])));
        let workers = [model.worker(&count), model.worker(&count)];
        model.serve();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(*count.0.lock(), [1, 1]);
        assert_eq!(model.driver.watermark.last_processed(), Some(1));
    });
}

#[test]
fn loom_a_report_from_another_thread_wakes_the_worker_that_waits_for_the_slot() {
    explore(2, || {
        let model = Model::new(2, 1, 1);
        let handed = Arc::new(Handed(Mutex::default(), model.driver.clone()));
        let worker = model.worker(&handed);
        let elsewhere = {
            let (driver, handed) = (model.driver.clone(), handed.clone());
            thread::spawn(move || {
                while !driver.core.lock().window.has_ended() {
                    let done = handed.0.lock().take();
                    done.map_or_else(thread::yield_now, Done::complete);
                }
            })
        };
        model.serve();
        worker.join().unwrap();
        elsewhere.join().unwrap();
        assert_eq!(model.driver.watermark.last_processed(), Some(1));
    });
}

#[test]
fn loom_a_stop_reaches_whoever_falls_asleep() {
    explore(3, || {
        let model = Model::new(2, 1, 1);
        let count = Arc::new(Count(Mutex::new(vec![0; 2])));
        let worker = model.worker(&count);
        let driver = model.driver.clone();
        let stopper = thread::spawn(move || driver.request_stop());
        model.serve();
        worker.join().unwrap();
        stopper.join().unwrap();
        let run = count.0.lock().iter().sum::<u32>();
        assert_eq!(model.driver.watermark.last_processed().map_or(0, |last| last + 1), u64::from(run));
    });
}

#[test]
fn loom_the_published_watermark_never_goes_back_and_whoever_waited_for_it_sees_it() {
    explore(2, || {
        let model = Model::new(2, 1, 1);
        let count = Arc::new(Count(Mutex::new(vec![0; 2])));
        let worker = model.worker(&count);
        let driver = model.driver.clone();
        let waiter = thread::spawn(move || {
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
fn loom_a_turn_that_a_pause_holds_up_is_taken_up_after_it_though_nobody_reports_any_more() {
    explore(2, || {
        let model = Model::new(2, 1, 1);
        let taken = Arc::new(Mutex::new(Vec::new()));
        let sink = taken.clone();
        let into_sink = move |index, ()| {
            sink.lock().push(index);
            Ok(())
        };
        let ordered = Arc::new(Ordered::new(|_: Job<Index>| Ok(()), into_sink, model.driver.clone()));
        let worker = model.worker(&ordered);
        let driver = model.driver.clone();
        let pauser = thread::spawn(move || {
            driver.set_paused(true);
            driver.set_paused(false);
        });
        model.serve();
        worker.join().unwrap();
        pauser.join().unwrap();
        assert_eq!(*taken.lock(), [0, 1]);
    });
}
