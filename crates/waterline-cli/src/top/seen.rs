//! The background looks of the live screen, and their findings.

use crate::backend::{self, Way};
use crate::error::Fault;
use crate::format::At;
use crate::rows::{Consumer, Log, Queue, Worker};
use crate::wait::wait;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// The findings of one look.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) at: At,
    pub(crate) consumers: Vec<Consumer>,
    pub(crate) logs: Vec<Log>,
    /// Each queue, or its name and why it cannot be read.
    pub(crate) queues: Vec<Result<Queue, (String, String)>>,
    /// The workers of each queue by its name, or why they cannot be read.
    pub(crate) workers: BTreeMap<String, Result<Vec<Worker>, String>>,
    pub(crate) freshness: String,
}

fn look(way: &Way) -> Result<Seen, Fault> {
    let place = backend::open(way)?;
    let queue = |name: &String| place.queue(name).map_err(|fault| (name.clone(), fault.to_string()));
    let names = place.queue_names()?;
    let queues: Vec<_> = names.iter().map(queue).collect();
    // A queue that cannot be read says so already.
    let read = queues.iter().filter_map(|queue| queue.as_ref().ok()).map(|queue| queue.name.clone());
    let workers = |name: String| (name.clone(), place.workers(&name).map_err(|fault| fault.to_string()));
    Ok(Seen {
        at: At::now(),
        consumers: place.consumers()?,
        logs: place.logs()?,
        // Without a running job, only the process of a store knows whether a runner takes its jobs.
        workers: read
            .map(workers)
            .filter(|(_, seen)| !(place.store().is_some() && seen.as_ref().is_ok_and(Vec::is_empty)))
            .collect(),
        queues,
        freshness: place.freshness(),
    })
}

/// Looks periodically on a thread of its own, until the receiver is dropped.
pub(super) fn watch(way: Way, every: Duration) -> Result<Receiver<Result<Seen, Fault>>, Fault> {
    let (seen, news) = channel();
    let looks = move || {
        while seen.send(look(&way)).is_ok() {
            wait(every);
        }
    };
    let started = thread::Builder::new().name("look".to_owned()).spawn(looks);
    started.map_err(|error| Fault::new(format!("a thread cannot be started: {error}")))?;
    Ok(news)
}
