//! A source in memory.

use crate::base::sync::{Arc, Mutex};
use crate::base::{BoxError, Index};
use crate::source::{Jobs, wakeup::Wakeup};
use std::ops::RangeInclusive;

/// A growing stream in memory, with indices from 0.
///
/// Use it for tests, for examples, and for jobs that need not survive a restart. A clone is the
/// same stream. Every push rings the consumers that read it. The stream never forgets a job, and
/// `push` never waits, so it has no backpressure. For a durable stream use
/// [`JobLog`](crate::JobLog).
///
/// ```
/// use waterline::{Jobs, MemoryJobs};
///
/// let jobs: MemoryJobs<_> = ["a", "b"].into_iter().collect();
/// assert_eq!(jobs.push("c"), 2);
/// assert_eq!(jobs.at_index(1).unwrap(), Some("b"));
/// assert_eq!(jobs.head().unwrap(), Some(2));
/// ```
#[derive(Debug)]
pub struct MemoryJobs<T> {
    stream: Arc<Mutex<Stream<T>>>,
}

#[derive(Debug)]
struct Stream<T> {
    items: Vec<T>,
    wakeups: Vec<Wakeup>,
}

impl<T> MemoryJobs<T> {
    /// Creates an empty stream.
    #[must_use]
    pub fn new() -> Self {
        Self { stream: Arc::new(Mutex::new(Stream { items: Vec::new(), wakeups: Vec::new() })) }
    }

    /// Appends a job, rings the consumers, and returns the job's index.
    pub fn push(&self, item: T) -> Index {
        let mut stream = self.stream.lock();
        stream.items.push(item);
        let index = stream.items.len() as Index - 1;
        stream.wakeups.retain(Wakeup::ring);
        index
    }
}

impl<T> Default for MemoryJobs<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Clone for MemoryJobs<T> {
    fn clone(&self) -> Self {
        Self { stream: self.stream.clone() }
    }
}

impl<T> FromIterator<T> for MemoryJobs<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let jobs = Self::new();
        jobs.stream.lock().items.extend(items);
        jobs
    }
}

impl<T: Clone + Send + 'static> Jobs for MemoryJobs<T> {
    type Job = T;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok((self.stream.lock().items.len() as Index).checked_sub(1))
    }

    fn at_index(&self, index: Index) -> Result<Option<T>, BoxError> {
        Ok(usize::try_from(index).ok().and_then(|at| self.stream.lock().items.get(at).cloned()))
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<T>) -> Result<(), BoxError> {
        let stream = self.stream.lock();
        let end = (stream.items.len() as Index).min(run.end().saturating_add(1));
        if *run.start() < end {
            into.extend_from_slice(&stream.items[*run.start() as usize..end as usize]);
        }
        Ok(())
    }

    fn subscribe(&self, wakeup: Wakeup) -> bool {
        let mut stream = self.stream.lock();
        stream.wakeups.retain(|wakeup| !wakeup.is_stale());
        stream.wakeups.push(wakeup);
        true
    }
}
