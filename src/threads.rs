//! The threads of a consumer, and the rules for them.
//!
//! [`Threads`] starts named threads, counts them, joins them, and knows its own, but nothing of
//! their work. The host does, and keeps the [`ThreadRegistry`] under the lock of the work, since a
//! thread is counted in the same critical section that finds work for it.
//!
//! Three rules hold for each host:
//!
//! * Its own threads never wait for its end, since they would wait for themselves. They request the
//!   end and go on.
//! * The end is over when nothing of a thread is left to run, not even destructors of its
//!   thread-locals.
//! * The name of the consumer stays in use until the last thread has left and the last token is
//!   used.

mod own;
mod registry;
pub(crate) mod stopping;
pub(crate) mod workers;

pub use self::own::Own;
use self::own::Owner;
use self::registry::Left;
pub use self::registry::ThreadRegistry;
use crate::base::sync::{Arc, Condvar, Mutex, MutexGuard, wait_until};
#[cfg(feature = "tokio")]
use crate::base::wakers::Wakers;
use crate::base::{Error, guard::drop_guarded};
use crossbeam_channel::{RecvTimeoutError, bounded};
use std::cell::Cell;
use std::sync::Weak;
use std::thread::JoinHandle;
use std::time::Instant;

/// Has threads and their work: keeps the registry, and is told what happens to the threads.
pub trait Host: Send + Sync + Sized + 'static {
    fn threads(&self) -> &Threads<Self>;
    /// Lends the registry under the lock of the work, and says how many tokens of jobs are out.
    fn with_registry<R>(&self, change: impl FnOnce(&mut ThreadRegistry, usize) -> R) -> R;
    /// Hears that the calling thread panics. The work that it was about to do stays undone.
    fn thread_panicked(&self);
    /// Drops, after the end, what the host leaves behind. Each thread that leaves then calls this.
    fn clear_up(&self);
    /// Hears that a thread or the owner has left.
    fn somebody_left(&self, over: bool);
    /// Hears that the name is free again. Other consumers of this process may wait for it.
    fn name_freed(&self) {}
    /// Hears that all threads and the owner have left.
    fn everybody_left(&self);
}

/// The threads of one host.
pub struct Threads<H> {
    owner: Owner,
    host: Weak<H>,
    handles: Mutex<Vec<JoinHandle<()>>>,
    /// Threads that wait until all threads are gone sleep here.
    gone: Condvar,
    /// Tasks that wait until all threads are gone.
    #[cfg(feature = "tokio")]
    awaited: Wakers,
}

impl<H: Host> Threads<H> {
    pub fn new(host: Weak<H>) -> Self {
        Self {
            owner: Owner::new(),
            host,
            handles: Mutex::default(),
            gone: Condvar::new(),
            #[cfg(feature = "tokio")]
            awaited: Wakers::default(),
        }
    }

    /// Returns the tasks that wait until all threads are gone.
    #[cfg(feature = "tokio")]
    pub fn awaited(&self) -> &Wakers {
        &self.awaited
    }

    /// Wakes the threads and tasks that wait until all threads are gone.
    fn tell_gone(&self) {
        self.gone.notify_all();
        #[cfg(feature = "tokio")]
        self.awaited.wake_all();
    }

    pub fn host(&self) -> &Weak<H> {
        &self.host
    }

    /// True if the calling thread is one of these, so that it must not wait for its end.
    pub fn is_own_thread(&self) -> bool {
        Own::is(self.owner)
    }

    /// Makes the calling thread one of these until the returned guard is dropped.
    pub fn enter(&self) -> Own {
        Own::enter(self.owner)
    }

    /// Counts a thread in and starts it.
    pub fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        if let Some(host) = self.host.upgrade() {
            host.with_registry(|registry, _| registry.count_in());
        }
        self.spawn_counted(name, run)
    }

    /// Starts a thread that is counted in already, and counts it out if it cannot be started.
    pub(crate) fn spawn_counted(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let Some(host) = self.host.upgrade() else { return Err(Error::Stopped) };
        let (me, owner) = (self.host.clone(), self.owner);
        // Held until the thread is on the list, so that a join finds even a very short one.
        let mut threads = self.handles.lock();
        // Threads come and go with the limits. The new one joins those that have ended, since
        // destructors of the user's thread-locals have to be over at the join, and may take long.
        let crowded = threads.len() == threads.capacity();
        let gone = if crowded { take_finished(&mut threads) } else { Vec::new() };
        let alive = Alive::expect(&host);
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            alive.stay();
            Own::enter_for_good(owner);
            let _leaving = Leaving(me);
            run();
            join_all(gone);
        });
        match spawned {
            Ok(handle) => {
                threads.push(handle);
                Ok(())
            }
            Err(source) => {
                drop(threads);
                self.leave();
                Err(Error::Spawn { source })
            }
        }
    }

    /// Joins the threads that have ended. A thread that leaves calls this, since there may be no
    /// new one to join those before it. So at most one is left unjoined.
    pub fn join_finished(&self) {
        let finished = take_finished(&mut self.handles.lock());
        join_all(finished);
    }

    /// Joins all threads, up to the deadline. Returns true if all have ended.
    pub fn join(&self, deadline: Option<Instant>) -> bool {
        let threads = std::mem::take(&mut *self.handles.lock());
        match deadline {
            Some(deadline) => join_until(threads, deadline),
            None => {
                join_all(threads);
                true
            }
        }
    }

    /// Drops what the end leaves behind, if it has come. Only the host's own threads do so: a
    /// destructor that stops the consumer then does not wait for itself.
    pub(crate) fn clear_up(&self) {
        let Some(host) = self.host.upgrade() else { return };
        if let Some(garbage) = host.with_registry(|registry, _| registry.clear_up()) {
            host.clear_up();
            drop_guarded(garbage);
        }
    }

    /// Counts a member out. The last one releases the name.
    pub(crate) fn leave(&self) {
        let Some(host) = self.host.upgrade() else { return };
        let Left { over, gone, last, name } = host.with_registry(ThreadRegistry::leave);
        if gone {
            self.tell_gone();
        }
        host.somebody_left(over);
        if let Some(name) = name {
            drop_guarded(name);
            host.name_freed();
        }
        if last {
            host.everybody_left();
        }
    }

    pub fn leave_as_owner(&self) {
        if let Some(host) = self.host.upgrade() {
            host.with_registry(|registry, _| registry.owned = false);
        }
        self.leave();
    }

    /// Waits until all threads are gone and the owner would not have to wait. Returns false at the
    /// deadline. Must not be called on one of these threads.
    pub fn wait_gone<S>(&self, state: &mut MutexGuard<'_, S>, deadline: Option<Instant>) -> bool
    where
        S: AsRef<ThreadRegistry>,
    {
        let mut timed_out = false;
        loop {
            let gone = S::as_ref(state).is_gone();
            if gone || timed_out {
                return gone;
            }
            timed_out = wait_until(&self.gone, state, deadline);
        }
    }

    #[cfg(all(feature = "seam", feature = "testing"))]
    pub fn running(&self) -> usize {
        self.handles.lock().iter().filter(|thread| !thread.is_finished()).count()
    }

    #[cfg(any(test, all(feature = "seam", feature = "testing")))]
    pub fn unjoined(&self) -> usize {
        self.handles.lock().len()
    }
}

fn take_finished(threads: &mut Vec<JoinHandle<()>>) -> Vec<JoinHandle<()>> {
    let (finished, running) = std::mem::take(threads).into_iter().partition(JoinHandle::is_finished);
    *threads = running;
    finished
}

/// Counts a thread out when dropped, even by a panic.
struct Leaving<H: Host>(Weak<H>);

impl<H: Host> Drop for Leaving<H> {
    fn drop(&mut self) {
        let Some(host) = self.0.upgrade() else { return };
        if std::thread::panicking() {
            host.thread_panicked();
        }
        host.threads().clear_up();
        host.threads().leave();
    }
}

/// Counts a thread out when nothing of it is left to run.
trait Mourns: Send + Sync {
    fn thread_is_gone(&self);
}

impl<H: Host> Mourns for H {
    fn thread_is_gone(&self) {
        if self.with_registry(|registry, _| registry.thread_is_gone()) {
            self.threads().tell_gone();
        }
    }
}

/// A thread that is alive, or about to be, until this is dropped.
struct Alive(Weak<dyn Mourns>);

thread_local! {
    static THIS_THREAD: Cell<Option<Alive>> = const { Cell::new(None) };
}

impl Alive {
    /// Counts a thread that is about to start.
    fn expect<H: Host>(host: &Arc<H>) -> Self {
        host.with_registry(|registry, _| registry.alive += 1);
        let host: Weak<H> = Arc::downgrade(host);
        Self(host)
    }

    /// Keeps the calling thread alive until the destructors of its thread-locals have run. The
    /// first value is destroyed last, so a thread calls this before all else.
    fn stay(self) {
        let _gone_at_its_end = THIS_THREAD.try_with(|alive| alive.set(Some(self)));
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if let Some(host) = self.0.upgrade() {
            host.thread_is_gone();
            // This may be the last reference to the host.
            drop_guarded(host);
        }
    }
}

/// Joins all of these threads. A thread that panicked has reported that itself.
fn join_all(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("one of the consumer's threads panicked");
        }
    }
}

/// Joins all of these threads, up to the deadline. Returns true if all have ended. A join cannot
/// have a limit, so another thread makes it.
fn join_until(threads: Vec<JoinHandle<()>>, deadline: Instant) -> bool {
    let threads = Arc::new(Mutex::new(threads));
    let (ended, all_ended) = bounded::<()>(0);
    let joined = {
        let threads = threads.clone();
        move || {
            let threads = std::mem::take(&mut *threads.lock());
            join_all(threads);
            drop(ended);
        }
    };
    let Ok(joiner) = std::thread::Builder::new().name("wl-stop".to_owned()).spawn(joined) else {
        let threads = std::mem::take(&mut *threads.lock());
        join_all(threads);
        return true;
    };
    let in_time = all_ended.recv_deadline(deadline) == Err(RecvTimeoutError::Disconnected);
    if in_time {
        join_all(vec![joiner]);
    }
    in_time
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Sender, unbounded};
    use std::time::Duration;

    /// Longer than anything here takes; only a failing test waits this long.
    const LONG: Duration = Duration::from_secs(60);

    /// A host without a driver, a window and jobs.
    struct Bare {
        threads: Threads<Self>,
        state: Mutex<State>,
        told: Sender<&'static str>,
    }

    #[derive(Default)]
    struct State(ThreadRegistry);

    impl AsRef<ThreadRegistry> for State {
        fn as_ref(&self) -> &ThreadRegistry {
            &self.0
        }
    }

    impl Bare {
        fn tell(&self, what: &'static str) {
            let _ = self.told.send(what);
        }
    }

    impl Host for Bare {
        fn threads(&self) -> &Threads<Self> {
            &self.threads
        }

        fn with_registry<R>(&self, change: impl FnOnce(&mut ThreadRegistry, usize) -> R) -> R {
            change(&mut self.state.lock().0, 0)
        }

        fn thread_panicked(&self) {
            self.tell("panicked");
        }

        fn clear_up(&self) {
            self.tell("cleared up");
        }

        fn somebody_left(&self, _over: bool) {
            self.tell("left");
        }

        fn everybody_left(&self) {}
    }

    /// Says on which kind of thread it is dropped.
    struct Dropped(Arc<Bare>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.tell(if self.0.threads.is_own_thread() { "dropped on its own thread" } else { "dropped elsewhere" });
        }
    }

    #[test]
    fn a_panicking_thread_drops_what_the_end_left() {
        let (told, hears) = unbounded();
        let state = Mutex::default();
        let host = Arc::new_cyclic(|me: &Weak<Bare>| Bare { threads: Threads::new(me.clone()), state, told });
        assert!(!host.threads.wait_gone(&mut host.state.lock(), Some(Instant::now())), "there may be work yet");
        host.state.lock().0.end(Box::new(Dropped(host.clone())));
        host.threads.spawn("wl-example", || panic!("a bug")).unwrap();
        let heard = [(); 4].map(|()| hears.recv_timeout(LONG).unwrap());
        assert_eq!(heard, ["panicked", "cleared up", "dropped on its own thread", "left"]);
        let deadline = Instant::now().checked_add(LONG);
        assert!(host.threads.wait_gone(&mut host.state.lock(), deadline), "who panics is counted out, too");
    }
}
