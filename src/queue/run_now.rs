//! A job that waits for its time, and runs now.

use crate::queue::handle::Queue;
use crate::queue::words::error::QueueError;
use crate::queue::words::job::{JobState, MADE, PushOutcome};
use crate::queue::words::meta;
use crate::queue::words::new_job::NewJob;
use crate::queue::words::row::{Extras, Row};
use crate::queue::words::unique::Clash;

impl Queue {
    /// Makes a scheduled job due now: it waits for its time no longer, or for its back-off. Returns
    /// false, and changes nothing, if the job is not scheduled. It is a push of the same id, with
    /// the payload and the settings that the job has, and with its failures; the data that a worker
    /// has left goes. The hook of the queue is not asked.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::Store;
    /// use waterline::queue::{JobState, NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default())?;
    /// let id = queue.push(NewJob::new("k", "tomorrow")?.delay(Duration::from_secs(86_400)))?.id;
    /// assert!(queue.run_now(&id)?);
    /// assert_eq!(queue.state(&id)?, Some(JobState::Ready));
    /// assert!(!queue.run_now(&id)?);
    /// # Ok::<(), waterline::queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::NotFound`] if there is no such job, [`QueueError::Store`] when the database
    /// fails or the job cannot be read. [`QueueError::RunNow`] for a job whose id the queue has
    /// made, if the queue is not in a [`Store`](crate::Store).
    pub fn run_now(&self, id: impl AsRef<str>) -> Result<bool, QueueError> {
        let id = id.as_ref();
        self.catch_up();
        let (row, job) = match (self.engine.row(self.number, id)?, self.engine.job(self.number, id)?) {
            (Some(row), Some(job)) => (row, job),
            _ => return Err(self.not_found(id)),
        };
        if row.state != JobState::Scheduled || job.state != JobState::Scheduled {
            return Ok(false);
        }
        // No push of a user's has an id that the queue has made. Other engines would make a second
        // job of it.
        if self.embedded().is_none() && id.starts_with(MADE) {
            return Err(QueueError::RunNow { queue: self.name().to_owned(), id: id.to_owned() });
        }
        let like = NewJob::new(row.kind.clone(), &())?.id("now");
        let mut pushes = self.engine.prepare(self.number, vec![like])?;
        for push in &mut pushes {
            id.clone_into(&mut push.id);
            push.row = Row { state: JobState::Ready, due: 0, since: push.row.since, ..row.clone() };
            (push.payload, push.clash) = (job.payload.clone(), Clash::Replace);
            if let Some(extras) = push.row.extras.as_deref_mut() {
                *extras = Extras { held: None, after: 0, awaited: None, held_up: None, ..extras.clone() };
                extras.has_meta = !job.meta.is_empty();
            }
            if !job.meta.is_empty() {
                push.meta = meta::text(&job.meta);
            }
        }
        let pushed = self.engine.push(vec![(self.number, pushes)])?;
        self.shared.settle();
        Ok(pushed.iter().all(|pushed| pushed.outcome == PushOutcome::Rescheduled))
    }
}

#[cfg(test)]
mod tests {
    use crate::base::retry::Retry;
    use crate::queue::words::job::{JobState, Priority};
    use crate::queue::words::new_job::NewJob;
    use crate::queue::words::options::QueueOptions;
    use crate::queue::words::unique::Unique;
    use crate::queue::{Accept, Queue, QueueError};
    use crate::store::Store;
    use std::time::Duration;

    #[test]
    fn a_job_that_runs_now_keeps_its_settings_and_those_who_wait_for_it() {
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap();
        let retry = Retry::fixed(Duration::from_secs(7)).max_attempts(3);
        let job = NewJob::new("k", "payload").unwrap().key("tenant").priority(Priority::High).retry(retry);
        let job = job.unique(Unique::until_done()).meta("by", "ann").unwrap().expires(Duration::from_secs(999_999));
        let job = job.delay(Duration::from_secs(86_400));
        let id = queue.push(job.clone()).unwrap().id;
        queue.push(NewJob::new("k", "behind").unwrap().id("behind").after([&id])).unwrap();
        assert_eq!(queue.related(&id, 9).unwrap().awaited_by, ["behind"]);
        let before = queue.row(&id).unwrap().unwrap();
        assert!(queue.run_now(&id).unwrap());
        let (row, info) = (queue.row(&id).unwrap().unwrap(), queue.get(&id).unwrap().unwrap());
        assert_eq!((row.retry, row.priority, row.pushed), (before.retry, Priority::High, before.pushed));
        assert_eq!((row.extras().unique, row.extras().expires), (before.extras().unique, before.extras().expires));
        assert_eq!((info.key.as_deref(), info.payload::<String>().unwrap()), (Some("tenant"), "payload".to_owned()));
        assert_eq!((info.state, &info.meta["by"]), (JobState::Ready, &serde_json::json!("ann")));
        // Its twin is refused as before, and the job behind it runs when it has ended.
        assert!(!queue.push(job).unwrap().is_new());
        let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
        assert_eq!(lease.id(), id);
        assert!(!queue.run_now(&id).unwrap(), "it runs");
        lease.finish(None).unwrap();
        assert_eq!(queue.accept(Accept::new()).unwrap().map(|lease| lease.id().to_owned()), Some("behind".into()));
        assert!(matches!(queue.run_now("nobody"), Err(QueueError::NotFound { .. })));
    }
}
