//! Wishes that operators left while a consumer of this process had the name.

use super::shared::{KeeperShared, NameLease};
use crate::error::Error;
use crate::sql::{Value, row_of};
use postgres::types::Type;
use std::time::Instant;
use tokio_postgres::Client;
use waterline::{Index, Record};

/// The kinds of wishes in their table.
pub(crate) const REDRIVE: &str = "redrive";
pub(crate) const DISCARD: &str = "discard";

impl KeeperShared {
    /// Takes up the wishes for this name: their changes to records and their removal are one
    /// transaction, and then the consumer is told. Its next save corrects whatever it saves
    /// meanwhile about such a job.
    pub(super) async fn take_up_wishes(&self, client: &mut Client, lease: &NameLease) -> Result<(), Error> {
        {
            let mut state = lease.state.lock();
            (state.wishes, state.next_look) = (false, Instant::now() + self.options.ttl / 3);
        }
        let (sql, name) = (&self.sql, &&*lease.name);
        let named: [Value<'_>; 1] = [(name, Type::TEXT)];
        let transaction = self.begin(client).await?;
        if transaction.query_typed(&sql.wishes, &named).await?.is_empty() {
            return Ok(());
        }
        if transaction.query_typed(&sql.own, &row_of(name, &lease.mine)).await?.is_empty() {
            // The next renewal finds out what became of the name.
            return Ok(());
        }
        let mut wishes = Vec::new();
        for row in transaction.query_typed(&sql.take_wishes, &named).await? {
            let (kind, index): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
            wishes.push((row.try_get::<_, i64>(2)?, kind, index.cast_unsigned()));
        }
        wishes.sort_unstable();
        let mut records = Vec::new();
        for row in transaction.query_typed(&sql.records, &named).await? {
            records.push(Record::new(row.try_get(0)?, Some(row.try_get(1)?)));
        }
        let parked = |index: Index| {
            let is_it = |record: &&Record| record.parked().is_some_and(|parked| parked.index == index);
            records.iter().find(is_it)
        };
        for (_, kind, index) in &wishes {
            let Some(record) = parked(*index) else { continue };
            if kind == DISCARD {
                let keys = vec![&record.key[..]];
                let removed: [Value<'_>; 2] = [(name, Type::TEXT), (&keys, Type::BYTEA_ARRAY)];
                transaction.query_typed(&sql.remove_records, &removed).await?;
            } else if let Some(wanted) = record.redriven() {
                let row: [Value<'_>; 3] =
                    [(name, Type::TEXT), (&wanted.key, Type::BYTEA), (&wanted.value, Type::BYTEA)];
                transaction.query_typed(&sql.put_record, &row).await?;
            }
        }
        let committed = transaction.commit().await;
        // Without an answer the wishes may be gone. If they are not, they are taken up again.
        for (_, kind, index) in wishes {
            let Some(tenure) = &lease.tenure else { continue };
            if kind == DISCARD { tenure.discard(index) } else { tenure.redrive(index) }
        }
        Ok(committed?)
    }
}
