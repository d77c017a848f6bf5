//! A proxy between a store and its server, which cuts connections: at random, and in a COMMIT.

use parking_lot::Mutex;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The proxy. It ends with this value.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    server: u16,
    chance: Mutex<fastrand::Rng>,
    /// The number of cuts that are left.
    left: AtomicU32,
    /// Cuts in a COMMIT, before the server got it and after.
    commits: [AtomicU32; 2],
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
    /// Begins to pass connections on to this port, and cuts so many of them.
    pub fn start(server: u16, cuts: u32, seed: u64) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("the loopback has a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(Shared {
            server,
            chance: Mutex::new(fastrand::Rng::with_seed(seed)),
            left: AtomicU32::new(cuts),
            commits: Default::default(),
            ends: AtomicBool::new(false),
        });
        let here = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if here.ends.load(Ordering::Relaxed) {
                    break;
                }
                here.pass_on(client);
            }
        });
        Self { port, shared }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Cuts so many connections from now on.
    #[allow(dead_code, reason = "each program of the tests uses a part of it")]
    pub fn cut(&self, cuts: u32) {
        self.shared.left.store(cuts, Ordering::Relaxed);
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
        // The thread that accepts looks up.
        _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn pass_on(self: &Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", self.server)) else { return };
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
                        // The server has it before it hears that nobody is there any more.
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
