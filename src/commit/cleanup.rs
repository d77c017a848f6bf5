//! The thread for chores: disk work that a write leaves behind and no caller waits for.

use crate::base::sync::{Arc, Mutex};
use crate::commit::{batches::kept, participant::Cleanup};
use crate::kv::Kv;
use std::collections::VecDeque;
use std::thread::JoinHandle;

/// The chores that have not run yet. A slow disk must hold up neither the writer thread nor a
/// user's thread, so they have a thread of their own. They are rare, so it ends when none is left.
pub(super) struct Cleanups {
    kv: Arc<dyn Kv>,
    owed: Mutex<OwedCleanup>,
}

#[derive(Default)]
struct OwedCleanup {
    chores: VecDeque<Cleanup>,
    /// True while a thread takes chores.
    running: bool,
    /// The latest thread.
    thread: Option<JoinHandle<()>>,
    /// The previous thread, which has no more chores, but may still hold the database.
    before: Option<JoinHandle<()>>,
}

impl Cleanups {
    pub(super) fn new(kv: Arc<dyn Kv>) -> Arc<Self> {
        Arc::new(Self { kv, owed: Mutex::default() })
    }

    /// Runs chores soon, in order. The caller holds no lock, and has reported the write.
    pub(super) fn hand_over(self: &Arc<Self>, chores: Vec<Cleanup>) {
        if chores.is_empty() {
            return;
        }
        self.hand_over_to(chores, |run| std::thread::Builder::new().name("wl-chores".to_owned()).spawn(run));
    }

    /// Lets the thread do the maintenance after a write, if there is any.
    pub(super) fn tidy(self: &Arc<Self>) {
        if self.kv.is_untidy() {
            self.hand_over(vec![Box::new(|kv| kv.tidy())]);
        }
    }

    /// Takes the call that starts a thread. If it fails, the chores stay pending.
    fn hand_over_to(
        self: &Arc<Self>,
        chores: Vec<Cleanup>,
        spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> std::io::Result<JoinHandle<()>>,
    ) {
        let mut owed = self.owed.lock();
        owed.chores.extend(chores);
        if owed.running {
            return;
        }
        let this = self.clone();
        let run = move || {
            let before = this.owed.lock().before.take();
            before.map(JoinHandle::join);
            this.run();
        };
        match spawn(Box::new(run)) {
            Ok(thread) => {
                owed.running = true;
                owed.before = owed.thread.replace(thread);
            }
            Err(error) => {
                // A log subscriber may write to this very store.
                drop(owed);
                tracing::warn!(%error, "no thread could be started to give back disk space; the next trim tries it again");
            }
        }
    }

    fn run(&self) {
        while let Some(chore) = self.next() {
            kept(|| chore(&*self.kv));
        }
    }

    fn next(&self) -> Option<Cleanup> {
        let mut owed = self.owed.lock();
        let chore = owed.chores.pop_front();
        owed.running = chore.is_some();
        chore
    }

    /// Waits until all chores have run, and runs those here for which no thread could be started.
    /// On the chores' own thread it does not wait for itself, and that thread ends later.
    pub(super) fn finish(&self) {
        let thread = self.owed.lock().thread.take();
        if let Some(thread) = thread {
            if thread.thread().id() == std::thread::current().id() {
                return self.kv.closes();
            }
            if thread.join().is_err() {
                tracing::error!("the store's thread for chores panicked");
            }
        }
        self.run();
        self.kv.closes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::memory::MemoryKv;

    #[test]
    fn chores_without_a_thread_run_before_the_close() {
        let (tell, told) = crossbeam_channel::unbounded();
        let chore = |name: &'static str| -> Vec<Cleanup> {
            let tell = tell.clone();
            vec![Box::new(move |_: &dyn Kv| tell.send((name, std::thread::current().id())).unwrap())]
        };
        let no_thread = |_| Err(std::io::Error::other("no more threads"));
        let (here, kv) = (std::thread::current().id(), Arc::new(MemoryKv::default()));
        let chores = Cleanups::new(kv.clone());
        // The next thread also runs pending chores.
        chores.hand_over_to(chore("first"), no_thread);
        chores.hand_over(chore("second"));
        let [first, second] = [told.recv().unwrap(), told.recv().unwrap()];
        assert_eq!([first.0, second.0], ["first", "second"]);
        assert!(first.1 == second.1 && first.1 != here);
        // Only after the thread has seen that none is left.
        while chores.owed.lock().running {
            std::thread::yield_now();
        }
        chores.hand_over_to(chore("third"), no_thread);
        assert!(told.is_empty());
        chores.finish();
        assert_eq!(told.try_recv(), Ok(("third", here)));
        drop(chores);
        assert_eq!(Arc::strong_count(&kv), 1, "also the thread that ended has let go of the database");
    }
}
