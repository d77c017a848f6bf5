//! The functions of the schema, called with `sqlx`: a push in the transaction of its own rows, and
//! the end of a job in that of its effects. The example `own_transaction` does so with
//! `tokio-postgres`.
//!
//! ```sh
//! cargo run -p waterline-postgres --example own_transaction_sqlx -- postgres://shop@localhost/shop
//! ```

use sqlx::{Error, PgPool};

const ORDER: &str = "INSERT INTO orders (customer, cents) VALUES ($1, $2) RETURNING id";
// `sqlx` has `jsonb` with its feature `json` alone, so the settings go as text.
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
pub async fn order(pool: &PgPool, customer: &str, cents: i32) -> Result<String, Error> {
    let mut transaction = pool.begin().await?;
    let order: i64 = sqlx::query_scalar(ORDER).bind(customer).bind(cents).fetch_one(&mut *transaction).await?;
    // The id makes it one job until it has run.
    let settings = format!(r#"{{"id": "receipt-{order}"}}"#);
    let push = sqlx::query_scalar(PUSH).bind(order.to_string()).bind(settings);
    let id = push.fetch_one(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(id)
}

/// Does one job, if there is any. Its effects and its end are one transaction.
///
/// # Errors
/// Those of the database: then nothing of the transaction is there.
pub async fn work(pool: &PgPool) -> Result<bool, Error> {
    let claimed: Option<(i64, i64, String)> = sqlx::query_as(CLAIM).fetch_optional(pool).await?;
    let Some((job, token, payload)) = claimed else { return Ok(false) };
    let Ok(order) = payload.parse::<i64>() else {
        let fail = sqlx::query(FAIL).bind(job).bind(token);
        fail.bind("the payload is no number of an order").execute(pool).await?;
        return Ok(true);
    };
    let mut transaction = pool.begin().await?;
    let ended: Vec<i64> = sqlx::query_scalar(FINISH).bind(job).bind(token).fetch_one(&mut *transaction).await?;
    if ended.is_empty() {
        // The lease was over, so somebody else has the job: nothing is written for it.
        return Ok(true);
    }
    let receipt = sqlx::query("UPDATE orders SET receipt = now() WHERE id = $1");
    receipt.bind(order).execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(true)
}

#[cfg(not(test))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("a database: postgres://shop@localhost/shop")?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let pool = PgPool::connect(&url).await?;
        println!("pushed {}", order(&pool, "ann@example.org", 1999).await?);
        while work(&pool).await? {}
        Ok(())
    })
}
