//! Brings jobs over from an outbox into Redis: what is written with the rows of a store is pushed
//! into a queue of the server, each exactly once, whatever dies on the way.
//!
//! ```sh
//! cargo run -p waterline-redis --example outbox -- redis://localhost
//! ```
//!
//! Here the rows and the outbox are in a store of waterline, which writes them at once. With rows
//! in PostgreSQL the outbox is a table, and the stream is `PgJobs::table(&store, "outbox", …)`,
//! with `store.progress("outbox")` of the same database.

use std::time::Duration;
use waterline::{BoxError, Consumer, JobLog, MemoryJobs, Store};
use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner, Unique};
use waterline_redis::{RedisOptions, RedisStore};

/// For how long the same push makes no second job. The consumer pushes again after a crash or a
/// lost answer: nothing of this is down for a day.
const WITHIN: Duration = Duration::from_secs(24 * 3600);

/// Takes orders: the row and the entry of the outbox are one write.
///
/// # Errors
/// Those of the store.
pub fn take_orders(store: &Store, outbox: &JobLog<(u64, String)>, customers: &[&str]) -> Result<(), BoxError> {
    let (orders, outbox) = (store.table("orders")?, outbox.clone());
    let requests: MemoryJobs<String> = customers.iter().map(|customer| (*customer).to_owned()).collect();
    Consumer::builder(requests, store.progress("orders"))
        .stop_at(customers.len() as u64 - 1)
        .start_transactional(move |job, effects| {
            effects.put(&orders, job.index.to_be_bytes(), &*job.payload)?;
            Ok(effects.push(&outbox, &(job.index, job.payload))?)
        })?
        .join()?;
    Ok(())
}

/// Pushes what is in the outbox, up to this index (they begin with 1), and cuts it off behind that.
///
/// The progress says what was pushed. What was pushed and not yet noted is pushed again, and then
/// the queue knows it: the number of the order is in the payload, by which it is unique.
///
/// # Errors
/// Those of the store. A push that fails is tried again.
pub fn bring_over(store: &Store, outbox: &JobLog<(u64, String)>, queue: &Queue, last: u64) -> Result<(), BoxError> {
    let queue = queue.clone();
    let consumer = Consumer::builder(outbox.clone(), store.progress("outbox")).stop_at(last).start(move |job| {
        let receipt = NewJob::new("receipt", &job.payload)?;
        queue.push(receipt.unique(Unique::within(WITHIN)))?;
        Ok(())
    })?;
    outbox.retain([consumer.handle()]);
    consumer.join()?;
    Ok(())
}

fn main() -> Result<(), BoxError> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://localhost".to_owned());
    let server = RedisStore::connect(url, RedisOptions::new().prefix("outbox"))?;
    server.migrate()?;
    let queue = server.queue("mail", QueueOptions::default())?;

    let store = Store::in_memory(); // `Store::open` to keep it
    let outbox = store.log("outbox")?;
    let customers = ["ann@example.org", "bob@example.org", "cy@example.org"];
    take_orders(&store, &outbox, &customers)?;
    bring_over(&store, &outbox, &queue, customers.len() as u64)?;

    let runner = Runner::builder(&queue).on("receipt", |_job, (order, customer): (u64, String)| {
        println!("order {order}: a receipt for {customer}");
        Ok(Outcome::Done)
    });
    println!("{}", runner.drain(DrainLimits::default())?);
    Ok(())
}
