//! This program once more: a worker or a standby in a process of its own.

use crate::server::Database;
use postgres::Config;
use std::process::Command;
use waterline_postgres::PgStore;
use waterline_queue::{Queue, QueueOptions, Retention};

const ROLE: &str = "WATERLINE_BENCH_ROLE";
const PORT: &str = "WATERLINE_BENCH_PORT";
const DATABASE: &str = "WATERLINE_BENCH_DATABASE";

/// Returns the command of a process with this role. The port is that of the server or of a pooler.
pub fn command(role: &str, port: u16, database: &Database) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.env(ROLE, role).env(PORT, port.to_string()).env(DATABASE, &database.name);
    command
}

/// Returns the database of this process, if it has this role.
pub fn config(role: &str) -> Option<Config> {
    std::env::var(ROLE).ok().filter(|of| of == role)?;
    let set = |name: &str| std::env::var(name).expect("it is set");
    let mut config = Config::new();
    config.host("127.0.0.1").port(set(PORT).parse().expect("it is a port")).user("postgres").dbname(&set(DATABASE));
    Some(config)
}

pub fn queue(store: &PgStore) -> Queue {
    store.queue("q", QueueOptions::default().retention(Retention::Drop)).expect("the database is there")
}
