//! Asks the programs.

use crate::build::Programs;
use crate::figures::{Figure, Figures};
use crate::folders::{checkout, raw};
use crate::questions::{Kind, Question, Row};
use crate::result::Result;
use crate::server::{self, Server};
use crate::{draw, killed, questions};
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: usize = 7;

/// The time limit of a run. A column that takes longer has no figure in this row.
const LIMIT: Duration = Duration::from_secs(20);

pub fn measure(words: &[String]) -> Result<()> {
    let rounds = std::env::var("ROUNDS").map_or(Ok(ROUNDS), |rounds| rounds.parse())?;
    let is_asked = |question: &Question| words.is_empty() || words.iter().any(|word| question.name.contains(&**word));
    let asked: Vec<_> = questions::all(0.0).into_iter().filter(is_asked).collect();
    let names: BTreeSet<_> = asked.iter().flat_map(|question| question.columns).map(|(program, _)| *program).collect();
    let programs = Programs::build(names)?;
    let iterations = calibrated();
    let begun = Instant::now();
    std::fs::create_dir_all(raw())?;
    for question in questions::all(iterations).into_iter().filter(is_asked) {
        let mut figures = Figures { about: about(&programs, &question, rounds, iterations)?, all: Vec::new() };
        println!("\n{}\n", question.heading);
        draw::head(&question).iter().for_each(|line| println!("{line}"));
        for row in &question.rows {
            figures.all.extend(measured(&programs, &question, row, rounds)?);
            println!("{}", draw::line(&question, row, &figures));
            std::io::stdout().flush()?;
        }
        figures.write(&raw().join(format!("{}.csv", question.name)))?;
    }
    println!("\nIt took {} s. `make draw` puts the medians into the pages.", begun.elapsed().as_secs());
    Ok(())
}

/// Returns the iterations that take a microsecond: the median of many tries.
fn calibrated() -> f64 {
    let mut tries: Vec<_> = (0..101)
        .map(|_| {
            let begun = Instant::now();
            std::hint::black_box(protocol::spin(1_000_000));
            1_000_000.0 / (begun.elapsed().as_secs_f64() * 1e6)
        })
        .collect();
    tries.sort_by(f64::total_cmp);
    tries[tries.len() / 2]
}

/// Says where and how a question was measured, and what its columns are.
fn about(programs: &Programs, question: &Question, rounds: usize, iterations: f64) -> Result<Vec<String>> {
    let said = |program: &str, arguments: &[&str]| -> Result<String> {
        let output = Command::new(program).args(arguments).current_dir(checkout()).output()?;
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map_or("", |cpu| cpu.1);
    let (cores, load) =
        (std::thread::available_parallelism()?, std::fs::read_to_string("/proc/loadavg").unwrap_or_default());
    let mut about = vec![
        format!("machine: {cores} cores, {cpu}, {}", said("uname", &["-sr"])?),
        format!("load before: {}", load.split(' ').next().unwrap_or_default()),
        format!("version: {}, {}", said("git", &["rev-parse", "--short", "HEAD"])?, said("rustc", &["--version"])?),
        format!("rounds: {rounds}"),
        format!("iterations of a microsecond: {iterations:.0}"),
    ];
    if question.rows[0].kind == Kind::Served {
        about.push(format!("server: {}", server::about()?));
    }
    let text = |column: &str| programs.about.get(column).map_or("", String::as_str);
    about.extend(question.columns.iter().map(|(_, column)| format!("{column}: {}", text(column))));
    Ok(about)
}

/// Runs all columns of a row in turn, this many rounds.
fn measured(programs: &Programs, question: &Question, row: &Row, rounds: usize) -> Result<Vec<Figure>> {
    let (mut figures, mut without) = (Vec::new(), BTreeSet::new());
    for round in 1..=rounds {
        for (program, column) in question.columns {
            if without.contains(column) {
                continue;
            }
            let figure = Figure { row: row.name.clone(), column: (*column).to_owned(), round, ..Figure::default() };
            let figure = match programs.path(program) {
                Ok(path) => run(path, column, row, figure)?,
                Err(reason) => Figure { none: reason.to_owned(), ..figure },
            };
            if !figure.none.is_empty() {
                without.insert(column);
            }
            figures.push(figure);
        }
    }
    Ok(figures)
}

fn run(program: &Path, column: &str, row: &Row, mut figure: Figure) -> Result<Figure> {
    let directory = tempfile::tempdir()?;
    let mut words = row.words.clone();
    words[0].insert_str(0, "question=");
    let path = directory.path().display();
    words.extend([format!("column={column}"), format!("jobs={}", row.jobs), format!("directory={path}")]);
    let server = (row.kind == Kind::Served).then(|| Server::start(directory.path())).transpose()?;
    words.extend(server.as_ref().map(|server| format!("port={}", server.port)));
    if row.kind == Kind::Killed {
        match killed::lives(program, &words, directory.path(), row.jobs) {
            Ok((again, lost)) => (figure.again, figure.lost) = (again, lost),
            Err(reason) => figure.none = reason.to_string(),
        }
        return Ok(figure);
    }
    let said = match answer(Command::new(program).args(&words))? {
        Some(said) => said,
        None => format!("none=over {} s", LIMIT.as_secs()),
    };
    if let Some(reason) = said.strip_prefix("none=") {
        figure.none = reason.trim().to_owned();
        return Ok(figure);
    }
    let number = |key: &str| -> f64 {
        let word = said.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        word.and_then(|number| number.parse().ok()).unwrap_or_default()
    };
    let jobs = row.jobs as f64;
    (figure.wall, figure.cpu) = (number("wall") / jobs, number("cpu") / jobs);
    (figure.p50, figure.p99) = (number("p50"), number("p99"));
    if figure.wall == 0.0 {
        return Err(format!("{program:?} {words:?} said {said:?}").into());
    }
    Ok(figure)
}

/// Returns the line that a program prints. `None` if it takes too long.
fn answer(command: &mut Command) -> Result<Option<String>> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let begun = Instant::now();
    while child.try_wait()?.is_none() {
        if begun.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        protocol::rest(Duration::from_millis(2));
    }
    let mut said = String::new();
    child.stdout.take().ok_or("it is a pipe")?.read_to_string(&mut said)?;
    Ok(Some(said))
}
