//! The threads that hear the bells of queues: one for each server that has one to which this
//! process listens. A bell may be lost, so all who wait look once a second, too.

use crate::address::Node;
use crate::calls::Calls;
use crate::connection::command;
use crate::error::Error;
use parking_lot::{Condvar, Mutex};
use redis::{PushKind, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Rings the part of this process that listens.
pub(crate) type Ring = Arc<dyn Fn() + Send + Sync>;

/// How often a thread looks for new listeners.
const LOOK: Duration = Duration::from_millis(200);
/// How often it subscribes again: an answer shows that the connection lives.
const AGAIN: Duration = Duration::from_secs(5);
/// How long such an answer may take.
const LONGEST_ANSWER: Duration = Duration::from_secs(3);
/// The pauses between two attempts to connect.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

#[derive(Debug)]
pub(crate) struct Bells {
    shared: Arc<Shared>,
}

struct Shared {
    calls: Weak<Calls>,
    work: Mutex<Work>,
    /// There is something new to do.
    news: Condvar,
}

#[derive(Default)]
struct Work {
    listeners: BTreeMap<u64, Listener>,
    last_key: u64,
    /// The servers that have a thread. (An address has no order.)
    threads: Vec<Node>,
    ends: bool,
}

#[derive(Clone)]
struct Listener {
    channel: String,
    slot: u16,
    ring: Ring,
}

/// Ends the listening when it is dropped.
#[derive(Debug)]
pub(crate) struct Listening {
    shared: Weak<Shared>,
    key: u64,
}

impl Bells {
    pub(crate) fn new(calls: &Arc<Calls>) -> Self {
        let (work, news) = (Mutex::default(), Condvar::new());
        Self { shared: Arc::new(Shared { calls: Arc::downgrade(calls), work, news }) }
    }

    /// Rings at each message on this channel until the answer is dropped. Also rings when a thread
    /// begins to listen, and again after each loss of its connection: a message may have been
    /// missed.
    pub(crate) fn listen(&self, channel: &str, slot: u16, ring: Ring) -> Result<Listening, Error> {
        let listening = {
            let mut work = self.shared.work.lock();
            work.last_key += 1;
            let key = work.last_key;
            work.listeners.insert(key, Listener { channel: channel.to_owned(), slot, ring });
            Listening { shared: Arc::downgrade(&self.shared), key }
        };
        self.shared.begin(slot)?;
        Ok(listening)
    }
}

impl Drop for Bells {
    fn drop(&mut self) {
        self.shared.work.lock().ends = true;
        self.shared.news.notify_all();
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let listener = shared.work.lock().listeners.remove(&self.key);
        // Dropping it may run the user's code, so not under the lock.
        drop(listener);
    }
}

impl Shared {
    /// Starts the thread of the server that has this slot, if it has none.
    fn begin(self: &Arc<Self>, slot: u16) -> Result<(), Error> {
        let Some(calls) = self.calls.upgrade() else { return Ok(()) };
        // If it cannot be found now, a thread looks until it can.
        let node = calls.nodes.node_of(slot).unwrap_or_else(|_| Arc::new(calls.nodes.dial.infos[0].addr().clone()));
        {
            let mut work = self.work.lock();
            if work.ends || work.threads.contains(&node) {
                return Ok(());
            }
            work.threads.push(Arc::clone(&node));
        }
        let (shared, of) = (Arc::clone(self), Arc::clone(&node));
        let started = std::thread::Builder::new().name("wl-redis-bell".to_owned()).spawn(move || shared.run(&of));
        if let Err(error) = started {
            self.work.lock().threads.retain(|other| *other != node);
            return Err(Error::config(
                format!("a thread cannot be started: {error}"),
                "raise the limit of threads of this process",
            ));
        }
        Ok(())
    }

    /// The loop of a thread: it hears until no caller listens, and connects again after a loss.
    fn run(self: Arc<Self>, node: &Node) {
        let mut pause = PAUSES[0];
        while self.has_work(node) {
            let begun = Instant::now();
            match self.hear(node) {
                Ok(()) => continue,
                Err(error) => tracing::debug!(
                    target: "waterline",
                    %error,
                    "the connection that hears the bells failed; it is opened anew"
                ),
            }
            if begun.elapsed() > AGAIN {
                pause = PAUSES[0];
            }
            let Some(calls) = self.calls.upgrade() else { return };
            calls.nodes.doubt(node);
            drop(calls);
            // Many processes lose a server at the same time, so they do not connect again at once.
            let until = Instant::now() + pause.mul_f64(0.5 + fastrand::f64() / 2.0);
            let mut work = self.work.lock();
            while !work.ends && !self.news.wait_until(&mut work, until).timed_out() {}
            drop(work);
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    /// The listeners of this server. Those of others get threads of their own.
    fn listeners(self: &Arc<Self>, node: &Node) -> Vec<Listener> {
        let all: Vec<_> = self.work.lock().listeners.values().cloned().collect();
        let Some(calls) = self.calls.upgrade() else { return Vec::new() };
        let mut here = Vec::new();
        let mut all = all.into_iter();
        while let Some(listener) = all.next() {
            match calls.nodes.node_of(listener.slot) {
                // Without a thread they look once a second.
                Ok(of) if of != *node => _ = self.begin(listener.slot),
                Ok(_) => here.push(listener),
                // Nobody can be found now, and each attempt may take a while.
                Err(_) => {
                    here.push(listener);
                    here.extend(all);
                    break;
                }
            }
        }
        here
    }

    /// False: the thread has nothing to do, and ends.
    fn has_work(self: &Arc<Self>, node: &Node) -> bool {
        if !self.listeners(node).is_empty() && !self.work.lock().ends {
            return true;
        }
        self.work.lock().threads.retain(|other| other != node);
        // For a listener that came meanwhile, and found this thread.
        if let Some(listener) = self.listeners(node).first() {
            _ = self.begin(listener.slot);
        }
        false
    }

    /// Connects, and hears until no caller listens any more.
    fn hear(self: &Arc<Self>, node: &Node) -> Result<(), Error> {
        let connect = |calls: Arc<Calls>| calls.nodes.dial.raw_for_messages(node);
        let Some(connection) = self.calls.upgrade().map(connect) else { return Ok(()) };
        let mut connection = connection?;
        let lost = |source| Error::Lost { at: node.to_string(), source };
        connection.set_read_timeout(Some(LOOK)).map_err(lost)?;
        // The channels, since when an answer is awaited, and when one has come.
        let mut channels: BTreeMap<String, (Option<Instant>, Option<Instant>)> = BTreeMap::new();
        loop {
            let here = self.listeners(node);
            if here.is_empty() || self.work.lock().ends {
                return Ok(());
            }
            let now = Instant::now();
            let is_heard = |channel: &str| here.iter().any(|listener| listener.channel == channel);
            for channel in channels.keys().filter(|channel| !is_heard(channel)) {
                let unsubscribe = command("SUNSUBSCRIBE", &[channel]).get_packed_command();
                connection.send_packed_command(&unsubscribe).map_err(lost)?;
            }
            channels.retain(|channel, _| is_heard(channel));
            for listener in &here {
                let (asked, came) = channels.entry(listener.channel.clone()).or_default();
                if asked.is_some_and(|asked| now > asked + LONGEST_ANSWER) {
                    return Err(Error::odd(node, format!("nothing comes for {}", listener.channel)));
                }
                if asked.is_none() && came.is_none_or(|came| now > came + AGAIN) {
                    let subscribe = command("SSUBSCRIBE", &[&listener.channel]).get_packed_command();
                    connection.send_packed_command(&subscribe).map_err(lost)?;
                    *asked = Some(now);
                }
            }
            match connection.recv_response() {
                Ok(Value::Push { kind, data }) => {
                    let Some(Value::BulkString(channel)) = data.first() else { continue };
                    let channel = String::from_utf8_lossy(channel).into_owned();
                    // Bells of a queue that has moved, or that no caller hears now.
                    let Some((asked, came)) = channels.get_mut(&channel) else { continue };
                    let rings = match kind {
                        PushKind::SMessage => true,
                        PushKind::SSubscribe => {
                            *asked = None;
                            came.replace(Instant::now()).is_none()
                        }
                        _ => return Err(Error::odd(node, format!("{channel} has moved"))),
                    };
                    let rung = here.iter().filter(|listener| rings && listener.channel == channel);
                    rung.for_each(|listener| (listener.ring)());
                }
                Ok(Value::ServerError(said)) => {
                    return Err(crate::connection::of_answer(
                        &node.to_string(),
                        said.code(),
                        said.details().unwrap_or(""),
                    ));
                }
                Ok(_) => {}
                Err(error) if error.is_timeout() => {}
                Err(error) => return Err(lost(error)),
            }
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("listeners", &self.work.lock().listeners.len()).finish_non_exhaustive()
    }
}
