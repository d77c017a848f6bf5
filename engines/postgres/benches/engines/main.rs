//! The costs of the engine on PostgreSQL, beside those of the same statements by hand. `make
//! bench-engines` prints them, and fails if one is beyond its limit.
//!
//! The server is a real one on this machine, with a flush for each commit. As in `benches/ratios`
//! the floor and the subject take turns, and a ratio is that of two medians of seven rounds. An
//! argument selects the rows whose name contains it.

// The bench needs a part of it.
#[allow(dead_code)]
#[path = "../../tests/server/mod.rs"]
mod server;

mod looks;
mod takeover;
mod writing;

use server::Server;
use std::process::ExitCode;
use std::time::Duration;

const ROUNDS: usize = 7;

/// The limit of a figure.
#[derive(Clone, Copy)]
enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

/// The table that is printed.
struct Table {
    wanted: Vec<String>,
    /// The rows beyond their limits.
    beyond: Vec<String>,
}

impl Table {
    /// True if the arguments select this row.
    fn wants(&self, name: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|wanted| name.contains(wanted.as_str()))
    }

    /// Prints a row.
    fn row(&mut self, name: &str, limit: Limit, ours: f64, unit: &str) {
        let (word, most, holds) = match limit {
            Limit::AtMost(most) => ("at most", most, ours <= most),
            Limit::AtLeast(least) => ("at least", least, ours >= least),
        };
        println!("| {name:<66} | {word:>8} {most:>5.2} | {ours:>7.3} {unit:<2} |");
        if !holds {
            self.beyond.push(format!("{name}: {ours:.3} {unit}, {word} {most}"));
        }
    }
}

/// Measures two things in turn. Returns both medians.
fn in_turn(mut floor: impl FnMut() -> Duration, mut ours: impl FnMut() -> Duration) -> (f64, f64) {
    let (mut floors, mut all) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        floors.push(floor().as_secs_f64());
        all.push(ours().as_secs_f64());
    }
    (median(&mut floors), median(&mut all))
}

fn median(all: &mut [f64]) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() -> ExitCode {
    if takeover::is_member() {
        return takeover::member();
    }
    let wanted = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let mut table = Table { wanted, beyond: Vec::new() };
    let server = Server::start(&[("fsync", "on")]);
    println!("| {:<66} | {:>14} | {:>10} |", "PostgreSQL", "limit", "ours");
    println!("|{:-<68}|{:->16}|{:->12}|", "", ":", ":");
    writing::rows(&mut table, &server);
    looks::rows(&mut table, &server);
    takeover::rows(&mut table, &server);
    for row in &table.beyond {
        eprintln!("beyond its limit: {row}");
    }
    if table.beyond.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
