//! The one line that says why a command has failed.

use crate::format::{plain, word};
#[cfg(any(feature = "postgres", feature = "redis"))]
use std::error::Error as StdError;
use std::fmt;
use waterline::Error;
use waterline_queue::QueueError;

/// Why a command failed: one line, which says what to do.
#[derive(Debug)]
pub(crate) struct Fault {
    text: String,
    /// True if something stored is damaged. Other failures may pass.
    pub(crate) is_damage: bool,
    /// True if the role in a database lacks the right to it.
    is_denied: bool,
    /// True if a job that was to be redriven or discarded is not parked.
    pub(crate) is_not_parked: bool,
    /// True if another process has the store open.
    pub(crate) is_locked: bool,
    /// True if it says that there is no such name.
    is_unknown: bool,
}

impl Fault {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { text, is_damage: false, is_denied: false, is_not_parked: false, is_locked: false, is_unknown: false }
    }

    pub(crate) fn is_denied(&self) -> bool {
        self.is_denied
    }

    /// Makes the fault for an unknown name, and suggests the nearest known one.
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
        Self { is_unknown: true, ..Self::new(format!("there is no {what} {name:?}: {rest}")) }
    }

    /// Adds a hint, if this is the fault for an unknown name.
    pub(crate) fn or(mut self, way: &str) -> Self {
        if self.is_unknown {
            self.text += &format!(" ({way})");
        }
        self
    }

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
        #[cfg(feature = "postgres")]
        if let Some(fault) = of_database(&error) {
            return fault;
        }
        #[cfg(feature = "redis")]
        if let Some(fault) = of_redis(&error) {
            return fault;
        }
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
                "nothing is saved under {name:?}, so nobody knows where its stream begins: `waterline seek --new` to its first job"
            ),
            _ => error.report(),
        };
        Self {
            is_damage: matches!(error, Error::Corrupt { .. }),
            is_not_parked: matches!(error, Error::NotParked { .. }),
            is_locked: matches!(error, Error::Locked { .. }),
            ..Self::new(text)
        }
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

#[cfg(feature = "postgres")]
impl From<waterline_postgres::Error> for Fault {
    fn from(error: waterline_postgres::Error) -> Self {
        use waterline_postgres::Error as Of;
        match error {
            Of::Leased { name, holder, .. } => {
                Self::new(format!("nothing was changed, since {name:?} is in use by {holder}: stop it, and try again"))
            }
            Of::Refused(error) => error.into(),
            error @ Of::Corrupt { .. } => Self { is_damage: true, ..Self::new(in_full(&error)) },
            error => of_database(&error).unwrap_or_else(|| Self::new(in_full(&error))),
        }
    }
}

#[cfg(feature = "redis")]
impl From<waterline_redis::Error> for Fault {
    fn from(error: waterline_redis::Error) -> Self {
        of_redis(&error).unwrap_or_else(|| Self::new(in_full(&error)))
    }
}

/// Makes the fault of an answer of the server, which says what to do.
#[cfg(feature = "redis")]
fn of_redis(error: &(dyn StdError + 'static)) -> Option<Fault> {
    use waterline_redis::Error as Of;
    let found = causes(error).into_iter().find_map(|cause| cause.downcast_ref::<Of>())?;
    let is_denied = matches!(found, Of::Refused { code, .. } if code == "NOPERM");
    Some(Fault { is_denied, ..Fault::new(in_full(found)) })
}

/// Makes the fault for a missing right or for tables that do not fit, if one is the cause.
#[cfg(feature = "postgres")]
fn of_database(error: &(dyn StdError + 'static)) -> Option<Fault> {
    use waterline_postgres::Error as Of;
    use waterline_postgres::postgres::{Error as Failed, error::SqlState};
    let causes = causes(error);
    if let Some(Of::Schema { schema, what }) = causes.iter().find_map(|cause| cause.downcast_ref::<Of>()) {
        // The name may be quoted, as in a statement.
        let schema = schema.trim_matches('"');
        return Some(Fault::new(format!(
            "the tables in the schema {schema} do not fit this tool ({what}): the first program of a new version makes them; \
             --schema names another schema"
        )));
    }
    let answer = causes.iter().find_map(|cause| cause.downcast_ref::<Failed>()?.as_db_error())?;
    (*answer.code() == SqlState::INSUFFICIENT_PRIVILEGE).then(|| {
        let text = format!(
            "this role may not do it ({}): queues need the role waterline_operate of the schema, and consumers need rights on \
             its tables",
            answer.message()
        );
        Fault { is_denied: true, ..Fault::new(text) }
    })
}

/// Returns an error with its causes.
#[cfg(any(feature = "postgres", feature = "redis"))]
fn causes<'e>(error: &'e (dyn StdError + 'static)) -> Vec<&'e (dyn StdError + 'static)> {
    let (mut causes, mut next) = (Vec::new(), Some(error));
    while let Some(error) = next {
        causes.push(error);
        next = error.source();
    }
    causes
}

/// Returns the text of an error with its causes, each once.
#[cfg(any(feature = "postgres", feature = "redis"))]
fn in_full(error: &(dyn StdError + 'static)) -> String {
    let texts = causes(error).into_iter().map(ToString::to_string);
    let join = |text: String, cause: String| if text.contains(&cause) { text } else { format!("{text}: {cause}") };
    texts.reduce(join).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_suggests_a_near_one_or_a_count() {
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
