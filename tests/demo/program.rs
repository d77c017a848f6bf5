//! The example and git as processes.

use serde_json::Value;
use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

pub fn command(repo: &Path, db: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_git_history"));
    command.arg(repo).arg("--json").arg("--db").arg(db).args(more);
    command
}

pub fn example(repo: &Path, db: &Path, more: &[&str]) -> Output {
    command(repo, db, more).output().unwrap()
}

/// Returns the last line of the output of a successful run.
pub fn report(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    last_line(output)
}

pub fn last_line(output: &Output) -> Value {
    serde_json::from_str(String::from_utf8_lossy(&output.stdout).lines().last().unwrap()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).trim_end().to_owned()
}

pub fn git<S: AsRef<OsStr>>(dir: &Path, args: impl IntoIterator<Item = S>) -> Vec<u8> {
    piped(dir, args, b"")
}

/// Runs git with this input and the same settings on every machine. Returns its output.
pub fn piped<S: AsRef<OsStr>>(dir: &Path, args: impl IntoIterator<Item = S>, input: &[u8]) -> Vec<u8> {
    let mut command = Command::new("git");
    command.args(["-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always"]).args(args).current_dir(dir);
    command.env("GIT_CONFIG_GLOBAL", if cfg!(windows) { "NUL" } else { "/dev/null" }).env("GIT_CONFIG_NOSYSTEM", "1");
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "A U Thor").env(format!("GIT_{role}_EMAIL"), "author@example.com");
        command.env(format!("GIT_{role}_DATE"), "2020-01-02T03:04:05Z");
    }
    for leaked in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX"] {
        command.env_remove(leaked);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", stderr(&output));
    output.stdout
}
