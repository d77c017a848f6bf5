//! One thread for each store that writes: what arrives while a write is under way goes into the next one, together.
//!
//! That is group commit without a knob: what something waits for is written at once, and what nothing waits for a millisecond
//! after the last write began, in batches as large as they come.

use crate::error::{Panic, StoreError, guarded};
use crate::index::BoxError;
use crate::kv::Kv;
use crate::progress::SAVE_PACE;
use crate::sync::{Arc, Mutex, RwLock};
use crossbeam_channel::{Receiver, RecvError, RecvTimeoutError, Sender, unbounded};
use std::fmt;
use std::sync::Weak;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

mod draft;

pub(crate) use self::draft::Draft;

/// What somebody wants written. It is resolved when it is, so that it says what is true then.
pub(crate) trait Intent: Send {
    /// Adds its changes to the draft, anew for each try; false when there is nothing to write any more. After an error, which
    /// [`failed`](Self::failed) is told as well, nothing that it added is written, and what others want written is.
    fn resolve(&self, draft: &mut Draft<'_>) -> Result<bool, BoxError>;
    /// Whether it has to survive the loss of power. One that has to is enough for the batch.
    fn synced(&self) -> bool;
    /// The batch is written.
    fn written(&self);
    /// It could not be resolved, or the batch failed, and nothing of it counts. The answer says when to try again; `None`: not
    /// at all.
    fn failed(&self, error: BoxError) -> Option<Duration>;
}

enum Message {
    Intent {
        intent: Box<dyn Intent>,
        hurry: bool,
    },
    /// Every wait is cut short.
    Hurry,
}

/// The way into a store's writer thread, which ends when this is dropped.
pub(crate) struct Writer {
    batches: Arc<Mutex<Batches>>,
    rows: Arc<RwLock<()>>,
    thread: Arc<Mutex<Running>>,
}

/// The thread, once it is started.
type Running = Option<(Sender<Message>, JoinHandle<()>)>;

/// The way in for those who must not keep the store: it would be closed late, and by whichever thread they are on.
#[derive(Clone)]
pub(crate) struct WeakWriter(Weak<Mutex<Running>>);

impl WeakWriter {
    /// Whether its store is open.
    pub(crate) fn is_open(&self) -> bool {
        self.0.upgrade().is_some_and(|thread| thread.lock().is_some())
    }

    /// Hands an intent to the thread, if there still is one.
    pub(crate) fn submit(&self, intent: Box<dyn Intent>, hurry: bool) {
        if let Some(thread) = self.0.upgrade()
            && let Some((sender, _)) = &*thread.lock()
        {
            let _ = sender.send(Message::Intent { intent, hurry });
        }
    }
}

impl Writer {
    pub(crate) fn new(kv: Arc<dyn Kv>) -> Self {
        let rows: Arc<RwLock<()>> = Arc::default();
        let batches = Arc::new(Mutex::new(Batches { kv, rows: rows.clone(), pending: Vec::new() }));
        Self { batches, rows, thread: Arc::default() }
    }

    pub(crate) fn downgrade(&self) -> WeakWriter {
        WeakWriter(Arc::downgrade(&self.thread))
    }

    /// Held for reading by whoever changes rows beside this writer, and for writing by whoever reads rows, changes them and
    /// writes them back: between the two nobody else's change is lost.
    pub(crate) fn rows(&self) -> &Arc<RwLock<()>> {
        &self.rows
    }

    /// Starts the thread, if it does not run: a store that is only read needs none.
    pub(crate) fn start(&self) -> std::io::Result<()> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (sender, inbox) = unbounded();
            let side = Thread { inbox, batches: self.batches.clone() };
            let handle = std::thread::Builder::new().name("wl-writer".to_owned()).spawn(move || side.run())?;
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

    /// Writes an intent on this thread, if nobody is writing, and hands it to the writer's thread otherwise, where it joins what
    /// else has arrived: who writes alone waits for no other thread, and who does not is written with the others.
    pub(crate) fn write_now(&self, intent: Box<dyn Intent>) {
        match self.batches.try_lock() {
            Some(mut batches) => {
                batches.pending.push(Pending::new(intent));
                // Whoever has to be tried again is on the thread's list already, since this intent is not tried again.
                batches.write();
            }
            None => self.submit(intent, true),
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
        let Some((sender, handle)) = self.thread.lock().take() else { return };
        drop(sender);
        // The last owner may be a report that this very thread delivers; then it ends by itself.
        if handle.thread().id() != std::thread::current().id() && handle.join().is_err() {
            tracing::error!("the store's writer thread panicked");
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

/// The thread's side.
struct Thread {
    inbox: Receiver<Message>,
    batches: Arc<Mutex<Batches>>,
}

/// What is to be written; held by whoever writes.
struct Batches {
    kv: Arc<dyn Kv>,
    rows: Arc<RwLock<()>>,
    pending: Vec<Pending>,
}

struct Pending {
    intent: Box<dyn Intent>,
    /// Not before this, since it could not be resolved.
    due: Option<Instant>,
    /// It is part of the batch that is being written.
    resolved: bool,
}

impl Thread {
    fn run(self) {
        let mut paced = Instant::now();
        loop {
            let now = Instant::now();
            let due = self.batches.lock().pending.iter().any(|pending| pending.is_due(now));
            if !due {
                match self.next() {
                    Ok(Some(message)) => {
                        if !self.take(message) {
                            self.wait(paced);
                        }
                    }
                    Ok(None) => {}
                    Err(_) => return,
                }
            }
            while let Ok(message) = self.inbox.try_recv() {
                self.take(message);
            }
            let begun = Instant::now();
            let again = self.batches.lock().write();
            // From its beginning: who writes for longer than that has enough to write.
            paced = begun + SAVE_PACE;
            if let Some(pause) = again {
                self.wait(Instant::now() + pause);
            }
        }
    }

    /// The next message; `None` when one that could not be resolved is due before, the error when nothing can come any more.
    fn next(&self) -> Result<Option<Message>, RecvError> {
        let due = self.batches.lock().pending.iter().filter_map(|pending| pending.due).min();
        let Some(due) = due else { return self.inbox.recv().map(Some) };
        match self.inbox.recv_deadline(due) {
            Ok(message) => return Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => park_until(due),
        }
        Ok(None)
    }

    /// Whether there is a hurry.
    fn take(&self, message: Message) -> bool {
        let mut batches = self.batches.lock();
        match message {
            Message::Intent { intent, hurry } => {
                batches.pending.push(Pending::new(intent));
                hurry
            }
            Message::Hurry => {
                batches.pending.iter_mut().for_each(|pending| pending.due = None);
                true
            }
        }
    }

    /// Waits for the pace, or for a back-off to end, or for somebody in a hurry; whoever arrives joins what is written next.
    fn wait(&self, until: Instant) {
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
                    park_until(until);
                    return;
                }
            }
        }
    }
}

impl Batches {
    /// Writes everything that is due; how long to wait when that failed and should be tried again.
    fn write(&mut self) -> Option<Duration> {
        let mut draft = Draft::new(&*self.kv, &self.rows);
        let mut synced = false;
        let now = Instant::now();
        self.pending.retain_mut(|pending| pending.resolve(&mut draft, now));
        for pending in self.pending.iter().filter(|pending| pending.resolved) {
            synced |= kept(|| pending.intent.synced()).unwrap_or(true);
        }
        if !self.pending.iter().any(|pending| pending.resolved) {
            return None;
        }
        let write = || self.kv.write(draft.batch(), synced);
        let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(write))
            .unwrap_or_else(|payload| Err(StoreError { doing: "write".to_owned(), source: Panic::caught(payload) }));
        let logs = draft.into_logs();
        let Err(error) = written else {
            logs.publish(&*self.kv);
            for pending in self.pending.extract_if(.., |pending| pending.resolved) {
                kept(|| pending.intent.written());
            }
            return None;
        };
        let error = Arc::new(error);
        let mut pause = None;
        self.pending.retain(|pending| {
            let again = pending.resolved.then(|| pending.failed(Box::new(error.clone()))).flatten();
            pause = pause.into_iter().chain(again).min();
            again.is_some() || !pending.resolved
        });
        pause
    }
}

impl Pending {
    fn new(intent: Box<dyn Intent>) -> Self {
        Self { intent, due: None, resolved: false }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| due <= now)
    }

    /// Adds its changes to the batch, if it is due; whether it goes on.
    fn resolve(&mut self, draft: &mut Draft<'_>, now: Instant) -> bool {
        self.resolved = false;
        if !self.is_due(now) {
            return true;
        }
        let before = draft.before();
        match guarded(|| self.intent.resolve(draft)) {
            Ok(true) => {
                self.resolved = true;
                true
            }
            Ok(false) => {
                draft.go_back(before);
                false
            }
            Err(error) => {
                draft.go_back(before);
                let again = self.failed(error);
                self.due = again.map(|pause| now + pause);
                again.is_some()
            }
        }
    }

    fn failed(&self, error: BoxError) -> Option<Duration> {
        kept(|| self.intent.failed(error)).flatten()
    }
}

/// Waits where no message can come.
fn park_until(until: Instant) {
    std::thread::park_timeout(until.saturating_duration_since(Instant::now()));
}

/// Calls an intent; a panic in it must not end the thread that every other one needs.
fn kept<R>(call: impl FnOnce() -> R) -> Option<R> {
    guarded(|| Ok(call())).map_err(|panic| tracing::error!(%panic, "an intent of the store's writer panicked")).ok()
}

#[cfg(test)]
mod tests;
