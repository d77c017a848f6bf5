//! A database that keeps progress, and the way to it.

use crate::connection::{Connection, Dial};
use crate::error::Error;
use crate::keeper::Keeper;
use crate::options::PgOptions;
use crate::progress::PgProgress;
use crate::schema;
use crate::sql::Sql;
use parking_lot::Mutex;
use postgres::tls::{MakeTlsConnect, TlsConnect};
use postgres::{Config, Socket};
use std::fmt;
use std::sync::Arc;

/// A PostgreSQL database that keeps progress beside your own tables. All clones are one store.
#[derive(Clone)]
pub struct PgStore {
    shared: Arc<Shared>,
}

struct Shared {
    /// The first field: its thread ends before anything else does.
    keeper: Keeper,
    dial: Dial,
    options: PgOptions,
    sql: Arc<Sql>,
    /// The connection of calls that belong to no consumer: migrations, lists, moves by hand.
    calls: Mutex<Connection>,
}

impl PgStore {
    /// The statements that make the tables, for those who bring their schema up to date with a tool
    /// of their own: `{schema}` stands for the name of the schema. [`migrate`](Self::migrate) runs
    /// the same.
    pub const SCHEMA: &str = include_str!("../schema/001.sql");

    /// Connects to the server. The connector makes TLS; [`NoTls`](postgres::NoTls) makes none. If
    /// the configuration has several hosts, the one that accepts writes is taken.
    ///
    /// # Errors
    /// [`Error::Config`] for bad settings, [`Error::Database`] if the server cannot be reached.
    pub fn connect<T>(config: Config, tls: T, options: PgOptions) -> Result<Self, Error>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::TlsConnect: Send + 'static,
        T::Stream: Send + 'static,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        options.check()?;
        let dial = Dial::new(config, tls, &options);
        let mut calls = Connection::new(dial.clone());
        calls.call(|client| Ok(client.batch_execute("")?))?;
        let sql = Arc::new(Sql::new(&options));
        let keeper = Keeper::new(dial.clone(), Arc::clone(&sql), options.clone());
        Ok(Self { shared: Arc::new(Shared { keeper, dial, options, sql, calls: Mutex::new(calls) }) })
    }

    /// Returns the progress of the consumer with this name: 1 to 255 bytes.
    #[must_use]
    pub fn progress(&self, name: impl Into<String>) -> PgProgress {
        PgProgress::new(self, name.into())
    }

    /// Makes the tables, or brings them to the version of this program. Many processes may call it
    /// at once.
    ///
    /// # Errors
    /// [`Error::NewerSchema`] if a newer program made them, [`Error::Database`] if the server
    /// fails.
    pub fn migrate(&self) -> Result<(), Error> {
        let schema = &self.shared.options.schema;
        self.shared.calls.lock().call(|client| schema::migrate(client, schema))
    }
}

impl PgStore {
    /// Returns a connection that is opened when it is needed.
    pub(crate) fn connection(&self) -> Connection {
        Connection::new(self.shared.dial.clone())
    }

    /// The connection of calls that belong to no consumer.
    pub(crate) fn calls(&self) -> &Mutex<Connection> {
        &self.shared.calls
    }

    pub(crate) fn keeper(&self) -> &Keeper {
        &self.shared.keeper
    }

    pub(crate) fn options(&self) -> &PgOptions {
        &self.shared.options
    }

    pub(crate) fn sql(&self) -> &Sql {
        &self.shared.sql
    }
}

impl fmt::Debug for PgStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgStore").field("dial", &self.shared.dial).field("options", &self.shared.options).finish()
    }
}
