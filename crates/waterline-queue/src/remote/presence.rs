//! This process as a worker: what it reports of itself with calls that it makes anyway.

use crate::notify::presence::Presence;
use crate::notify::shared::Shared;
use parking_lot::Mutex;
use serde_json::json;
use std::time::{Duration, Instant};
use waterline::seam::host;

/// The shortest time between two reports.
const SHORTEST: Duration = Duration::from_secs(1);

pub(super) struct Own {
    /// A random number of its own, since names may be equal.
    number: i64,
    name: String,
}

/// The last report, and when it was made.
pub(super) type Said = Option<(Instant, Presence)>;

impl Own {
    pub(super) fn new(name: &str) -> Self {
        Self { number: fastrand::i64(1..1_000_000_000_000_000_000), name: name.to_owned() }
    }

    /// Returns what this process reports of itself with a call about the queue, if it is due: as
    /// the runner of the queue, as one that waits for a job, or as the caller of a claim.
    pub(super) fn about(
        &self,
        queue: &Shared,
        said: &Mutex<Said>,
        now: Instant,
        by_hand: Option<Presence>,
    ) -> Option<serde_json::Value> {
        let mut said = said.lock();
        let is_soon = |at: &Instant| now.saturating_duration_since(*at) < SHORTEST;
        if said.as_ref().is_some_and(|(at, last)| is_soon(at) && last.is_stopping == queue.is_stopping()) {
            return None;
        }
        let presence = queue.presence().or(by_hand)?;
        if !is_due(&said, now, queue.options.lease, &presence) {
            return None;
        }
        let about = json!({
            "queue": &*queue.name,
            "name": self.name,
            "number": self.number,
            "process": std::process::id(),
            "host": host(),
            "language": "rust",
            "version": env!("CARGO_PKG_VERSION"),
            "kinds": presence.kinds.as_deref(),
            // The column has 32 bits.
            "slots": presence.slots.map(|slots| i32::try_from(slots).unwrap_or(i32::MAX)),
            "stuck": presence.stuck,
            "stopping": presence.is_stopping,
        });
        *said = Some((now, presence));
        Some(about)
    }
}

/// Returns whether to report: after a third of the lease, after a second if slots or kinds have
/// changed, and at once for a stop.
fn is_due(said: &Said, now: Instant, lease: Duration, presence: &Presence) -> bool {
    let Some((at, last)) = said else { return true };
    let age = now.saturating_duration_since(*at);
    let is_other = last.slots != presence.slots || last.kinds != presence.kinds;
    last.is_stopping != presence.is_stopping || age >= SHORTEST && (is_other || age >= lease / 3)
}

/// Returns reports as the argument of a call; `None`: there are none.
pub fn said(about: impl IntoIterator<Item = serde_json::Value>) -> Option<String> {
    let about: Vec<_> = about.into_iter().collect();
    (!about.is_empty()).then(|| serde_json::Value::from(about).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn reports_are_due_each_third_lease_or_on_a_change() {
        let lease = Duration::from_secs(30);
        let now = Instant::now();
        let plain = Presence { slots: Some(2), kinds: None, stuck: 0, is_stopping: false, began: 0 };
        let stops = Presence { is_stopping: true, ..plain.clone() };
        let grown = Presence { slots: Some(3), ..plain.clone() };
        let kinds = Presence { kinds: Some(Arc::from(["a".to_owned()])), ..plain.clone() };
        let said = Some((now, plain.clone()));
        let is_due = |after: f64, lease, presence| is_due(&said, now + Duration::from_secs_f64(after), lease, presence);
        assert!(super::is_due(&None, now, lease, &plain));
        for (presence, not_after, after) in [(&plain, 9.9, 10.0), (&grown, 0.9, 1.0), (&kinds, 0.9, 1.0)] {
            assert!(!is_due(not_after, lease, presence) && is_due(after, lease, presence), "{presence:?}");
        }
        assert!(is_due(0.0, lease, &stops));
        let short = Duration::from_secs(1);
        assert!(!is_due(0.9, short, &plain) && is_due(1.0, short, &plain), "once a second at most");
    }
}
