//! Unique jobs: only one of several twins waits.

use crate::types::job::JobState;
use std::fmt;
use std::time::Duration;

/// Until when a job has no twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Until it is claimed.
    Claimed,
    /// Until it has ended.
    Done,
    /// Until some time after its push.
    Time,
}

impl Until {
    pub(crate) const ALL: [Self; 3] = [Self::Claimed, Self::Done, Self::Time];
}

/// What happens to the push of a job that has a twin already.
///
/// Where *the last push wins*, even over a job that has started or whose payload differs, give the
/// jobs a [`root`](crate::NewJob::root): each job of an older root is skipped when it is claimed.
#[doc(alias = "debounce")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clash {
    /// Nothing is changed. The default.
    #[default]
    Keep,
    /// The twin gets the payload, the due time and the settings of the new job, if it waits.
    Replace,
    /// The twin is moved to the due time of the new job if that is earlier. It keeps its payload.
    Earliest,
}

impl Clash {
    pub(crate) const ALL: [Self; 3] = [Self::Keep, Self::Replace, Self::Earliest];
}

/// Makes a job unique: it is not pushed while it has a twin, so the first push wins.
///
/// For the last one to win, see [`Clash::Replace`] and [`NewJob::root`](crate::NewJob::root).
///
/// Two jobs are twins if they have the same kind and the same payload, whatever the order of its
/// fields. [`only`](Self::only) and [`ignoring`](Self::ignoring) choose the fields that count. A
/// job is compared only with unique jobs of the same queue.
///
/// ```
/// use serde_json::json;
/// use waterline::Store;
/// use waterline_queue::{NewJob, PushOutcome, Queue, QueueOptions, Unique};
///
/// let queue = Queue::open(&Store::in_memory(), "pages", QueueOptions::default())?;
/// let render = |page, asked_at| {
///     let job = NewJob::new("render", &json!({ "page": page, "asked_at": asked_at }))?;
///     queue.push(job.unique(Unique::until_claimed().ignoring(["asked_at"])))
/// };
/// let first = render("/", 1)?;
/// let twin = render("/", 2)?;         // the first one has not begun, and will see this change too
/// assert_eq!(twin.outcome, PushOutcome::Duplicate(first.id.clone()));
/// assert_eq!(twin.id, first.id);      // the job that stands for it
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
#[doc(alias("debounce", "idempotent"))]
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Unique {
    pub(crate) until: Until,
    /// For `Until::Time`.
    pub(crate) window: Duration,
    pub(crate) fields: Fields,
    pub(crate) clash: Clash,
}

impl Unique {
    fn new(until: Until, window: Duration) -> Self {
        Self { until, window, fields: Fields::All, clash: Clash::Keep }
    }

    /// Refuses a twin until a worker takes the job. So a running job never holds up a twin, which
    /// sees changes that the run has missed. (Elsewhere: MediaWiki's `removeDuplicates`.)
    ///
    /// A failed job that waits for its retry does not count: only a job that never started does.
    pub fn until_claimed() -> Self {
        Self::new(Until::Claimed, Duration::ZERO)
    }

    /// Refuses a twin until the job has finished, died, or was removed: no two twins run at once.
    pub fn until_done() -> Self {
        Self::new(Until::Done, Duration::ZERO)
    }

    /// Refuses a twin for this time after the push, whatever happens to the job, unless it is
    /// removed. (Elsewhere: Mosquito's `unique_for`.)
    pub fn within(window: Duration) -> Self {
        Self::new(Until::Time, window)
    }

    /// Compares only these fields of the payload, which must be an object that has them.
    pub fn only(mut self, fields: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.fields = Fields::Only(fields.into_iter().map(Into::into).collect());
        self
    }

    /// Compares all fields of the payload except these. It must be an object that has them.
    pub fn ignoring(mut self, fields: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.fields = Fields::Ignoring(fields.into_iter().map(Into::into).collect());
        self
    }

    /// Sets what happens to a twin. Default: [`Clash::Keep`].
    pub fn on_clash(mut self, clash: Clash) -> Self {
        self.clash = clash;
        self
    }
}

/// True if a job in this state still refuses twins. (A claim takes `Until::Claimed` out of a row.)
pub(crate) fn refuses_twins(until: Until, state: JobState) -> bool {
    match until {
        Until::Claimed => matches!(state, JobState::Scheduled | JobState::Ready | JobState::Waiting),
        Until::Done => !state.is_ended(),
        Until::Time => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_jobs_refuse_twins_only_with_until_done() {
        let refuse = |until| JobState::ALL.map(|state| refuses_twins(until, state));
        assert_eq!(refuse(Until::Claimed), [true, true, false, false, false, true]);
        assert_eq!(refuse(Until::Done), [true, true, true, false, false, true]);
        assert_eq!(refuse(Until::Time), [true; 6]);
    }
}

/// The first half of a SHA-256. A user cannot construct two payloads with the same one, and so
/// cannot keep the job of another user from running.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub(crate) [u8; 16]);

/// Which fields of a payload count. Twins may differ in the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fields {
    #[default]
    All,
    Only(Vec<String>),
    Ignoring(Vec<String>),
}

impl Fingerprint {
    /// Returns it as 32 digits.
    pub fn text(self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}
