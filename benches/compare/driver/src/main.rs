//! Starts the programs of the comparison in turn, and draws the tables and the plots.
//!
//! * `measure [WORDS]` builds the programs, asks the questions whose names contain one of the words
//!   (all without words), prints a table for each, and writes every figure to `raw/QUESTION.csv`.
//!   `ROUNDS=1` in the environment is the quick mode; otherwise there are seven rounds.
//! * `draw` puts the medians of `raw/` into the tables of docs/compare.md and README.md, draws the
//!   plots, and puts the output of `make bench` in `raw/bench.md`, if it is there, into
//!   docs/costs.md.

mod build;
mod draw;
mod figures;
mod folders;
mod killed;
mod measure;
mod plots;
mod questions;
mod result;
mod server;

use result::Result;

fn main() -> Result<()> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    match words.split_first() {
        Some((command, words)) if command == "measure" => measure::measure(words),
        Some((command, _)) if command == "draw" => draw::draw(),
        _ => Err("say `measure`, with words of the questions if not all of them are wanted, or `draw`".into()),
    }
}
