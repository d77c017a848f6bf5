//! The plots of docs/compare.md: bars on a logarithmic axis.

use crate::figures::{Figures, figures};
use crate::folders::checkout;
use crate::result::Result;
use base64::Engine as _;
use plotters::prelude::*;
use std::fmt::Write as _;
use std::fs;

const SIZE: (u32, u32) = (900, 420);

/// The room for the names of the columns, in groups.
const ROOM: f64 = 0.8;

/// The colours of the columns: ours, which come first, are blue.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 90, 160),
    RGBColor(90, 160, 220),
    RGBColor(230, 120, 20),
    RGBColor(60, 140, 60),
    RGBColor(150, 60, 60),
    RGBColor(150, 150, 150),
    RGBColor(80, 80, 80),
];

/// A group of bars: its name, and a value for each column that has one.
type Group = (String, Vec<Option<f64>>);

/// Draws all plots. Rustdoc cannot have files beside its pages, so it takes the plots from link
/// definitions that contain them.
pub fn draw() -> Result<()> {
    let stream = figures("stream")?;
    let rows = ["no-op, 2 in flight", "1 µs, 2 in flight", "10 µs, 2 in flight", "100 µs, 2 in flight"];
    let columns = ["waterline", "without read", "by hand", "rayon", "disruptor", "buffer_unordered", "spawned tasks"];
    let wall = |figures: &Figures, row: &str, column: &str| figures.median(row, column, |figure| figure.wall / 1e3);
    bars("stream", "Ordered stream: µs a job", &columns, &groups(&rows, &columns, |r, c| wall(&stream, r, c)))?;
    let killed = figures("killed")?;
    let rows = ["no job is stuck", "one is stuck"];
    // A logarithm has no zero.
    let again =
        |row: &str, column: &str| killed.median(row, column, |figure| figure.again as f64).filter(|again| *again > 0.0);
    bars(
        "killed",
        "Jobs that run again after kill -9 (without a bar: none)",
        &columns,
        &groups(&rows, &columns, again),
    )?;
    let queue = figures("queue")?;
    let rows = ["push, one by one", "push, 256 at a time", "run, 8 at a time"];
    let columns = ["on RocksDB", "on SQLite", "raw RocksDB", "raw SQLite", "effectum", "apalis-sqlite"];
    bars("queue", "Queue: µs a job", &columns, &groups(&rows, &columns, |r, c| wall(&queue, r, c)))?;
    let mut definitions = String::new();
    for name in ["stream", "killed", "queue"] {
        let picture = base64::engine::general_purpose::STANDARD.encode(fs::read(path(name))?);
        writeln!(definitions, "[plot_{name}]: data:image/svg+xml;base64,{picture}")?;
    }
    Ok(fs::write(checkout().join("docs/plots.txt"), definitions)?)
}

fn path(name: &str) -> std::path::PathBuf {
    checkout().join(format!("docs/compare_{name}.svg"))
}

fn groups(rows: &[&str], columns: &[&str], value: impl Fn(&str, &str) -> Option<f64>) -> Vec<Group> {
    let group = |row: &&str| ((*row).to_owned(), columns.iter().map(|column| value(row, column)).collect());
    rows.iter().map(group).collect()
}

fn bars(name: &str, title: &str, columns: &[&str], groups: &[Group]) -> Result<()> {
    let path = path(name);
    let area = SVGBackend::new(&path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let values: Vec<_> = groups.iter().flat_map(|(_, values)| values).flatten().copied().collect();
    let least = values.iter().copied().fold(f64::INFINITY, f64::min) / 2.0;
    let most = values.iter().copied().fold(least, f64::max) * 3.0;
    let width = columns.len() as f64 + 1.0;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..width * groups.len() as f64 + ROOM * width, (least..most).log_scale())?;
    chart.configure_mesh().disable_x_mesh().disable_x_axis().y_label_formatter(&|value| format!("{value}")).draw()?;
    for (at, column) in columns.iter().enumerate() {
        let colour = COLOURS[at];
        let bar = |(group, (_, values)): (usize, &Group)| {
            let left = group as f64 * width + at as f64 + 0.5;
            Some(Rectangle::new([(left, least), (left + 0.9, values[at]?)], colour.filled()))
        };
        let bars = groups.iter().enumerate().filter_map(bar);
        chart
            .draw_series(bars)?
            .label(*column)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], colour.filled()));
    }
    let font = ("sans-serif", 13).into_font();
    for (at, (name, _)) in groups.iter().enumerate() {
        let (x, _) = chart.backend_coord(&((at as f64 + 0.25) * width, least));
        area.draw(&Text::new(name.as_str(), (x, SIZE.1 as i32 - 30), font.clone()))?;
    }
    chart.configure_series_labels().position(SeriesLabelPosition::UpperRight).background_style(WHITE).draw()?;
    area.present()?;
    Ok(())
}
