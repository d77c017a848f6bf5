//! The progress of one consumer, as rows of the database.

use crate::connection::{Connection, blocking};
use crate::error::Error;
use crate::keeper::{NameLease, Waiting};
use crate::lease::LeaseClock;
use crate::store::PgStore;
use postgres::Transaction;
use std::fmt;
use std::time::{Duration, Instant};
use waterline::{BoxError, Checkpoint, CommitError, Progress, SaveError, Saved, Tenure, Transactional};

mod commit;
mod life;
mod take;

pub(crate) use commit::{Place, save};
use life::Life;
pub(crate) use take::{Taken, begin, check_name, is_ahead, load, release, set_back, take};

/// The pause between two saves, since each is a flush of the server's log.
const PACE: Duration = Duration::from_millis(20);

/// The progress of one consumer in a [`PgStore`].
///
/// With [`Builder::start_writing`](waterline::Builder::start_writing) your rows and the progress
/// are one transaction, so each job has its rows exactly once. It keeps everything that is done,
/// also above the watermark, parked jobs and crashes.
///
/// # The name and its lease
///
/// While it has the name it has a lease, which it renews each third of its
/// [`ttl`](crate::PgOptions::ttl) and with each save. A second consumer is refused with
/// [`Error::Leased`](waterline::Error::Leased), or waits as a
/// [`standby`](waterline::Builder::standby), and takes over when no renewal came for the TTL, or at
/// once when the first one stops. A consumer whose renewals do not come through starts no job after
/// the end of the TTL. If another one took over, it writes nothing, and halts with
/// [`Error::Fenced`](waterline::Error::Fenced). It also halts if the server's timeline changes (a
/// standby server was promoted), since what it knows may be lost there. The next life reads what is
/// there. All times are by the clock of the server. If that is set back, the name of a process that
/// died stays in use for its TTL from then on: the next one that asks for it sets it right.
///
/// # Transactions
///
/// The transaction is read committed. Your statements come first, and those of this crate last, so
/// no other call waits for the row of the progress while yours run. All settings are local to the
/// transaction (`SET LOCAL`): a statement ends within the TTL, and a process that pauses within a
/// transaction for three quarters of the TTL loses it. A failed statement of yours ends the
/// transaction, as always in PostgreSQL, unless you make a savepoint (`tx.savepoint`). Your own
/// `SET LOCAL` settings hold to its end. With `synchronous_commit = off` a crash of the server may
/// take the last transactions back, rows and progress together, and the life halts. A `COMMIT` or
/// `ROLLBACK` in your statements would tear rows and progress apart: the life halts and says so.
///
/// After a deadlock or a lost connection it is retried. If the connection breaks in the COMMIT
/// itself, the number of saves in the row tells what became of it. If the server cannot be reached
/// then, the consumer waits for it for up to a minute and then halts, since the outcome is unknown;
/// the next life reads what is there.
///
/// # Connections
///
/// Each progress has one connection, also while it waits for the name. Each store has one for all
/// renewals and notifications, and one for operators' calls. All of them reconnect by themselves.
pub struct PgProgress {
    store: PgStore,
    name: String,
    /// The random number of this holder.
    token: i64,
    connection: Connection,
    tenure: Option<Tenure>,
    life: Option<Life>,
    /// Set while it waits for a name that another consumer has.
    waiting: Option<Waiting>,
}

impl PgStore {
    /// Returns the progress of the consumer with this name: 1 to 255 bytes.
    #[must_use]
    pub fn progress(&self, name: impl Into<String>) -> PgProgress {
        PgProgress::new(self, name.into())
    }
}

impl PgProgress {
    fn new(store: &PgStore, name: String) -> Self {
        let connection = store.connection();
        let token = fastrand::i64(1..);
        Self { store: store.clone(), name, token, connection, tenure: None, life: None, waiting: None }
    }

    /// Takes the name, and loads everything saved under it.
    fn take_name(&mut self) -> Result<Option<Saved>, Error> {
        let Self { store, name, token, connection, tenure, .. } = self;
        let (sql, options) = (store.sql(), store.options());
        let asked = Instant::now();
        let taken = connection.call(|client| {
            let mut transaction = begin(client, sql)?;
            let taken = take(&mut transaction, sql, name, *token, &options.holder, options.ttl, true)?;
            transaction.commit()?;
            Ok(taken)
        });
        if is_ahead(&taken, options.ttl) {
            connection.call(|client| {
                let mut transaction = begin(client, sql)?;
                set_back(&mut transaction, sql, name)?;
                Ok(transaction.commit()?)
            })?;
        }
        let Taken { mine, saves, saved } = taken?;
        let done = saved.as_ref().map(|saved| saved.done.clone()).unwrap_or_default();
        let lease = NameLease::new(name, mine, tenure.clone(), LeaseClock::new(asked, options.ttl));
        let kept = store.keeper().keep(lease)?;
        self.life = Some(Life { mine, saves, done, lowest_piece: 0, kept });
        Ok(saved)
    }

    /// Releases the name, and notifies those that wait for it.
    fn release(&mut self) {
        self.waiting = None;
        // From here on it is not renewed.
        let Some(Life { mine, kept, .. }) = self.life.take() else { return };
        drop(kept);
        let released = self.connection.call(|client| {
            let mut transaction = begin(client, self.store.sql())?;
            release(&mut transaction, self.store.sql(), &self.name, &mine)?;
            Ok(transaction.commit()?)
        });
        if let Err(error) = released {
            // It then expires by itself.
            tracing::warn!(target: "waterline", consumer = self.name, error = error.in_full(),
                "the name could not be given back, so it stays in use until its time is over");
        }
    }
}

impl Drop for PgProgress {
    fn drop(&mut self) {
        self.release();
    }
}

impl Progress for PgProgress {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, waterline::Error> {
        Ok(self.acquire_all()?.and_then(|saved| saved.last_processed).map(Checkpoint::new))
    }

    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
        Ok(self.save_all(&Saved::from(*checkpoint))?)
    }

    fn keeps_done_ahead(&self) -> bool {
        true
    }

    fn keeps_records(&self) -> bool {
        true
    }

    fn acquire_all(&mut self) -> Result<Option<Saved>, waterline::Error> {
        match self.take_name() {
            Ok(saved) => {
                self.waiting = None;
                Ok(saved)
            }
            Err(error) => {
                if let (Error::Leased { .. }, Some(tenure), None) = (&error, &self.tenure, &self.waiting) {
                    self.waiting = Some(self.store.keeper().wait(&self.name, tenure.clone())?);
                }
                Err(error.into())
            }
        }
    }

    fn save_all(&mut self, saved: &Saved) -> Result<(), SaveError> {
        self.commit(saved, &mut |_| Ok(())).map_err(SaveError::from)
    }

    fn label(&self) -> Option<String> {
        Some(self.name.clone())
    }

    fn pace(&self) -> Duration {
        PACE
    }

    fn fence(&self) -> u64 {
        self.life.as_ref().map_or(0, |life| life.mine.epoch.cast_unsigned())
    }

    fn subscribe(&mut self, tenure: Tenure) {
        self.tenure = Some(tenure);
    }
}

impl Transactional for PgProgress {
    type Tx<'t> = Transaction<'t>;

    fn commit(
        &mut self,
        saved: &Saved,
        write: &mut (dyn FnMut(&mut Transaction<'_>) -> Result<(), BoxError> + Send),
    ) -> Result<(), CommitError> {
        // A whole commit stays on one thread, also the drop of a transaction.
        blocking(|| {
            let Self { store, name, connection, life, .. } = self;
            let Some(life) = life else {
                return Err(CommitError::Retry("this value does not have the name: call `acquire` first".into()));
            };
            life.commit(store, name, connection, saved, write)
        })
    }
}

impl fmt::Debug for PgProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let life = self.life.as_ref().map(|life| life.mine.epoch);
        f.debug_struct("PgProgress").field("name", &self.name).field("life", &life).finish_non_exhaustive()
    }
}
