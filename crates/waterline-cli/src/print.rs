//! The answer of a command: tables and sentences for people, or an object of JSON a line.

use crate::error::Fault;
use crate::format::{plain, plain_json};
use serde::Serialize;
use serde_json::Value;
use std::io::{self, IsTerminal, Write};
use unicode_width::UnicodeWidthStr;

/// The answer of a command.
#[derive(Debug, Default)]
pub(crate) struct Report {
    parts: Vec<Part>,
    records: Vec<Value>,
    /// True if the command found something that an operator has to mend.
    pub(crate) is_bad: bool,
    /// Why a part of a change was not done.
    pub(crate) failed: Option<Fault>,
}

#[derive(Debug)]
enum Part {
    Table { head: Vec<&'static str>, rows: Vec<Vec<Cell>> },
    Line(Cell),
}

/// Returns the record of a row: its fields, its type, and the fields in `more`.
pub(crate) fn record<'f>(kind: &str, row: &impl Serialize, more: impl IntoIterator<Item = (&'f str, Value)>) -> Value {
    let mut record = serde_json::to_value(row).unwrap_or_default();
    record["type"] = kind.into();
    more.into_iter().for_each(|(field, value)| record[field] = value);
    record
}

/// A text in a table, with its style.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
    is_number: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tone {
    Plain,
    Faint,
    Good,
    Bad,
    Head,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: plain(&text.into()), tone: Tone::Plain, is_number: false }
    }
}

impl Cell {
    /// Makes a right-aligned cell.
    pub(crate) fn number(number: u64) -> Self {
        Self { is_number: true, ..Self::from(crate::format::number(number)) }
    }

    /// Makes a cell of a number, or of a dash.
    pub(crate) fn maybe(number: Option<u64>) -> Self {
        number.map_or_else(|| Self { is_number: true, ..Self::from("-") }, Self::number)
    }

    /// Makes a cell that is bad unless its number is 0.
    pub(crate) fn bad_number(number: u64) -> Self {
        if number > 0 { Self::number(number).bad() } else { Self::number(number) }
    }

    pub(crate) fn bad(self) -> Self {
        Self { tone: Tone::Bad, ..self }
    }

    pub(crate) fn good(self) -> Self {
        Self { tone: Tone::Good, ..self }
    }

    pub(crate) fn faint(self) -> Self {
        Self { tone: Tone::Faint, ..self }
    }
}

impl Report {
    pub(crate) fn of(is_bad: bool) -> Self {
        Self { is_bad, ..Self::default() }
    }

    pub(crate) fn line(&mut self, line: impl Into<Cell>) {
        self.parts.push(Part::Line(line.into()));
    }

    /// Adds text of several lines, which keep their indents.
    pub(crate) fn text(&mut self, text: &str) {
        text.lines().for_each(|line| self.line(line));
    }

    pub(crate) fn table(&mut self, head: &[&'static str], rows: Vec<Vec<Cell>>) {
        self.parts.push(Part::Table { head: head.to_vec(), rows });
    }

    /// Adds a table of names and values.
    pub(crate) fn pairs(&mut self, pairs: Vec<(&'static str, Cell)>) {
        let rows = pairs.into_iter().map(|(name, value)| vec![Cell::from(name).faint(), value]).collect();
        self.parts.push(Part::Table { head: Vec::new(), rows });
    }

    /// Adds an object for `--json`.
    pub(crate) fn record(&mut self, record: Value) {
        self.records.push(record);
    }

    pub(crate) fn write(&self, json: bool, colour: bool, out: &mut dyn Write) -> io::Result<()> {
        if json {
            return self.records.iter().try_for_each(|record| writeln!(out, "{}", plain_json(&record.to_string())));
        }
        for part in &self.parts {
            match part {
                Part::Line(cell) => writeln!(out, "{}", painted(cell, &cell.text, colour))?,
                Part::Table { head, rows } => write_table(head, rows, colour, out)?,
            }
        }
        Ok(())
    }
}

/// True if the output is for a terminal that shows colours.
pub(crate) fn is_coloured() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !refused && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

fn write_table(head: &[&str], rows: &[Vec<Cell>], colour: bool, out: &mut dyn Write) -> io::Result<()> {
    let numbers = rows.first().map(|row| row.iter().map(|cell| cell.is_number).collect::<Vec<_>>());
    let heads = head.iter().enumerate().map(|(at, name)| {
        let is_number = numbers.as_ref().and_then(|numbers| numbers.get(at)).is_some_and(|number| *number);
        Cell { text: (*name).to_owned(), tone: Tone::Head, is_number }
    });
    let head: Vec<_> = heads.collect();
    let all = || std::iter::once(&head).chain(rows);
    let columns = all().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| all().filter_map(|row| row.get(column)).map(|cell| cell.text.width()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in all().filter(|row| !row.is_empty()) {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let room = " ".repeat(widths[at].saturating_sub(cell.text.width()));
            let is_last = at + 1 == row.len();
            let padded = match (cell.is_number, is_last) {
                (true, _) => format!("{room}{}", cell.text),
                (false, true) => cell.text.clone(),
                (false, false) => format!("{}{room}", cell.text),
            };
            line += &painted(cell, &padded, colour);
            line += if is_last { "" } else { "  " };
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn painted(cell: &Cell, text: &str, colour: bool) -> String {
    let code = match cell.tone {
        _ if !colour => return text.to_owned(),
        Tone::Plain => return text.to_owned(),
        Tone::Faint => "2",
        Tone::Good => "32",
        Tone::Bad => "31",
        Tone::Head => "1",
    };
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_and_coloured_only_if_wanted() {
        let mut report = Report::default();
        report.table(
            &["NAME", "JOBS", "STATE"],
            vec![
                vec!["é".into(), Cell::number(1_234), "ends".into()],
                vec!["blocks".into(), Cell::bad_number(5), Cell::from("halted").bad()],
            ],
        );
        let text = |colour| {
            let mut out = Vec::new();
            report.write(false, colour, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(false), "NAME     JOBS  STATE\né       1,234  ends\nblocks      5  halted\n");
        assert!(text(true).contains("\u{1b}[31m    5\u{1b}[0m  \u{1b}[31mhalted\u{1b}[0m\n"));
    }
}
