//! The functions on the servers, and their versions.

use crate::connection::{Connection, command};
use crate::error::Error;
use redis::Value;
use std::fmt;

/// The version of the functions. Those of the same first number serve older programs, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    major: u32,
    minor: u32,
}

/// The version of the functions that this program brings: as `wl_version` says.
pub(crate) const OWN: Version = Version { major: 1, minor: 0 };

/// The text of the library.
const LIBRARY: &str = concat!(include_str!("library/placeholder.lua"));

/// How often another process may migrate the same server between two steps of this one.
const ATTEMPTS: u32 = 16;

impl Version {
    /// Reads the answer of `wl_version`: two numbers, or one text with a dot between them.
    pub(crate) fn of(answer: &Value) -> Option<Self> {
        match answer {
            Value::Array(parts) => match parts.as_slice() {
                [Value::Int(major), Value::Int(minor)] => {
                    Some(Self { major: u32::try_from(*major).ok()?, minor: u32::try_from(*minor).ok()? })
                }
                _ => None,
            },
            Value::BulkString(text) => {
                let (major, minor) = std::str::from_utf8(text).ok()?.split_once('.')?;
                Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
            }
            _ => None,
        }
    }

    /// Refuses functions that no longer serve this program.
    pub(crate) fn check(self, server: &str) -> Result<(), Error> {
        if self.major <= OWN.major {
            return Ok(());
        }
        Err(Error::NewerFunctions { server: server.to_owned(), found: self.to_string(), known: OWN.to_string() })
    }

    /// True if they have all that this program calls.
    pub(crate) fn serves(found: Option<Self>) -> bool {
        found.is_some_and(|found| found >= OWN && found.major == OWN.major)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Loads the functions, unless the same or newer ones are there. All who do so write this key, so that
/// of two at the same time one looks again.
pub(crate) fn migrate(connection: &mut Connection, key: &str) -> Result<(), Error> {
    let server = connection.server();
    for _ in 0..ATTEMPTS {
        connection.order(&command("WATCH", &[key]))?;
        let found = connection.look_for_functions()?;
        if found.is_some_and(|found| found >= OWN) {
            connection.order(&command("UNWATCH", &[]))?;
            return Ok(());
        }
        connection.order(&command("MULTI", &[]))?;
        connection.order(&command("INCR", &[key]))?;
        connection.order(&command("FUNCTION", &["LOAD", "REPLACE", LIBRARY]))?;
        match connection.order(&command("EXEC", &[]))? {
            Value::Array(answers) => {
                let failed = answers.into_iter().find_map(|answer| answer.extract_error().err());
                return failed.map_or(Ok(()), |error| Err(crate::connection::opening(&server, error)));
            }
            // Another process was faster.
            Value::Nil => {}
            other => return Err(Error::odd(server, format!("EXEC says {other:?}"))),
        }
    }
    Err(Error::Functions { at: server, what: "other processes load theirs all the time".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_first_number_is_refused_and_an_older_version_does_not_serve() {
        let version = |major, minor| Version { major, minor };
        let text = |text: &str| Version::of(&Value::BulkString(text.into()));
        assert_eq!(Version::of(&Value::Array(vec![Value::Int(2), Value::Int(10)])), Some(version(2, 10)));
        assert_eq!((text("2.10"), text("2"), text("x.1")), (Some(version(2, 10)), None, None));
        assert_eq!([Version::of(&Value::Int(2)), Version::of(&Value::Array(vec![]))], [None, None]);
        let (older, newer, next) = (version(0, 9), version(OWN.major, OWN.minor + 1), version(OWN.major + 1, 0));
        assert_eq!([None, Some(older), Some(OWN), Some(newer), Some(next)].map(Version::serves), {
            [false, false, true, true, false]
        });
        assert!(older.check("h").is_ok() && newer.check("h").is_ok());
        assert!(matches!(next.check("h"), Err(Error::NewerFunctions { .. })));
    }
}
