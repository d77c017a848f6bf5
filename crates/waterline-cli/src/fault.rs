//! The one line that says why a command has failed.

use crate::words::{plain, word};
use std::fmt;
use waterline::Error;
use waterline::queue::QueueError;

/// The reason for which a command has failed: one line, which says what to do.
#[derive(Debug)]
pub(crate) struct Fault {
    text: String,
    /// True if something stored is damaged. Other failures may pass.
    pub(crate) is_damage: bool,
}

impl Fault {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_damage: false }
    }

    /// Makes the fault for a name that is not there, with the nearest one that is.
    pub(crate) fn unknown(what: &str, name: &str, known: &[String]) -> Self {
        let near = known
            .iter()
            .map(|other| (strsim::damerau_levenshtein(&name.to_lowercase(), &other.to_lowercase()), other))
            .min()
            .filter(|(distance, other)| *distance <= name.chars().count().max(other.chars().count()).div_ceil(2));
        let rest = match (near, known) {
            (Some((_, near)), _) => format!("did you mean {near:?}?"),
            (None, []) => format!("there is no {what} at all"),
            (None, [only]) => format!("the only one is {only:?}"),
            (None, [first, .., last]) => format!("there are {}, from {first:?} to {last:?}", known.len()),
        };
        Self::new(format!("there is no {what} {name:?}: {rest}"))
    }
}

impl Fault {
    /// Makes the fault for a job that is not there.
    pub(crate) fn no_job(queue: &str, id: &str) -> Self {
        Self::new(format!(
            "the queue {queue:?} has no job {id:?}: it was never pushed, was removed, or ended longer ago than it is kept"
        ))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain(&self.text))
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let text = match &error {
            Error::NotFound { what: "store", name } => format!("there is no store at {name}: check the path"),
            Error::NotFound { what, name } => format!("there is no {what} {name:?} in the store: check the name"),
            Error::Corrupt { name, reason } => format!(
                "the stored value of {name:?} cannot be read ({reason}): restore it from a backup, or remove it; `waterline \
                 doctor` lists all that is damaged"
            ),
            Error::NotParked { name, index } => {
                format!("job {index} of {name:?} is not parked: `waterline parked {}` lists those that are", word(name))
            }
            Error::AlreadyDone { name, index } => format!(
                "job {index} of {name:?} is done or parked, so it cannot be skipped: `waterline seek` makes it run again"
            ),
            Error::NothingSaved { name } => format!(
                "nothing is saved under {name:?}, so nobody knows where its stream begins: `waterline seek` to its first job"
            ),
            _ => error.report(),
        };
        Self { text, is_damage: matches!(error, Error::Corrupt { .. }) }
    }
}

impl From<QueueError> for Fault {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Store(error) => error.into(),
            QueueError::NotFound { queue, id, .. } => Self::no_job(&queue, &id),
            other => Self::new(other.report()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest_one_or_with_the_number_of_names() {
        let says = |name: &str, known: &[&str]| {
            Fault::unknown("queue", name, &known.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).to_string()
        };
        for (name, known, rest) in [
            ("mial", &["blocks", "mail", "mailing"][..], "did you mean \"mail\"?"),
            ("Mail", &["mail", "main"], "did you mean \"mail\"?"),
            ("zz", &["blocks", "mail"], "there are 2, from \"blocks\" to \"mail\""),
            ("zz", &["blocks"], "the only one is \"blocks\""),
            ("zz", &[], "there is no queue at all"),
        ] {
            assert_eq!(says(name, known), format!("there is no queue {name:?}: {rest}"));
        }
    }
}
