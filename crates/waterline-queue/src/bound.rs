//! Pushes to a queue with a bounded number of waiting jobs.

use crate::engine::Peek;
use crate::handle::Queue;
use crate::rules::pushing::Push;
use crate::types::error::QueueError;
use crate::types::job::Pushed;
use crate::types::new_job::NewJob;
use crate::types::options::LONGEST_SLEEP;
use std::time::{Duration, Instant};
use waterline::seam::ClockExt;

impl Queue {
    /// Pushes a job as [`push`](Self::push) does, and waits while the queue is full.
    ///
    /// It blocks its thread until there is room
    /// ([`QueueOptions::max_waiting`](crate::QueueOptions::max_waiting)), for this time at most.
    /// [`Duration::MAX`] waits without end. The delay of the job counts from the call.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::Store;
    /// use waterline_queue::{Accept, NewJob, Queue, QueueError, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default().max_waiting(1))?;
    /// queue.push(NewJob::new("k", &1)?)?;
    /// assert!(matches!(queue.push(NewJob::new("k", &2)?), Err(QueueError::Full { .. })));
    /// let second = std::thread::spawn({
    ///     let queue = queue.clone();
    ///     move || queue.push_within(NewJob::new("k", &2)?, Duration::from_secs(60))
    /// });
    /// queue.accept(Accept::new())?.expect("a job is ready").finish(None)?;     // makes room
    /// second.join().expect("no panic")?;
    /// # Ok::<(), QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Full`] if there was no room in time; otherwise as [`push`](Self::push).
    pub fn push_within(&self, job: NewJob, timeout: Duration) -> Result<Pushed, QueueError> {
        let deadline = self.moment().now.checked_add(timeout);
        self.ask_before_push(&job)?;
        let pushes = self.engine.prepare(self.number, vec![job])?;
        loop {
            match self.push_if_room(pushes.clone())? {
                Ok(pushed) => return Ok(pushed),
                Err(full) if !self.wait_for_room(deadline) => return Err(full),
                Err(_) => {}
            }
        }
    }

    /// Pushes one job. The inner result is the error of a full queue.
    pub(super) fn push_if_room(&self, pushes: Vec<Push>) -> Result<Result<Pushed, QueueError>, QueueError> {
        match self.push_prepared(pushes) {
            Err(full @ QueueError::Full { .. }) => {
                // This removes expired jobs, and finds the next job to expire.
                self.tidy()?;
                Ok(Err(full))
            }
            pushed => Ok(Ok(pushed?.remove(0))),
        }
    }

    /// Pushes jobs that the hook has allowed.
    pub(super) fn push_asked(&self, jobs: Vec<NewJob>) -> Result<Vec<Pushed>, QueueError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        self.push_prepared(self.engine.prepare(self.number, jobs)?)
    }

    /// Pushes jobs in one atomic write, if there is room for all of them.
    pub(super) fn push_prepared(&self, pushes: Vec<Push>) -> Result<Vec<Pushed>, QueueError> {
        self.engine.push(vec![(self.number, pushes)])
    }

    /// Waits until there is room, or until some jobs have expired. Returns false at the deadline.
    fn wait_for_room(&self, deadline: Option<Instant>) -> bool {
        loop {
            let mut has_room = None;
            self.shared.bell.sleep_for_room(|| match self.look_for_room(deadline) {
                Ok(pause) => Some(self.clock().deadline(self.moment().after(pause))),
                Err(answer) => {
                    has_room = Some(answer);
                    None
                }
            });
            if let Some(has_room) = has_room {
                return has_room;
            }
        }
    }

    /// Returns the time until the next look if there is no room yet. Otherwise the error says
    /// whether there is room (true) or the deadline has come (false).
    pub(super) fn look_for_room(&self, deadline: Option<Instant>) -> Result<Option<Duration>, bool> {
        let (at, peek) = (self.moment(), self.peek());
        let rest = deadline.map(|deadline| deadline.saturating_duration_since(at.now));
        if peek.has_room || rest.is_some_and(|rest| rest.is_zero()) {
            return Err(peek.has_room);
        }
        Ok(pause_for_room(&peek, rest, at.wall))
    }
}

/// Returns the time until a push without room looks again, unless an end wakes it; `None`: until
/// then. Of all that happens by time, only an expired job makes room.
pub(super) fn pause_for_room(peek: &Peek, rest: Option<Duration>, wall: u64) -> Option<Duration> {
    let expires = Duration::from_millis(peek.expires.saturating_sub(wall)).min(LONGEST_SLEEP);
    rest.into_iter().chain((peek.expires < u64::MAX).then_some(expires)).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_due_job_does_not_wake_a_push_without_room() {
        let due = Some(Duration::ZERO);
        let peek = |expires| Peek {
            ready: 1,
            is_paused: false,
            is_full: false,
            is_limited: false,
            has_room: false,
            due: 0,
            expires,
            next_time: due,
            next_change: due,
        };
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        for (expires, rest, pause) in [
            (u64::MAX, None, None),
            (u64::MAX, Some(hour), Some(hour)),
            (5_300, None, Some(Duration::from_millis(300))),
            (5_300, Some(Duration::from_millis(20)), Some(Duration::from_millis(20))),
            (9_000_000, Some(hour), Some(second)),
        ] {
            assert_eq!(pause_for_room(&peek(expires), rest, 5_000), pause, "{expires} {rest:?}");
        }
    }
}
