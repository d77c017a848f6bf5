//! The suites of waterline, on a real server.

use crate::server::Server;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use waterline::testing::ProgressSuite;
use waterline_postgres::PgOptions;

/// A lease that no renewal meets during a test: it is made to lapse by hand.
const LONG: Duration = Duration::from_secs(3600);

#[test]
fn progress_passes_the_suite_with_transactions() {
    let database = Server::shared().database();
    let store = database.store(PgOptions::new().ttl(LONG));
    let mut client = database.client();
    client.batch_execute("CREATE TABLE rows (name text, number bigint, PRIMARY KEY (name, number))").unwrap();
    let client = Arc::new(parking_lot::Mutex::new(client));
    let by_hand = |sql: &str, name: &str| _ = client.lock().execute(sql, &[&name]).unwrap();
    ProgressSuite::new(|name| store.progress(name))
        .lapse(|name| by_hand("UPDATE waterline.progress SET expires = '-infinity' WHERE name = $1", name))
        .corrupt(|name| {
            by_hand("INSERT INTO waterline.done VALUES ($1, -1, 'x')", name);
        })
        .transactional(
            |tx, name, number| {
                let number = i64::try_from(number)?;
                tx.execute("INSERT INTO rows VALUES ($1, $2)", &[&name, &number])?;
                Ok(())
            },
            |name| {
                let rows = client.lock().query("SELECT number FROM rows WHERE name = $1", &[&name]).unwrap();
                rows.iter().map(|row| row.get::<_, i64>(0).unsigned_abs()).collect::<BTreeSet<_>>()
            },
        )
        .run();
}
