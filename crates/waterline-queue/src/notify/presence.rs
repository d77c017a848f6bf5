//! What this process does for a queue, for the list of its workers.

use crate::types::job::{JobId, time};
use crate::types::worker::{WorkerInfo, WorkerJob};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use waterline::seam::{Moment, host};

/// The runner of a queue in this process, or its callers of `accept`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presence {
    /// How many jobs it runs at once; `None`: it is no runner, and has no bound.
    pub slots: Option<usize>,
    /// The kinds that it takes; `None`: all.
    pub kinds: Option<Arc<[String]>>,
    /// How many slots hold lost jobs, or jobs of the other queues of its group.
    pub stuck: usize,
    /// True if it claims no more jobs.
    pub is_stopping: bool,
    /// When it started, in milliseconds since 1970; 0: unknown.
    pub began: u64,
}

/// The runner of a queue, as it has registered itself.
#[derive(Default)]
pub(crate) struct AtWork(Mutex<Begun>);

#[derive(Clone, Default)]
struct Begun {
    at: u64,
    kinds: Option<Arc<[String]>>,
    is_stopping: bool,
}

impl AtWork {
    /// Notes that a runner starts that takes these kinds.
    pub(crate) fn begin(&self, at: u64, kinds: Option<Arc<[String]>>) {
        *self.0.lock() = Begun { at, kinds, is_stopping: false };
    }

    /// Notes that it claims no more jobs.
    pub(crate) fn stop(&self) {
        self.0.lock().is_stopping = true;
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.0.lock().is_stopping
    }

    pub(crate) fn end(&self) {
        *self.0.lock() = Begun::default();
    }

    /// Returns the runner with this many slots, of which `stuck` are stuck.
    pub(super) fn presence(&self, slots: Option<usize>, stuck: usize) -> Presence {
        let Begun { at, kinds, is_stopping } = self.0.lock().clone();
        Presence { slots, kinds, stuck, is_stopping, began: at }
    }
}

/// Returns this process as a worker, if it is one, with its `presence` and its jobs.
///
/// `is_here` is false if another process has the store, of which only its jobs are known. At most
/// `most` of the jobs are listed, each with its kind.
pub(crate) fn own_worker(
    at: &Moment,
    presence: Option<Presence>,
    is_here: bool,
    mut running: Vec<(Instant, JobId)>,
    most: usize,
    mut kind: impl FnMut(&str) -> Option<String>,
) -> Option<WorkerInfo> {
    if presence.is_none() && running.is_empty() {
        return None;
    }
    running.sort_unstable();
    let ran = |since: &Instant| at.now.saturating_duration_since(*since);
    let whole = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let stuck = presence.as_ref().map_or(0, |presence| presence.stuck);
    let oldest = running.first().map_or(Duration::ZERO, |(since, _)| ran(since));
    let began = presence.as_ref().map(|presence| presence.began).filter(|began| *began > 0);
    let began = began.unwrap_or_else(|| at.wall.saturating_sub(oldest.as_millis() as u64));
    // A damaged job has no readable kind.
    let job = |(since, id): &(Instant, JobId)| {
        let kind = kind(id).unwrap_or_default();
        WorkerJob { id: id.clone(), kind, ran_for: ran(since) }
    };
    Some(WorkerInfo {
        name: None,
        process: is_here.then(std::process::id),
        host: is_here.then(|| host().to_owned()),
        language: Some("rust".to_owned()),
        version: is_here.then(|| env!("CARGO_PKG_VERSION").to_owned()),
        kinds: presence.as_ref().and_then(|presence| presence.kinds.as_ref()).map(|kinds| kinds.to_vec()),
        slots: presence.as_ref().and_then(|presence| presence.slots).map(whole),
        busy: whole(running.len() + stuck),
        began: time(began),
        silent_for: Duration::ZERO,
        is_silent: false,
        is_stopping: presence.is_some_and(|presence| presence.is_stopping),
        newest_ran_for: running.last().map(|(since, _)| ran(since)),
        lease_left: None,
        jobs: running.iter().take(most).map(job).collect(),
    })
}
