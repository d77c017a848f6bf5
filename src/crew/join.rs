//! Joining threads.

use crate::base::sync::{Arc, Mutex};
use crossbeam_channel::{RecvTimeoutError, bounded};
use std::thread::JoinHandle;
use std::time::Instant;

/// Joins all of them. A thread that panicked has reported that itself.
pub(super) fn join_all(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("one of the consumer's threads panicked");
        }
    }
}

/// Joins all of them, and gives up at this time. Returns true if all have ended. A join cannot have
/// a limit, so another thread makes it.
pub(super) fn join_until(threads: Vec<JoinHandle<()>>, deadline: Instant) -> bool {
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
