//! The functions of the schema, called with `tokio-postgres`: a push in the transaction of its
//! own rows, and the end of a job in that of its effects. The example `own_transaction_sqlx`
//! does so with `sqlx`.
//!
//! ```sh
//! cargo run -p waterline-postgres --example own_transaction -- "host=localhost user=shop dbname=shop"
//! ```

use tokio_postgres::{Client, Error};

const PUSH: &str = "SELECT id FROM waterline.push('mail', 'receipt', $1, $2::text::jsonb)";
// By itself a transaction: if a crash of the server loses it, the job is ready again.
const CLAIM: &str =
    "SELECT job, token, payload FROM waterline.claim('mail', 1, 'example', '{receipt}', p_async => true)";
const FINISH: &str = "SELECT waterline.finish(ARRAY[$1::bigint], ARRAY[$2::bigint])";
const FAIL: &str = "SELECT waterline.fail(ARRAY[$1::bigint], ARRAY[$2::bigint], ARRAY[$3::text])";

/// Takes an order, and pushes the job for its receipt. Both are there, or none is.
///
/// # Errors
/// Those of the database: then nothing of the transaction is there.
pub async fn order(client: &mut Client, customer: &str, cents: i32) -> Result<String, Error> {
    let transaction = client.transaction().await?;
    let insert = "INSERT INTO orders (customer, cents) VALUES ($1, $2) RETURNING id";
    let order: i64 = transaction.query_one(insert, &[&customer, &cents]).await?.get(0);
    // The id makes it one job until it has run.
    let settings = format!(r#"{{"id": "receipt-{order}"}}"#);
    let id = transaction.query_one(PUSH, &[&order.to_string(), &settings]).await?.get(0);
    transaction.commit().await?;
    Ok(id)
}

/// Does one job, if there is any. Its effects and its end are one transaction.
///
/// # Errors
/// Those of the database: then nothing of the transaction is there.
pub async fn work(client: &mut Client) -> Result<bool, Error> {
    let Some(claimed) = client.query_opt(CLAIM, &[]).await? else { return Ok(false) };
    let (job, token, payload): (i64, i64, String) = (claimed.get(0), claimed.get(1), claimed.get(2));
    let Ok(order) = payload.parse::<i64>() else {
        client.query_one(FAIL, &[&job, &token, &"the payload is no number of an order"]).await?;
        return Ok(true);
    };
    let transaction = client.transaction().await?;
    let ended: Vec<i64> = transaction.query_one(FINISH, &[&job, &token]).await?.get(0);
    if ended.is_empty() {
        // The lease was over, so somebody else has the job: nothing is written for it.
        return Ok(true);
    }
    transaction.execute("UPDATE orders SET receipt = now() WHERE id = $1", &[&order]).await?;
    transaction.commit().await?;
    Ok(true)
}

#[cfg(not(test))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = std::env::args().nth(1).ok_or("a database: \"host=localhost user=shop dbname=shop\"")?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let (mut client, connection) = tokio_postgres::connect(&config, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        println!("pushed {}", order(&mut client, "ann@example.org", 1999).await?);
        while work(&mut client).await? {}
        Ok(())
    })
}
