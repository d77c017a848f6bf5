//! The first transaction of a life: it takes the name, and loads everything that is saved.

use crate::bitmap_chunks;
use crate::error::Error;
use crate::row::{Found, Mine};
use crate::schema;
use crate::sql::Sql;
use postgres::types::Type;
use postgres::{Client, IsolationLevel, SimpleQueryMessage, Transaction};
use std::time::Duration;
use waterline::{Record, Saved};

/// A name that was taken, and what is saved under it.
pub(crate) struct Taken {
    pub(crate) mine: Mine,
    pub(crate) saves: i64,
    pub(crate) saved: Option<Saved>,
}

pub(crate) fn begin<'a>(client: &'a mut Client, sql: &Sql) -> Result<Transaction<'a>, postgres::Error> {
    let mut transaction = start(client)?;
    transaction.batch_execute(&sql.settings)?;
    Ok(transaction)
}

/// Begins a transaction for the user's statements, too. Also returns when it began, to identify it.
pub(super) fn begin_noted<'a>(client: &'a mut Client, sql: &Sql) -> Result<(Transaction<'a>, i64), postgres::Error> {
    let mut transaction = start(client)?;
    let answer = transaction.simple_query(&sql.noted_settings)?;
    let began = answer.iter().find_map(|part| match part {
        SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
        _ => None,
    });
    Ok((transaction, began.unwrap_or(0)))
}

fn start(client: &mut Client) -> Result<Transaction<'_>, postgres::Error> {
    client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).read_only(false).start()
}

/// Takes the name, if it is free or this token has it. With `loads`, loads everything saved.
pub(crate) fn take(
    transaction: &mut Transaction<'_>,
    sql: &Sql,
    name: &str,
    token: i64,
    holder: &str,
    ttl: Duration,
    loads: bool,
) -> Result<Taken, Error> {
    check_name(name)?;
    let of_schema = |error: postgres::Error| schema::explained(error, sql.schema());
    let version = transaction.query_typed(&sql.version, &[]).map_err(of_schema)?;
    schema::fits(schema::Version::of(version.first())?, sql.schema())?;
    let ttl = ttl.as_secs_f64() * 1_000.0;
    let taken = transaction.query_typed(
        &sql.take,
        &[(&name, Type::TEXT), (&token, Type::INT8), (&holder, Type::TEXT), (&ttl, Type::FLOAT8)],
    );
    let taken = taken.map_err(of_schema)?;
    let Some(row) = taken.first() else {
        let found = transaction.query_typed(&sql.look, &[(&name, Type::TEXT)])?;
        let found = found.first().map(Found::try_from).transpose()?;
        let (holder, expires_in) =
            found.map_or_else(|| ("another consumer".to_owned(), Duration::ZERO), |found| (found.holder, found.left));
        return Err(Error::Leased { name: name.to_owned(), holder, expires_in });
    };
    let mine = Mine { epoch: row.try_get(0)?, token, timeline: row.try_get(1)? };
    let (saves, watermark, next): (_, Option<i64>, Option<i64>) = (row.try_get(2)?, row.try_get(3)?, row.try_get(4)?);
    if !loads {
        return Ok(Taken { mine, saves, saved: None });
    }
    let saved = load(transaction, sql, name, watermark, next).map_err(|error| match error {
        Error::Database(error) => schema::explained(error, sql.schema()),
        error => error,
    })?;
    Ok(Taken { mine, saves, saved })
}

/// True if another consumer has the name for longer than one of this TTL would: either its TTL is
/// longer, or the server's clock was ahead at its last renewal.
pub(crate) fn is_ahead<T>(taken: &Result<T, Error>, ttl: Duration) -> bool {
    matches!(taken, Err(Error::Leased { expires_in, .. }) if *expires_in > ttl)
}

/// Shortens a lease whose renewal is in the future since the server's clock was set back: it keeps
/// the time for which it was renewed, from now on.
pub(crate) fn set_back(transaction: &mut Transaction<'_>, sql: &Sql, name: &str) -> Result<(), Error> {
    for row in transaction.query_typed(&sql.set_back, &[(&name, Type::TEXT)])? {
        let left = format!("{:.1?}", Duration::try_from_secs_f64(row.try_get(0)?).unwrap_or_default());
        tracing::warn!(target: "waterline", consumer = name, left,
            "the server's clock was set back, so the name is in use for the time of its lease from now on, and not for as long as the clock was ahead");
    }
    Ok(())
}

/// Loads what is saved under a name whose row has these numbers.
pub(crate) fn load(
    transaction: &mut Transaction<'_>,
    sql: &Sql,
    name: &str,
    watermark: Option<i64>,
    next: Option<i64>,
) -> Result<Option<Saved>, Error> {
    let Some(next) = next.map(i64::cast_unsigned) else { return Ok(None) };
    let mut pieces: Vec<(i64, Vec<u8>)> = Vec::new();
    for row in transaction.query_typed(&sql.done, &[(&name, Type::TEXT)])? {
        pieces.push((row.try_get(0)?, row.try_get(1)?));
    }
    let done = bitmap_chunks::runs(pieces.iter().map(|(piece, bits)| (*piece, &bits[..])), next);
    let done = done.map_err(|what| Error::Corrupt { name: name.to_owned(), what })?;
    let mut saved = Saved::new(watermark.map(i64::cast_unsigned), next, done);
    for row in transaction.query_typed(&sql.records, &[(&name, Type::TEXT)])? {
        saved.records.push(Record::new(row.try_get(0)?, Some(row.try_get(1)?)));
    }
    Ok(Some(saved))
}

/// Releases the name, if this life has it.
pub(crate) fn release(transaction: &mut Transaction<'_>, sql: &Sql, name: &str, mine: &Mine) -> Result<(), Error> {
    transaction.query_typed(
        &sql.release,
        &[(&name, Type::TEXT), (&mine.epoch, Type::INT8), (&mine.token, Type::INT8), (&sql.payload(""), Type::TEXT)],
    )?;
    Ok(())
}

/// The longest name in bytes, as everywhere in waterline.
const LONGEST_NAME: usize = 255;

pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > LONGEST_NAME || name.contains('\0') {
        let what = format!("the progress name is {} bytes long", name.len());
        return Err(Error::config(what, format!("use 1 to {LONGEST_NAME} bytes, and no zero")));
    }
    Ok(())
}
