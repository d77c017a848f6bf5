//! The example `service` as a process: it ends by itself or by a signal, and its exit code says
//! how.

use common::LONG;
use crossbeam_channel::{Receiver, unbounded};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

/// Starts the example with these arguments. Also returns the lines that it prints.
fn service(arguments: &[&str]) -> (Child, Receiver<String>) {
    let path = crate::example("service");
    let (stdin, out) = (Stdio::null(), Stdio::piped());
    let mut child = Command::new(path).args(arguments).stdin(stdin).stdout(out).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let (line, lines) = unbounded();
    std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|text| line.send(text)));
    (child, lines)
}

#[track_caller]
fn wait_for(lines: &Receiver<String>, says: &str) {
    while !lines.recv_timeout(LONG).expect("the line comes").contains(says) {}
}

/// Waits for a timely end. Returns the exit code and the standard error.
#[track_caller]
fn end(mut child: Child, lines: &Receiver<String>) -> (Option<i32>, String) {
    // The lines end when the process does.
    while lines.recv_timeout(LONG).is_ok() {}
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    (child.wait().unwrap().code(), errors)
}

#[test]
fn a_signalled_service_stops_cleanly_in_time() {
    for signal in ["-TERM", "-INT"] {
        let (child, lines) = service(&[]);
        wait_for(&lines, "processed and saved: 0 to");
        let killed = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        wait_for(&lines, "a signal came");
        assert_eq!(end(child, &lines), (Some(0), String::new()));
    }
}

#[test]
fn a_service_that_ends_by_itself_succeeds() {
    let (child, lines) = service(&["20"]);
    wait_for(&lines, "it ended by itself");
    assert_eq!(end(child, &lines), (Some(0), String::new()));
}

#[test]
fn a_service_that_halts_says_why_and_fails() {
    let (child, lines) = service(&["20", "13"]);
    wait_for(&lines, "it ended by itself");
    let (code, errors) = end(child, &lines);
    assert_eq!(code, Some(1));
    assert!(errors.contains("job 13 failed in attempt 2") && errors.contains("it is said to be bad"), "{errors}");
}
