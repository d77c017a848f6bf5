//! A proxy between a client and its server, which cuts connections: at random, and in a COMMIT.

use parking_lot::Mutex;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::thread::JoinHandle;

/// The proxy. Its port is closed when it is dropped.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    listens: Option<JoinHandle<()>>,
}

struct Shared {
    server: AtomicU16,
    chance: Mutex<fastrand::Rng>,
    left: AtomicU32,
    /// Cuts in a COMMIT, before the server got it and after.
    commits: [AtomicU32; 2],
    /// The next end of jobs is cut: with true, after the server got it.
    next_end: Mutex<Option<bool>>,
    ends: AtomicBool,
}

/// The fate of some bytes.
enum Fate {
    Pass,
    /// They are lost, and so is the connection.
    Cut,
    /// They come through, and the answer is lost.
    CutAnswer,
}

impl Proxy {
    /// Begins to pass connections on to this port, and makes this many cuts.
    pub fn start(server: u16, cuts: u32, seed: u64) -> Self {
        Self::start_at(0, server, cuts, seed)
    }

    /// The same at this port, which another proxy had.
    pub fn start_at(port: u16, server: u16, cuts: u32, seed: u64) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the loopback has a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(Shared {
            server: AtomicU16::new(server),
            chance: Mutex::new(fastrand::Rng::with_seed(seed)),
            left: AtomicU32::new(cuts),
            commits: Default::default(),
            next_end: Mutex::default(),
            ends: AtomicBool::new(false),
        });
        let here = Arc::clone(&shared);
        let listens = std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if here.ends.load(Ordering::Relaxed) {
                    break;
                }
                here.pass_on(client);
            }
        });
        Self { port, shared, listens: Some(listens) }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Makes this many cuts from now on.
    #[allow(dead_code, reason = "each program of the tests uses a part of it")]
    pub fn cut(&self, cuts: u32) {
        self.shared.left.store(cuts, Ordering::Relaxed);
    }

    /// Cuts the next end of jobs, which is a COMMIT or a turn of a runner: with `answer` the server
    /// gets it and its answer is lost; otherwise it is lost itself.
    #[allow(dead_code, reason = "each program of the tests uses a part of it")]
    pub fn cut_end(&self, answer: bool) {
        *self.shared.next_end.lock() = Some(answer);
    }

    /// Whether that has happened.
    #[allow(dead_code, reason = "each program of the tests uses a part of it")]
    pub fn has_cut_end(&self) -> bool {
        self.shared.next_end.lock().is_none()
    }

    #[allow(dead_code, reason = "each program of the tests uses a part of it")]
    pub fn point_to(&self, server: u16) {
        self.shared.server.store(server, Ordering::Relaxed);
    }

    /// The number of cuts that are left.
    pub fn left(&self) -> u32 {
        self.shared.left.load(Ordering::Relaxed)
    }

    /// The cuts in a COMMIT: before the server got it, and after.
    pub fn commits(&self) -> [u32; 2] {
        [0, 1].map(|at| self.shared.commits[at].load(Ordering::Relaxed))
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
    fn pass_on(self: &Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", self.server.load(Ordering::Relaxed))) else { return };
        for (from, to, asks) in [(&client, &server, true), (&server, &client, false)] {
            let (mut from, mut to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
            let shared = Arc::clone(self);
            std::thread::spawn(move || {
                let mut bytes = [0; 16 * 1024];
                while let Ok(count @ 1..) = from.read(&mut bytes) {
                    let fate = shared.fate(&bytes[..count], asks);
                    if matches!(fate, Fate::CutAnswer) {
                        // Nothing of the answer comes through any more.
                        _ = from.shutdown(Shutdown::Write);
                    }
                    if matches!(fate, Fate::Cut) || to.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                    if matches!(fate, Fate::CutAnswer) {
                        // The server has it before it learns that the client is gone.
                        _ = to.shutdown(Shutdown::Write);
                        return;
                    }
                }
                _ = from.shutdown(Shutdown::Both);
                _ = to.shutdown(Shutdown::Both);
            });
        }
    }

    fn fate(&self, bytes: &[u8], asks: bool) -> Fate {
        let is_commit = asks && bytes.windows(7).any(|word| word == b"COMMIT\0");
        // A prepared statement comes with its values alone: of a runner, and of `work`.
        let is_value = |word: &[u8]| word == b"finished" || word == b"\"finish\"";
        let is_end = is_commit || asks && bytes.windows(8).any(is_value);
        if is_end && let Some(answer) = self.next_end.lock().take() {
            return if answer { Fate::CutAnswer } else { Fate::Cut };
        }
        let roll = self.chance.lock().u8(..100);
        let fate = match (is_commit, roll) {
            (true, 0..10) => Fate::Cut,
            (true, 10..25) => Fate::CutAnswer,
            (false, 0..3) => Fate::Cut,
            _ => return Fate::Pass,
        };
        let less = |left: u32| left.checked_sub(1);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
            return Fate::Pass;
        }
        if is_commit {
            self.commits[usize::from(matches!(fate, Fate::CutAnswer))].fetch_add(1, Ordering::Relaxed);
        }
        fate
    }
}
