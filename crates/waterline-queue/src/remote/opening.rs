//! Opening a queue in this process.

use super::answers::unsigned;
use super::faults::queue_error;
use super::opened::Opened;
use super::queues::{Keep, Remote};
use super::server::Server;
use super::settings::of_queue;
use crate::engine::{Opened as Shown, QueueNo};
use crate::notify::shared::Shared;
use crate::types::durations::{Durations, from_nanos};
use crate::types::error::QueueError;
use crate::types::options::QueueOptions;
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

impl<S: Server> Remote<S> {
    pub(super) fn open_once(&self, name: &str, options: &QueueOptions) -> Result<Shown, QueueError> {
        let mut number = None;
        let shared = self.open.open::<QueueError>(name, options, |known| {
            if let Some(known) = known.filter(|known| self.keep_of(known).is_some()) {
                if S::FORGETS && !options.admin {
                    self.open_queue(name, options)?;
                }
                return Ok(Arc::clone(known));
            }
            let (made, averages) = self.open_queue(name, options)?;
            number = Some(made);
            Ok(known.cloned().unwrap_or_else(|| Shared::new(name, options, averages, S::TELLS)))
        })?;
        if let Some((number, keep)) = self.keep_of(&shared) {
            return Ok(Shown { number, shared, keep });
        }
        let number = match number {
            Some(number) => number,
            // It was closed just now.
            None => self.open_queue(name, options)?.0,
        };
        let keep: Arc<dyn Any + Send + Sync> = Arc::new(Keep { queues: self.me.clone(), number });
        let queue = Arc::new(Opened {
            own: Arc::clone(&self.own),
            said: Default::default(),
            number,
            shared: Arc::clone(&shared),
            keep: Arc::downgrade(&keep),
            seen: Default::default(),
            periodics: Default::default(),
            joining: Default::default(),
            listens: Default::default(),
            heard: Default::default(),
            work: Default::default(),
            looking: Default::default(),
            tending: Default::default(),
        });
        // A queue that is open by hand has no waiters.
        if !options.admin {
            self.listen(&queue)?;
        }
        self.queues.write().insert(number, queue);
        Ok(Shown { number, shared, keep })
    }

    fn open_queue(
        &self,
        name: &str,
        options: &QueueOptions,
    ) -> Result<(QueueNo, HashMap<String, Durations>), QueueError> {
        // One that is changed by hand keeps its options.
        if options.admin && !self.names()?.iter().any(|known| known == name) {
            return Err(waterline::Error::NotFound { what: "queue", name: name.to_owned() }.into());
        }
        let settings = (!options.admin).then(|| of_queue(options));
        let opened = self.server.open(name, settings.as_deref());
        let (number, averages) = opened.map_err(|error| queue_error(name, "open a queue", error))?;
        let durations = |(kind, numbers): (String, [Option<i64>; 3])| {
            let [count, mean, last] = numbers.map(unsigned);
            (kind, Durations { count, mean: from_nanos(mean), last: from_nanos(last) })
        };
        Ok((number, averages.into_iter().map(durations).collect()))
    }

    pub fn names(&self) -> Result<Vec<String>, QueueError> {
        self.server.names().map_err(|error| queue_error("", "list the queues", error))
    }

    /// Returns the number of an open queue, and its keep-alive guard.
    fn keep_of(&self, shared: &Arc<Shared>) -> Option<(QueueNo, Arc<dyn Any + Send + Sync>)> {
        let queues = self.queues.read();
        let queue = queues.values().find(|queue| Arc::ptr_eq(&queue.shared, shared))?;
        Some((queue.number, queue.keep.upgrade()?))
    }
}
