//! The page that the example serves: `make demo ARGS="--page"`.

use crate::made::imported;
use crate::program::command;
use tempfile::TempDir;

#[cfg(all(unix, feature = "page"))]
#[test]
fn the_page_address_is_printed_and_ctrl_c_ends_it() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Command, Stdio};

    let dir = TempDir::new().unwrap();
    let repo = imported(&dir, "repo", 50, 6);
    let mut child = command(&repo, &dir.path().join("db"), &["--page"]);
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    // The work is done by then.
    let line = said.find(|line| line.starts_with("look at http://")).expect("it names the page");
    let address = line.trim_start_matches("look at http://").split('/').next().unwrap();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET /api/overview HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let overview: serde_json::Value = serde_json::from_str(body).unwrap();
    let streams = overview["streams"].as_array().unwrap();
    assert_eq!(streams.iter().map(|stream| &stream["name"]).collect::<Vec<_>>(), ["commits", "files"]);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[cfg(not(feature = "page"))]
#[test]
fn a_build_without_the_page_says_how_to_get_it() {
    let dir = TempDir::new().unwrap();
    let repo = imported(&dir, "repo", 50, 6);
    let output = command(&repo, &dir.path().join("db"), &["--page"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(crate::program::stderr(&output).contains("make demo ARGS=\"--page\""), "{output:?}");
}
