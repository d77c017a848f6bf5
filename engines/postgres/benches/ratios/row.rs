//! What the parts share: rounds in turn, and a row of the table.

use std::time::{Duration, Instant};

/// The number of rounds. Floor and subject take turns, and the median counts.
pub const ROUNDS: usize = 5;

/// The payload of a row: 100 bytes.
pub const PAYLOAD: &str =
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789";

pub fn rate(jobs: u64, run: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    run();
    per_second(jobs, begun)
}

pub fn per_second(jobs: u64, begun: Instant) -> f64 {
    f64::from(u32::try_from(jobs).expect("they are few")) / begun.elapsed().max(Duration::from_nanos(1)).as_secs_f64()
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub fn line(what: &str, floor: f64, ours: f64) {
    println!("{what:<68} {floor:>12.0} {ours:>12.0} {:>8.2}", ours / floor);
}
