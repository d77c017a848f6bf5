//! The threads alone: their host here has no driver, no window and no jobs.

use super::*;
use crate::base::sync::Arc;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use std::time::Duration;

/// Longer than anything here takes; only a failing test waits this long.
const LONG: Duration = Duration::from_secs(60);

#[derive(Default)]
struct State {
    registry: ThreadRegistry,
    tokens: usize,
}

impl AsRef<ThreadRegistry> for State {
    fn as_ref(&self) -> &ThreadRegistry {
        &self.registry
    }
}

struct Queue {
    threads: Threads<Queue>,
    state: Mutex<State>,
    told: Sender<&'static str>,
}

impl Queue {
    fn new() -> (Arc<Self>, Receiver<&'static str>) {
        let (told, hears) = unbounded();
        let queue = Arc::new_cyclic(|me: &Weak<Self>| Self {
            threads: Threads::new(me.clone()),
            state: Mutex::default(),
            told,
        });
        (queue, hears)
    }

    fn tell(&self, what: &'static str) {
        let _ = self.told.send(what);
    }

    fn end(&self) {
        self.state.lock().registry.end(Box::new(()));
    }

    fn is_gone(&self, timeout: Duration) -> bool {
        self.threads.wait_gone(&mut self.state.lock(), Instant::now().checked_add(timeout))
    }

    fn present(&self) -> bool {
        self.state.lock().registry.has_others()
    }
}

impl Host for Queue {
    fn threads(&self) -> &Threads<Self> {
        &self.threads
    }

    fn with_registry<R>(&self, change: impl FnOnce(&mut ThreadRegistry, usize) -> R) -> R {
        let mut state = self.state.lock();
        let tokens = state.tokens;
        change(&mut state.registry, tokens)
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

    fn everybody_left(&self) {
        self.tell("everybody left");
    }
}

/// Says when it is dropped, and on which kind of thread.
struct Dropped(Arc<Queue>, &'static str, &'static str);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.tell(if self.0.threads.is_own_thread() { self.1 } else { self.2 });
    }
}

#[test]
fn a_thread_is_named_and_present_until_it_leaves() {
    let (queue, hears) = Queue::new();
    let ((go, gone), (say, said)) = (bounded::<()>(0), bounded(1));
    assert!(!queue.present());
    queue
        .threads
        .spawn("wl-example", move || {
            say.send(std::thread::current().name().map(str::to_owned)).unwrap();
            let _ = gone.recv();
        })
        .unwrap();
    assert_eq!(said.recv_timeout(LONG).unwrap().as_deref(), Some("wl-example"));
    assert!(queue.present() && !queue.is_gone(Duration::ZERO));
    drop(go);
    assert_eq!(hears.recv_timeout(LONG), Ok("left"));
    assert!(!queue.present());
    assert!(!queue.is_gone(Duration::ZERO), "there may be work yet");
    queue.end();
    assert!(queue.is_gone(LONG));
    assert!(queue.threads.join(None));
    assert_eq!(queue.threads.unjoined(), 0);
}

#[test]
fn only_threads_of_the_crew_are_its_own() {
    let ((queue, _hears), (other, _)) = (Queue::new(), Queue::new());
    let (say, said) = bounded(1);
    let me = queue.clone();
    let both = move || say.send((me.threads.is_own_thread(), other.threads.is_own_thread())).unwrap();
    queue.threads.spawn("wl-example", both).unwrap();
    assert_eq!(said.recv_timeout(LONG), Ok((true, false)));
    assert!(!queue.threads.is_own_thread());
    let own = queue.threads.enter();
    assert!(queue.threads.is_own_thread());
    drop(own);
    assert!(!queue.threads.is_own_thread());
}

#[test]
fn a_join_gives_up_a_hung_thread_at_its_deadline() {
    let (queue, _hears) = Queue::new();
    let (go, gone) = bounded::<()>(0);
    let (hang, hangs) = bounded::<()>(0);
    queue.threads.spawn("wl-example", move || _ = gone.recv()).unwrap();
    drop(go);
    assert!(queue.threads.join(Instant::now().checked_add(LONG)));
    queue.threads.spawn("wl-example", move || _ = hangs.recv()).unwrap();
    assert!(!queue.threads.join(Some(Instant::now())));
    drop(hang);
    queue.end();
    assert!(queue.is_gone(LONG));
}

#[test]
fn the_name_is_in_use_until_all_members_and_tokens_go() {
    let (queue, hears) = Queue::new();
    let (go, gone) = bounded::<()>(0);
    let name = Dropped(queue.clone(), "name freed", "name freed");
    queue.state.lock().registry.keep_name(Box::new(name));
    queue.state.lock().tokens = 1;
    queue.threads.spawn("wl-example", move || _ = gone.recv()).unwrap();
    queue.end();
    queue.threads.leave_as_owner();
    assert_eq!(hears.recv_timeout(LONG), Ok("left"));
    drop(go);
    let rest = [(); 3].map(|()| hears.recv_timeout(LONG).unwrap());
    assert_eq!(rest, ["cleared up", "left", "everybody left"]);
    assert!(queue.state.lock().registry.release_name(1).is_none(), "a token is out");
    let name = queue.state.lock().registry.release_name(0);
    assert!(name.is_some());
    drop(name);
    assert_eq!(hears.recv_timeout(LONG), Ok("name freed"));
}

#[test]
fn a_panicking_thread_drops_what_the_end_left() {
    let (queue, hears) = Queue::new();
    let garbage = Dropped(queue.clone(), "dropped on its own thread", "dropped elsewhere");
    queue.state.lock().registry.end(Box::new(garbage));
    queue.threads.spawn("wl-example", || panic!("a bug")).unwrap();
    let heard = [(); 4].map(|()| hears.recv_timeout(LONG).unwrap());
    assert_eq!(heard, ["panicked", "cleared up", "dropped on its own thread", "left"]);
    assert!(queue.is_gone(LONG), "who panics is counted out, too");
}
