//! Databases with the tables and functions of the queue, made quickly.

use crate::server::{Database, Server};
use postgres::{Config, NoTls};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use waterline_postgres::{PgOptions, PgStore};

/// A database of one test, whose time is that of the clock of its queues.
pub struct Bench {
    pub store: PgStore,
    pub config: Config,
}

/// Makes a database for one test. It is a copy of one that was migrated once.
pub fn bench() -> Bench {
    static FIRST: OnceLock<(Server, Database)> = OnceLock::new();
    static MADE: AtomicU32 = AtomicU32::new(0);
    let (server, first) = FIRST.get_or_init(|| {
        // These tests are of rules, and not of what a crash of the machine leaves.
        let server = Server::start(&[("fsync", "off"), ("max_connections", "300")]);
        let first = server.database();
        drop(first.store(PgOptions::new().ttl(Duration::from_secs(60))));
        first.client().batch_execute(include_str!("clock.sql")).unwrap();
        (server, first)
    });
    let name = format!("bench{}", MADE.fetch_add(1, Ordering::Relaxed));
    let mut client = server.config("postgres").connect(NoTls).unwrap();
    // A connection that was closed just now may be there for a moment longer.
    common::eventually("the copy of a database", || {
        client.batch_execute(&format!("CREATE DATABASE {name} TEMPLATE {}", first.name)).is_ok()
    });
    let config = server.config(&name);
    // It bounds each call, and some tests make thousands, on a machine that may be loaded.
    let options = PgOptions::new().ttl(Duration::from_secs(60));
    Bench { store: PgStore::connect(config.clone(), NoTls, options).unwrap(), config }
}
