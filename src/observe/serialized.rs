//! The status of a consumer as `serde` writes it.

use crate::base::serialized::{fields, long};
use crate::observe::calls::SourceCalls;
use crate::observe::status::{Attempt, Blocked, State, Status};
use serde::ser::{Serialize, Serializer};

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fields!(serializer, "Status";
            state = self.state,
            head = self.head,
            last_processed = self.last_processed,
            // Unknown without a head.
            lag = self.head.map(|_| self.lag()),
            next = self.next,
            processing = self.processing,
            done_ahead = self.done_ahead,
            unsaved = self.unsaved,
            blocked = self.blocked.word(),
            source_fails_for = self.source_fails_for.map(long),
            ended_upstream = self.ended_upstream,
            done = self.done,
            failed = self.failed,
            retries = self.retries,
            saves = self.saves,
            absent = self.absent,
            parked = self.parked,
            oldest = self.oldest,
            source = self.source,
            text = self.to_string(),
        )
    }
}

impl Serialize for Attempt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fields!(serializer, "Attempt"; index = self.index, attempt = self.attempt, elapsed = long(self.elapsed))
    }
}

impl Serialize for SourceCalls {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fields!(serializer, "SourceCalls";
            made = self.made,
            failed = self.failed,
            failed_in_a_row = self.failed_in_a_row,
            retry_in = self.retry_in.map(long),
            timeout = self.timeout.map(long),
        )
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The stable word for each reason. The sentence of the status says the rest.
impl Blocked {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::No => "no",
            Self::CaughtUp => "caught_up",
            Self::Running { .. } => "running",
            Self::Overdue { .. } => "overdue",
            Self::Retrying { .. } => "retrying",
            Self::Deferred { .. } => "deferred",
            Self::Threads { .. } => "threads",
            Self::Missing { .. } => "missing",
            Self::Looking { .. } => "looking",
            Self::Source { .. } => "source",
            Self::SourceWaits { .. } => "source_waits",
            Self::Progress { .. } => "progress",
            Self::AheadOfSource { .. } => "ahead_of_source",
            Self::Upstream { .. } => "upstream",
            Self::LogFull { .. } => "log_full",
            Self::Alone { .. } => "alone",
            Self::InUse { .. } => "in_use",
            Self::Paused => "paused",
            Self::Held { .. } => "held",
            Self::Leaving { .. } => "leaving",
            Self::Halted { .. } => "halted",
        }
    }
}
