//! The context of transitions: what does not change while a queue is open.

use crate::embedded::codec::side_records::{Last, decode_meta};
use crate::embedded::keys::Keys;
use crate::rules::notes::Noted;
use crate::rules::pushing::{Push, prepare};
use crate::types::config::ConfigError;
use crate::types::error::QueueError;
use crate::types::limit::LimitSet;
use crate::types::meta::Meta;
use crate::types::new_job::NewJob;
use crate::types::options::QueueOptions;
use crate::types::progress::JobProgress;
use crate::types::row::Row;
use std::sync::atomic::{AtomicU64, Ordering};
use waterline::Error;
use waterline::seam::Family;

pub(crate) struct Ctx {
    pub(crate) name: String,
    pub(crate) keys: Keys,
    /// The family of rows, payloads and other records.
    pub(crate) rows: Family,
    /// The family of entries, by which jobs are found.
    pub(crate) entries: Family,
    pub(crate) options: QueueOptions,
    pub(crate) limits: LimitSet,
    /// The next number for an id, which a job gets before its batch is made.
    next_id: AtomicU64,
}

impl Ctx {
    pub(crate) fn new(
        name: &str,
        number: u32,
        [rows, entries]: [Family; 2],
        options: QueueOptions,
        next_id: u64,
    ) -> Self {
        let limits = LimitSet::new(&options.limits);
        let (name, next_id) = (name.to_owned(), AtomicU64::new(next_id));
        Self { name, keys: Keys(number), rows, entries, options, limits, next_id }
    }

    /// Checks a job, and gives it an id if it has none.
    pub(crate) fn prepare(&self, new: NewJob, wall: u64) -> Result<Push, ConfigError> {
        self.options.check_payload("payload", new.payload.len())?;
        prepare(new, wall, || self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    // Errors.

    pub(crate) fn corrupt(&self, reason: String) -> Error {
        Error::Corrupt { name: self.name.clone(), reason }
    }

    /// The error of a worker whose lease is over.
    pub(crate) fn halt(&self, id: &str) -> QueueError {
        QueueError::Halt { queue: self.name.clone(), id: id.to_owned() }
    }

    pub(crate) fn not_found(&self, id: &str) -> QueueError {
        QueueError::NotFound { queue: self.name.clone(), id: id.to_owned() }
    }

    // Records, read with the error that names them.

    pub(crate) fn decode_row(&self, id: &str, bytes: &[u8]) -> Result<Row, Error> {
        Row::decode(&self.name, id, bytes)
            .map_err(|reason| self.corrupt(format!("the row of the job {id:?}: {reason}")))
    }

    pub(crate) fn decode_note(&self, of: &str, bytes: &[u8]) -> Result<Noted, Error> {
        Noted::decode(&self.name, of, bytes).map_err(|reason| self.corrupt(format!("the note {of:?}: {reason}")))
    }

    pub(crate) fn decode_meta(&self, id: &str, bytes: &[u8]) -> Result<Meta, Error> {
        decode_meta(&self.name, id, bytes)
            .map_err(|reason| self.corrupt(format!("the metadata of the job {id:?}: {reason}")))
    }

    pub(crate) fn decode_progress(&self, id: &str, bytes: &[u8]) -> Result<JobProgress, Error> {
        JobProgress::decode(&self.name, id, bytes)
            .map_err(|reason| self.corrupt(format!("the progress of the job {id:?}: {reason}")))
    }

    pub(crate) fn decode_last(&self, name: &str, bytes: &[u8]) -> Result<Last, Error> {
        let corrupt = |reason| self.corrupt(format!("the record of the periodic job {name:?}: {reason}"));
        Last::decode(&self.name, name, bytes).map_err(corrupt)
    }
}
