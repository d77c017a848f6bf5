//! Models of the handoff buffer.

use super::*;
use crate::reader::{Payloads, Weights};
use crate::window::Action;

/// Jobs that may go through the buffer. Job 1 goes on in a thread if there is a `tells`, which
/// hears of its end. The others are done when they return.
struct AtOnce {
    count: Count,
    tells: Option<Arc<dyn Reported>>,
    task: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Runner<Index> for AtOnce {
    fn run(&self, assignment: Assignment<Index>, effects: &mut Changes) -> Option<Report> {
        let report = self.count.run(assignment, effects)?;
        match &self.tells {
            Some(tells) if report.index == 1 => {
                let tells = tells.clone();
                *self.task.lock() = Some(spawn(move || tells.report(report)));
                None
            }
            _ => Some(report),
        }
    }

    fn is_plain(&self) -> bool {
        true
    }
}

/// Four jobs, all of them read; three go into the buffer.
fn with_buffer(workers: usize, goes_on: bool) -> (Model, Arc<AtOnce>, Vec<thread::JoinHandle<()>>) {
    let model = Model::with(IndexSource::of(4), workers, workers, false);
    {
        let mut core = model.driver.core.lock();
        core.workers.always = Some(3);
        core.running.takes_buffer = true;
        core.reading.supervises = true;
        core.window.set_limits(Limits { max_processing: workers, max_search_ahead: 9 });
        core.window.handle_head(Some(3));
        assert!(matches!(core.window.poll(), Some(Action::Fetch(_))));
        core.window.handle_fetched(4);
        core.reading.prefetch.add(&mut *<dyn Payloads>::new([0_u64, 1, 2, 3]), Weights::equal(4, 1));
    }
    let tells = goes_on.then(|| model.driver.clone() as Arc<dyn Reported>);
    let jobs = Arc::new(AtOnce { count: Count(Mutex::new(vec![0; 4])), tells, task: Mutex::new(None) });
    let workers = (0..workers).map(|_| model.worker(&jobs)).collect();
    (model, jobs, workers)
}

#[test]
fn loom_each_buffered_job_runs_once_and_counts() {
    explore(2, || {
        let (model, jobs, workers) = with_buffer(2, false);
        let watermark = model.driver.watermark.clone();
        model.serve();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(*jobs.count.0.lock(), vec![1; 4]);
        assert_eq!(watermark.last_processed(), Some(3));
    });
}

#[test]
fn loom_a_buffered_job_that_goes_on_elsewhere_counts_once() {
    explore(2, || {
        let (model, jobs, workers) = with_buffer(1, true);
        let watermark = model.driver.watermark.clone();
        model.serve();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        jobs.task.lock().take().unwrap().join().unwrap();
        assert_eq!(*jobs.count.0.lock(), vec![1; 4]);
        assert_eq!(watermark.last_processed(), Some(3));
    });
}

#[test]
fn loom_no_buffered_job_begins_after_a_stop() {
    explore(2, || {
        let (model, jobs, workers) = with_buffer(1, false);
        let driver = model.driver.clone();
        let stopper = spawn(move || {
            driver.request_stop();
            driver.core.lock().window.next()
        });
        let watermark = model.driver.watermark.clone();
        model.serve();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        let begun = stopper.join().unwrap();
        assert_eq!(jobs.count.0.lock().iter().sum::<u32>() as Index, begun, "those that had begun, and no other");
        assert_eq!(watermark.last_processed().map_or(0, |last| last + 1), begun);
    });
}
