//! Runs of single tests, as many at a time as there are cores.

use crate::building::Executable;
use crate::planting::VARIABLE;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{io, iter, thread};

/// The end of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It passed.
    Passed,
    /// It failed, or did not end in its time.
    Failed,
    /// The program has no test of this name.
    NoTest,
}

/// A call of a program.
#[derive(Debug)]
pub struct Run<'a> {
    /// The program.
    pub executable: &'a Executable,
    /// A part of the name of the test.
    pub test: &'a str,
    /// The store that the test runs on.
    pub store: &'a str,
    /// The bug that the program chooses.
    pub bug: Option<u32>,
    /// The longest time that the program may take.
    pub limit: Duration,
}

impl Run<'_> {
    /// Runs the program, and measures its time. Its output is in this file afterwards.
    ///
    /// # Errors
    ///
    /// The file cannot be written, or the program cannot be started.
    pub fn end(&self, output: &Path) -> io::Result<(End, Duration)> {
        let begun = Instant::now();
        let mut call = Command::new("timeout");
        // It ends the processes that the test has started, too.
        call.args(["--signal=KILL", &self.limit.as_secs().to_string()]).arg(&self.executable.file).arg(self.test);
        call.current_dir(&self.executable.folder).env("CARGO_MANIFEST_DIR", &self.executable.folder);
        call.env("WATERLINE_STORE", self.store);
        match self.bug {
            Some(bug) => call.env(VARIABLE, bug.to_string()),
            None => call.env_remove(VARIABLE),
        };
        let file = File::create(output)?;
        let status = call.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).status()?;
        let said = fs::read(output)?;
        let ran = String::from_utf8_lossy(&said)
            .lines()
            .any(|line| line.strip_prefix("running ").is_some_and(|rest| !rest.starts_with("0 ")));
        let end = match (ran, status.success()) {
            (false, _) => End::NoTest,
            (true, true) => End::Passed,
            (true, false) => End::Failed,
        };
        Ok((end, begun.elapsed()))
    }
}

/// Does this for each of them, on as many threads as there are cores.
pub fn each<T: Sync, R: Send>(all: &[T], job: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take = || {
        let at = next.fetch_add(1, Ordering::Relaxed);
        Some((at, job(all.get(at)?)))
    };
    let mut done: Vec<_> = thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(|| iter::from_fn(take).collect::<Vec<_>>())).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no job panics")).collect()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, end)| end).collect()
}
