//! Processes that die: a test runs its own program again as a child, which works in a directory and
//! is killed at a line of its output that the test chooses.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const DIR: &str = "WATERLINE_DYING_DIR";
/// The variable with the number of the line after which the child waits to be killed.
const LINE: &str = "WATERLINE_DYING_LINE";

/// Starts the ignored test with this name, such as `module::test`, as a child without core files.
pub fn child(role: &str, dir: &Path, line: u64) -> Child {
    Command::new("sh")
        .args(["-c", "ulimit -c 0; exec \"$0\" --exact \"$1\" --nocapture --include-ignored"])
        .arg(std::env::current_exe().unwrap())
        .arg(role)
        .env(DIR, dir)
        .env(LINE, line.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Returns the directory of a child, or `None` if this process is none.
pub fn dir_of_child() -> Option<PathBuf> {
    std::env::var_os(DIR).map(Into::into)
}

/// Kills a child once it has printed this line. Returns false if it ended before.
pub fn killed_after(role: &str, dir: &Path, line: u64) -> bool {
    let mut child = child(role, dir, line);
    // Its other threads go on until the kill: without a reader, printing would panic and fail jobs.
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let reached = lines.by_ref().map_while(Result::ok).any(|line| line.contains("reached"));
    if reached {
        child.kill().unwrap();
    }
    assert_eq!(child.wait().unwrap().success(), !reached, "after line {line}");
    drop(lines);
    reached
}

/// Prints lines, and waits to be killed after the one that the test wants.
pub struct Lines {
    number: AtomicU64,
    wanted: u64,
}

impl Lines {
    /// Returns the lines of this child.
    pub fn of_child() -> Arc<Self> {
        let wanted = std::env::var(LINE).unwrap().parse().unwrap();
        Arc::new(Self { number: AtomicU64::new(0), wanted })
    }

    pub fn say(&self, text: &str) {
        println!("step {text}");
        if self.number.fetch_add(1, Ordering::SeqCst) + 1 == self.wanted {
            println!("reached");
            loop {
                std::thread::park();
            }
        }
    }
}
