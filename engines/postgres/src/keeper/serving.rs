//! The work on a live connection: listening, renewing, and taking up wishes.

use super::shared::{KeeperShared, NameLease, OnNotify};
use crate::error::{Error, fenced};
use crate::options::quoted;
use crate::row::Found;
use crate::sql::{CHANNEL, row_of};
use postgres::error::SqlState;
use postgres::types::Type;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_postgres::Client;
use waterline::Tenure;

/// The first and shortest pause between two attempts to connect.
pub(super) const SHORTEST_PAUSE: Duration = Duration::from_millis(20);

impl KeeperShared {
    /// Serves until there is nothing to do, or the connection fails.
    pub(super) async fn serve(&self, client: &mut Client, pause: &mut Duration) -> Result<(), Error> {
        let mut listening = BTreeSet::new();
        while !self.is_idle() {
            self.listen(client, &mut listening).await?;
            let mut leases = self.leases();
            leases.sort_by_cached_key(|lease| lease.state.lock().clock.due());
            for lease in leases {
                match self.tend(client, &lease).await {
                    Err(Error::Database(error)) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                        lease.state.lock().failed = format!("somebody has locked its row: {error}");
                    }
                    tended => tended?,
                }
            }
            *pause = SHORTEST_PAUSE;
            if client.is_closed() {
                return Err(Error::Closed);
            }
            let due = |lease: &Arc<NameLease>| {
                let state = lease.state.lock();
                state.clock.due().min(state.next_look)
            };
            let due = self.leases().iter().map(due).min();
            let news = self.news.notified();
            match due {
                Some(due) => _ = tokio::time::timeout_at(due.into(), news).await,
                None => news.await,
            }
        }
        Ok(())
    }

    /// Renews a lease, and looks for wishes, each when it is due.
    async fn tend(&self, client: &mut Client, lease: &Arc<NameLease>) -> Result<(), Error> {
        let now = Instant::now();
        let (is_due, wishes) = {
            let state = lease.state.lock();
            (state.clock.due() <= now, state.wishes || state.next_look <= now)
        };
        if is_due {
            self.renew(client, lease).await?;
        }
        if wishes {
            self.take_up_wishes(client, lease).await?;
        }
        Ok(())
    }

    /// Listens to all channels that are waited for. It calls the waiters of a new one, since
    /// earlier notifications are lost.
    async fn listen(&self, client: &Client, listening: &mut BTreeSet<u64>) -> Result<(), Error> {
        let (mut tenures, mut rings): (Vec<Tenure>, Vec<OnNotify>) = Default::default();
        let mut channels = BTreeSet::new();
        {
            let work = self.work.lock();
            // The key 0 stands for this crate's own channel.
            let own = listening.insert(0);
            if own {
                channels.insert(CHANNEL.to_owned());
                work.leases.iter().for_each(|lease| lease.state.lock().wishes = true);
            }
            for (key, _, tenure) in &work.waiting {
                if listening.insert(*key) {
                    tenures.push(tenure.clone());
                }
            }
            for (key, channel, ring) in &work.listeners {
                if listening.insert(*key) {
                    channels.insert(channel.clone());
                    rings.push(Arc::clone(ring));
                }
            }
        }
        for channel in channels {
            client.batch_execute(&format!("LISTEN {}", quoted(&channel))).await?;
        }
        tenures.iter().for_each(Tenure::try_now);
        rings.iter().for_each(|ring| ring());
        Ok(())
    }

    /// Renews a lease. If the row is no longer that of its life, the consumer is told.
    async fn renew(&self, client: &mut Client, lease: &Arc<NameLease>) -> Result<(), Error> {
        let (sent, transaction) = (Instant::now(), self.begin(client).await?);
        let ttl = self.options.ttl.as_secs_f64() * 1_000.0;
        let (name, mine) = (&&*lease.name, &lease.mine);
        let [name_is, epoch, token, timeline] = row_of(name, mine);
        let renewed = [name_is, epoch, token, timeline, (&ttl, Type::FLOAT8)];
        let renewed = transaction.query_typed(&self.sql.renew, &renewed).await?;
        if renewed.is_empty() {
            let found = transaction.query_typed(&self.sql.look, &[(&lease.name, Type::TEXT)]).await?;
            let found = found.first().map(Found::try_from).transpose()?;
            drop(transaction);
            let why = mine.lost(found.as_ref()).unwrap_or_else(|| "its row changes too fast".to_owned());
            // A name that was released meanwhile is not lost.
            if self.forget(lease)
                && let Some(tenure) = &lease.tenure
            {
                tenure.lost(fenced(&lease.name, why).into());
            }
            return Ok(());
        }
        transaction.commit().await?;
        self.renewed(lease, sent);
        Ok(())
    }
}
