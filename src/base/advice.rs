//! The answer to "does this need an operator?", in the words of all who show one.

use crate::base::serialized::fields;
use serde::ser::{Serialize, Serializer};
use std::fmt;

/// Whether a consumer or a queue needs an operator. The greater verdict is the worse one.
///
/// [`Status::verdict`](crate::Status::verdict),
/// `QueueStatus::verdict` and
/// [`ConsumerInfo::verdict`](crate::ConsumerInfo::verdict) decide it. The page, the doctor, `top`,
/// the health check, the metrics `waterline_verdict` and `waterline_queue_verdict` and their alarms
/// all show this decision.
///
/// ```
/// use waterline::Verdict;
///
/// assert!(Verdict::GoesWell < Verdict::Waits && Verdict::Waits < Verdict::NeedsYou);
/// assert_eq!(Verdict::NeedsYou.to_string(), "needs you");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It moves, or there is nothing to do.
    #[default]
    GoesWell,
    /// It does not move, and goes on by itself.
    Waits,
    /// It does not go on, or not all of it does, before an operator has acted.
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

/// One thing that is to be said of a consumer or a queue: why it does not move, or what is left
/// over. From [`Status::advice`](crate::Status::advice),
/// `QueueStatus::advice` and
/// [`ConsumerInfo::advice`](crate::ConsumerInfo::advice).
///
/// `serde` writes its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Advice {
    /// The reason as one word, which does not change: `halted`, `dead`. That of a status is the
    /// word that `serde` writes.
    pub reason: &'static str,
    /// The verdict on this alone.
    pub verdict: Verdict,
    /// The sentence that says it.
    pub sentence: String,
    /// The help, in sentences. Empty if nothing has to be done.
    pub help: &'static str,
}

fields!(Advice, of: reason = of.reason, verdict = of.verdict, sentence = of.sentence, help = of.help,);

/// The text of the metrics that show a verdict.
#[cfg(feature = "metrics")]
pub const VERDICT: &str = "0 if it goes well, 1 if it waits, 2 if it needs you: an operator has to act.";

impl Advice {
    /// Returns the verdict on all of these together.
    pub(crate) fn worst(all: &[Self]) -> Verdict {
        Self::worst_of(all, |_| true)
    }

    /// Returns the verdict on those with such a reason.
    pub(crate) fn worst_of(all: &[Self], is_such: impl Fn(&str) -> bool) -> Verdict {
        all.iter().filter(|advice| is_such(advice.reason)).map(|advice| advice.verdict).max().unwrap_or_default()
    }

    /// Says that a consumer has parked jobs.
    pub(crate) fn parked(many: u64) -> Option<Self> {
        let plural = if many == 1 { "" } else { "s" };
        let sentence = format!("{many} parked job{plural}, which nothing runs before a redrive");
        let help = "Remove the cause, then redrive them, or discard them.";
        (many > 0).then_some(Self { reason: "parked", verdict: Verdict::NeedsYou, sentence, help })
    }
}
