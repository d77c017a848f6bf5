//! Connecting a store, and making its tables.

use crate::server::{End, Server};
use postgres::NoTls;
use std::time::Duration;
use waterline::Progress;
use waterline_postgres::{Error, PgOptions, PgStore};

#[test]
fn concurrent_migrations_make_the_tables_once() {
    let database = Server::shared().database();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| database.store(PgOptions::new()));
        }
    });
    let versions = "SELECT count(*) = max(version) FROM waterline.version";
    assert!(database.client().query_one(versions, &[]).unwrap().get::<_, bool>(0), "each is made once");
    database.store(PgOptions::new().schema("a \"schema\""));
}

#[test]
fn tables_made_from_the_schema_text_need_no_migration() {
    let database = Server::shared().database();
    database.client().batch_execute(&PgStore::SCHEMA.replace("{schema}", "ours")).unwrap();
    database.client().batch_execute("CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA ours TO reader").unwrap();
    database.client().batch_execute("GRANT SELECT ON ours.version TO reader").unwrap();
    let mut config = database.config.clone();
    config.user("reader");
    PgStore::connect(config, NoTls, PgOptions::new().schema("ours")).unwrap().migrate().unwrap();
    let store = database.store(PgOptions::new().schema("ours"));
    assert!(store.progress("p").acquire_all().unwrap().is_none());
}

#[test]
fn the_host_that_accepts_writes_is_chosen() {
    let server = Server::shared();
    let database = server.database();
    // First no server, then one whose sessions may only read.
    let mut config = postgres::Config::new();
    config.user("postgres").dbname(&database.name).host("127.0.0.1").host("127.0.0.1");
    config.port(1).port(server.port());
    let store = PgStore::connect(config.clone(), NoTls, PgOptions::new()).unwrap();
    store.migrate().unwrap();
    config.options("-c default_transaction_read_only=on");
    let refused = PgStore::connect(config, NoTls, PgOptions::new());
    let text = format!("{refused:?}");
    assert!(matches!(refused, Err(Error::Database(_))) && text.contains("does not allow writes"), "{text}");
}

#[test]
fn tables_of_a_newer_version_are_a_typed_error() {
    let database = Server::shared().database();
    let store = database.store(PgOptions::new());
    database.client().batch_execute("INSERT INTO waterline.version (version) VALUES (1000)").unwrap();
    assert!(matches!(store.migrate(), Err(Error::NewerSchema { found: 1000, .. })));
}

#[test]
fn a_ttl_below_100_ms_is_refused_before_connecting() {
    let options = PgOptions::new().ttl(Duration::from_millis(99));
    let refused = PgStore::connect(Server::shared().config("nowhere"), NoTls, options);
    assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
}

#[test]
fn a_lost_server_is_an_error_and_the_next_call_reconnects() {
    let server = Server::start(&[]);
    let store = server.database().store(PgOptions::new());
    server.stop(End::Immediate);
    assert!(matches!(store.migrate(), Err(Error::Database(_))));
    server.start_again();
    store.migrate().unwrap();
}

#[test]
fn names_are_renewed_and_released_under_read_only_defaults() {
    let database = Server::shared().database();
    let mut config = database.config.clone();
    config.options("-c default_transaction_read_only=on -c default_transaction_isolation=serializable");
    let store = PgStore::connect(config, NoTls, PgOptions::new().ttl(Duration::from_millis(500))).unwrap();
    store.migrate().unwrap();
    let mut progress = store.progress("p");
    progress.acquire_all().unwrap();
    let mut client = database.client();
    let mut expires =
        || -> std::time::SystemTime { client.query_one("SELECT expires FROM waterline.progress", &[]).unwrap().get(0) };
    for _ in 0..3 {
        let last = expires();
        common::eventually("a renewal", || expires() > last);
    }
    progress.save_all(&waterline::Saved::new(Some(1), 2, Vec::new())).unwrap();
    drop(progress);
    assert!(store.progress("p").acquire_all().unwrap().is_some(), "the name was given back");
    store.remove("p").unwrap();
}

#[test]
fn processes_that_migrate_at_once_take_turns() {
    let database = Server::shared().database();
    let options = || PgOptions::new().ttl(Duration::from_secs(60));
    let connect = |_| PgStore::connect(database.config.clone(), NoTls, options()).unwrap();
    let stores: Vec<_> = (0..8).map(connect).collect();
    std::thread::scope(|scope| stores.iter().for_each(|store| _ = scope.spawn(|| store.migrate().unwrap())));
}
