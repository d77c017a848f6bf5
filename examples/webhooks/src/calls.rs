//! The calls of the queue that an answer waits for, as futures.

use serde::Serialize;
use std::time::Duration;
use waterline::queue::{JobInfo, JobState, NewJob, Pushed, Queue, QueueError};

/// Runs a call that blocks on a thread for such calls.
pub async fn run<R: Send + 'static>(
    queue: &Queue,
    call: impl FnOnce(&Queue) -> Result<R, QueueError> + Send + 'static,
) -> Result<R, QueueError> {
    let queue = queue.clone();
    tokio::task::spawn_blocking(move || call(&queue)).await.expect("a call of the queue does not panic")
}

pub async fn push(queue: &Queue, job: NewJob) -> Result<Pushed, QueueError> {
    run(queue, |queue| queue.push(job)).await
}

pub async fn get(queue: &Queue, id: String) -> Result<Option<JobInfo>, QueueError> {
    run(queue, move |queue| queue.get(id)).await
}

/// A page of jobs, and the cursor of the next one.
#[derive(Debug, Serialize)]
pub struct Page {
    pub jobs: Vec<JobInfo>,
    pub next: Option<String>,
}

pub async fn page(queue: &Queue, state: JobState, cursor: Option<String>, limit: usize) -> Result<Page, QueueError> {
    run(queue, move |queue| {
        let from = cursor.map(|id| queue.get(id)).transpose()?.flatten();
        let jobs = queue.list(state, from.as_ref(), limit)?;
        let next = jobs.last().filter(|_| jobs.len() == limit).map(|job| job.id.clone());
        Ok(Page { jobs, next })
    })
    .await
}

/// The end of a job.
#[derive(Debug, Serialize)]
pub struct Seen {
    pub state: Option<JobState>,
    pub data: Option<serde_json::Value>,
    pub error: Option<String>,
}

/// Waits until a job has ended. `None`: the time is over.
pub async fn wait_ended(queue: &Queue, id: String, timeout: Duration) -> Result<Option<Seen>, QueueError> {
    run(queue, move |queue| {
        let deadline = std::time::Instant::now() + timeout;
        let mut subscription = queue.subscribe(&id)?;
        loop {
            let state = subscription.state();
            if state.is_none_or(JobState::is_ended) {
                let job = queue.get(&id)?;
                let (data, error) = job.map_or((None, None), |job| (job.data, job.error));
                return Ok(Some(Seen { state, data, error }));
            }
            if subscription.wait(deadline.saturating_duration_since(std::time::Instant::now()))?.is_none() {
                return Ok(None);
            }
        }
    })
    .await
}
