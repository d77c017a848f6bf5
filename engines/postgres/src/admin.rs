//! The calls of an operator: lists, parked jobs, and moves by hand.

use crate::bitmap_chunks::changed;
use crate::error::Error;
use crate::keeper::{DISCARD, REDRIVE};
use crate::progress::{Place, Taken, begin, check_name, is_ahead, load, release, save, set_back, take};
use crate::schema;
use crate::sql::Value;
use crate::store::PgStore;
use postgres::Transaction;
use postgres::types::Type;
use std::time::SystemTime;
use waterline::{ConsumerInfo, Index, Move, MoveKind, Parked, Record, Saved};

/// How many moves are kept for each name, the newest ones.
const MOVES: i64 = 1_000;

/// Calls of an operator. Those that change something take the name as a consumer does, so they fail
/// with [`Error::Leased`] while a consumer has it, in any process. Only a
/// [`redrive`](Self::redrive) and a [`discard`](Self::discard) are then left to that consumer.
impl PgStore {
    /// Lists the parked jobs of this name as of the last save, in the order of their indices.
    ///
    /// # Errors
    /// [`Error::Database`] and [`Error::Schema`] if the database cannot be read.
    pub fn parked(&self, name: &str) -> Result<Vec<Parked>, Error> {
        self.in_transaction(|transaction| {
            let mut records = self.records(transaction, name)?;
            records.retain(|record| record.parked().is_some());
            Ok(records.iter().filter_map(Record::parked).collect())
        })
    }

    /// Runs a parked job once more. A consumer that has the name, in any process, hears of it at
    /// once, and within a third of its TTL at the latest; otherwise the next consumer does it. See
    /// [`Store::redrive`](waterline::Store::redrive).
    ///
    /// # Errors
    /// [`waterline::Error::NotParked`], as an [`Error::Refused`], if the job is not parked;
    /// [`Error::Database`] and [`Error::Schema`].
    pub fn redrive(&self, name: &str, index: Index) -> Result<(), Error> {
        self.wish(name, index, REDRIVE, |transaction, record| {
            let Some(wanted) = record.redriven() else { return Ok(()) };
            let row: [Value<'_>; 3] = [(&name, Type::TEXT), (&wanted.key, Type::BYTEA), (&wanted.value, Type::BYTEA)];
            transaction.query_typed(&self.sql().put_record, &row)?;
            Ok(())
        })
    }

    /// Gives up a parked job: removes its record, so nothing runs it any more. A consumer that has
    /// the name, in any process, does so at once, and within a third of its TTL at the latest. See
    /// [`Store::discard`](waterline::Store::discard).
    ///
    /// # Errors
    /// Those of [`redrive`](Self::redrive).
    pub fn discard(&self, name: &str, index: Index) -> Result<(), Error> {
        self.wish(name, index, DISCARD, |transaction, record| {
            let keys = [&record.key[..]];
            let removed: [Value<'_>; 2] = [(&name, Type::TEXT), (&&keys[..], Type::BYTEA_ARRAY)];
            transaction.query_typed(&self.sql().remove_records, &removed)?;
            Ok(())
        })
    }

    /// Sets the next job to run, backwards or forwards. See
    /// [`StoreProgress::seek`](waterline::StoreProgress::seek). The rows that jobs wrote stay, so
    /// those that run again write them a second time.
    ///
    /// # Errors
    /// [`Error::Leased`] while a consumer has the name; a bad reason or index is an
    /// [`Error::Refused`]; [`Error::Corrupt`], [`Error::Database`] and [`Error::Schema`].
    pub fn seek(&self, name: &str, next: Index, reason: &str) -> Result<(), Error> {
        self.move_by_hand(name, |saved| Ok(Saved::seek(saved, next, reason, SystemTime::now())?))
    }

    /// Skips one job that is not done: it counts as parked from now on. See
    /// [`StoreProgress::skip`](waterline::StoreProgress::skip).
    ///
    /// # Errors
    /// Those of [`seek`](Self::seek); [`waterline::Error::NothingSaved`] and
    /// [`waterline::Error::AlreadyDone`], each as an [`Error::Refused`].
    pub fn skip(&self, name: &str, index: Index, reason: &str) -> Result<(), Error> {
        self.move_by_hand(name, |saved| match saved {
            Some(saved) => Ok(saved.skip(name, index, reason, SystemTime::now())?),
            None => Err(waterline::Error::NothingSaved { name: name.to_owned() }.into()),
        })
    }

    /// Lists the last 1,000 moves by hand, the oldest one first.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a row that cannot be read; [`Error::Database`] and [`Error::Schema`].
    pub fn history(&self, name: &str) -> Result<Vec<Move>, Error> {
        self.in_transaction(|transaction| {
            let mut moves = Vec::new();
            for row in transaction.query_typed(&self.sql().moves, &[(&name, Type::TEXT)])? {
                let kind = match row.try_get(1)? {
                    "seek" => MoveKind::Seek,
                    "skip" => MoveKind::Skip,
                    kind => {
                        let what = format!("the kind of a move is {kind:?}");
                        return Err(Error::Corrupt { name: name.to_owned(), what });
                    }
                };
                let (from, to): (Option<i64>, i64) = (row.try_get(2)?, row.try_get(3)?);
                let (from, to) = (from.map(i64::cast_unsigned), to.cast_unsigned());
                moves.push(Move::new(row.try_get(0)?, kind, from, to, row.try_get(4)?));
            }
            Ok(moves)
        })
    }

    /// Removes everything saved under this name, so the next consumer begins anew. Only the number
    /// of lives stays, so that [`Job::fence`](waterline::Job::fence) keeps growing.
    ///
    /// # Errors
    /// [`Error::Leased`] while a consumer has the name; [`Error::Database`] and [`Error::Schema`].
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        self.with_name(name, false, |transaction, _| {
            for statement in &self.sql().forget {
                transaction.query_typed(statement, &[(&name, Type::TEXT)])?;
            }
            Ok(())
        })
    }

    /// Lists the consumers that have saved something, in the order of their names. A damaged
    /// progress is in the list too, with the reason.
    ///
    /// # Errors
    /// [`Error::Database`] and [`Error::Schema`] if the database cannot be read.
    pub fn consumers(&self) -> Result<Vec<ConsumerInfo>, Error> {
        self.in_transaction(|transaction| {
            let mut consumers = Vec::new();
            for row in transaction.query_typed(&self.sql().names, &[])? {
                let name: String = row.try_get(0)?;
                let (watermark, next): (Option<i64>, i64) = (row.try_get(1)?, row.try_get(2)?);
                // Most names have nothing but their row, and there may be many.
                let loaded = if row.try_get(4)? {
                    load(transaction, self.sql(), &name, watermark, Some(next))
                } else {
                    let watermark = watermark.map(i64::cast_unsigned);
                    Ok(Some(Saved::new(watermark, next.cast_unsigned(), Vec::new())))
                };
                let mut info = match loaded {
                    Ok(saved) => ConsumerInfo::of(&name, saved.as_ref()),
                    Err(error @ Error::Corrupt { .. }) => {
                        let mut info = ConsumerInfo::of(&name, None);
                        info.unreadable = Some(error.to_string());
                        info
                    }
                    Err(error) => return Err(error),
                };
                if info.unreadable.is_none() {
                    info.moved_at = row.try_get(3)?;
                }
                consumers.push(info);
            }
            Ok(consumers)
        })
    }
}

impl PgStore {
    /// Runs a transaction with this crate's settings.
    pub(crate) fn in_transaction<R: Send>(
        &self,
        make: impl FnOnce(&mut Transaction<'_>) -> Result<R, Error> + Send,
    ) -> Result<R, Error> {
        let made = self.calls().lock().call(|client| {
            let mut transaction = begin(client, self.sql())?;
            let made = make(&mut transaction)?;
            transaction.commit()?;
            Ok(made)
        });
        made.map_err(|error| match error {
            Error::Database(error) => schema::explained(error, self.sql().schema()),
            error => error,
        })
    }

    fn records(&self, transaction: &mut Transaction<'_>, name: &str) -> Result<Vec<Record>, Error> {
        check_name(name)?;
        let rows = transaction.query_typed(&self.sql().records, &[(&name, Type::TEXT)])?;
        rows.iter().map(|row| Ok(Record::new(row.try_get(0)?, Some(row.try_get(1)?)))).collect()
    }

    /// Takes the name as a consumer does, so that no earlier life writes any more, makes changes,
    /// and releases it, all in one transaction. With `loads`, it loads what is saved, too.
    fn with_name<R: Send>(
        &self,
        name: &str,
        loads: bool,
        change: impl FnOnce(&mut Transaction<'_>, Taken) -> Result<R, Error> + Send,
    ) -> Result<R, Error> {
        let (sql, options) = (self.sql(), self.options());
        let changed = self.in_transaction(|transaction| {
            let token = fastrand::i64(1..);
            let taken = take(transaction, sql, name, token, &options.holder, options.ttl, loads)?;
            let mine = taken.mine;
            let changed = change(transaction, taken)?;
            release(transaction, sql, name, &mine)?;
            Ok(changed)
        });
        if is_ahead(&changed, options.ttl) {
            self.in_transaction(|transaction| set_back(transaction, sql, name))?;
        }
        changed
    }

    /// Changes a parked job, or leaves a wish for that to the consumer that has the name.
    fn wish(
        &self,
        name: &str,
        index: Index,
        kind: &str,
        change: impl Fn(&mut Transaction<'_>, &Record) -> Result<(), Error> + Send + Sync,
    ) -> Result<(), Error> {
        let parked = |transaction: &mut Transaction<'_>| {
            let records = self.records(transaction, name)?;
            let is_it = |record: &Record| record.parked().is_some_and(|parked| parked.index == index);
            let not_parked = || waterline::Error::NotParked { name: name.to_owned(), index };
            records.into_iter().find(is_it).ok_or_else(|| Error::from(not_parked()))
        };
        // Checked first, so that a name that never existed is not made here.
        self.in_transaction(|transaction| parked(transaction))?;
        let changed = self.with_name(name, false, |transaction, _| {
            let record = parked(transaction)?;
            change(transaction, &record)
        });
        let Err(Error::Leased { .. }) = changed else { return changed };
        self.in_transaction(|transaction| {
            // While its row is locked, no other progress takes the place of this one.
            transaction.query_typed(&self.sql().look, &[(&name, Type::TEXT)])?;
            parked(transaction)?;
            let index = index.cast_signed();
            let wish: [Value<'_>; 3] = [(&name, Type::TEXT), (&kind, Type::TEXT), (&index, Type::INT8)];
            transaction.query_typed(&self.sql().wish, &wish)?;
            let payload = self.sql().payload(name);
            transaction.query_typed(&self.sql().rung, &[(&payload, Type::TEXT)])?;
            Ok(())
        })
    }

    fn move_by_hand(
        &self,
        name: &str,
        make: impl FnOnce(Option<&Saved>) -> Result<(Saved, Move), Error> + Send,
    ) -> Result<(), Error> {
        let (sql, ttl) = (self.sql(), self.options().ttl);
        self.with_name(name, true, |transaction, Taken { mine, saves, saved: before }| {
            let (after, made) = make(before.as_ref())?;
            transaction.query_typed(&sql.forget_done, &[(&name, Type::TEXT)])?;
            let place = Place { name, mine, saves, lowest_piece: i64::MAX, ttl, began: None };
            if !save(transaction, sql, &place, &after, &changed(&[], &after.done, after.next))? {
                return Err(Error::Fenced { name: name.to_owned(), holder: "somebody else".to_owned() });
            }
            let kind = if made.kind == MoveKind::Seek { "seek" } else { "skip" };
            let (from, to) = (made.from.map(Index::cast_signed), made.to.cast_signed());
            let row: [Value<'_>; 6] = [
                (&name, Type::TEXT),
                (&made.at, Type::TIMESTAMPTZ),
                (&kind, Type::TEXT),
                (&from, Type::INT8),
                (&to, Type::INT8),
                (&made.reason, Type::TEXT),
            ];
            transaction.query_typed(&sql.add_move, &row)?;
            transaction.query_typed(&sql.trim_moves, &[(&name, Type::TEXT), (&MOVES, Type::INT8)])?;
            Ok(())
        })
    }
}
