//! The end as others than the owner wait for it: when everything is over, threads included, and
//! how.

use super::Driver;
use super::core::Core;
use crate::base::error::Error;
use crate::base::index::Index;
use crate::base::time::{self, Now};
use crate::crew::stopping::Stopping;
use crate::observe::ended::Ended;
use crate::observe::{Event, Kind};
use std::time::Duration;

/// The state of the end, before and after it has come.
#[derive(Default)]
pub(crate) struct Ending {
    /// Set from the moment on in which nothing starts any more.
    pub(super) stopping: Stopping,
    /// The report of the error, which is there when the error itself was handed out.
    report: Option<String>,
}

impl<T: Send + 'static> Core<T> {
    /// The consumer halts, for the first time. The cause is the text of the error's source, if it
    /// has one: that is the user's code, so the text was made without the lock.
    pub(super) fn halt_for(&mut self, index: Index, text: String, error: Error, cause: &str, now: &Now) {
        let event = Event { error: Some(&text), ..Event::new(Kind::Halted, index) };
        self.tell(&if let Error::Job { attempt, .. } = &error { event.attempt(*attempt) } else { event }, now);
        self.ending.report = Some(if cause.is_empty() { error.to_string() } else { format!("{error}: {cause}") });
        self.halted = Some((index, text));
        self.error = Some(error);
    }

    fn ended(&self, now: &Now) -> Ended {
        Ended { state: self.status(now).state, error: self.ending.report.clone() }
    }
}

impl<T: Send + 'static> Driver<T> {
    pub(super) fn wait_everybody_gone(&self, timeout: Duration) -> Option<Ended> {
        // A thread of the crew would wait for itself.
        if self.crew.is_own_thread() {
            return None;
        }
        // Beyond the clock's end is for ever.
        let deadline = time::now().checked_add(timeout);
        let mut core = self.core.lock();
        self.crew.wait_gone(&mut core, deadline).then(|| core.ended(&Now::when_asked()))
    }
}
