//! The tables, and a row of one.

use crate::cost::Cost;
use std::cell::{Cell, RefCell};
use std::time::Duration;

pub const ROUNDS: usize = 7;

pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The tables, which are printed row by row.
pub struct Table {
    /// Only rows whose name has this part are measured.
    pub wanted: Option<String>,
    /// The number of rows with a limit, and the names of those that missed it.
    pub limited: Cell<usize>,
    pub missed: RefCell<Vec<String>>,
}

/// A row: its name, and how often the floor and the subject run in a round.
pub struct Row<'a> {
    pub name: &'a str,
    pub floor: &'a str,
    pub times: u64,
    /// The highest ratio that the row may have.
    pub most: f64,
}

impl Table {
    pub fn wants(&self, name: &str) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| name.contains(wanted.as_str()))
    }

    /// Measures the floor and the subject in turns, and prints the ratio of their medians, with the
    /// lowest and the highest ratio of a round.
    pub fn row(&self, Row { name, floor, times, most }: Row<'_>, lowest: impl Fn() -> Cost, ours: impl Fn() -> Cost) {
        if !self.wants(name) {
            return;
        }
        let rounds: Vec<_> = (0..ROUNDS).map(|_| (lowest(), ours())).collect();
        let of = |cost: fn(&(Cost, Cost)) -> Duration| {
            median(rounds.iter().map(cost).collect()).as_nanos() as f64 / times as f64
        };
        let [below, below_cpu] = [of(|round| round.0.wall), of(|round| round.0.cpu)];
        let [above, above_cpu] = [of(|round| round.1.wall), of(|round| round.1.cpu)];
        let ratios = rounds.iter().map(|(floor, ours)| ours.wall.as_secs_f64() / floor.wall.as_secs_f64());
        let (ratio, range) = (above / below, range(ratios));
        println!(
            "| {name:<46} | {:>34} | {above:>7.0} / {above_cpu:>7.0} ns | {ratio:>5.2} | {range:>13} | {most:>7} |",
            format!("{floor} {below:.0} / {below_cpu:.0} ns")
        );
        self.note(name, ratio, most);
    }

    /// Records whether a row missed its limit.
    pub fn note(&self, name: &str, value: f64, most: f64) {
        self.limited.set(self.limited.get() + 1);
        if value > most {
            self.missed.borrow_mut().push(format!("{name} ({value:.2}, at most {most})"));
        }
    }

    /// Says which rows missed their limits.
    pub fn verdict(&self) -> String {
        let (limited, missed) = (self.limited.get(), self.missed.borrow());
        let names = if missed.is_empty() { String::new() } else { format!(": {}", missed.join("; ")) };
        format!("rows that missed their limits: {} of {limited}{names}", missed.len())
    }
}

/// Returns the lowest and the highest of these ratios.
pub fn range(ratios: impl Iterator<Item = f64> + Clone) -> String {
    format!("{:.2} – {:.2}", ratios.clone().fold(f64::MAX, f64::min), ratios.fold(0.0, f64::max))
}
