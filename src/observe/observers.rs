//! The observers of one consumer: they hear of attempts at once, and of the rest through the queue.

use super::events::{AttemptOutcome, Event, Observer};
use super::status::{State, Status};
use crate::base::guard::{Guarded, guarded};
use crate::base::sync::{Arc, Mutex};
use crate::base::{Index, structure::shows};
use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub(crate) type OnStall = dyn Fn(&Status) + Send + Sync;

/// The observers with the attempts that they saw begin, and the stall callbacks.
pub(crate) struct Observers {
    consumer: String,
    /// The final name of a consumer that waited for it.
    renamed: OnceLock<String>,
    list: Vec<Guarded<Box<dyn Observer>>>,
    /// The stall callbacks, in the order of their numbers.
    alarms: Vec<Guarded<Box<OnStall>>>,
    /// By index and not by token: in ordered mode, a job that awaits its turn gets another token.
    attempts: Mutex<HashMap<Index, ObservedAttempt>>,
}

struct ObservedAttempt {
    number: u32,
    begun: Instant,
}

impl Observers {
    /// Returns `None` if there are none: then nothing is measured and nothing is queued.
    pub(crate) fn new(
        consumer: String,
        list: Vec<Box<dyn Observer>>,
        alarms: impl IntoIterator<Item = Box<OnStall>>,
    ) -> Option<Arc<Self>> {
        let list: Vec<_> = list.into_iter().map(Guarded::new).collect();
        let alarms: Vec<_> = alarms.into_iter().map(Guarded::new).collect();
        let wanted = !list.is_empty() || !alarms.is_empty();
        wanted.then(|| Arc::new(Self { consumer, renamed: OnceLock::new(), list, alarms, attempts: Mutex::default() }))
    }

    fn consumer(&self) -> &str {
        self.renamed.get().unwrap_or(&self.consumer)
    }

    /// Sets the final name of a consumer that has waited for it. Only the first call counts.
    pub(crate) fn rename(&self, name: String) {
        // A second call would be that of a second takeover, and there is none.
        let _ = self.renamed.set(name);
    }

    /// True if there is an observer, not only stall callbacks.
    pub(crate) fn hear(&self) -> bool {
        !self.list.is_empty()
    }

    /// Reports an attempt that begins. The clock is read after the call, so a slow observer does
    /// not make the job look slow.
    ///
    /// # Errors
    /// The text of an observer's panic. The other observers have heard of the event.
    pub(crate) fn attempt_begins(
        &self,
        index: Index,
        number: u32,
        clock: impl FnOnce() -> Instant,
    ) -> Result<(), String> {
        let told = self.tell(&Event::AttemptBegun { consumer: self.consumer(), index, attempt: number });
        self.attempts.lock().insert(index, ObservedAttempt { number, begun: clock() });
        told
    }

    /// Reports an attempt that has ended.
    ///
    /// # Errors
    /// The text of an observer's panic.
    pub(crate) fn attempt_ended(&self, index: Index, outcome: AttemptOutcome<'_>, now: Instant) -> Result<(), String> {
        let Some(ObservedAttempt { number, begun }) = self.attempts.lock().remove(&index) else { return Ok(()) };
        let (consumer, elapsed) = (self.consumer(), now.saturating_duration_since(begun));
        self.tell(&Event::AttemptEnded { consumer, index, attempt: number, elapsed, outcome })
    }

    /// Reports a queued event.
    ///
    /// # Errors
    /// The text of an observer's panic.
    pub(crate) fn notice(&self, notice: &Notice) -> Result<(), String> {
        let consumer = self.consumer();
        self.tell(&match notice {
            Notice::Alarm { alarm, status } => return self.ring(*alarm, status),
            Notice::Saved { last_processed, elapsed, count } => {
                Event::Saved { consumer, last_processed: *last_processed, elapsed: *elapsed, count: *count }
            }
            Notice::Stalled { elapsed, status } => Event::Stalled { consumer, elapsed: *elapsed, status },
            Notice::Measured { lag, status } => Event::Measured { consumer, lag: *lag, status },
            Notice::Parked { index, attempt, error } => {
                Event::Parked { consumer, index: *index, attempt: *attempt, error }
            }
            Notice::Waiting { status } => Event::Waiting { consumer, status },
            Notice::TookOver { elapsed, status } => Event::TookOver { consumer, elapsed: *elapsed, status },
            Notice::Halted { index, attempt, error } => {
                Event::Halted { consumer, index: *index, attempt: *attempt, error }
            }
            Notice::Ended { state, last_processed, error } => {
                let (state, last_processed) = (*state, *last_processed);
                Event::Ended { consumer, state, last_processed, error: error.as_deref() }
            }
        })
    }

    fn ring(&self, alarm: usize, status: &Status) -> Result<(), String> {
        self.alarms.get(alarm).and_then(Guarded::get).map_or(Ok(()), |call| heard(|| call(status)))
    }

    fn tell(&self, event: &Event<'_>) -> Result<(), String> {
        let mut told = Ok(());
        for observer in self.list.iter().filter_map(Guarded::get) {
            told = told.and(heard(|| observer.observe(event)));
        }
        told
    }
}

/// Calls user code. Its error is the text of a panic.
fn heard(call: impl FnOnce()) -> Result<(), String> {
    let called = guarded(|| {
        call();
        Ok(())
    });
    called.map_err(|panic| panic.to_string())
}

shows!(Observers, of: count = of.list.len());

/// An event that waits in the queue of lines until the lock is free.
#[derive(Debug)]
pub(crate) enum Notice {
    Saved {
        last_processed: Option<Index>,
        elapsed: Duration,
        count: u64,
    },
    Stalled {
        elapsed: Duration,
        status: Box<Status>,
    },
    Measured {
        lag: Duration,
        status: Box<Status>,
    },
    /// Calls the user's stall callback with this number.
    Alarm {
        alarm: usize,
        status: Box<Status>,
    },
    Parked {
        index: Index,
        attempt: u32,
        error: String,
    },
    Waiting {
        status: Box<Status>,
    },
    TookOver {
        elapsed: Duration,
        status: Box<Status>,
    },
    Halted {
        index: Index,
        attempt: Option<u32>,
        error: String,
    },
    Ended {
        state: State,
        last_processed: Option<Index>,
        error: Option<String>,
    },
}

impl Notice {
    /// Merges a later notice of the same kind, so that unheard events do not fill the memory.
    /// Returns the later one if they cannot be merged.
    pub(super) fn merge(&mut self, later: Self) -> Option<Self> {
        match (self, later) {
            (
                Self::Saved { last_processed, elapsed, count },
                Self::Saved { last_processed: later, elapsed: took, count: more },
            ) => {
                (*last_processed, *elapsed, *count) = (later, took, *count + more);
                None
            }
            (earlier @ Self::Measured { .. }, later @ Self::Measured { .. }) => {
                *earlier = later;
                None
            }
            (_, later) => Some(later),
        }
    }

    /// True if the later notice may be merged with one before this one.
    pub(super) fn may_be_passed_by(&self, later: &Self) -> bool {
        matches!(self, Self::Measured { .. } | Self::Saved { .. })
            && matches!(later, Self::Measured { .. } | Self::Saved { .. })
    }
}
