//! The rows of a range, read page by page: a statement cannot be returned together with its
//! connection. The connection stays in a transaction: all pages show one snapshot.

use super::connection::{Connections, LentConnection};
use super::{failure::failed, sql::Sql};
use crate::base::error::StoreError;
use crate::kv::{KeyRange, Order, Pair};
use rusqlite::{Connection, params};

/// The most rows and bytes of a page. The first page has one row, since many scans want no more.
const ROWS: usize = 256;
const BYTES: usize = 256 * 1024;

pub(super) struct Pages<'a> {
    readers: &'a Connections,
    /// The connection, in its transaction, until the last page is read.
    connection: Option<LentConnection<'a>>,
    /// The number of the scan, if it goes on after its first page.
    number: Option<u64>,
    sql: &'static Sql,
    order: Order,
    /// The keys that are not yet read.
    rest: KeyRange,
    /// The number of rows of the next page.
    rows: usize,
    read: std::vec::IntoIter<Pair>,
}

impl<'a> Pages<'a> {
    /// Begins a scan, and reads its first page.
    pub(super) fn open(
        readers: &'a Connections,
        sql: &'static Sql,
        keys: KeyRange,
        order: Order,
    ) -> Result<Self, StoreError> {
        let connection = readers.lend().map_err(failed("read"))?;
        let read = Vec::new().into_iter();
        let mut pages =
            Self { readers, connection: Some(connection), number: None, sql, order, rest: keys, rows: 1, read };
        pages.fill().map_err(failed("read"))?;
        Ok(pages)
    }

    /// Reads the next page, if there is one.
    fn fill(&mut self) -> rusqlite::Result<()> {
        let Some(connection) = &self.connection else { return Ok(()) };
        if connection.is_autocommit() {
            connection.prepare_cached("BEGIN")?.execute([])?;
        }
        let page = self.page(connection);
        connection.is_sound()?;
        let (read, more) = page?;
        if more && self.number.is_none() {
            self.number = Some(self.readers.keeps(&self.sql.table));
        }
        match read.last() {
            Some((last, _)) if more => match self.order {
                Order::Ascending => self.rest.from = [last, &[0][..]].concat(),
                Order::Descending => self.rest.to = Some(last.clone()),
            },
            _ => self.end(),
        }
        self.rows = (4 * self.rows).min(ROWS);
        self.read = read.into_iter();
        Ok(())
    }

    /// Reads the rows of a page, and whether more may follow.
    fn page(&self, connection: &Connection) -> rusqlite::Result<(Vec<Pair>, bool)> {
        let statement = usize::from(self.order == Order::Descending) * 2 + usize::from(self.rest.to.is_none());
        let mut page = connection.prepare_cached(&self.sql.page[statement])?;
        let mut page = match &self.rest.to {
            Some(to) => page.query(params![self.rest.from, self.rows as i64, to])?,
            None => page.query(params![self.rest.from, self.rows as i64])?,
        };
        let (mut read, mut bytes) = (Vec::new(), 0);
        while let Some(row) = page.next()? {
            let pair: Pair = (row.get(0)?, row.get(1)?);
            bytes += pair.0.len() + pair.1.len();
            read.push(pair);
            if read.len() == self.rows || bytes >= BYTES {
                return Ok((read, true));
            }
        }
        Ok((read, false))
    }

    /// Ends the transaction. If that fails, the connection is closed.
    fn end(&mut self) {
        if let Some(number) = self.number.take() {
            self.readers.ended(number);
        }
        if let Some(connection) = self.connection.take() {
            let _closed_if_it_fails = connection.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([]));
        }
    }
}

impl Iterator for Pages<'_> {
    type Item = Result<Pair, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.read.len() == 0
            && let Err(error) = self.fill()
        {
            // Nothing follows an error.
            self.end();
            return Some(Err(failed("read")(error)));
        }
        self.read.next().map(Ok)
    }
}

impl Drop for Pages<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
