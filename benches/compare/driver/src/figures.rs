//! The figures: one line of a file for each run of a program.

use crate::folders::raw;
use crate::result::Result;
use std::fmt::Write as _;
use std::path::Path;

/// The answer of one run. Times are nanoseconds per job.
#[derive(Clone, Debug, Default)]
pub struct Figure {
    pub row: String,
    pub column: String,
    pub round: usize,
    pub wall: f64,
    pub cpu: f64,
    pub p50: f64,
    pub p99: f64,
    /// The jobs that ran again, and those that never ran.
    pub again: u64,
    pub lost: u64,
    /// The reason if there is no figure.
    pub none: String,
}

/// All figures of a question, and the lines about the machine and the columns.
#[derive(Default)]
pub struct Figures {
    pub about: Vec<String>,
    pub all: Vec<Figure>,
}

const HEADER: &str = "row;column;round;wall;cpu;p50;p99;again;lost;none";

impl Figures {
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = String::new();
        self.about.iter().try_for_each(|line| writeln!(text, "# {line}"))?;
        writeln!(text, "{HEADER}")?;
        for f in &self.all {
            let (row, column, round, none) = (&f.row, &f.column, f.round, &f.none);
            let times = [f.wall, f.cpu, f.p50, f.p99].map(|time| format!("{time:.1}")).join(";");
            writeln!(text, "{row};{column};{round};{times};{};{};{none}", f.again, f.lost)?;
        }
        Ok(std::fs::write(path, text)?)
    }

    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut figures = Self::default();
        for line in text.lines().filter(|line| *line != HEADER) {
            if let Some(about) = line.strip_prefix("# ") {
                figures.about.push(about.to_owned());
                continue;
            }
            let cells: Vec<_> = line.split(';').collect();
            let [row, column, round, wall, cpu, p50, p99, again, lost, none] = cells[..] else {
                return Err(format!("{}: {line}", path.display()).into());
            };
            figures.all.push(Figure {
                row: row.to_owned(),
                column: column.to_owned(),
                round: round.parse()?,
                wall: wall.parse()?,
                cpu: cpu.parse()?,
                p50: p50.parse()?,
                p99: p99.parse()?,
                again: again.parse()?,
                lost: lost.parse()?,
                none: none.to_owned(),
            });
        }
        Ok(figures)
    }

    /// Returns the median, the lowest and the highest value of a cell, if it has one.
    pub fn spread(&self, row: &str, column: &str, value: impl Fn(&Figure) -> f64) -> Option<[f64; 3]> {
        let cell = self.all.iter().filter(|figure| figure.row == row && figure.column == column);
        let mut values: Vec<_> = cell.filter(|figure| figure.none.is_empty()).map(value).collect();
        values.sort_by(f64::total_cmp);
        Some([*values.get(values.len() / 2)?, *values.first()?, *values.last()?])
    }

    pub fn median(&self, row: &str, column: &str, value: impl Fn(&Figure) -> f64) -> Option<f64> {
        self.spread(row, column, value).map(|[median, ..]| median)
    }

    /// Returns the reason for an empty cell.
    pub fn none(&self, row: &str, column: &str) -> &str {
        let cell = self.all.iter().filter(|figure| figure.row == row && figure.column == column);
        cell.map(|figure| figure.none.as_str()).find(|none| !none.is_empty()).unwrap_or_default()
    }
}

/// Returns the figures of a question, as they were measured.
pub fn figures(name: &str) -> Result<Figures> {
    Figures::read(&raw().join(format!("{name}.csv")))
}

/// Returns the unit for numbers of this size: its name and its length.
pub fn unit(nanos: f64) -> (&'static str, f64) {
    match nanos {
        ..10_000.0 => ("ns", 1.0),
        ..10_000_000.0 => ("µs", 1e3),
        _ => ("ms", 1e6),
    }
}

/// Returns a number in this unit, with three digits or more.
pub fn number(nanos: f64, unit: f64) -> String {
    let number = nanos / unit;
    let digits = if unit == 1.0 || number >= 99.95 { 0 } else { usize::from(number < 99.95) };
    format!("{number:.digits$}")
}

/// Returns a time with its unit.
pub fn time(nanos: f64) -> String {
    let (name, length) = unit(nanos);
    format!("{} {name}", number(nanos, length))
}
