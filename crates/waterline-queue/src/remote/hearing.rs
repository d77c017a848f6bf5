//! Tells those who watch a queue what all processes do in it. The server keeps the last changes, so
//! a ring that is lost costs time, and no change.

use super::answers::{happened, untold};
use super::opened::Opened;
use super::queues::Remote;
use super::server::Server;
use super::watch::Heard;
use std::sync::Arc;

impl<S: Server> Remote<S> {
    /// Tells the changes since the last time. Returns true if it begins to listen.
    pub(super) fn hear_of(&self, queue: &Opened) -> bool {
        if !S::TELLS {
            return false;
        }
        // Until they are told, so that they are told in their order.
        let mut heard = queue.heard.lock();
        if !queue.shared.has_watchers() {
            *heard = Heard::default();
            return false;
        }
        let begins = heard.listens.is_none();
        if begins {
            let watching = Arc::clone(&self.watching);
            match self.server.hear(queue.at(), Arc::new(move || watching.ring())) {
                Ok(listens) => heard.listens = listens,
                Err(error) => {
                    tracing::debug!(target: "waterline", queue = queue.name(), %error, "changes of a queue are told once a second, since nothing rings");
                }
            }
        }
        let answers = match queue.explained("watch a queue", self.server.changes(queue.at(), heard.last)) {
            Ok(answers) => answers,
            Err(error) => {
                // It is retried, and all other calls report the same error.
                tracing::debug!(target: "waterline", queue = queue.name(), %error, "the changes of a queue cannot be read");
                heard.is_late |= heard.last.is_none();
                return begins;
            }
        };
        let last = answers.iter().find(|answer| answer.what == "heard");
        heard.last = last.map_or(heard.last, |answer| answer.number);
        let missed = untold(&answers) + u64::from(std::mem::take(&mut heard.is_late));
        queue.shared.heard(&happened(&answers), missed);
        drop(heard);
        queue.shared.settle();
        begins
    }
}
