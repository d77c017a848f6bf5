//! The application: this test program, started again, with a store of its own.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use tempfile::TempDir;
use waterline::Handle;
use waterline_queue::Queue;
use waterline_ui::Served;

/// The variables that tell the child what to do.
pub(crate) const STORE: &str = "WATERLINE_TEST_STORE";
pub(crate) const MODE: &str = "WATERLINE_TEST_MODE";

/// The line that the child prints once everything is saved.
pub(crate) const READY: &str = "everything is saved";

/// The words before the address of the page that the child serves.
const SERVED: &str = "the page is at ";

/// An application that runs in a process of its own.
pub(crate) struct Application {
    child: Child,
    directory: TempDir,
}

impl Application {
    /// Starts it, and waits until its work is done. It runs until it is killed or dropped.
    pub(crate) fn start() -> Self {
        let mut application = Self::spawn("runs");
        let out = application.child.stdout.take().expect("it is piped");
        let ready = BufReader::new(out).lines().any(|line| line.is_ok_and(|line| line.contains(READY)));
        assert!(ready, "the application has ended early");
        application
    }

    /// Starts one that serves a page: `serves`, or `stuck` with a consumer per way to be stuck.
    /// Also returns the page.
    pub(crate) fn serving(mode: &str) -> (Self, Page) {
        let mut application = Self::spawn(mode);
        let mut out = BufReader::new(application.child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        let url = loop {
            line.clear();
            assert!(out.read_line(&mut line).unwrap() > 0, "the application has ended early");
            if let Some((_, addr)) = line.trim().split_once(SERVED) {
                break format!("http://{addr}");
            }
        };
        (application, Page { url, out })
    }

    /// Asks the application for the sentences of its statuses.
    pub(crate) fn statuses(&mut self, page: &mut Page) -> Value {
        let input = self.child.stdin.as_mut().expect("it is piped");
        writeln!(input, "status").unwrap();
        input.flush().unwrap();
        let mut line = String::new();
        page.out.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    fn spawn(mode: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = std::env::current_exe().unwrap();
        let child = Command::new(program)
            .args(["--exact", "modes::an_application", "--ignored", "--nocapture"])
            .env(STORE, directory.path().join("data"))
            .env(MODE, mode)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child, directory }
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Kills it, and keeps its store.
    pub(crate) fn kill(mut self) -> Left {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let directory = std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap());
        Left { directory }
    }

    /// Runs one that halts, and keeps its store.
    pub(crate) fn halted() -> Left {
        Self::ended("halts")
    }

    /// Runs one whose consumer halts at its first job, and keeps its store.
    pub(crate) fn failed() -> Left {
        Self::ended("fails")
    }

    /// Runs one that ends without a problem, and keeps its store.
    pub(crate) fn sound() -> Left {
        Self::ended("ends")
    }

    fn ended(mode: &str) -> Left {
        let mut application = Self::spawn(mode);
        assert!(application.child.wait().unwrap().success());
        let directory = std::mem::replace(&mut application.directory, tempfile::tempdir().unwrap());
        Left { directory }
    }
}

pub(crate) struct Page {
    pub(crate) url: String,
    out: BufReader<ChildStdout>,
}

impl Drop for Application {
    fn drop(&mut self) {
        let _it_has_ended = self.child.kill();
        let _it_has_ended = self.child.wait();
    }
}

/// The store that an application has left.
pub(crate) struct Left {
    directory: TempDir,
}

impl Left {
    pub(crate) fn store(&self) -> PathBuf {
        self.directory.path().join("data")
    }
}

/// Prints where the page is, and answers each line of input with the statuses.
pub(crate) fn tell(served: &Served, handles: &[Handle], queues: &[Queue]) -> std::io::Result<()> {
    println!("{SERVED}{}", served.addr());
    for line in std::io::stdin().lines() {
        line?;
        let say = |handle: &Handle| {
            let status = handle.status();
            let sentence = &status.advice()[0].sentence;
            json!({ "word": json!(status)["blocked"], "sentence": sentence, "verdict": status.verdict() })
        };
        let of_queue = |queue: &Queue| {
            let status = queue.status().map_err(std::io::Error::other)?;
            let sentence = &status.advice()[0].sentence;
            Ok(json!({ "word": json!(status)["waits"], "sentence": sentence, "verdict": status.verdict() }))
        };
        let queues = queues.iter().map(of_queue).collect::<std::io::Result<Value>>()?;
        println!("{}", json!({ "streams": handles.iter().map(say).collect::<Value>(), "queues": queues }));
    }
    Ok(())
}
