//! Jobs that a job pushes with its own end. The runner runs them, although the claim in the same
//! write came too early to see them.

use common::LONG;
use waterline::Store;
use waterline_queue::{
    DrainLimits, JobState, NewJob, Outcome, Queue, QueueOptions, Reached, Retention, Runner, RunnerBuilder,
};

fn queue() -> Queue {
    // No row expires, which would wake the runner for another reason.
    let options = QueueOptions::default().retention(Retention::Keep);
    Queue::open(&Store::in_memory(), "chain", options).unwrap()
}

fn job(left: u64) -> NewJob {
    NewJob::new("link", &left).unwrap().id(format!("link {left}"))
}

/// A runner with one slot, whose job pushes the next one with its own end, down to 0.
fn chain(queue: &Queue) -> RunnerBuilder {
    let next = queue.clone();
    let handler = move |_: &_, left: u64, effects: &mut waterline::Effects| {
        if let Some(left) = left.checked_sub(1) {
            next.push_with(effects, job(left))?;
        }
        Ok(Outcome::Done)
    };
    Runner::builder(queue).on_transactional("link", handler).max_processing(1)
}

#[test]
fn a_drain_runs_jobs_pushed_with_the_end_of_others() {
    let queue = queue();
    queue.push(job(20)).unwrap();
    let summary = chain(&queue).drain(DrainLimits::default()).unwrap();
    assert_eq!((summary.finished, summary.reached, queue.counts().ready), (21, Reached::NothingReady, 0));
}

#[test]
fn a_job_pushed_beside_a_claim_of_stale_entries_runs() {
    let queue = queue();
    // The claim beside the end of the first job finds the stale entries of the others, so the log
    // gets shorter and longer in one write.
    queue.push_all((1..=4).map(job)).unwrap();
    (2..=4).for_each(|left| queue.remove(format!("link {left}")).unwrap());
    let runner = chain(&queue).start().unwrap();
    let mut last = match queue.subscribe("link 0") {
        Ok(last) => last,
        // It is not pushed yet.
        Err(_) => {
            queue.subscribe("link 1").unwrap().wait_for(JobState::Finished, LONG).unwrap().expect("the first job ends");
            queue.subscribe("link 0").unwrap()
        }
    };
    last.wait_for(JobState::Finished, LONG).unwrap().expect("the job that it pushed is run");
    runner.stop().unwrap();
}
