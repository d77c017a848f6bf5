//! Puts the figures into the pages: the tables of docs/compare.md, the three rows of README.md, the
//! plots, and the tables of docs/costs.md.

use crate::figures::{Figure, Figures, figures, number, time, unit};
use crate::folders::{checkout, raw};
use crate::questions::{Kind, Question, Row};
use crate::result::Result;
use crate::{plots, questions};
use std::fs;

pub fn draw() -> Result<()> {
    let page = checkout().join("docs/compare.md");
    let mut text = fs::read_to_string(&page)?;
    for question in questions::all(0.0) {
        let figures = figures(question.name)?;
        let mut lines = head(&question);
        lines.extend(question.rows.iter().map(|row| line(&question, row, &figures)));
        text = with_table(&text, question.heading, &lines)?;
    }
    text = with_table(&text, "Columns", &columns()?)?;
    text = with_table(&text, "Machine", &machine()?)?;
    fs::write(page, text)?;
    plots::draw()?;
    let readme = checkout().join("README.md");
    fs::write(&readme, with_table(&fs::read_to_string(&readme)?, "What it costs", &summary()?)?)?;
    if let Ok(bench) = fs::read_to_string(raw().join("bench.md")) {
        let page = checkout().join("docs/costs.md");
        let mut text = fs::read_to_string(&page)?;
        for first in ["| per job", "| latency", "| figure"] {
            let table: Vec<_> = bench.lines().skip_while(|line| !line.starts_with(first)).collect();
            let table: Vec<_> = table.into_iter().take_while(|line| line.starts_with('|')).map(squeezed).collect();
            if !table.is_empty() {
                text = with_lines(&text, first, &table)?;
            }
        }
        fs::write(page, text)?;
    }
    Ok(())
}

/// Returns a row of a table without the spaces that line up its columns.
fn squeezed(line: &str) -> String {
    if line.starts_with("|-") {
        let cells = line.trim_matches('|').split('|').map(|cell| if cell.ends_with(':') { "---:" } else { "---" });
        return format!("|{}|", cells.collect::<Vec<_>>().join("|"));
    }
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the text with these lines in place of the first table below a heading.
fn with_table(text: &str, heading: &str, table: &[String]) -> Result<String> {
    let heading = format!("\n## {heading}\n");
    let at = text.find(&heading).ok_or_else(|| format!("there is no heading {heading:?}"))? + heading.len();
    let (before, below) = text.split_at(at);
    let begin = format!("\n{below}").find("\n|").ok_or_else(|| format!("no table is below {heading:?}"))?;
    let (prose, rest) = below.split_at(begin);
    Ok(format!("{before}{prose}{}{}", lines(table), behind(rest)))
}

/// Returns the text with these lines in place of the table with this first line.
fn with_lines(text: &str, first: &str, table: &[String]) -> Result<String> {
    let at = text.find(&format!("\n{first}")).ok_or_else(|| format!("there is no table {first:?}"))? + 1;
    let (before, rest) = text.split_at(at);
    Ok(format!("{before}{}{}", lines(table), behind(rest)))
}

fn lines(table: &[String]) -> String {
    table.iter().map(|line| format!("{line}\n")).collect()
}

/// Returns the text after the table with which it begins.
fn behind(text: &str) -> String {
    text.split_inclusive('\n').skip_while(|line| line.starts_with('|')).collect()
}

/// Returns the first two lines of a table.
pub fn head(question: &Question) -> Vec<String> {
    let first = match question.rows[0].kind {
        Kind::Time => "wall / CPU a job (least–most wall)",
        Kind::Latency => "p50 (p99)",
        Kind::Served => "jobs/s / CPU of the server a job (least–most jobs/s)",
        Kind::Killed => "jobs that run again (least–most)",
    };
    let columns: String = question.columns.iter().map(|(_, column)| format!(" {column} |")).collect();
    vec![format!("| {first} |{columns}"), format!("|---|{}", "---:|".repeat(question.columns.len()))]
}

/// Returns a row of a table.
pub fn line(question: &Question, row: &Row, figures: &Figures) -> String {
    let cells = question.columns.iter().map(|(_, column)| cell(row, column, figures));
    format!("| {} | {} |", row.name, cells.collect::<Vec<_>>().join(" | "))
}

fn cell(row: &Row, column: &str, figures: &Figures) -> String {
    let spread = |value: fn(&Figure) -> f64| figures.spread(&row.name, column, value);
    let Some([wall, least, most]) = spread(|figure| figure.wall) else {
        return match figures.none(&row.name, column) {
            "not asked" | "" => "–".to_owned(),
            reason => reason.to_owned(),
        };
    };
    match row.kind {
        Kind::Time => {
            let (name, length) = unit(wall);
            let [cpu, ..] = spread(|figure| figure.cpu).expect("there is a wall time");
            let [wall, cpu, least, most] = [wall, cpu, least, most].map(|nanos| number(nanos, length));
            format!("{wall} / {cpu} {name} ({least}–{most})")
        }
        Kind::Latency => {
            let [p50, p99] = [spread(|figure| figure.p50), spread(|figure| figure.p99)];
            let [p50, p99] = [p50, p99].map(|spread| time(spread.expect("there is a wall time")[0]));
            format!("{p50} ({p99})")
        }
        Kind::Served => {
            let [rate, most, least] = [wall, least, most].map(|nanos| thousands(1e9 / nanos));
            let [cpu, ..] = spread(|figure| figure.cpu).expect("there is a wall time");
            format!("{rate} / {} ({least}–{most})", time(cpu))
        }
        Kind::Killed => {
            let [again, least, most] = spread(|figure| figure.again as f64).expect("there is a figure");
            let lost = spread(|figure| figure.lost as f64).expect("there is a figure")[2];
            let lost = if lost > 0.0 { format!(", {lost} lost") } else { String::new() };
            format!("{again} ({least}–{most}){lost}")
        }
    }
}

/// Returns a number below a billion without a fraction, and with commas.
fn thousands(number: f64) -> String {
    let number = number.round() as u64;
    match (number / 1_000_000, number / 1_000 % 1_000, number % 1_000) {
        (0, 0, ones) => format!("{ones}"),
        (0, thousands, ones) => format!("{thousands},{ones:03}"),
        (millions, thousands, ones) => format!("{millions},{thousands:03},{ones:03}"),
    }
}

/// Returns the table of the columns: their versions and settings.
fn columns() -> Result<Vec<String>> {
    let mut rows: Vec<String> = Vec::new();
    for question in questions::all(0.0) {
        let figures = figures(question.name)?;
        for (_, column) in question.columns {
            let said = figures.about.iter().find_map(|line| line.strip_prefix(column)?.strip_prefix(": "));
            let row = format!("| {column} | {} |", said.unwrap_or_default());
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
    }
    let head = ["| column | version and settings |", "|---|---|"].map(str::to_owned);
    Ok(head.into_iter().chain(rows).collect())
}

/// Returns the table of the machine, with the load before each question.
fn machine() -> Result<Vec<String>> {
    let mut rows = vec!["| | |".to_owned(), "|---|---|".to_owned()];
    for question in questions::all(0.0) {
        let figures = figures(question.name)?;
        for line in &figures.about {
            let Some((key, value)) = line.split_once(": ") else { continue };
            let row = match key {
                "machine" | "version" | "server" | "rounds" | "iterations of a microsecond" => {
                    format!("| {key} | {value} |")
                }
                "load before" => format!("| load before *{}* | {value} |", question.heading.replace('`', "")),
                _ => continue,
            };
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

/// A row of README.md: its text, the question and its row, our column, the others, and a sentence.
type Line = (&'static str, &'static str, &'static str, &'static str, &'static [&'static str], &'static str);

const SUMMARY: [Line; 3] = [
    (
        "1 µs jobs, 2 at a time",
        "stream",
        "1 µs, 2 in flight",
        "waterline",
        &["by hand", "rayon"],
        "rayon has no window, no source and no stop.",
    ),
    (
        "run again after `kill -9`, one job stuck",
        "killed",
        "one is stuck",
        "waterline",
        &["by hand", "rayon"],
        "What is done above the stuck job is kept, too.",
    ),
    (
        "a row and a counter, exactly once",
        "once",
        "RocksDB, no-op, 2 in flight",
        "waterline",
        &["a write a job", "10,000 a write"],
        "By hand, what waits for its batch is seen late, and a crash computes it again.",
    ),
];

fn summary() -> Result<Vec<String>> {
    let mut rows = vec!["| per job | waterline | others | |".to_owned(), "|---|---:|---|---|".to_owned()];
    for (text, question, row, ours, others, sentence) in SUMMARY {
        let figures = figures(question)?;
        let value = |column: &str| match question {
            "killed" => figures.median(row, column, |figure| figure.again as f64).map(|again| format!("{again}")),
            _ => figures.median(row, column, |figure| figure.wall).map(time),
        };
        let value = |column: &str| value(column).unwrap_or_else(|| "–".to_owned());
        let others: Vec<_> = others.iter().map(|other| format!("{other} {}", value(other))).collect();
        rows.push(format!("| {text} | {} | {} | {sentence} |", value(ours), others.join(", ")));
    }
    Ok(rows)
}
