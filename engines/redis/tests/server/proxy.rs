//! A proxy between a client and its server, which does something at the next request with a word.

use parking_lot::Mutex;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// What happens to a request.
pub enum Fate {
    /// It is lost, and so is the connection.
    Cut,
    /// It comes through, and the answer is lost.
    CutAnswer,
    /// It comes through after this.
    After(Box<dyn FnOnce() + Send>),
}

/// The proxy. Its port is closed when it is dropped.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    listens: Option<JoinHandle<()>>,
}

struct Shared {
    server: u16,
    next: Mutex<Option<(&'static str, Fate)>>,
    ends: AtomicBool,
}

impl Proxy {
    pub fn start(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("the loopback has a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(Shared { server, next: Mutex::default(), ends: AtomicBool::new(false) });
        let here = Arc::clone(&shared);
        let listens = std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if here.ends.load(Ordering::Relaxed) {
                    break;
                }
                here.pass_on(&client);
            }
        });
        Self { port, shared, listens: Some(listens) }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The next request with this word meets this fate.
    pub fn next(&self, word: &'static str, fate: Fate) {
        *self.shared.next.lock() = Some((word, fate));
    }

    /// Whether that has happened.
    pub fn is_done(&self) -> bool {
        self.shared.next.lock().is_none()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        // Wakes the accepting thread.
        _ = TcpStream::connect(("127.0.0.1", self.port));
        _ = self.listens.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn pass_on(self: &Arc<Self>, client: &TcpStream) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", self.server)) else { return };
        let is_mute = Arc::new(AtomicBool::new(false));
        for (from, to, asks) in [(client, &server, true), (&server, client, false)] {
            let (mut from, mut to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
            let (shared, is_mute) = (Arc::clone(self), Arc::clone(&is_mute));
            std::thread::spawn(move || {
                let mut bytes = [0; 16 * 1024];
                while let Ok(count @ 1..) = from.read(&mut bytes) {
                    match asks.then(|| shared.fate(&bytes[..count])).flatten() {
                        Some(Fate::Cut) => break,
                        // The client hears of the loss once the server has answered.
                        Some(Fate::CutAnswer) => is_mute.store(true, Ordering::Relaxed),
                        Some(Fate::After(call)) => call(),
                        None => {}
                    }
                    if !asks && is_mute.load(Ordering::Relaxed) {
                        break;
                    }
                    if to.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                }
                _ = from.shutdown(Shutdown::Both);
                _ = to.shutdown(Shutdown::Both);
            });
        }
    }

    fn fate(&self, bytes: &[u8]) -> Option<Fate> {
        let mut next = self.next.lock();
        let (word, _) = next.as_ref()?;
        let is_it = bytes.windows(word.len()).any(|part| part == word.as_bytes());
        if is_it { next.take().map(|(_, fate)| fate) } else { None }
    }
}
