//! A store connects, and makes its tables.

use crate::server::{End, Server};
use postgres::NoTls;
use std::time::Duration;
use waterline_postgres::{Error, PgOptions, PgStore};

#[test]
fn the_tables_are_made_once_by_many_who_ask_at_once() {
    let database = Server::shared().database();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| database.store(PgOptions::new()));
        }
    });
    let versions = database.client().query_one("SELECT count(*) FROM waterline.version", &[]).unwrap();
    assert_eq!(versions.get::<_, i64>(0), 1);
    database.store(PgOptions::new().schema("a \"schema\""));
}

#[test]
fn tables_of_a_newer_version_are_a_typed_error() {
    let database = Server::shared().database();
    let store = database.store(PgOptions::new());
    database.client().batch_execute("INSERT INTO waterline.version (version) VALUES (1000)").unwrap();
    assert!(matches!(store.migrate(), Err(Error::NewerSchema { found: 1000, .. })));
}

#[test]
fn a_ttl_below_100_ms_is_refused_before_anybody_connects() {
    let options = PgOptions::new().ttl(Duration::from_millis(99));
    let refused = PgStore::connect(Server::shared().config("nowhere"), NoTls, options);
    assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
}

#[test]
fn a_server_that_is_gone_is_an_error_and_the_next_call_connects_anew() {
    let server = Server::start(&[]);
    let store = server.database().store(PgOptions::new());
    server.stop(End::Immediate);
    assert!(matches!(store.migrate(), Err(Error::Database(_))));
    server.start_again();
    store.migrate().unwrap();
}
