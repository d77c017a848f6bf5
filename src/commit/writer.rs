//! One thread for each store that writes: what arrives while a write is under way goes into the next one, together.
//!
//! That is group commit without a knob: what something waits for is written at once, and what
//! nothing waits for a millisecond after the last write began, in batches as large as they come.
//! Two kinds of threads write in its place: one that pushes to a log while nobody is writing, and
//! one of a pool that finds a save late, since busy threads have all the cores.

use crate::base::error::StoreError;
use crate::base::guard::{Panic, guarded};
use crate::base::index::BoxError;
use crate::base::sync::{Arc, Mutex, MutexGuard, RwLock};
use crate::commit::SAVE_PACE;
use crate::commit::draft::Draft;
use crate::kv::Kv;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use std::fmt;
use std::sync::Weak;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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
    /// Another thread has left something on the list.
    Look,
}

/// The way into a store's writer thread, which ends when this is dropped.
pub(crate) struct Writer {
    batches: Arc<Mutex<Batches>>,
    rows: Arc<RwLock<()>>,
    thread: Arc<Mutex<Option<Running>>>,
}

/// The thread, once it is started.
struct Running {
    sender: Sender<Message>,
    /// The thread's own inbox, for those that write in its place.
    inbox: Receiver<Message>,
    handle: JoinHandle<()>,
}

/// The way in for those who must not keep the store: it would be closed late, and by whichever thread they are on.
#[derive(Clone)]
pub(crate) struct WeakWriter(Weak<Mutex<Option<Running>>>);

impl WeakWriter {
    /// Whether its store is open.
    pub(crate) fn is_open(&self) -> bool {
        self.0.upgrade().is_some_and(|thread| thread.lock().is_some())
    }

    /// Hands an intent to the thread, if there still is one.
    pub(crate) fn submit(&self, intent: Box<dyn Intent>, hurry: bool) {
        if let Some(thread) = self.0.upgrade()
            && let Some(running) = &*thread.lock()
        {
            let _ = running.sender.send(Message::Intent { intent, hurry });
        }
    }
}

impl Writer {
    pub(crate) fn new(kv: Arc<dyn Kv>) -> Self {
        let rows: Arc<RwLock<()>> = Arc::default();
        let batches = Arc::new(Mutex::new(Batches::new(kv, rows.clone())));
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
        self.start_with(Thread::run)
    }

    fn start_with(&self, run: impl FnOnce(Thread) + Send + 'static) -> std::io::Result<()> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (sender, inbox) = unbounded();
            let side = Thread { inbox: inbox.clone(), batches: self.batches.clone() };
            let handle = std::thread::Builder::new().name("wl-writer".to_owned()).spawn(move || run(side))?;
            *thread = Some(Running { sender, inbox, handle });
        }
        Ok(())
    }

    /// Starts a thread that gets no core, so to speak, before the sender of this channel is
    /// dropped.
    #[cfg(test)]
    pub(crate) fn start_without_a_core(&self, until: Receiver<()>) {
        let started = self.start_with(move |side| {
            let _ = until.recv();
            side.run();
        });
        started.expect("there is a thread");
    }

    /// Hands an intent to the thread, which must have been started.
    pub(crate) fn submit(&self, intent: Box<dyn Intent>, hurry: bool) {
        let started = self.tell(Message::Intent { intent, hurry });
        debug_assert!(started, "the writer was not started");
    }

    /// False when the thread was not started.
    fn tell(&self, message: Message) -> bool {
        let thread = self.thread.lock();
        // The thread lives until the sender is dropped, so the message is always taken.
        thread.as_ref().is_some_and(|running| running.sender.send(message).is_ok())
    }

    /// Writes an intent on this thread, if nobody is writing, and hands it to the writer's thread otherwise, where it joins what
    /// else has arrived: who writes alone waits for no other thread, and who does not is written with the others.
    pub(crate) fn write_now(&self, intent: Box<dyn Intent>) {
        match self.batches.try_lock() {
            Some(mut batches) => {
                batches.pending.push(Pending::new(intent, true));
                batches.write(Instant::now());
                self.leave_rest(batches);
            }
            None => self.submit(intent, true),
        }
    }

    /// Writes what is due on the calling thread, unless somebody is writing: the writer's thread
    /// gets no core.
    ///
    /// It leaves flushes to the writer's thread, since the caller would wait for the disk; and a
    /// store that fails, since that thread keeps the back-off.
    pub(crate) fn help(&self) {
        let Some(inbox) = self.thread.lock().as_ref().map(|running| running.inbox.clone()) else { return };
        let Some(mut batches) = self.batches.try_lock() else { return };
        if batches.failing {
            return;
        }
        batches.take_all(&inbox);
        let now = Instant::now();
        let flushes = || batches.pending.iter().any(Pending::is_synced);
        if batches.next(now) == Next::Write && !flushes() {
            batches.write(now);
        }
        self.leave_rest(batches);
    }

    /// Wakes the thread if something is left on the list: it may not know of that, or sleep for too
    /// long.
    fn leave_rest(&self, batches: MutexGuard<'_, Batches>) {
        let rest = !batches.pending.is_empty();
        drop(batches);
        if rest {
            self.tell(Message::Look);
        }
    }

    /// Writes at once what waits for the pace or for a back-off.
    pub(crate) fn hurry(&self) {
        self.tell(Message::Hurry);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let Some(Running { sender, inbox, handle }) = self.thread.lock().take() else { return };
        drop((sender, inbox));
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
    /// The end of the pace, or of the pause after a write that failed. Before it, only an intent in
    /// a hurry starts a write.
    rests_until: Instant,
    /// True if the last write failed and is to be tried again.
    failing: bool,
}

struct Pending {
    intent: Box<dyn Intent>,
    /// True if it waits neither for the pace nor for the pause of others.
    hurry: bool,
    /// Not before this, since it could not be resolved.
    due: Option<Instant>,
    /// It is part of the batch that is being written.
    resolved: bool,
}

/// What the thread does next.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Write,
    /// Until this time, or for ever, unless a message comes.
    Sleep(Option<Instant>),
}

impl Thread {
    fn run(self) {
        loop {
            let Next::Sleep(until) = self.step(Instant::now()) else { continue };
            let heard = match until {
                Some(until) => self.inbox.recv_deadline(until),
                None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match (heard, until) {
                (Ok(message), _) => self.batches.lock().take(message),
                (Err(RecvTimeoutError::Timeout), _) => {}
                // Nobody is left to send. Those who wait for a report keep the store, so it is
                // tried until they give up.
                (Err(RecvTimeoutError::Disconnected), Some(until)) => park_until(until),
                (Err(RecvTimeoutError::Disconnected), None) => return,
            }
        }
    }

    /// Takes what has arrived, and writes if it is time to.
    fn step(&self, now: Instant) -> Next {
        let mut batches = self.batches.lock();
        batches.take_all(&self.inbox);
        let next = batches.next(now);
        if next == Next::Write {
            batches.write(now);
        }
        next
    }
}

impl Batches {
    fn new(kv: Arc<dyn Kv>, rows: Arc<RwLock<()>>) -> Self {
        Self { kv, rows, pending: Vec::new(), rests_until: Instant::now(), failing: false }
    }

    fn take_all(&mut self, inbox: &Receiver<Message>) {
        inbox.try_iter().for_each(|message| self.take(message));
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Intent { intent, hurry } => self.pending.push(Pending::new(intent, hurry)),
            Message::Hurry => {
                for pending in &mut self.pending {
                    (pending.hurry, pending.due) = (true, None);
                }
            }
            Message::Look => {}
        }
    }

    /// Says what is to be done now. The first intent that may starts a write, and all that have
    /// arrived by then join it.
    fn next(&self, now: Instant) -> Next {
        let due = self.pending.iter().map(|pending| pending.writable_from(now, self.rests_until)).min();
        if due.is_some_and(|due| due <= now) { Next::Write } else { Next::Sleep(due) }
    }

    /// Writes everything that is due.
    fn write(&mut self, now: Instant) {
        let mut draft = Draft::new(&*self.kv, &self.rows);
        let mut synced = false;
        self.pending.retain_mut(|pending| pending.resolve(&mut draft, now));
        for pending in self.pending.iter().filter(|pending| pending.resolved) {
            synced |= pending.is_synced();
        }
        if !self.pending.iter().any(|pending| pending.resolved) {
            return;
        }
        // From its beginning: who writes for longer than that has enough to write.
        self.rests_until = now + SAVE_PACE;
        self.failing = false;
        let write = || self.kv.write(draft.batch(), synced);
        let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(write))
            .unwrap_or_else(|payload| Err(StoreError { doing: "write".to_owned(), source: Panic::caught(payload) }));
        let logs = draft.into_logs();
        let Err(error) = written else {
            logs.publish(&*self.kv);
            for pending in self.pending.extract_if(.., |pending| pending.resolved) {
                kept(|| pending.intent.written());
            }
            return;
        };
        let error = Arc::new(error);
        let mut pause = None;
        self.pending.retain_mut(|pending| {
            let again = pending.resolved.then(|| pending.failed(Box::new(error.clone()))).flatten();
            pause = pause.into_iter().chain(again).min();
            pending.hurry &= !pending.resolved;
            again.is_some() || !pending.resolved
        });
        if let Some(pause) = pause {
            self.rests_until = Instant::now() + pause;
            self.failing = true;
        }
    }
}

impl Pending {
    fn new(intent: Box<dyn Intent>, hurry: bool) -> Self {
        Self { intent, hurry, due: None, resolved: false }
    }

    /// Says when it may start a write: now, or after its own back-off, and after the common rest
    /// unless it is in a hurry.
    fn writable_from(&self, now: Instant, rests_until: Instant) -> Instant {
        let due = self.due.unwrap_or(now);
        if self.hurry { due } else { due.max(rests_until) }
    }

    fn is_synced(&self) -> bool {
        kept(|| self.intent.synced()).unwrap_or(true)
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
                self.hurry = false;
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
