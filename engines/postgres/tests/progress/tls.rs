//! A server that speaks TLS, with the connector of the example.

use crate::bank;
use crate::server::tls;
use crate::server::{Database, Server};
use common::numbers;
use postgres::config::SslMode;
use postgres::{NoTls, Transaction};
use waterline::Consumer;
use waterline_postgres::{Error, PgOptions, PgStore};

#[path = "../../examples/tls.rs"]
mod example;

fn encrypted(database: &Database) -> i64 {
    let count = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
        WHERE ssl AND application_name = 'waterline'";
    database.client().query_one(count, &[]).unwrap().get(0)
}

#[test]
fn all_connections_are_encrypted_and_untrusted_servers_refused() {
    let (server, authority) = tls::server();
    let database = server.database();
    bank::open(&database);
    let mut config = database.config.clone();
    config.ssl_mode(SslMode::Require);
    let connector = example::connector(&authority).unwrap();
    let store = PgStore::connect(config.clone(), connector, PgOptions::new()).unwrap();
    store.migrate().unwrap();
    let write = |tx: &mut Transaction<'_>, results: &[(u64, u64)]| bank::write(tx, results);
    let consumer =
        Consumer::builder(numbers(50), store.progress("p")).start_writing(|job| Ok(job.fence), write).unwrap();
    assert!(consumer.handle().wait_for(49, common::LONG));
    common::eventually("an encrypted thread of the store", || encrypted(&database) == 3);
    consumer.stop().unwrap();
    bank::assert_exact(&database, 50);

    // Without a connector nothing is encrypted, and what has to be encrypted fails.
    let refused = PgStore::connect(config.clone(), NoTls, PgOptions::new());
    assert!(matches!(refused, Err(Error::Database(_))), "{refused:?}");
    PgStore::connect(database.config.clone(), NoTls, PgOptions::new()).unwrap();
    // A server with another authority is refused, too.
    let (_other, another) = tls::server();
    let refused = PgStore::connect(config, example::connector(&another).unwrap(), PgOptions::new());
    assert!(matches!(refused, Err(Error::Database(_))), "{refused:?}");
}

#[test]
fn ssl_mode_prefer_accepts_a_server_without_tls() {
    let (_server, authority) = tls::server();
    let database = Server::shared().database();
    let connector = example::connector(&authority).unwrap();
    let mut config = database.config.clone();
    config.ssl_mode(SslMode::Prefer);
    PgStore::connect(config.clone(), connector.clone(), PgOptions::new()).unwrap().migrate().unwrap();
    config.ssl_mode(SslMode::Require);
    let refused = PgStore::connect(config, connector, PgOptions::new());
    assert!(format!("{refused:?}").contains("does not support TLS"), "{refused:?}");
}
