//! A job of the model, and what is remembered about jobs.

use crate::types::job::JobId;
use crate::types::meta::Meta;
use crate::types::progress::JobProgress;
use crate::types::row::Row;
use std::collections::BTreeSet;
use std::time::Instant;

/// A job with all its records.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) row: Row,
    pub(super) payload: Vec<u8>,
    pub(super) data: Option<Vec<u8>>,
    pub(super) meta: Meta,
    pub(super) progress: Option<JobProgress>,
    /// The jobs that it waits for, or did when it died.
    pub(super) after: BTreeSet<JobId>,
    pub(super) lease: Option<ModelLease>,
    pub(super) beside: SharedView,
}

/// The lease of a running job, by the clock that measures leases.
#[derive(Clone, Copy)]
pub(super) struct ModelLease {
    /// When it was claimed.
    pub(super) since: Instant,
    /// When it ends; `None`: never.
    pub(super) until: Option<Instant>,
    /// True if it ends by the silence of its holder, who alone renews it.
    pub(super) by_silence: bool,
}

/// What is known of a job where many processes share its queue.
#[derive(Clone, Default)]
pub(super) struct SharedView {
    /// The time from which it is ready.
    pub(super) at: u64,
    /// The number of its first push.
    pub(super) number: u64,
    /// The process that has it, or has taken it up.
    pub(super) worker: Option<u64>,
    /// Until when that process keeps a job that is to run alone from the others.
    pub(super) alone_until: u64,
}

/// What is remembered about jobs: a unique job, a run that has succeeded, or a root.
#[derive(Clone)]
pub(super) struct ModelMark {
    pub(super) number: u64,
    pub(super) until: u64,
    pub(super) since: u64,
    pub(super) id: JobId,
}
