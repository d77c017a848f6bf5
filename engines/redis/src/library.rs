//! The functions on the servers, and their versions.

use crate::connection::{Connection, command};
use crate::error::Error;
use redis::Value;

/// The version of functions, and the oldest version of a program that they serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) found: i64,
    pub(crate) serves: i64,
}

/// The version of the functions that this program brings: as `wl_version` says.
pub(crate) const NEWEST: i64 = 1;

/// The text of the library: a first file, and others whose names are their own, in their order.
const FIRST: &str = include_str!("library/placeholder.lua");
const FILES: [&str; 0] = [];

/// How often another process may migrate the same server between two steps of this one.
const ATTEMPTS: u32 = 16;

impl Version {
    /// Reads the answer of `wl_version`.
    pub(crate) fn of(answer: &Value) -> Option<Self> {
        let Value::Array(parts) = answer else { return None };
        let [Value::Int(found), Value::Int(serves)] = parts[..] else { return None };
        Some(Self { found, serves })
    }

    /// Refuses functions of a newer version that do not serve this program.
    pub(crate) fn check(self, server: &str) -> Result<(), Error> {
        if self.found > NEWEST && self.serves > NEWEST {
            return Err(Error::NewerFunctions { server: server.to_owned(), found: self.found, known: NEWEST });
        }
        Ok(())
    }
}

/// Joins the files into one text. A chunk of Lua has room for 200 names, so each file is in a block of
/// its own, but for the names at its begin that later files use: lines of `local` without a value.
fn joined(first: &str, files: &[&str]) -> String {
    let mut all = first.to_owned();
    for file in files {
        let (mut has_names, mut has_begun) = (false, false);
        for line in file.lines() {
            if !has_begun {
                has_names |= line.starts_with("local ") && !line.contains('=') && !line.contains("function");
                let is_code = ["local", "redis", "define"].iter().any(|word| line.starts_with(word));
                has_begun = if has_names { line.is_empty() } else { is_code };
                all.push_str(if has_begun { "do\n" } else { "" });
            }
            all.push_str(line);
            all.push('\n');
        }
        all.push_str("end\n");
    }
    all
}

/// Loads the functions, unless the same or newer ones are there. All who do so write this key, so that
/// of two at the same time one looks again.
pub(crate) fn migrate(connection: &mut Connection, key: &str) -> Result<(), Error> {
    let server = connection.server();
    for _ in 0..ATTEMPTS {
        connection.order(&command("WATCH", &[key]))?;
        let found = connection.look_for_functions()?;
        if found.is_some_and(|version| version.found >= NEWEST) {
            connection.order(&command("UNWATCH", &[]))?;
            return Ok(());
        }
        connection.order(&command("MULTI", &[]))?;
        connection.order(&command("INCR", &[key]))?;
        connection.order(&command("FUNCTION", &["LOAD", "REPLACE", &joined(FIRST, &FILES)]))?;
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
    fn functions_that_no_longer_serve_this_program_are_refused() {
        let version = |found, serves| Version { found, serves };
        assert_eq!(Version::of(&Value::Array(vec![Value::Int(2), Value::Int(1)])), Some(version(2, 1)));
        assert_eq!([Version::of(&Value::Int(2)), Version::of(&Value::Array(vec![]))], [None, None]);
        let refused = [version(NEWEST + 1, NEWEST + 1), version(NEWEST + 9, NEWEST + 2)];
        let taken = [version(NEWEST - 1, 0), version(NEWEST, NEWEST), version(NEWEST + 9, NEWEST)];
        assert!(refused.iter().all(|version| version.check("h").is_err()));
        assert!(taken.iter().all(|version| version.check("h").is_ok()));
    }

    #[test]
    fn each_file_is_a_block_behind_the_names_that_others_use() {
        let files = ["-- a\n\nlocal x, y\nlocal z\n\nx = 1\n", "-- b\n\nlocal v = x\n", "define(1)\n"];
        let text =
            "first\n-- a\n\nlocal x, y\nlocal z\ndo\n\nx = 1\nend\n-- b\n\ndo\nlocal v = x\nend\ndo\ndefine(1)\nend\n";
        assert_eq!(joined("first\n", &files), text);
    }
}
