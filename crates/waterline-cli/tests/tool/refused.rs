//! Whatever is wrong with a page: one line on standard error, and exit code 1.

use crate::application::Application;
use crate::program::{At, TOKEN};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// A server that answers each connection in this way, until the process ends.
fn server(answer: impl Fn(&mut TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/admin", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // Read the head of the request.
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
                head.push(byte[0]);
            }
            answer(&mut stream);
        }
    });
    url
}

/// A server that gives this answer, with these headers.
fn says(status: &'static str, head: &'static str, body: &'static str) -> String {
    server(move |stream| {
        let length = body.len();
        let _gone =
            write!(stream, "HTTP/1.1 {status}\r\n{head}content-length: {length}\r\nconnection: close\r\n\r\n{body}");
    })
}

#[test]
fn a_refusal_of_the_page_is_one_line_with_advice() {
    let (_application, page) = Application::serving("serves");
    let at = At::url(&page.url);
    at.clone().with("WATERLINE_TOKEN", "").refused("list", 1, &["needs its token: set it in WATERLINE_TOKEN"]);
    let wrong = "another token of the tests";
    for token in [wrong, "a\u{1}b"] {
        let answer = at.clone().with("WATERLINE_TOKEN", token).call("list");
        assert_eq!((answer.code, answer.error.lines().count()), (1, 1));
        assert!(answer.error.contains("WATERLINE_TOKEN") && !answer.error.contains(token), "{answer:?}");
    }
    let by_header = at.clone().with("WATERLINE_TOKEN", "");
    assert_eq!(by_header.with("WATERLINE_HEADER", &format!("Authorization: Bearer {TOKEN}")).call("list").code, 0);
    at.clone().with("WATERLINE_HEADER", "no header").refused("list", 1, &["WATERLINE_HEADER", "`Name: value`"]);
    at.clone().with("WATERLINE_TIMEOUT", "soon").refused("list", 1, &["WATERLINE_TIMEOUT", "number of seconds"]);
    for (line, parts) in [
        ("show blokcs", &["there is no consumer or log \"blokcs\": did you mean \"blocks\"?"][..]),
        ("parked Blocks", &["did you mean \"blocks\"?"]),
        ("jobs mial", &["there is no queue \"mial\": did you mean \"mail\"?"]),
        ("job mail nobody", &["has no job \"nobody\""]),
        ("requeue mail ann --yes", &["is ready, and not dead"]),
        ("redrive blocks 4 --yes", &["job 4 of \"blocks\" is not parked"]),
        ("skip blocks 2 --reason no --yes", &["is done or parked"]),
        ("log peek words", &["read from the files of a store", "--store PATH"]),
        ("tables", &["--store PATH"]),
        ("table heights", &["--store PATH"]),
    ] {
        at.refused(line, 1, parts);
    }
    let nothing = At::url(&format!("{}/nothing", page.url));
    nothing.refused("list", 1, &["there is nothing here"]);
    at.refused("list --store somewhere", 2, &["one of --store, --url, --postgres and --redis"]);
    let large = format!("push mail k \"{}\" --yes", "x".repeat(70_000));
    at.refused(&large, 1, &["no change of more than 64 KiB"]);
}

#[test]
fn a_read_only_page_says_so_in_a_dry_run() {
    let (_application, page) = Application::serving("stuck");
    let at = At::url(&page.url);
    let dry = at.text("pause halted --consumer");
    assert!(dry.starts_with("Would pause") && dry.contains("allow_writes(true)"), "{dry}");
    at.refused("pause halted --consumer --yes", 1, &["the page is read-only", "allow_writes(true)"]);
}

#[test]
fn a_server_that_is_no_page_fails_in_one_line() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    At::url(&format!("http://{free}")).refused("list", 1, &["cannot be reached: nobody listens there"]);
    At::url("http://no-such-host.invalid").refused("list", 1, &["cannot be reached: "]);
    for (status, head, body, parts) in [
        ("200 OK", "content-type: text/html\r\n", "<html>", &["no page of waterline-ui", "200 OK", "text/html"][..]),
        ("200 OK", "", "{\"title\":\"another\"}", &["no page of waterline-ui", "another form"]),
        ("200 OK", "", "{\"streams\":[{\"x\":1}],\"queues\":[],\"consumers\":[]}", &["another form"]),
        ("404 Not Found", "", "nothing", &["no page of waterline-ui", "404 Not Found"]),
        (
            "302 Found",
            "location: https://login.example/\r\n",
            "",
            &["leads to https://login.example/", "WATERLINE_HEADER"],
        ),
        ("403 Forbidden", "", "no", &["what stands before the page", "403", "WATERLINE_HEADER"]),
        ("500 Oh", "", "{\"error\":\"\\u001b[2J\\u009b31m no\\nway\"}", &["\\u{1b}[2J\\u{9b}31m no way"]),
        ("200 OK", "transfer-encoding: chunked\r\n", "zz", &["waterline: "]),
    ] {
        let at = At::url(&says(status, head, body));
        at.refused("list", 1, parts);
        if !body.contains("consumers") {
            at.refused("push mail k 1 --yes", 1, parts);
        }
    }
    let rubbish = server(|stream| drop(stream.write_all(b"SSH-2.0-OpenSSH\r\n\0\0\0")));
    At::url(&rubbish).refused("list", 1, &["cannot be reached: "]);
    let closes = server(|_| {});
    At::url(&closes).refused("list", 1, &["cannot be reached: "]);
}

#[test]
fn a_server_that_hangs_or_never_ends_is_given_up() {
    let hangs = server(|_| {
        loop {
            thread::park();
        }
    });
    let at = At::url(&hangs).with("WATERLINE_TIMEOUT", "0.2");
    at.refused("list", 1, &["it has not answered within 0.2 s"]);
    let drips = server(|stream| {
        let mut goes_on = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n{").is_ok();
        while goes_on {
            goes_on = stream.write_all(b" ").is_ok();
            thread::park_timeout(std::time::Duration::from_millis(20));
        }
    });
    At::url(&drips).with("WATERLINE_TIMEOUT", "0.3").refused("list", 1, &["it has not answered within 0.3 s"]);
    let endless = server(|stream| {
        let mut goes_on = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").is_ok();
        let much = vec![b' '; 1 << 20];
        while goes_on {
            goes_on = stream.write_all(&much).is_ok();
        }
    });
    At::url(&endless).refused("list", 1, &["larger than 64 MiB"]);
}

#[test]
fn a_password_in_a_url_is_refused_and_not_shown() {
    for (way, url) in [("--url", "http://ann:s3cret@127.0.0.1:9/"), ("--url", "ftp://ann:s3cret@h/")] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_waterline"));
        let output = command.args([way, url, "list"]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(!error.contains("s3cret") && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn a_token_goes_to_no_other_address() {
    let (say, said) = crossbeam_channel::unbounded();
    let other = server(move |_| say.send(()).unwrap());
    let location: &'static str = Box::leak(format!("location: {other}\r\n").into_boxed_str());
    At::url(&says("307 Temporary Redirect", location, "")).refused("list", 1, &["leads to http://127.0.0.1"]);
    assert!(said.try_recv().is_err(), "it followed a redirect");
}
