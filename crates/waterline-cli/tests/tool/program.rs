//! The tool, and what it answers.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

/// The answer of the tool.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) error: String,
}

/// Calls the tool with the words of a line, and with these behind them.
pub(crate) fn call_with(store: &Path, line: &str, more: &[&str]) -> Answer {
    let output = command(store, line).args(more).output().unwrap();
    let Output { status, stdout, stderr } = output;
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Answer { code: status.code().expect("nobody kills it"), out: text(stdout), error: text(stderr) }
}

/// Calls the tool with the words of a line.
pub(crate) fn call(store: &Path, line: &str) -> Answer {
    call_with(store, line, &[])
}

/// Returns the command of a line.
pub(crate) fn command(store: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waterline"));
    command.arg("--store").arg(store).args(line.split_whitespace());
    command
}

/// Calls the tool, which has to succeed, and returns its output for people.
pub(crate) fn text(store: &Path, line: &str) -> String {
    let answer = call(store, line);
    assert_eq!((answer.code, answer.error.as_str()), (0, ""), "{line}: {answer:?}");
    answer.out
}

/// Calls the tool with `--json`, which has to succeed, and returns its records.
pub(crate) fn records(store: &Path, line: &str) -> Vec<Value> {
    let answer = call(store, &format!("{line} --json"));
    assert_eq!((answer.code, answer.error.as_str()), (0, ""), "{line}: {answer:?}");
    json(&answer.out)
}

/// Reads a record a line.
pub(crate) fn json(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

/// Returns the bytes of each file of a store. Of the memory that the processes of a database share
/// only the name counts: while one of them runs, or after it was killed, each reader notes itself
/// there. A store that was closed has no such file.
pub(crate) fn bytes(store: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(store).unwrap().map(|file| file.unwrap());
    let named = files.map(|file| (file.file_name().into_string().unwrap(), file.path()));
    let read = |path| std::fs::read(path).unwrap();
    named.map(|(name, path)| if name.ends_with("-shm") { (name, Vec::new()) } else { (name, read(path)) }).collect()
}
