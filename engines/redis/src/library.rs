//! The functions on the servers: their text, and how they are loaded.

use crate::checks::NEWEST;
use crate::connection::{Connection, command, opening};
use crate::error::Error;
use redis::Value;

/// The text of the library: a first file, and others whose names are their own, in their order.
const FIRST: &str = include_str!("../lua/base.lua");
const FILES: [&str; 20] = [
    include_str!("../lua/job.lua"),
    include_str!("../lua/lines.lua"),
    include_str!("../lua/checks.lua"),
    include_str!("../lua/limits.lua"),
    include_str!("../lua/edges.lua"),
    include_str!("../lua/ends.lua"),
    include_str!("../lua/push.lua"),
    include_str!("../lua/plain.lua"),
    include_str!("../lua/sources.lua"),
    include_str!("../lua/claim.lua"),
    include_str!("../lua/notes.lua"),
    include_str!("../lua/workers.lua"),
    include_str!("../lua/tick.lua"),
    include_str!("../lua/clock.lua"),
    include_str!("../lua/turn.lua"),
    include_str!("../lua/finish.lua"),
    include_str!("../lua/steer.lua"),
    include_str!("../lua/look.lua"),
    include_str!("../lua/status.lua"),
    include_str!("../lua/open.lua"),
];

/// How often another process may migrate the same server between two steps of this one.
const ATTEMPTS: u32 = 16;

/// Joins the files into one text. A chunk of Lua has room for 200 names, so each file is in a block
/// of its own, but for the names at its begin that later files use: lines of `local` without a
/// value.
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

fn text() -> String {
    joined(FIRST, &FILES)
}

/// Loads the functions, unless the same or newer ones are there. All who do so write this key, so
/// that of two at the same time one looks again.
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
        connection.order(&command("FUNCTION", &["LOAD", "REPLACE", &text()]))?;
        match connection.order(&command("EXEC", &[]))? {
            Value::Array(answers) => {
                let failed = answers.into_iter().find_map(|answer| answer.extract_error().err());
                return failed.map_or(Ok(()), |error| Err(opening(&server, error)));
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
    fn each_file_is_a_block_behind_the_names_that_others_use() {
        let files = ["-- a\n\nlocal x, y\nlocal z\n\nx = 1\n", "-- b\n\nlocal v = x\n", "define(1)\n"];
        let text =
            "first\n-- a\n\nlocal x, y\nlocal z\ndo\n\nx = 1\nend\n-- b\n\ndo\nlocal v = x\nend\ndo\ndefine(1)\nend\n";
        assert_eq!(joined("first\n", &files), text);
    }
}
