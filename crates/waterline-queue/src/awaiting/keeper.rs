//! The task that runs the maintenance of a queue on time, for all tasks that wait there.

use crate::awaiting::off_thread::off_thread;
use crate::handle::{Queue, WeakQueue};
use crate::notify::waiting_tasks::{Attendance, WaitingTasks};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use waterline::seam::within;

/// A task that waits in a queue, until a deadline at most.
pub(super) struct Waiting {
    pub(super) queue: Queue,
    deadline: Option<Instant>,
    attendance: Option<Attendance>,
}

impl Waiting {
    /// Begins a wait that ends after this time.
    pub(super) fn new(queue: &Queue, timeout: Duration) -> Self {
        let deadline = queue.moment().now.checked_add(timeout);
        Self { queue: queue.clone(), deadline, attendance: None }
    }

    /// Runs the maintenance that is due before the first look.
    pub(super) async fn do_all(&self) {
        if self.queue.peek().is_due() {
            let queue = self.queue.clone();
            // Without a runtime it has to block its thread.
            off_thread(move || queue.do_all()).await.unwrap_or_else(|_| self.queue.do_all());
        }
    }

    /// Returns the longest sleep; `None`: the time is over. During it a keeper runs what falls due.
    pub(super) fn sleep(&mut self) -> Option<Duration> {
        let now = self.queue.moment().now;
        let rest = self.deadline.map(|deadline| deadline.saturating_duration_since(now));
        if rest.is_some_and(|rest| rest.is_zero()) {
            return None;
        }
        self.attendance.get_or_insert_with(|| Attendance::new(&self.queue.shared.kept));
        ensure_keeper(&self.queue);
        Some(self.queue.limit(rest))
    }
}

/// Starts a keeper on the runtime of the calling task, if the queue has none. Outside of a runtime
/// there is no keeper, and nothing runs what falls due.
fn ensure_keeper(queue: &Queue) {
    let Ok(runtime) = Handle::try_current() else { return };
    if queue.shared.kept.take() {
        let duty = Duty { kept: queue.shared.kept.clone(), queue: queue.downgrade(), is_over: false };
        // A runtime without timers panics here, in the task that waits, and not in the keeper.
        drop(tokio::time::sleep(Duration::ZERO));
        runtime.spawn(duty.keep());
    }
}

/// The duty of the keeper. If it is dropped too early, as by a runtime that shuts down, the tasks
/// that wait elsewhere start another one.
struct Duty {
    kept: Arc<WaitingTasks>,
    /// Weak, so that the keeper does not keep the queue open.
    queue: WeakQueue,
    is_over: bool,
}

impl Duty {
    async fn keep(mut self) {
        loop {
            let Some(rings) = self.kept.rings() else {
                self.is_over = true;
                return;
            };
            let Some(queue) = self.queue.upgrade() else { return };
            let mut next = queue.peek().next_change;
            if next.is_some_and(|next| next.is_zero()) {
                let due = queue.clone();
                let Ok(later) = off_thread(move || due.do_all()).await else { return };
                next = later;
            }
            // A claim may find jobs that have become ready, or has maintenance to do.
            let peek = queue.peek();
            if peek.is_ready() || peek.is_due() {
                queue.call_one();
            }
            let limit = queue.limit(next);
            drop(queue);
            within(limit, self.kept.rung(rings)).await;
        }
    }
}

impl Drop for Duty {
    fn drop(&mut self) {
        if !self.is_over
            && self.kept.give_up()
            && let Some(queue) = self.queue.upgrade()
        {
            queue.shared.call_all_tasks();
        }
    }
}
