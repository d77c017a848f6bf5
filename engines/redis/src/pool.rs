//! The connections that no call uses now.

use crate::address::Node;
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// A stack, so that with few calls the oldest connections stay unused, and are closed.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    /// How long one may stay unused.
    longest: Duration,
    rest: Mutex<Vec<(Instant, Node, T)>>,
}

impl<T> Pool<T> {
    pub(crate) fn new(longest: Duration) -> Self {
        Self { longest, rest: Mutex::default() }
    }

    pub(crate) fn take(&self, node: &Node) -> Option<T> {
        let mut rest = self.rest.lock();
        let at = rest.iter().rposition(|(_, of, _)| of == node)?;
        Some(rest.remove(at).2)
    }

    /// Puts one back, and drops those that were unused for too long.
    pub(crate) fn give(&self, node: Node, one: T, now: Instant) {
        let mut rest = self.rest.lock();
        let is_old = |since: Instant| now.saturating_duration_since(since) >= self.longest;
        // They are sorted by time.
        let old = rest.iter().take_while(|(since, ..)| is_old(*since)).count();
        let old: Vec<_> = rest.drain(..old).collect();
        rest.push((now, node, one));
        drop(rest);
        // Closing a connection takes a while, so not under the lock.
        drop(old);
    }

    /// Drops those to this server, or all.
    pub(crate) fn forget(&self, node: Option<&Node>) {
        let mut rest = self.rest.lock();
        let is_meant = |of: &Node| node.is_none_or(|node| node == of);
        let meant: Vec<_> = rest.extract_if(.., |(_, of, _)| is_meant(of)).collect();
        drop(rest);
        drop(meant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redis::ConnectionAddr;
    use std::sync::Arc;

    #[test]
    fn unused_ones_are_dropped_and_each_is_given_out_for_its_server() {
        let pool = Pool::new(Duration::from_secs(60));
        let [here, there] = [1, 2].map(|port| Arc::new(ConnectionAddr::Tcp("h".to_owned(), port)));
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let left = || pool.rest.lock().iter().map(|(.., one)| *one).collect::<Vec<_>>();
        assert_eq!(pool.take(&here), None);
        for one in 0..6 {
            pool.give(Arc::clone(if one % 2 == 0 { &here } else { &there }), one, at(0));
        }
        assert_eq!([pool.take(&here), pool.take(&there)].map(Option::unwrap), [4, 5], "those that came last");
        pool.give(Arc::clone(&here), 4, at(59));
        assert_eq!(left(), [0, 1, 2, 3, 4]);
        pool.give(Arc::clone(&there), 5, at(60));
        assert_eq!(left(), [4, 5], "four of them have lain there for a minute");
        pool.forget(Some(&here));
        assert_eq!((left(), pool.take(&here)), (vec![5], None));
        pool.forget(None);
        assert_eq!(left(), [0; 0]);
    }
}
