//! One commit: the user's statements, those of this crate, and what became of them.

use super::life::Life;
use super::take::{begin, begin_noted};
use crate::bitmap_chunks::{Changed, changed, piece_of};
use crate::connection::Connection;
use crate::error::{Error, fenced};
use crate::error_class::{Fault, fault_of, of_statement};
use crate::row::{Found, Mine, Verdict};
use crate::schema;
use crate::sql::{Parts, Sql, Value};
use crate::store::PgStore;
use postgres::types::Type;
use postgres::{Client, Transaction};
use std::time::{Duration, Instant};
use waterline::{BoxError, CommitError, Index, Saved};

/// How often a transaction is retried at once after a deadlock.
const AGAIN: u32 = 5;

/// How long a commit whose answer was lost is looked for, before its outcome counts as unknown.
const OUTAGE: Duration = Duration::from_secs(60);

type UserWrite<'a> = dyn FnMut(&mut Transaction<'_>) -> Result<(), BoxError> + Send + 'a;

enum End {
    Written,
    /// Nothing is written, and a retry may succeed at once.
    Again(BoxError),
    Failed(CommitError),
    /// The answer to the COMMIT was lost.
    Unknown(BoxError),
}

impl From<postgres::Error> for End {
    /// An error before the COMMIT, so nothing is written.
    fn from(error: postgres::Error) -> Self {
        match of_statement(&error) {
            Fault::Again => Self::Again(error.into()),
            _ => Self::Failed(CommitError::Retry(error.into())),
        }
    }
}

impl Life {
    /// Makes a commit, on a thread that may block.
    pub(super) fn commit(
        &mut self,
        store: &PgStore,
        name: &str,
        connection: &mut Connection,
        saved: &Saved,
        write: &mut UserWrite<'_>,
    ) -> Result<(), CommitError> {
        let change = Change { saved, pieces: changed(&self.done, &saved.done, saved.next) };
        let sql = store.sql();
        let (mut tries, mut asked) = (0, Instant::now());
        let end = loop {
            let end = connection.with(|client| match client {
                Ok(client) => {
                    asked = Instant::now();
                    let ttl = store.options().ttl;
                    change.write(client, sql, name, self, ttl, write)
                }
                Err(error) => End::Failed(CommitError::Retry(error.into())),
            });
            tries += 1;
            if !matches!(end, End::Again(_)) || tries == AGAIN {
                break end;
            }
        };
        match end {
            End::Written => {}
            End::Again(error) => return Err(CommitError::Retry(error)),
            End::Failed(error) => {
                if matches!(error, CommitError::Retry(_)) {
                    // The connection or its server may be broken.
                    connection.close();
                }
                return Err(error);
            }
            End::Unknown(error) => {
                connection.close();
                let (mine, saves) = (self.mine, self.saves);
                let settled = settle(Instant::now() + OUTAGE, || {
                    connection.call(|client| Ok(mine.verdict(saves, look(client, sql, name)?.as_ref())))
                });
                match settled {
                    Ok(Verdict::Written) => {}
                    Ok(Verdict::NotWritten) => return Err(CommitError::Retry(error)),
                    Ok(Verdict::Lost(why)) => return Err(CommitError::Lost(fenced(name, why).into())),
                    Err(now) => {
                        let why = format!(
                            "nobody knows if its last transaction is written ({error}), since the server has not answered \
                             for {OUTAGE:?}: {}",
                            now.in_full()
                        );
                        return Err(CommitError::Lost(fenced(name, why).into()));
                    }
                }
            }
        }
        self.saves += 1;
        self.lowest_piece = piece_of(saved.next);
        self.done.clone_from(&saved.done);
        self.kept.renewed(asked);
        Ok(())
    }
}

/// Asks until there is an answer or `until` has come, and then returns the last error.
fn settle<R>(until: Instant, mut ask: impl FnMut() -> Result<R, Error>) -> Result<R, Error> {
    let mut pause = Duration::from_millis(5);
    loop {
        match ask() {
            Err(error) if Instant::now() < until => {
                tracing::debug!(target: "waterline", error = error.in_full(), "a commit whose answer was lost is looked for");
                std::thread::park_timeout(pause);
                pause = (pause * 2).min(Duration::from_millis(500));
            }
            answer => return answer,
        }
    }
}

/// Reads the row of a name, after any transaction that still locks it: so the answer is final.
fn look(client: &mut Client, sql: &Sql, name: &str) -> Result<Option<Found>, Error> {
    let mut transaction = begin(client, sql)?;
    let rows = transaction.query_typed(&sql.look, &[(&name, Type::TEXT)]);
    let rows = rows.map_err(|error| schema::explained(error, sql.schema()))?;
    Ok(rows.first().map(Found::try_from).transpose()?)
}

/// The content of a save.
struct Change<'a> {
    saved: &'a Saved,
    pieces: Changed,
}

impl Change<'_> {
    /// Runs the user's part and this crate's in one transaction.
    fn write(
        &self,
        client: &mut Client,
        sql: &Sql,
        name: &str,
        life: &Life,
        ttl: Duration,
        write: &mut UserWrite<'_>,
    ) -> End {
        let (mut transaction, began) = match begin_noted(client, sql) {
            Ok(begun) => begun,
            Err(error) => return error.into(),
        };
        if let Err(error) = write(&mut transaction) {
            let fault = fault_of(&*error);
            // The error of the write may hide a broken connection.
            let is_alive = transaction.rollback().is_ok();
            return match fault {
                Fault::Again => End::Again(error),
                Fault::OfUser if is_alive => End::Failed(CommitError::Write(error)),
                _ => End::Failed(CommitError::Retry(error)),
            };
        }
        let Life { mine, saves, lowest_piece, .. } = *life;
        let place = Place { name, mine, saves, lowest_piece, ttl, began: Some(began) };
        match save(&mut transaction, sql, &place, self.saved, &self.pieces) {
            Ok(true) => {}
            Ok(false) => return lost(&mut transaction, sql, &place),
            Err(error) if of_statement(&error) == Fault::Aborted => {
                let why = "a statement of the write failed, and the write returned Ok: it needs a savepoint, or has to \
                           return the error";
                return End::Failed(CommitError::Write(why.into()));
            }
            Err(error) if of_statement(&error) == Fault::OfTables => {
                let why = schema::explained(error, sql.schema()).in_full();
                return End::Failed(CommitError::Lost(fenced(name, why).into()));
            }
            Err(error) => return error.into(),
        }
        match transaction.commit() {
            Ok(()) => End::Written,
            // Only an answer of the server tells what became of it.
            Err(error) if error.as_db_error().is_none() => End::Unknown(error.into()),
            Err(error) => match of_statement(&error) {
                // It was rolled back: a deferred constraint of the user's may be checked only now.
                Fault::OfUser => End::Failed(CommitError::Write(error.into())),
                Fault::Again => End::Again(error.into()),
                _ => End::Unknown(error.into()),
            },
        }
    }
}

/// An index as it is stored: the same bits with a sign.
fn stored(index: Index) -> i64 {
    index.cast_signed()
}

/// The row that a save changes, and what its life knows of it.
pub(crate) struct Place<'a> {
    pub(crate) name: &'a str,
    pub(crate) mine: Mine,
    pub(crate) saves: i64,
    /// No row is below this piece.
    pub(crate) lowest_piece: i64,
    pub(crate) ttl: Duration,
    /// When the transaction began, if the user's statements run in it, too.
    pub(crate) began: Option<i64>,
}

/// Writes the save. Returns false if the row is not that of this life.
pub(crate) fn save(
    transaction: &mut Transaction<'_>,
    sql: &Sql,
    place: &Place<'_>,
    saved: &Saved,
    Changed { put, gone }: &Changed,
) -> Result<bool, postgres::Error> {
    let Place { name, mine: Mine { epoch, token, timeline }, saves, lowest_piece, ttl, began } = *place;
    let ttl = ttl.as_secs_f64() * 1_000.0;
    let (watermark, next) = (saved.last_processed.map(stored), stored(saved.next));
    let lowest = piece_of(saved.next);
    let (pieces, bits): (Vec<_>, Vec<_>) = put.iter().map(|(piece, bits)| (*piece, &bits[..])).unzip();
    let removed = saved.records.iter().filter(|record| record.value.is_none());
    let removed: Vec<_> = removed.map(|record| &record.key[..]).collect();
    let records = saved.records.iter().filter_map(|record| Some((&record.key[..], record.value.as_deref()?)));
    let (keys, values): (Vec<_>, Vec<_>) = records.unzip();
    let parts = Parts {
        lost_pieces: !gone.is_empty() || lowest > lowest_piece,
        pieces: !put.is_empty(),
        lost_records: !removed.is_empty(),
        records: !keys.is_empty(),
    };
    let mut values_of: Vec<Value<'_>> = vec![
        (&name, Type::TEXT),
        (&epoch, Type::INT8),
        (&token, Type::INT8),
        (&timeline, Type::INT8),
        (&saves, Type::INT8),
        (&ttl, Type::FLOAT8),
        (&watermark, Type::INT8),
        (&next, Type::INT8),
        (&began, Type::INT8),
    ];
    if parts.lost_pieces {
        values_of.push((&lowest, Type::INT8));
        values_of.push((gone, Type::INT8_ARRAY));
    }
    if parts.pieces {
        values_of.push((&pieces, Type::INT8_ARRAY));
        values_of.push((&bits, Type::BYTEA_ARRAY));
    }
    if parts.lost_records {
        values_of.push((&removed, Type::BYTEA_ARRAY));
    }
    if parts.records {
        values_of.push((&keys, Type::BYTEA_ARRAY));
        values_of.push((&values, Type::BYTEA_ARRAY));
    }
    let rows = transaction.query_typed(&sql.save(parts), &values_of)?;
    let count: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
    Ok(count == 1)
}

/// Says why the row is not that of this life. Nothing is written.
fn lost(transaction: &mut Transaction<'_>, sql: &Sql, place: &Place<'_>) -> End {
    let Place { name, mine, saves, began, .. } = place;
    let lost = |why: &str| End::Failed(CommitError::Lost(fenced(name, why).into()));
    let now = transaction.query_typed(&sql.began, &[]);
    match now.and_then(|rows| rows.first().map(|row| row.try_get::<_, i64>(0)).transpose()) {
        Ok(now) if now == *began => {}
        Ok(_) => {
            return lost(
                "the write has ended its transaction, by a COMMIT or ROLLBACK among its statements: some of its rows \
                 may be there, and the progress does not say so",
            );
        }
        Err(error) => return error.into(),
    }
    let found = transaction.query_typed(&sql.look, &[(name, Type::TEXT)]);
    let found = match found.and_then(|rows| rows.first().map(Found::try_from).transpose()) {
        Ok(found) => found,
        Err(error) => return error.into(),
    };
    match mine.verdict(*saves, found.as_ref()) {
        Verdict::Lost(why) => lost(&why),
        Verdict::Written => lost("its row was saved by somebody else"),
        Verdict::NotWritten => End::Again("the row of the progress changed while it was saved".into()),
    }
}
