//! A small HTTP client, with which the tests decide each byte that they send.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long an answer may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// An answer: its status, its headers as they were sent, and its body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Headers,
    pub(crate) body: String,
}

/// The headers of an answer.
#[derive(Debug)]
pub(crate) struct Headers(String);

impl Headers {
    /// Returns a header, by its name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let mut pairs = self.0.lines().filter_map(|line| line.split_once(':'));
        pairs.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Sends a request, and reads the answer. A header `host` replaces the usual one.
pub(crate) fn send(addr: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let (mut reader, (status, headers)) = begin(addr, method, path, headers, body);
    let mut rest = Vec::new();
    match headers.get("content-length").map(|length| length.parse().unwrap()) {
        // Not every server ends the connection.
        Some(length) => {
            rest.resize(length, 0);
            reader.read_exact(&mut rest).unwrap();
        }
        None => drop(reader.read_to_end(&mut rest).unwrap()),
    }
    let rest = String::from_utf8(rest).unwrap();
    let body = if headers.get("transfer-encoding") == Some("chunked") { unchunked(&rest) } else { rest };
    Answer { status, headers, body }
}

/// Sends a request, and reads the head of the answer.
pub(crate) fn begin(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (BufReader<TcpStream>, (u16, Headers)) {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let own = addr.to_string();
    let host = headers.iter().find(|header| header.0 == "host").map_or(own.as_str(), |header| header.1);
    let mut request =
        format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers.iter().filter(|header| header.0 != "host") {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    write!(stream, "{request}\r\n{body}").unwrap();
    let mut reader = BufReader::new(stream);
    let (mut line, mut head) = (String::new(), String::new());
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{line:?}"));
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() == 0 || line == "\r\n" {
            return (reader, (status, Headers(head)));
        }
        head.push_str(&line);
    }
}

fn unchunked(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((length, behind)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        body.push_str(&behind[..length]);
        rest = behind[length..].strip_prefix("\r\n").unwrap_or_default();
    }
    body
}
