//! The loop of the thread: it connects, serves, and reconnects after a loss. While it waits for
//! anything, it holds back each consumer whose lease has ended.

use super::serving::SHORTEST_PAUSE;
use super::shared::KeeperShared;
use crate::connection::Dial;
use crate::error::Error;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio_postgres::{AsyncMessage, Client};
use waterline::Tenure;

/// The longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

pub(super) fn run(shared: &Arc<KeeperShared>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            // Nothing is renewed then. The leases run out, and each save renews its own.
            tracing::error!(target: "waterline", %error, "no lease is renewed: a runtime cannot be made");
            return;
        }
    };
    let mut pause = SHORTEST_PAUSE;
    while !shared.work.lock().ends {
        runtime.block_on(async {
            let Some(served) = shared.attend(serve(shared, &mut pause)).await else { return };
            let Err(error) = served else { return };
            shared.has_failed(&error);
            // Many processes lose a server at the same time, so they do not reconnect at once.
            let wait = pause.mul_f64(0.5 + fastrand::f64() / 2.0);
            shared.attend(tokio::time::sleep(wait)).await;
            pause = (pause * 2).min(LONGEST_PAUSE.min(shared.options.ttl / 3));
        });
    }
}

/// Connects when there is something to do, and serves until there is nothing left.
async fn serve(shared: &Arc<KeeperShared>, pause: &mut Duration) -> Result<(), Error> {
    if shared.is_idle() {
        shared.news.notified().await;
        return Ok(());
    }
    let (mut client, connection) = open(&shared.dial, shared).await?;
    let served = shared.serve(&mut client, pause).await;
    drop(client);
    // Lets the server hear that the connection ends.
    _ = connection.await;
    served
}

/// Opens a connection, whose notifications go to the shared.
async fn open(dial: &Dial, shared: &Arc<KeeperShared>) -> Result<(Client, tokio::task::JoinHandle<()>), Error> {
    let (client, mut connection) = dial.connect_own().await?;
    let shared = Arc::clone(shared);
    let carry = tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(heard) = message {
                shared.heard(heard.channel(), heard.payload());
            }
        }
        // The waiter finds the client closed.
        shared.news.notify_one();
    });
    Ok((client, carry))
}

impl KeeperShared {
    /// Runs a future, and meanwhile holds each consumer whose lease has ended, until it is renewed.
    /// `None`: the thread is to end.
    async fn attend<R>(&self, something: impl Future<Output = R>) -> Option<R> {
        let mut something = pin!(something);
        let mut end = pin!(self.end.notified());
        loop {
            let mut timer = pin!(tokio::time::sleep_until(self.tell_overdue().into()));
            let mut moved = pin!(self.moved.notified());
            let outcome = poll_fn(|cx| {
                if end.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Some(None));
                }
                if let Poll::Ready(outcome) = something.as_mut().poll(cx) {
                    return Poll::Ready(Some(Some(outcome)));
                }
                if moved.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                timer.as_mut().poll(cx).map(|()| None)
            });
            if let Some(outcome) = outcome.await {
                return outcome;
            }
        }
    }

    /// Holds each consumer whose lease has ended, and resumes each whose lease was renewed. Returns
    /// when to look next: a lease that begins meanwhile lasts longer.
    fn tell_overdue(&self) -> Instant {
        let now = Instant::now();
        let mut next = now + self.options.ttl / 4;
        for lease in self.leases() {
            let (change, ends, failed) = {
                let mut state = lease.state.lock();
                (state.clock.change(now), state.clock.ends(), state.failed.clone())
            };
            if change == Some(false) {
                lease.tenure.iter().for_each(Tenure::go_on);
            }
            if change == Some(true) {
                let why = format!(
                    "no renewal of the name came through to PostgreSQL for {:?}, so another process may take it: {failed}; \
                     jobs start again once a renewal comes through",
                    self.options.ttl
                );
                lease.tenure.iter().for_each(|tenure: &Tenure| tenure.hold(why.clone()));
            }
            next = ends.map_or(next, |ends| next.min(ends));
        }
        next
    }

    /// Notes why no renewal comes through.
    fn has_failed(&self, error: &Error) {
        let text = error.in_full();
        tracing::debug!(target: "waterline", error = text, "the connection that renews leases failed; it is opened anew");
        for lease in self.leases() {
            lease.state.lock().failed.clone_from(&text);
        }
    }

    /// Passes a notification on to its waiters and listeners.
    fn heard(&self, channel: &str, payload: &str) {
        // The channel of a user's table may have the same name.
        if channel == crate::sql::CHANNEL
            && let Some(name) = payload.strip_prefix(self.sql.payload_prefix())
        {
            let waiting: Vec<Tenure> = {
                let work = self.work.lock();
                let leases = work.leases.iter().filter(|lease| lease.name == name);
                leases.for_each(|lease| lease.state.lock().wishes = true);
                let waiting = work.waiting.iter().filter(|(_, awaited, _)| awaited == name);
                waiting.map(|(_, _, tenure)| tenure.clone()).collect()
            };
            self.news.notify_one();
            waiting.iter().for_each(Tenure::try_now);
        }
        let rings: Vec<_> = {
            let work = self.work.lock();
            let here = work.listeners.iter().filter(|(_, listened, _)| listened == channel);
            here.map(|(_, _, ring)| Arc::clone(ring)).collect()
        };
        rings.iter().for_each(|ring| ring());
    }
}

#[cfg(test)]
mod tests {
    use crate::connection::Dial;
    use crate::keeper::Keeper;
    use crate::options::PgOptions;
    use crate::sql::{CHANNEL, Sql};
    use postgres::{Config, NoTls};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_table_named_like_the_own_channel_is_heard() {
        let options = PgOptions::new();
        let dial = Dial::new(Config::new(), NoTls, &options);
        let keeper = Keeper::new(dial, Arc::new(Sql::new(&options)), options);
        let rung = Arc::new(AtomicU32::new(0));
        let counts = Arc::clone(&rung);
        let ring = move || _ = counts.fetch_add(1, Ordering::Relaxed);
        keeper.shared.add(|work, key| work.listeners.push((key, CHANNEL.to_owned(), Arc::new(ring))));
        keeper.shared.heard(CHANNEL, "");
        assert_eq!(rung.load(Ordering::Relaxed), 1);
    }
}
