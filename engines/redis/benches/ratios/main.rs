//! What the functions cost the server, beside bare commands in the same round, on a real server
//! with an append-only file. `make bench-engines` runs it. Compare ratios, on a quiet machine.

#[path = "../../tests/server/mod.rs"]
mod server;

mod costs;
mod pickup;
mod queue;
mod row;
mod sizes;

use server::Server;

const PARTS: [&str; 3] = ["costs", "sizes", "pick-up"];

fn main() {
    if pickup::is_worker() || std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let server = Server::start(&[
        ("appendfsync", "everysec"),
        ("slowlog-log-slower-than", "200"),
        ("auto-aof-rewrite-percentage", "0"),
    ]);
    let named: Vec<_> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let has = |part: &str| named.is_empty() || named.iter().any(|name| name == part);
    assert!(named.iter().all(|name| PARTS.contains(&&**name)), "the parts are {PARTS:?}");
    let mut is_within = !has("costs") || costs::measure(&server);
    is_within &= !has("sizes") || sizes::measure(&server);
    is_within &= !has("pick-up") || pickup::measure(&server);
    assert!(is_within, "a figure is beyond its limit");
}
