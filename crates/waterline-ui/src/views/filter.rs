//! Filters for the jobs of a queue.

use super::query::Query;
use crate::failure::Failure;
use waterline_queue::{JobInfo, JobState, Queue};

/// The maximum number of rows that one request reads.
pub(crate) const MOST_READ: usize = 10_000;

/// The rows per read.
const CHUNK: usize = 100;

/// The states, in the order in which an operator wants to see them.
const STATES: [JobState; 7] = [
    JobState::Ready,
    JobState::Running,
    JobState::Scheduled,
    JobState::Waiting,
    JobState::Dead,
    JobState::Finished,
    JobState::Damaged,
];

/// A filter by state, kind and key.
#[derive(Debug)]
pub(crate) struct Filter {
    pub(crate) state: JobState,
    kind: Option<String>,
    key: Option<String>,
}

/// The jobs that a filter has found.
pub(crate) struct Found {
    pub(crate) jobs: Vec<JobInfo>,
    /// How many rows were read.
    pub(crate) read: usize,
    /// The cursor after the last row that was read; `None` if there are no more.
    pub(crate) next: Option<String>,
}

impl Filter {
    /// Parses the parameters of a request.
    pub(crate) fn of(query: &Query) -> Result<Self, Failure> {
        let text = |name: &str| query.get(name).filter(|text| !text.is_empty()).cloned();
        let state = text("state").unwrap_or_else(|| "ready".to_owned());
        let found = STATES.into_iter().find(|known| known.to_string() == state);
        let state = found.ok_or_else(|| {
            let known: Vec<_> = STATES.iter().map(ToString::to_string).collect();
            Failure::bad(format!("there is no state {state:?}: {}", known.join(", ")))
        })?;
        Ok(Self { state, kind: text("kind"), key: text("key") })
    }

    fn is_plain(&self) -> bool {
        self.kind.is_none() && self.key.is_none()
    }

    fn takes(&self, job: &JobInfo) -> bool {
        let fits =
            |wanted: &Option<String>, is: Option<&str>| wanted.as_deref().is_none_or(|wanted| is == Some(wanted));
        fits(&self.kind, Some(&job.kind)) && fits(&self.key, job.key.as_deref())
    }

    /// Returns up to `most` jobs after the cursor. With a kind or a key it reads at most
    /// [`MOST_READ`] rows.
    pub(crate) fn find(&self, queue: &Queue, cursor: Option<&str>, most: usize) -> Result<Found, Failure> {
        let mut found = Found { jobs: Vec::new(), read: 0, next: cursor.map(str::to_owned) };
        loop {
            let missing = most - found.jobs.len();
            let chunk = if self.is_plain() { missing } else { CHUNK };
            let page = queue.page(self.state, found.next.as_deref(), chunk.min(CHUNK).min(MOST_READ - found.read))?;
            let last = page.jobs.len();
            for (nth, mut job) in page.jobs.into_iter().enumerate() {
                found.read += 1;
                // A list does not show these, and they may be large.
                (job.payload, job.data) = (Vec::new(), None);
                if self.takes(&job) {
                    found.jobs.push(job);
                    if found.jobs.len() == most && nth + 1 < last {
                        // Only a page has a cursor, so read the page again up to here.
                        let part = queue.page(self.state, found.next.as_deref(), nth + 1)?;
                        found.next = part.next;
                        return Ok(found);
                    }
                }
            }
            found.next = page.next;
            if found.next.is_none() || found.jobs.len() == most || found.read >= MOST_READ {
                return Ok(found);
            }
        }
    }
}
