//! Opening a queue in this process.

use super::answers::unsigned;
use super::faults::queue_error;
use super::opened::Opened;
use super::queues::{Keep, Queues};
use super::settings::of_queue;
use crate::schema;
use postgres::types::Type;
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use waterline_queue::engine_api::{Opened as Shown, QueueNo, Shared, durations, is_admin};
use waterline_queue::{QueueError, QueueOptions};

impl Queues {
    pub(super) fn open_once(&self, name: &str, options: &QueueOptions) -> Result<Shown, QueueError> {
        let mut number = None;
        let shared = self.open.open::<QueueError>(name, options, |known| {
            if let Some(known) = known.filter(|known| self.keep_of(known).is_some()) {
                return Ok(Arc::clone(known));
            }
            let (made, averages) = self.open_queue(name, options)?;
            number = Some(made);
            Ok(known.cloned().unwrap_or_else(|| Shared::new(name, options, averages)))
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
            work: Default::default(),
            looking: Default::default(),
            tending: Default::default(),
        });
        // A queue that is open by hand has no waiters.
        if !is_admin(options) {
            self.listen(&queue)?;
        }
        self.queues.write().insert(number, queue);
        Ok(Shown { number, shared, keep })
    }

    fn open_queue(
        &self,
        name: &str,
        options: &QueueOptions,
    ) -> Result<(QueueNo, HashMap<String, waterline_queue::Durations>), QueueError> {
        if is_admin(options) {
            return Ok((self.number_of(name)?, HashMap::new()));
        }
        let settings = of_queue(options);
        let doing = "open a queue";
        let (create, averages) =
            (self.sql_of("create_queue", 2).replace("$2", "$2::text::jsonb"), self.sql_of("averages_of", 1));
        let schema = &self.store.options().schema;
        let version = self.sql_of("schema_version", 0);
        let read = self.with(None, |client, _| {
            // Later calls rely on this check: newer versions serve older programs.
            let row = client.query_typed(&version, &[]).map_err(|error| schema::explained(error, schema))?;
            schema::fits(schema::Version::of(row.first())?, schema)?;
            let number = client.query_typed(&create, &[(&name, Type::TEXT), (&settings, Type::TEXT)])?;
            let number = number.first().map_or(Ok(0), |row| row.try_get::<_, i32>(0))?;
            let mut known = HashMap::new();
            for row in client.query_typed(&averages, &[(&name, Type::TEXT)])? {
                let [count, mean, last] = [1, 2, 3].map(|at| unsigned(row.try_get(at).ok()));
                known.insert(row.try_get(0)?, durations(count, mean, last));
            }
            Ok((u32::try_from(number).unwrap_or(0), known))
        });
        read.map_err(|error| queue_error(name, doing, error))
    }

    pub(super) fn names(&self) -> Result<Vec<String>, QueueError> {
        let (names, version) = (self.sql_of("queues", 0), self.sql_of("schema_version", 0));
        let schema = &self.store.options().schema;
        let read = self.with(None, |client, _| {
            let row = client.query_typed(&version, &[]).map_err(|error| schema::explained(error, schema))?;
            schema::fits(schema::Version::of(row.first())?, schema)?;
            client.query_typed(&names, &[])?.iter().map(|row| Ok(row.try_get(0)?)).collect()
        });
        read.map_err(|error: crate::error::Error| queue_error("", "list the queues", error))
    }

    /// Returns the number of an existing queue, and leaves its options as they are.
    fn number_of(&self, name: &str) -> Result<QueueNo, QueueError> {
        if !self.names()?.iter().any(|known| known == name) {
            return Err(waterline::Error::NotFound { what: "queue", name: name.to_owned() }.into());
        }
        let create = self.sql_of("create_queue", 1);
        let read = self.with(None, |client, _| {
            let number = client.query_typed(&create, &[(&name, Type::TEXT)])?;
            Ok(number.first().map_or(Ok(0), |row| row.try_get::<_, i32>(0))?)
        });
        let number = read.map_err(|error| queue_error(name, "open a queue", error))?;
        Ok(u32::try_from(number).unwrap_or(0))
    }

    /// Returns the number of an open queue, and its keep-alive guard.
    fn keep_of(&self, shared: &Arc<Shared>) -> Option<(QueueNo, Arc<dyn Any + Send + Sync>)> {
        let queues = self.queues.read();
        let queue = queues.values().find(|queue| Arc::ptr_eq(&queue.shared, shared))?;
        Some((queue.number, queue.keep.upgrade()?))
    }
}
