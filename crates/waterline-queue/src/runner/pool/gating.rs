//! The gates before the claims of a runner.

use crate::notify::bell::Takes;
use crate::runner::drain::Reached;
use crate::runner::pool::Pool;
use crate::types::error::QueueError;
use std::time::Instant;

/// When a closed gate is asked again; `None`: never, since that is beyond the end of the clock.
pub(super) type AskAgain = Option<Instant>;

impl Pool {
    /// True if a thread that is not in the line may claim: this asks no gate.
    pub(super) fn gates_are_open(&self) -> bool {
        let gates = &self.settings.gates;
        gates.is_empty() || gates.are_open(self.source().moment().now)
    }

    /// Asks the gates, as the first in the line. `None`: all are open.
    pub(super) fn closed_gate(&self) -> Option<AskAgain> {
        let gates = &self.settings.gates;
        if gates.is_empty() {
            return None;
        }
        let (queue, state) = (self.source().name(), self.source());
        let closed = gates.closed(queue, state.moment().now);
        let name = closed.as_ref().map(|closed| closed.name);
        if state.note_gate(name) {
            match name {
                Some(gate) => {
                    tracing::info!(target: "waterline", queue, gate, "a gate is closed, so no job is claimed");
                }
                None => tracing::info!(target: "waterline", queue, "all gates are open again"),
            }
        }
        closed.map(|closed| closed.until)
    }

    /// Waits at a closed gate while jobs may fall due, or ends a drain. A wake-up is passed on.
    pub(super) fn wait_at_gate(&self, news: u64, again: AskAgain, woken: bool) -> Result<(), QueueError> {
        if woken {
            self.source().pass_on();
        }
        if self.settings.limits.is_some() {
            // Due jobs count as ready.
            self.source().tidy()?;
            let news = self.source().news();
            let reached = if self.is_ready() { Reached::Gate } else { Reached::NothingReady };
            if self.drained(news, reached) {
                return Ok(());
            }
        }
        if self.source().sleep(news, again, Takes::Nothing, &[]) { self.source().tidy() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{LONG, until_asleep};
    use crate::accept::Accept;
    use crate::handle::Queue;
    use crate::runner::gates::RunnerGate;
    use crate::runner::handle::Runner;
    use crate::runner::outcome::Outcome;
    use crate::types::job::JobState;
    use crate::types::new_job::NewJob;
    use crate::types::options::QueueOptions;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;
    use waterline::Store;

    #[test]
    fn a_gated_runner_passes_its_wake_up_to_an_accepter() {
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap();
        let is_open = Arc::new(AtomicBool::new(true));
        let asked = is_open.clone();
        // It is asked before each claim.
        let gate = RunnerGate::new("g", move || asked.load(Ordering::SeqCst)).every(Duration::from_nanos(1));
        let runner = Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Done)).gate(gate).start().unwrap();
        until_asleep(&queue, 1);
        let accepts = queue.clone();
        let accepted = std::thread::spawn(move || {
            accepts.accept(Accept::new().timeout(LONG)).unwrap().map(|mut lease| lease.finish(None).unwrap())
        });
        // The thread that slept first is the one that a push wakes.
        until_asleep(&queue, 2);
        is_open.store(false, Ordering::SeqCst);
        queue.push(NewJob::new("k", &()).unwrap()).unwrap();
        assert_eq!(accepted.join().unwrap(), Some(Some(JobState::Finished)));
        runner.stop().unwrap();
    }
}
