//! One thread for each store that writes: what arrives while a write is under way goes into the next one, together.
//!
//! That is group commit without a knob: what something waits for is written at once, and what nothing waits for a millisecond
//! after the last write, in batches as large as they come.

use crate::error::{Panic, StoreError, guarded};
use crate::index::BoxError;
use crate::kv::{Kv, Op};
use crate::progress::SAVE_PACE;
use crate::sync::{Arc, Mutex};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use std::fmt;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What somebody wants written. It is resolved when it is, so that it says what is true then.
pub(crate) trait Intent: Send {
    /// Adds its changes to the batch, anew for each try; false when there is nothing to write any more.
    fn resolve(&self, batch: &mut Vec<Op>) -> Result<bool, BoxError>;
    /// The batch is written.
    fn written(&self);
    /// The batch failed, and nothing of it counts. The answer says when to try again; `None`: not at all.
    fn failed(&self, error: BoxError) -> Option<Duration>;
}

enum Message {
    Intent {
        intent: Box<dyn Intent>,
        hurry: bool,
    },
    /// A wait is cut short.
    Hurry,
}

/// The way into a store's writer thread, which ends when this is dropped.
pub(crate) struct Writer {
    kv: Arc<dyn Kv>,
    synced: bool,
    thread: Mutex<Option<(Sender<Message>, JoinHandle<()>)>>,
}

impl Writer {
    pub(crate) fn new(kv: Arc<dyn Kv>, synced: bool) -> Self {
        Self { kv, synced, thread: Mutex::new(None) }
    }

    /// Starts the thread, if it does not run: a store that is only read needs none.
    pub(crate) fn start(&self) -> std::io::Result<()> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (sender, inbox) = unbounded();
            let batches = Batches { kv: self.kv.clone(), synced: self.synced, inbox, pending: Vec::new() };
            let handle = std::thread::Builder::new().name("wl-writer".to_owned()).spawn(move || batches.run())?;
            *thread = Some((sender, handle));
        }
        Ok(())
    }

    /// Hands an intent to the thread, which must have been started.
    pub(crate) fn submit(&self, intent: Box<dyn Intent>, hurry: bool) {
        if let Some((sender, _)) = &*self.thread.lock() {
            // The thread lives until the sender is dropped, so the message is always taken.
            let _ = sender.send(Message::Intent { intent, hurry });
        } else {
            debug_assert!(false, "the writer was not started");
        }
    }

    /// Writes at once what waits for the pace or for a back-off.
    pub(crate) fn hurry(&self) {
        if let Some((sender, _)) = &*self.thread.lock() {
            let _ = sender.send(Message::Hurry);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let Some((sender, handle)) = self.thread.get_mut().take() else { return };
        drop(sender);
        // The last owner may be a report that this very thread delivers; then it ends by itself.
        if handle.thread().id() != std::thread::current().id() && handle.join().is_err() {
            tracing::error!("the store's writer thread panicked");
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("synced", &self.synced).finish_non_exhaustive()
    }
}

/// The thread's side.
struct Batches {
    kv: Arc<dyn Kv>,
    synced: bool,
    inbox: Receiver<Message>,
    pending: Vec<Box<dyn Intent>>,
}

impl Batches {
    fn run(mut self) {
        let mut paced = Instant::now();
        loop {
            if self.pending.is_empty() {
                match self.inbox.recv() {
                    Ok(message) => {
                        if !self.take(message) {
                            self.wait(paced);
                        }
                    }
                    Err(_) => return,
                }
            }
            while let Ok(message) = self.inbox.try_recv() {
                self.take(message);
            }
            let again = self.write();
            let now = Instant::now();
            paced = now + SAVE_PACE;
            if !self.pending.is_empty() {
                self.wait(now + again.unwrap_or_default());
            }
        }
    }

    /// Whether there is a hurry.
    fn take(&mut self, message: Message) -> bool {
        match message {
            Message::Intent { intent, hurry } => {
                self.pending.push(intent);
                hurry
            }
            Message::Hurry => true,
        }
    }

    /// Writes everything that is pending; how long to wait when that failed and should be tried again.
    fn write(&mut self) -> Option<Duration> {
        let mut batch = Vec::new();
        self.pending.retain(|intent| kept(|| intent.resolve(&mut batch).unwrap_or(false)).unwrap_or(false));
        if self.pending.is_empty() {
            return None;
        }
        let write = || self.kv.write(&batch, self.synced);
        let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(write))
            .unwrap_or_else(|payload| Err(StoreError { doing: "write".to_owned(), source: Panic::caught(payload) }));
        let Err(error) = written else {
            for intent in self.pending.drain(..) {
                kept(|| intent.written());
            }
            return None;
        };
        let error = Arc::new(error);
        let mut pause = None;
        self.pending.retain(|intent| {
            let again = kept(|| intent.failed(Box::new(error.clone()))).flatten();
            pause = pause.into_iter().chain(again).min();
            again.is_some()
        });
        pause
    }

    /// Waits for the pace, or for a back-off to end, or for somebody in a hurry; whoever arrives joins what is written next.
    fn wait(&mut self, until: Instant) {
        loop {
            match self.inbox.recv_deadline(until) {
                Ok(message) => {
                    if self.take(message) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => return,
                // Nobody is left to send, but those who wait for a report keep the store: it is tried until they give up.
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::park_timeout(until.saturating_duration_since(Instant::now()));
                    return;
                }
            }
        }
    }
}

/// Calls an intent; a panic in it must not end the thread that every other one needs.
fn kept<R>(call: impl FnOnce() -> R) -> Option<R> {
    guarded(|| Ok(call())).map_err(|panic| tracing::error!(%panic, "an intent of the store's writer panicked")).ok()
}
