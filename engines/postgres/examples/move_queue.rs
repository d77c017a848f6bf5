//! Moves the waiting jobs of a queue into another one: from a store into PostgreSQL, back, or
//! between two databases. It may be called again after a crash: no job comes twice, as long as the
//! new queue is paused.
//!
//! ```sh
//! cargo run -p waterline-postgres --example move_queue -- mail "host=old dbname=shop" "host=new dbname=shop"
//! ```
//!
//! The queue of a store is opened with `Queue::open(&Store::open(directory)?, name, options)`.

use std::time::SystemTime;
use waterline::BoxError;
use waterline_queue::{JobInfo, JobState, NewJob, Queue, QueueError};

/// The jobs of one call.
const PIECE: usize = 1_000;

/// Moves all jobs that are ready or scheduled. Returns their number, and that of the jobs that
/// stay: those that run.
///
/// Pause the new queue before, and let it go on afterwards: once a job has run there, its id is
/// free again, and a second call would push it anew.
///
/// # Errors
/// Those of either queue, and one for jobs that wait for others: a job that is moved counts as
/// ended in the old queue, so those behind it would run too soon. Jobs that have moved stay moved.
pub fn move_queue(from: &Queue, to: &Queue) -> Result<(u64, u64), BoxError> {
    let waiting = from.counts().waiting;
    if waiting > 0 {
        return Err(format!("{waiting} jobs wait for others: let those end in the old queue first").into());
    }
    let mut moved = 0;
    for state in [JobState::Ready, JobState::Scheduled] {
        loop {
            let jobs = from.list(state, None, PIECE)?;
            if jobs.is_empty() {
                break;
            }
            // They are there before they are gone here. Their ids make them one job each.
            to.push_all(jobs.iter().map(|job| copy(from, job)).collect::<Result<Vec<_>, _>>()?)?;
            for job in &jobs {
                match from.remove(&*job.id) {
                    // It has gone by itself.
                    Ok(()) | Err(QueueError::NotFound { .. }) => moved += 1,
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    Ok((moved, from.counts().running))
}

/// The same job. One that had no id of yours has one now, so that a second call knows it.
///
/// # Errors
/// A payload that is no JSON, or metadata that cannot be read.
pub fn copy(from: &Queue, job: &JobInfo) -> Result<NewJob, QueueError> {
    let id = if job.id.starts_with('~') { format!("{}/{}", from.name(), &job.id[1..]) } else { job.id.clone() };
    let mut new = NewJob::new(&*job.kind, &job.payload::<serde_json::Value>()?)?.id(id);
    new = new.priority(job.priority).cost(job.cost);
    if let Some(time) = job.run_at {
        new = new.run_at(time);
    }
    if let Some(key) = &job.key {
        new = new.key(key);
    }
    if let Some(root) = &job.root {
        new = new.leaf(root);
    }
    if let Some(time) = job.expires_at {
        new = new.expires(time.duration_since(SystemTime::now()).unwrap_or_default());
    }
    job.meta.iter().try_fold(new, |new, (key, value)| new.meta(key, value))
}

#[cfg(not(test))]
fn main() -> Result<(), BoxError> {
    use waterline_postgres::{PgOptions, PgStore, postgres::NoTls};
    use waterline_queue::QueueOptions;

    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("the name of a queue, the old database, and the new one");
    let name = next()?;
    let mut open = || -> Result<Queue, BoxError> {
        let store = PgStore::connect(next()?.parse()?, NoTls, PgOptions::new())?;
        // Put those of your programs here: the last options that a queue was opened with count.
        Ok(store.queue(&name, QueueOptions::default())?)
    };
    let (from, to) = (open()?, open()?);
    to.pause(None)?;
    let moved = move_queue(&from, &to);
    let (moved, left) = moved.map_err(|error| format!("{error}; the new queue stays paused until a call succeeds"))?;
    to.resume()?;
    println!("{moved} jobs were moved, and {left} stay until they have run");
    Ok(())
}
