//! Processes a stream once more with new code, beside the old results. Then the new rows and their
//! progress take the place of the old ones, in one transaction.
//!
//! ```sh
//! cargo run --example run_again -- "host=localhost user=app dbname=bank"
//! ```

use std::error::Error;
use waterline::{Consumer, Jobs};
use waterline_postgres::postgres::{Config, NoTls, Row, Transaction};
use waterline_postgres::{PgJobs, PgOptions, PgStore};

/// Needs the tables `transfers` (id, account, amount) and `balances` (account, balance).
pub(crate) fn run_again(config: &Config) -> Result<(), Box<dyn Error + Send + Sync>> {
    let store = PgStore::connect(config.clone(), NoTls, PgOptions::new())?;
    let mut client = config.connect(NoTls)?;
    client.batch_execute("CREATE TABLE IF NOT EXISTS balances_2 (LIKE balances INCLUDING ALL)")?;

    // Up to the transfers of this moment. The old consumer goes on meanwhile.
    let decode = |row: &Row| Ok((row.try_get::<_, i64>("account")?, row.try_get::<_, i64>("amount")?));
    let transfers = PgJobs::table(&store, "transfers", decode)?;
    let Some(head) = transfers.head()? else { return Ok(()) };
    let write = |tx: &mut Transaction<'_>, results: &[(_, (i64, i64))]| {
        for (_, (account, amount)) in results {
            let add = "INSERT INTO balances_2 AS b VALUES ($1, $2)
                ON CONFLICT (account) DO UPDATE SET balance = b.balance + excluded.balance";
            tx.execute(add, &[account, amount])?;
        }
        Ok(())
    };
    let consumer = Consumer::builder(transfers, store.progress("balances-2")).stop_at(head);
    let new_code = |(account, amount)| (account, amount - 1); // a fee was forgotten
    consumer.start_writing(move |job| Ok(new_code(job.payload)), write)?.join()?;

    // Stop the old consumer here. The next one has the new code, the name `balances`, and goes on.
    let mut transaction = client.transaction()?;
    store.replace_in(&mut transaction, &[("balances-2", "balances")])?;
    transaction.batch_execute("DROP TABLE balances; ALTER TABLE balances_2 RENAME TO balances")?;
    Ok(transaction.commit()?)
}

#[allow(dead_code, reason = "a test has the part above")]
fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    run_again(&std::env::args().nth(1).ok_or("usage: run_again CONFIGURATION")?.parse()?)
}
