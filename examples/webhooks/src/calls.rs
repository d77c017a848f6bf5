//! The calls that the queue does not have yet.

use serde::Serialize;
use waterline::queue::{JobInfo, JobState, Queue, QueueError};

/// A page of jobs, and the cursor of the next one.
#[derive(Debug, Serialize)]
pub struct Page {
    pub jobs: Vec<JobInfo>,
    pub next: Option<String>,
}

pub async fn page(queue: &Queue, state: JobState, cursor: Option<String>, limit: usize) -> Result<Page, QueueError> {
    let call = move |queue: &Queue| {
        let from = cursor.map(|id| queue.get(id)).transpose()?.flatten();
        let jobs = queue.list(state, from.as_ref(), limit)?;
        let next = jobs.last().filter(|_| jobs.len() == limit).map(|job| job.id.clone());
        Ok(Page { jobs, next })
    };
    queue.run_async(call).await
}
