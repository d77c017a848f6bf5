//! A proxy between a worker and its server that stops the worker after one of its statements: the
//! server has the statement, and the worker reads nothing of the answer.

use crate::server::{PATIENCE, signal};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Child;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// After which statements a worker is stopped.
pub enum Which {
    /// The one of this number, from 1 on.
    Nth(usize),
    /// The first one of each of these sorts, each with the part of the worker's life.
    Named(Vec<String>),
}

pub struct Stopping {
    port: u16,
    shared: Arc<Shared>,
    listens: Option<JoinHandle<()>>,
}

struct Shared {
    server: u16,
    which: Which,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    worker: Option<u32>,
    /// The part of its life that it is in.
    part: String,
    /// Its statements so far, each with the part of its life.
    sent: Vec<String>,
    /// The connection whose answers do not come through now.
    held: Option<usize>,
    /// The first bytes of the answer have come, so the server has run the statement.
    is_answered: bool,
    /// The statement after which the worker is frozen.
    stopped: Option<String>,
    connections: usize,
    ends: bool,
}

impl Stopping {
    /// Begins to pass connections on to this port.
    pub fn start(server: u16, which: Which) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("the loopback has a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(Shared { server, which, state: Mutex::default(), changed: Condvar::new() });
        let here = Arc::clone(&shared);
        let listens = std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if here.state.lock().ends {
                    break;
                }
                // A connection to a server that is away is closed.
                _ = here.pass_on(&client);
            }
        });
        Self { port, shared, listens: Some(listens) }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Says which process the worker is.
    pub fn watch(&self, worker: u32) {
        self.shared.state.lock().worker = Some(worker);
        self.shared.changed.notify_all();
    }

    /// Waits until the worker is frozen, and returns the statement. `None`: its life has ended.
    pub fn wait(&self, worker: &mut Child) -> Option<String> {
        let begun = Instant::now();
        loop {
            let mut state = self.shared.state.lock();
            self.shared.changed.wait_for(&mut state, Duration::from_millis(10));
            if let Some(stopped) = state.stopped.clone() {
                // A worker may also be stopped in a statement that waits for others.
                let waits = |state: &mut State| !state.is_answered;
                self.shared.changed.wait_while_for(&mut state, waits, Duration::from_millis(500));
                return Some(stopped);
            }
            drop(state);
            if let Some(status) = worker.try_wait().expect("it is a child of this process") {
                assert!(status.success(), "the life of the worker failed: {status}");
                return None;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "the worker neither ends nor comes to its statement: {:?}",
                self.sent()
            );
        }
    }

    pub fn go_on(&self) {
        let mut state = self.shared.state.lock();
        (state.held, state.stopped, state.is_answered) = (None, None, false);
        signal(state.worker.expect("it was stopped"), "CONT");
        drop(state);
        self.shared.changed.notify_all();
    }

    pub fn sent(&self) -> Vec<String> {
        self.shared.state.lock().sent.clone()
    }
}

impl Drop for Stopping {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        (state.ends, state.held) = (true, None);
        drop(state);
        self.shared.changed.notify_all();
        // Wakes the accepting thread.
        _ = TcpStream::connect(("127.0.0.1", self.port));
        _ = self.listens.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn pass_on(self: &Arc<Self>, client: &TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(("127.0.0.1", self.server))?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let number = {
            let mut state = self.state.lock();
            state.connections += 1;
            state.connections
        };
        let [asks, answers] = [(client, &server), (&server, client)].map(|(from, to)| {
            let both = [from.try_clone(), to.try_clone()].map(|socket| socket.expect("a socket can be shared"));
            (Arc::clone(self), both)
        });
        std::thread::spawn(move || {
            let (shared, [from, to]) = asks;
            // The end of either side ends the connection.
            _ = shared.carry_statements(&from, &to, number);
            _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        });
        std::thread::spawn(move || {
            let (shared, [from, to]) = answers;
            _ = shared.carry_answers(&from, &to, number);
            _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        });
        Ok(())
    }

    fn carry_answers(&self, mut from: &TcpStream, mut to: &TcpStream, number: usize) -> io::Result<()> {
        let mut bytes = [0; 4096];
        loop {
            let count = from.read(&mut bytes)?;
            if count == 0 {
                return Ok(());
            }
            let mut state = self.state.lock();
            if state.held == Some(number) {
                state.is_answered = true;
                self.changed.notify_all();
                // Nothing more is read meanwhile, so an answer that is too large fills all buffers.
                self.changed.wait_while(&mut state, |state| state.held == Some(number));
            }
            drop(state);
            to.write_all(&bytes[..count])?;
        }
    }

    /// Passes on one statement of the worker at a time: up to the message that the server answers.
    fn carry_statements(&self, from: &TcpStream, to: &TcpStream, number: usize) -> io::Result<()> {
        let (mut from, mut to) = (io::BufReader::new(from), to);
        let (mut prepared, mut statement, mut text) = (HashMap::new(), Vec::new(), String::new());
        // The first messages have no kind. The worker may ask for TLS before it names the user.
        loop {
            let mut length = [0; 4];
            from.read_exact(&mut length)?;
            let mut first = vec![0; u32::from_be_bytes(length) as usize - 4];
            from.read_exact(&mut first)?;
            to.write_all(&[&length[..], &first].concat())?;
            if first.len() > 4 {
                break;
            }
        }
        loop {
            let mut head = [0; 5];
            from.read_exact(&mut head)?;
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize - 4;
            let start = statement.len() + head.len();
            statement.extend(head);
            statement.resize(start + length, 0);
            from.read_exact(&mut statement[start..])?;
            let mut words = statement[start..].split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word));
            let mut word = || words.next().unwrap_or_default().into_owned();
            match head[0] {
                b'Q' => text = word(),
                b'P' => {
                    let (name, sql) = (word(), word());
                    text = format!("prepare {}", sort(&sql));
                    prepared.insert(name, sql);
                }
                b'B' => {
                    let (_, name) = (word(), word());
                    text = prepared.get(&name).cloned().unwrap_or_default();
                }
                b'C' => "close".clone_into(&mut text),
                _ => {}
            }
            match head[0] {
                b'Q' | b'S' => self.send(&statement, std::mem::take(&mut text), to, number)?,
                b'X' => to.write_all(&statement)?,
                _ => continue,
            }
            statement.clear();
        }
    }

    /// Sends a statement, and stops the worker after it if it is one of those.
    fn send(&self, statement: &[u8], text: String, mut to: &TcpStream, number: usize) -> io::Result<()> {
        let mut state = self.state.lock();
        if let Some(part) = text.strip_prefix(PART) {
            part.clone_into(&mut state.part);
            return to.write_all(statement);
        }
        let name = format!("{}: {}", state.part, sort(&text));
        let is_new = !state.sent.contains(&name);
        let stops = state.held.is_none()
            && match &self.which {
                Which::Nth(nth) => state.sent.len() + 1 == *nth,
                Which::Named(names) => is_new && names.contains(&name),
            };
        state.sent.push(name.clone());
        if !stops {
            drop(state);
            return to.write_all(statement);
        }
        state.held = Some(number);
        drop(state);
        to.write_all(statement)?;
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.worker.is_none() && !state.ends);
        if let Some(worker) = state.worker {
            signal(worker, "STOP");
            state.stopped = Some(name);
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }
}

/// The beginning of a query that names the part of its life that the worker begins.
pub const PART: &str = "-- ";

/// The sort of a statement: the function that it calls, or its first words.
fn sort(text: &str) -> String {
    if text.starts_with("prepare ") {
        return text.to_owned();
    }
    match text.replace('"', "").split_once("waterline.") {
        Some((_, rest)) => {
            rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or(rest).to_owned()
        }
        None => text.split_whitespace().take(3).collect::<Vec<_>>().join(" "),
    }
}
