//! One progress in the place of another, in a transaction of the user's.

use crate::error::Error;
use crate::progress::{check_name, is_ahead, release, set_back, take};
use crate::row::Mine;
use crate::sql::Value;
use crate::store::PgStore;
use postgres::Transaction;
use postgres::types::Type;
use std::collections::BTreeMap;

impl PgStore {
    /// Gives each first name's progress to the second name, whose own is deleted, in a transaction
    /// of yours: what is done, parked jobs, and the moves by hand. So new code can process a stream
    /// from its beginning under a name and into tables of its own, beside the old code, and then
    /// both take the place of the old ones at once:
    ///
    /// ```no_run
    /// use waterline_postgres::postgres::{Config, NoTls};
    /// use waterline_postgres::{PgOptions, PgStore};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config: Config = "host=localhost user=app dbname=bank".parse()?;
    /// let store = PgStore::connect(config.clone(), NoTls, PgOptions::new())?;
    /// let mut client = config.connect(NoTls)?;
    /// let mut transaction = client.transaction()?;
    /// store.replace_in(&mut transaction, &[("balances-2", "balances")])?;
    /// transaction.batch_execute("DROP TABLE balances; ALTER TABLE balances_2 RENAME TO balances")?;
    /// transaction.commit()?;                  // the rows and the progress, or neither
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The example `run_again` is the whole program.
    ///
    /// * Stop the consumers of both names before, and the standbys: one that waits for the first
    ///   name has it after the commit, and begins anew.
    /// * Until the transaction ends, a consumer that starts on one of the names waits for it. It
    ///   then finds what was committed. An earlier one that still goes on, since it froze or lost
    ///   its connection, is fenced: it writes nothing more.
    /// * The first names are free then, with nothing saved. The numbers of lives only grow, so
    ///   [`Job::fence`](waterline::Job::fence) does too, under each of the names.
    /// * An error changes nothing, and the transaction can go on. A rollback leaves everything as
    ///   it was. Call this before the statements that change your tables: it waits for no consumer
    ///   that waits for those.
    ///
    /// # Errors
    /// [`Error::Leased`] while a consumer has one of the names; [`Error::Config`] for a first name
    /// under which nothing is saved, a name that is there twice, or an invalid one;
    /// [`Error::Database`] and [`Error::Schema`].
    pub fn replace_in(&self, transaction: &mut Transaction<'_>, names: &[(&str, &str)]) -> Result<(), Error> {
        let replaced = self.replace_all(transaction, names);
        if let (Err(Error::Leased { name, .. }), true) = (&replaced, is_ahead(&replaced, self.options().ttl)) {
            self.in_transaction(|own| set_back(own, self.sql(), name))?;
        }
        replaced
    }

    fn replace_all(&self, transaction: &mut Transaction<'_>, names: &[(&str, &str)]) -> Result<(), Error> {
        let (sql, options, token) = (self.sql(), self.options(), fastrand::i64(1..));
        let mut lives = BTreeMap::<&str, Option<Mine>>::new();
        for name in names.iter().flat_map(|(from, to)| [*from, *to]) {
            check_name(name)?;
            if lives.insert(name, None).is_some() {
                let what = format!("the progress name {name:?} is there twice");
                return Err(Error::config(what, "replace each progress once, by another one"));
            }
        }
        // Its end without a commit takes everything below back, and frees the locks.
        let mut savepoint = transaction.transaction()?;
        // In the order of the names, so that no two callers wait for each other.
        for (name, life) in &mut lives {
            *life = Some(take(&mut savepoint, sql, name, token, &options.holder, options.ttl, false)?.mine);
        }
        let schema = sql.schema();
        // The number of lives is higher than each that either name has had.
        let inherit = format!(
            "UPDATE {schema}.progress AS heir SET watermark = p.watermark, next = p.next, moved = p.moved,
                 epoch = greatest(heir.epoch, p.epoch)
             FROM {schema}.progress AS p WHERE heir.name = $2 AND p.name = $1 AND p.next IS NOT NULL
             RETURNING heir.epoch"
        );
        for (from, to) in names {
            let both: [Value<'_>; 2] = [(from, Type::TEXT), (to, Type::TEXT)];
            let Some(row) = savepoint.query_typed(&inherit, &both)?.pop() else {
                let what = format!("nothing is saved under the progress name {from:?}");
                return Err(Error::config(what, "name the one whose consumer has made the new rows first"));
            };
            if let Some(Some(mine)) = lives.get_mut(to) {
                mine.epoch = row.try_get(0)?;
            }
            for forget in &sql.forget[1..] {
                savepoint.query_typed(forget, &[(to, Type::TEXT)])?;
            }
            for table in ["done", "record", "move", "wish"] {
                let rename = format!("UPDATE {schema}.{table} SET name = $2 WHERE name = $1");
                savepoint.query_typed(&rename, &both)?;
            }
            savepoint.query_typed(&sql.forget[0], &[(from, Type::TEXT)])?;
        }
        for (name, life) in lives {
            life.map_or(Ok(()), |mine| release(&mut savepoint, sql, name, &mine))?;
        }
        Ok(savepoint.commit()?)
    }
}
