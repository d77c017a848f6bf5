//! The tool as a child process, and its answers.
#![allow(dead_code, reason = "each program of the tests uses a part of it")]

use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};

pub(crate) const TOKEN: &str = "the token of the tests";

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) error: String,
}

/// What the tool looks at: `--store`, `--url`, `--postgres` or `--redis`, and its variables.
#[derive(Clone, Debug)]
pub(crate) struct At {
    way: &'static str,
    place: OsString,
    variables: Vec<(String, String)>,
}

impl At {
    pub(crate) fn store(path: &Path) -> Self {
        Self { way: "--store", place: path.into(), variables: Vec::new() }
    }

    /// Goes through a page, with the token of the tests.
    pub(crate) fn url(url: &str) -> Self {
        let place = url.to_owned().into();
        Self { way: "--url", place, variables: Vec::new() }.with("WATERLINE_TOKEN", TOKEN)
    }

    pub(crate) fn postgres(url: &str) -> Self {
        Self { way: "--postgres", place: url.to_owned().into(), variables: Vec::new() }
    }

    pub(crate) fn redis(url: &str) -> Self {
        Self { way: "--redis", place: url.to_owned().into(), variables: Vec::new() }
    }

    /// Sets a variable. An empty value counts as none.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the command of a line.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_waterline"));
        command.arg(self.way).arg(&self.place).args(line.split_whitespace());
        command.envs(self.variables.iter().cloned());
        command
    }

    /// Calls the tool with the words of a line.
    pub(crate) fn call(&self, line: &str) -> Answer {
        self.call_with(line, &[])
    }

    /// Calls the tool with the words of a line, and with `more` after them.
    pub(crate) fn call_with(&self, line: &str, more: &[&str]) -> Answer {
        let Output { status, stdout, stderr } = self.command(line).args(more).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Answer { code: status.code().expect("nobody kills it"), out: text(stdout), error: text(stderr) }
    }

    /// Calls the tool, which has to succeed, and returns its output for people.
    pub(crate) fn text(&self, line: &str) -> String {
        let answer = self.call(line);
        assert_eq!((answer.code, answer.error.as_str()), (0, ""), "{line}: {answer:?}");
        answer.out
    }

    /// Calls the tool with `--json`, which has to succeed, and returns its records.
    pub(crate) fn records(&self, line: &str) -> Vec<Value> {
        json(&self.text(&format!("{line} --json")))
    }

    /// Asserts that a command fails with one line, which has these parts, and no output.
    pub(crate) fn refused(&self, line: &str, code: i32, parts: &[&str]) {
        let answer = self.call(line);
        assert_eq!((answer.code, answer.out.as_str()), (code, ""), "{line}: {answer:?}");
        for part in parts {
            assert!(answer.error.contains(part), "{line} has no {part:?}: {}", answer.error);
        }
        if code == 1 {
            let is_one = answer.error.lines().count() == 1 && answer.error.starts_with("waterline: ");
            assert!(is_one, "{line}: {}", answer.error);
        }
    }
}

pub(crate) fn call_with(store: &Path, line: &str, more: &[&str]) -> Answer {
    At::store(store).call_with(line, more)
}

pub(crate) fn call(store: &Path, line: &str) -> Answer {
    call_with(store, line, &[])
}

pub(crate) fn command(store: &Path, line: &str) -> Command {
    At::store(store).command(line)
}

pub(crate) fn text(store: &Path, line: &str) -> String {
    At::store(store).text(line)
}

pub(crate) fn records(store: &Path, line: &str) -> Vec<Value> {
    At::store(store).records(line)
}

/// Parses one record per line.
pub(crate) fn json(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

/// Opens the database of a store, to damage it; `None` if the tests run on another engine.
pub(crate) fn database(store: &Path) -> Option<rusqlite::Connection> {
    let is_on_sqlite = common::engine() == Some(waterline::Engine::Sqlite);
    is_on_sqlite.then(|| rusqlite::Connection::open(store.join("waterline.sqlite")).unwrap())
}

/// Returns the bytes of each file of a store. Of the shared memory of SQLite only the name counts,
/// since each reader writes to it; a closed store has none. Nor do the bytes of the text log of
/// RocksDB count.
pub(crate) fn bytes(store: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(store).unwrap().map(|file| file.unwrap());
    let named = files.map(|file| (file.file_name().into_string().unwrap(), file.path()));
    let read = |path| std::fs::read(path).unwrap();
    let is_own = |name: &str| name.ends_with("-shm") || name == "LOG";
    named.map(|(name, path)| if is_own(&name) { (name, Vec::new()) } else { (name, read(path)) }).collect()
}
