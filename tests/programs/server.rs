//! A small HTTP server on a free port, which answers as the test says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// A request: its path with the query, and its body.
#[derive(Debug)]
pub struct Request {
    pub path: String,
    pub body: String,
}

/// The answer to a request.
pub enum Answer {
    /// The status, a line of headers, and the body.
    Http(u16, String, String),
    /// The connection is closed in place of an answer.
    HangUp,
}

impl Answer {
    pub fn ok(body: impl ToString) -> Self {
        Self::Http(200, String::new(), body.to_string())
    }
}

type Answers = dyn Fn(Request) -> Answer + Send + Sync;

/// The server. When it is dropped, it takes no more connections.
pub struct Server {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Each connection has a thread, so an answer may wait for the test.
    pub fn start(answers: impl Fn(Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let (answers, over): (Arc<Answers>, _) = (Arc::new(answers), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().take_while(|_| !over.load(Ordering::Acquire)) {
                let (stream, answers) = (stream.unwrap(), Arc::clone(&answers));
                std::thread::spawn(move || serve(stream, &*answers));
            }
        });
        Self { address, ends, thread: Some(thread) }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        let _wakes = TcpStream::connect(self.address);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Answers the requests of a connection until the client closes it.
fn serve(mut stream: TcpStream, answers: &Answers) -> Option<()> {
    // An answer is one packet, and is not held back for another.
    stream.set_nodelay(true).ok()?;
    let mut input = BufReader::new(stream.try_clone().ok()?);
    loop {
        let request = read(&mut input)?;
        let Answer::Http(status, headers, body) = answers(request) else { return None };
        let length = body.len();
        let answer = format!("HTTP/1.1 {status} Said\r\ncontent-length: {length}\r\n{headers}\r\n{body}");
        stream.write_all(answer.as_bytes()).ok()?;
    }
}

fn read(input: &mut impl BufRead) -> Option<Request> {
    let mut line = || {
        let mut line = String::new();
        input.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
        Some(line.trim_end().to_owned())
    };
    let path = line()?.split(' ').nth(1)?.to_owned();
    let mut length = 0;
    loop {
        let header = line()?.to_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(bytes) = header.strip_prefix("content-length:") {
            length = bytes.trim().parse().ok()?;
        }
    }
    let mut body = String::new();
    input.take(length).read_to_string(&mut body).ok()?;
    Some(Request { path, body })
}
