//! Databases with the tables and functions of the queue, made quickly.

use crate::server::{Database, PATIENCE, Server};
use postgres::{Client, Config, NoTls};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use waterline_postgres::{PgOptions, PgStore};

/// A database of one test, whose time is that of the clock of its queues.
pub struct Bench {
    pub store: PgStore,
    pub config: Config,
}

/// Starts a server for rules and costs, with a database that has the tables.
pub fn server() -> (Server, Database) {
    // These tests are not about crashes of the machine. A vacuum would change what calls cost:
    // while it runs, it keeps dead rows as an open transaction does.
    let server = Server::start(&[("fsync", "off"), ("autovacuum", "off"), ("max_connections", "300")]);
    let first = server.database();
    drop(first.store(PgOptions::new().ttl(Duration::from_secs(60))));
    first.client().batch_execute(include_str!("clock.sql")).unwrap();
    (server, first)
}

/// Makes a database for one test: a copy of one that was migrated once.
pub fn bench() -> Bench {
    static FIRST: OnceLock<(Server, Database)> = OnceLock::new();
    static MADE: AtomicU32 = AtomicU32::new(0);
    let (server, first) = FIRST.get_or_init(server);
    let name = format!("bench{}", MADE.fetch_add(1, Ordering::Relaxed));
    let mut client = server.config("postgres").connect(NoTls).unwrap();
    // A connection that was just closed may be there for a moment longer.
    common::eventually("the copy of a database", || {
        client.batch_execute(&format!("CREATE DATABASE {name} TEMPLATE {}", first.name)).is_ok()
    });
    let config = server.config(&name);
    // The TTL bounds each call, and some tests make thousands, on a machine that may be loaded.
    let options = PgOptions::new().ttl(Duration::from_secs(60));
    Bench { store: PgStore::connect(config.clone(), NoTls, options).unwrap(), config }
}

/// Waits until all jobs have ended, as long as some do: on a loaded machine leases end before their
/// jobs, which then wait and run alone.
#[track_caller]
pub fn wait_for_all_ends(client: &mut Client) {
    let (mut begun, mut least) = (Instant::now(), i64::MAX);
    loop {
        let left: i64 = client.query_one("SELECT count(*) FROM waterline.job", &[]).unwrap().get(0);
        if left == 0 {
            return;
        }
        if left < least {
            (begun, least) = (Instant::now(), left);
        }
        if begun.elapsed() > PATIENCE {
            let jobs = client.query_one("SELECT array_agg(j::text) FROM waterline.job j", &[]).unwrap();
            panic!("waited in vain for jobs to end: {:#?}", jobs.get::<_, Vec<String>>(0));
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
}
