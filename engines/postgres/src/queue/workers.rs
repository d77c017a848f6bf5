//! Workers, as the database knows them.

use super::answers::{time, unsigned};
use super::faults::{not_found, queue_error};
use super::opened::Opened;
use super::queues::Queues;
use crate::sql::Value;
use postgres::Row;
use postgres::types::{Json, Type};
use std::time::Duration;
use waterline_queue::engine_api::{NO_WORKER, worker_job};
use waterline_queue::{QueueError, WorkerInfo};

/// How many of its jobs a worker is shown with.
const SHOWN: usize = 64;

fn worker(row: &Row) -> Result<WorkerInfo, postgres::Error> {
    let number = |name: &str| Ok(row.try_get::<_, Option<i64>>(name)?.map(|number| unsigned(Some(number))));
    let whole = |name: &str| Ok(number(name)?.map(|number| u32::try_from(number).unwrap_or(u32::MAX)));
    let span = |name: &str| Ok(number(name)?.map(Duration::from_millis));
    let Json(jobs): Json<Vec<serde_json::Value>> = row.try_get("jobs")?;
    let text = |job: &serde_json::Value, name: &str| job[name].as_str().unwrap_or_default().to_owned();
    let job = |job: &serde_json::Value| {
        worker_job(text(job, "id"), text(job, "kind"), Duration::from_millis(job["ran"].as_u64().unwrap_or(0)))
    };
    let mut worker = NO_WORKER;
    worker.name = row.try_get("name")?;
    worker.process = whole("process")?;
    worker.host = row.try_get("host")?;
    worker.language = row.try_get("language")?;
    worker.version = row.try_get("version")?;
    worker.kinds = row.try_get("kinds")?;
    worker.slots = whole("slots")?;
    worker.busy = whole("busy")?.unwrap_or(0);
    worker.began = time(number("began")?.unwrap_or(0));
    worker.silent_for = span("silent_for")?.unwrap_or_default();
    worker.is_silent = row.try_get("silent")?;
    worker.is_stopping = row.try_get("stopping")?;
    worker.newest_ran_for = span("newest_ran")?;
    worker.lease_left = span("lease_left")?;
    worker.jobs = jobs.iter().map(job).collect();
    Ok(worker)
}

impl Queues {
    /// Returns the workers of the queue with this name, each with up to 64 of its jobs.
    pub(crate) fn workers_named(&self, name: &str) -> Result<Vec<WorkerInfo>, QueueError> {
        self.read_workers(name, None, SHOWN)
    }

    pub(super) fn workers_of(&self, queue: &Opened, jobs: usize) -> Result<Vec<WorkerInfo>, QueueError> {
        self.read_workers(queue.name(), queue.test_clock(), jobs)
    }

    fn read_workers(&self, name: &str, clock: Option<u64>, jobs: usize) -> Result<Vec<WorkerInfo>, QueueError> {
        let (sql, most) = (self.sql_of("workers_of", 2), i32::try_from(jobs).unwrap_or(i32::MAX));
        let values: [Value<'_>; 2] = [(&name, Type::TEXT), (&most, Type::INT4)];
        let read = self.with(clock, |client, statements| {
            Ok(statements.query(client, &sql, &values)?.iter().map(worker).collect::<Result<_, _>>()?)
        });
        read.map_err(|error| {
            let doing = "look at the workers of a queue";
            not_found(name, &error).unwrap_or_else(|| queue_error(name, doing, error))
        })
    }
}
