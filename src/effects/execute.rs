//! SQL statements in the atomic write of a job.

use super::Effects;
use crate::base::{Error, config::ConfigError};
use crate::commit::sql::Statements;
use crate::kv::statement::{SqlParams, Statement};

impl Effects {
    /// Runs an SQL statement in your own tables, in the transaction that completes the job.
    ///
    /// Both take effect, or neither. The store must be on SQLite, usually in a file of yours
    /// (`Store::attach_sqlite`).
    ///
    /// The statement runs soon after the closure has returned, before all other changes are
    /// written. Statements keep their order, within a job and across jobs. One text is prepared
    /// once for all jobs, so pass values as parameters: `?1`, `?2` and so on. It returns no result:
    /// use [`execute_exactly`](Self::execute_exactly) for a statement that must match its rows.
    ///
    /// A statement that the database refuses fails its job with [`Error::Sql`], which names the
    /// statement, and none of the job's changes are written. It is not retried: the job is parked,
    /// or its consumer halts with the index. [`Store::write`](crate::Store::write) returns the
    /// error. This covers constraints, syntax errors, missing tables and a wrong number of values,
    /// even a deferred foreign key that only the commit checks. If the file is locked, or the disk
    /// is full, all of it is retried, as every save is.
    ///
    /// Also refused are statements that would end the transaction or leave the file (`BEGIN`,
    /// `COMMIT`, `ROLLBACK`, `SAVEPOINT`, `ATTACH`, `PRAGMA`), those that touch a table of the
    /// store, whose name begins with `waterline_`, and those that create an object of such a name,
    /// or a trigger or a foreign key that refers to one.
    ///
    #[cfg_attr(feature = "sqlite", doc = "```")]
    #[cfg_attr(not(feature = "sqlite"), doc = "```ignore")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let file = directory.path().join("app.db");
    /// use waterline::{Consumer, MemoryJobs, Store};
    ///
    /// let mine = rusqlite::Connection::open(&file)?;
    /// mine.execute_batch(
    ///     "CREATE TABLE accounts (id TEXT PRIMARY KEY, cents INTEGER NOT NULL) STRICT;
    ///      INSERT INTO accounts VALUES ('ann', 0);",
    /// )?;
    ///
    /// let store = Store::attach_sqlite(&file)?;
    /// let transfers: MemoryJobs<_> = [(500, "ann"), (-200, "ann")].into_iter().collect();
    /// Consumer::builder(transfers, store.progress("accounts"))
    ///     .stop_at(1)
    ///     .start_transactional(|job, effects| {
    ///         let (cents, id) = job.payload;
    ///         let deposit = "UPDATE accounts SET cents = cents + ?1 WHERE id = ?2";
    ///         Ok(effects.execute(deposit, (cents, id))?)
    ///     })?
    ///     .join()?;
    ///
    /// let cents = mine.query_row("SELECT cents FROM accounts", [], |row| row.get::<_, i64>(0))?;
    /// assert_eq!(cents, 300);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] for a store that takes no SQL, [`Error::EffectsTooLarge`] if the effects
    /// would exceed [`Builder::max_effects`](crate::Builder::max_effects): the text and the values
    /// count. An attempt or a write that was refused a change fails even if the closure then
    /// returns `Ok`.
    pub fn execute(&mut self, sql: impl AsRef<str>, values: impl SqlParams) -> Result<(), Error> {
        self.run(sql.as_ref(), values, None)
    }

    /// Runs a statement like [`execute`](Self::execute), which must change exactly this many rows.
    ///
    /// Otherwise it is refused with [`Error::Sql`], and nothing of its job is written.
    ///
    #[cfg_attr(feature = "sqlite", doc = "```")]
    #[cfg_attr(not(feature = "sqlite"), doc = "```ignore")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let file = directory.path().join("app.db");
    /// use waterline::{Error, Store};
    ///
    /// let store = Store::attach_sqlite(&file)?;
    /// store.write(|effects| {
    ///     effects.execute("CREATE TABLE seats (number INTEGER PRIMARY KEY, guest TEXT)", ())?;
    ///     effects.execute("INSERT INTO seats VALUES (1, NULL)", ())
    /// })?;
    /// let take = |guest: &str| {
    ///     let taken = "UPDATE seats SET guest = ?1 WHERE number = 1 AND guest IS NULL";
    ///     store.write(|effects| effects.execute_exactly(1, taken, [guest]))
    /// };
    /// take("ann")?;
    /// assert!(matches!(take("bob"), Err(Error::Sql { .. })));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`execute`](Self::execute).
    pub fn execute_exactly(&mut self, rows: u64, sql: impl AsRef<str>, values: impl SqlParams) -> Result<(), Error> {
        self.run(sql.as_ref(), values, Some(rows))
    }

    fn run(&mut self, sql: &str, values: impl SqlParams, rows: Option<u64>) -> Result<(), Error> {
        if !self.store.takes_sql {
            let why = "this store takes no SQL: use one on SQLite (`Store::attach_sqlite`), or a table of the store";
            return Err(self.refuse(|| ConfigError::Unsupported { setting: "execute", why: why.to_owned() }.into()));
        }
        let statement = Statement::encode(sql, &values.into_values(), rows);
        self.admit_more(statement.len())?;
        self.changes.refusable_op(Statements::participant(), statement);
        Ok(())
    }
}
