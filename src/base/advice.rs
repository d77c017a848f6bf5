//! The answer to "does this need an operator?", worded once for everything that shows it.

use crate::base::serialized::fields;
use serde::ser::{Serialize, Serializer};
use std::fmt;

/// Whether a consumer or a queue needs an operator. The greater verdict is the worse one.
///
/// [`Status::verdict`](crate::Status::verdict), `QueueStatus::verdict` and
/// [`ConsumerInfo::verdict`](crate::ConsumerInfo::verdict) compute it. The page, the doctor, `top`,
/// the health check, the metrics `waterline_verdict` and `waterline_queue_verdict` and their alerts
/// all show the same one.
///
/// ```
/// use waterline::Verdict;
///
/// assert!(Verdict::GoesWell < Verdict::Waits && Verdict::Waits < Verdict::NeedsYou);
/// assert_eq!(Verdict::NeedsYou.to_string(), "needs you");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It makes progress, or there is nothing to do.
    #[default]
    GoesWell,
    /// It makes no progress now, and resumes by itself.
    Waits,
    /// It does not go on, or only in part, until an operator acts.
    NeedsYou,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::GoesWell => "goes well",
            Self::Waits => "waits",
            Self::NeedsYou => "needs you",
        })
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::GoesWell => "goes_well",
            Self::Waits => "waits",
            Self::NeedsYou => "needs_you",
        })
    }
}

/// One finding about a consumer or a queue: why it does not move, or what is left over.
///
/// [`Status::advice`](crate::Status::advice), `QueueStatus::advice` and
/// [`ConsumerInfo::advice`](crate::ConsumerInfo::advice) return it. `serde` writes its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Advice {
    /// The reason as one stable word, such as `halted` or `dead`: for a status, the word that
    /// `serde` writes.
    pub reason: &'static str,
    /// The verdict on this finding alone.
    pub verdict: Verdict,
    /// The finding as a sentence for a person.
    pub sentence: String,
    /// What to do about it, in sentences. Empty if nothing has to be done.
    pub help: &'static str,
}

fields!(Advice, of: reason, verdict, sentence, help);

/// The help text of the metrics that show a verdict.
#[cfg(feature = "metrics")]
pub const VERDICT: &str = "0 if it goes well, 1 if it waits, 2 if it needs you: an operator has to act.";

impl Advice {
    /// Returns the verdict on all of them together: the worst one.
    pub(crate) fn worst(all: &[Self]) -> Verdict {
        Self::worst_of(all, |_| true)
    }

    /// Returns the worst verdict among those whose reason passes the filter.
    pub(crate) fn worst_of(all: &[Self], is_such: impl Fn(&str) -> bool) -> Verdict {
        all.iter().filter(|advice| is_such(advice.reason)).map(|advice| advice.verdict).max().unwrap_or_default()
    }

    /// Reports a consumer's parked jobs, if it has any.
    pub(crate) fn parked(many: u64) -> Option<Self> {
        let plural = if many == 1 { "" } else { "s" };
        let sentence = format!("{many} parked job{plural}, which nothing runs before a redrive");
        let help = "Remove the cause, then redrive them, or discard them.";
        (many > 0).then_some(Self { reason: "parked", verdict: Verdict::NeedsYou, sentence, help })
    }
}
