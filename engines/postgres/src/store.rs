//! A database that keeps progress, and the connections to it.

use crate::connection::{Connection, Dial};
use crate::error::Error;
use crate::keeper::Keeper;
use crate::options::PgOptions;
use crate::schema;
use crate::sql::Sql;
use parking_lot::Mutex;
use postgres::tls::{MakeTlsConnect, TlsConnect};
use postgres::{Config, Socket};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};

/// The oldest supported server, by its `server_version_num`.
const OLDEST: i32 = 130_000;

/// A PostgreSQL database that keeps progress beside your own tables. All clones are one store.
#[derive(Clone)]
pub struct PgStore {
    shared: Arc<Shared>,
}

struct Shared {
    /// The first field, so that its thread ends before anything else.
    keeper: Keeper,
    dial: Dial,
    options: PgOptions,
    sql: Arc<Sql>,
    /// The connection of calls that belong to no consumer: migrations, lists, moves by hand.
    calls: Mutex<Connection>,
    /// The job queues, while one is open. They hold the store, which knows no more of them.
    queues: Mutex<Weak<dyn Any + Send + Sync>>,
}

impl PgStore {
    /// The statements that make the schema and its tables, for migration tools of your own.
    ///
    /// `{schema}` stands for the name of the schema, in quotation marks where it needs them.
    /// [`migrate`](Self::migrate) runs the same. They make a missing schema. Run them as one
    /// transaction that stops at the first error (`psql -1 -v ON_ERROR_STOP=1`), with a short
    /// `lock_timeout`. They reset the `search_path` of the session.
    pub const SCHEMA: &str = schema::ALL;

    /// Connects to the server. The connector makes TLS; [`NoTls`](postgres::NoTls) makes none.
    ///
    /// Of several hosts in the configuration, the one that accepts writes is taken. They are all in
    /// a network, or all Unix sockets. A Unix socket has no TLS, and the server's own timeouts
    /// only: a call on it may wait as long as the server is frozen.
    ///
    /// # Errors
    /// [`Error::Config`] for bad settings, for a server before version 13, and for one that is a
    /// replica; [`Error::Database`] if the server cannot be reached.
    pub fn connect<T>(config: Config, tls: T, options: PgOptions) -> Result<Self, Error>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::TlsConnect: Send + 'static,
        T::Stream: Send + 'static,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        options.check()?;
        Dial::check(&config)?;
        let dial = Dial::new(config, tls, &options);
        let mut calls = Connection::new(dial.clone());
        calls.call(|client| {
            let server = "SELECT pg_is_in_recovery(), current_setting('server_version_num')::int";
            let server = client.query_typed(server, &[])?;
            let server = server.first().ok_or(Error::Closed)?;
            refuse(server.try_get(0)?, server.try_get(1)?)
        })?;
        let sql = Arc::new(Sql::new(&options));
        let keeper = Keeper::new(dial.clone(), Arc::clone(&sql), options.clone());
        Ok(Self {
            shared: Arc::new(Shared {
                keeper,
                dial,
                options,
                sql,
                calls: Mutex::new(calls),
                queues: Mutex::new(Weak::<()>::new()),
            }),
        })
    }

    /// Makes the tables, or upgrades them to the version of this program.
    ///
    /// Many processes may call it at once. Programs of the version before go on, since each version
    /// of the tables serves them: a rolling deployment migrates first, with its first new process.
    /// An old process that calls it later changes nothing.
    ///
    /// It waits for a table for three seconds at most, since all calls would wait behind it. So a
    /// long transaction of yours with rows of these tables may make it fail: call it again.
    /// Processes that start take turns, so the server ends the transaction of one that freezes
    /// in it for a second. Its error says that the connection is closed: call this again.
    ///
    /// Only the owner of the schema may change it. Any role of the schema may call this if there is
    /// nothing to change.
    ///
    /// # Errors
    /// [`Error::NewerSchema`] if a newer program made them and they no longer serve this one;
    /// [`Error::Database`] if the server fails, or a table is locked for too long.
    pub fn migrate(&self) -> Result<(), Error> {
        let options = &self.shared.options;
        self.shared.calls.lock().call(|client| schema::migrate(client, &options.schema, options.ttl))
    }
}

fn refuse(is_replica: bool, version: i32) -> Result<(), Error> {
    if version < OLDEST {
        let advice = "upgrade it to PostgreSQL 13 or later";
        return Err(Error::config(format!("the server has version {}", version / 10_000), advice));
    }
    if is_replica {
        let advice = "connect to the primary, or name all hosts, of which the one that accepts writes is taken";
        return Err(Error::config("the server is a replica, which accepts no writes", advice));
    }
    Ok(())
}

impl PgStore {
    pub(crate) fn connection(&self) -> Connection {
        Connection::new(self.shared.dial.clone())
    }

    pub(crate) fn calls(&self) -> &Mutex<Connection> {
        &self.shared.calls
    }

    pub(crate) fn keeper(&self) -> &Keeper {
        &self.shared.keeper
    }

    pub(crate) fn options(&self) -> &PgOptions {
        &self.shared.options
    }

    /// Returns the job queues of this database, and makes them if none is open.
    #[cfg_attr(not(feature = "queue"), expect(dead_code, reason = "there are none"))]
    pub(crate) fn queues_or<T: Send + Sync + 'static>(&self, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        let mut queues = self.shared.queues.lock();
        let open = queues.upgrade().and_then(|queues| queues.downcast().ok());
        open.unwrap_or_else(|| {
            let new = make();
            let weak: Weak<T> = Arc::downgrade(&new);
            *queues = weak;
            new
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_server_and_a_replica_are_refused_with_advice() {
        assert!(refuse(false, 130_000).is_ok());
        let text = |outcome: Result<(), Error>| outcome.unwrap_err().to_string();
        assert!(text(refuse(false, 120_017)).contains("version 12: upgrade"));
        assert!(text(refuse(true, 150_018)).contains("primary"));
    }
}
