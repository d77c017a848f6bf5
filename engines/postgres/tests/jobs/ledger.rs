//! The example as a process.

use crate::server::Server;
use crate::size;
use std::path::Path;
use std::process::Command;

#[test]
fn the_ledger_is_exact_after_kills_and_stops() {
    let own = std::env::current_exe().unwrap();
    let ledger = own.parent().and_then(Path::parent).unwrap().join("examples").join("ledger");
    assert!(ledger.is_file(), "{} is not built: run `cargo test`, which builds the examples", ledger.display());
    let (server, database) = (Server::shared(), Server::shared().database());
    let config = format!("host=127.0.0.1 port={} user=postgres dbname={}", server.port(), database.name);
    let ended = Command::new(ledger).args([config, size(4_000, 100_000).to_string()]).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success() && said.contains("verified: 50 balances are exact"), "{said}{errors}");
}
