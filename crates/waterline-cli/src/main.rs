//! The `waterline` command. It inspects a store, a page or a database beside its application, and
//! changes files only while no application has them open.

mod advice;
mod args;
mod backend;
mod changes;
mod content;
mod doctor;
mod end;
mod error;
mod format;
mod print;
mod queues;
mod rows;
#[cfg(feature = "serve")]
mod serve;
mod streams;
#[cfg(feature = "top")]
mod top;
mod wait;
mod workers;

use args::{Command, CommandLine, LogCommand, Look};
use backend::Backend;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use end::End;
use error::Fault;
use print::{Cell, Report};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;
use wait::wait;

/// Clears the screen of a terminal, and goes to its first line.
const CLEAR: &str = "\u{1b}[2J\u{1b}[H";

fn main() -> ExitCode {
    match run(CommandLine::parse()) {
        Ok(is_bad) => ExitCode::from(u8::from(is_bad)),
        Err(End::Fault(fault)) => {
            eprintln!("waterline: {fault}");
            ExitCode::FAILURE
        }
        // The reader has closed the pipe, as `head` does. The findings still decide the exit code.
        Err(End::Output(error, is_bad)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::from(u8::from(is_bad))
        }
        Err(End::Output(error, _)) => {
            eprintln!("waterline: the output cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a command. Returns true if it found something that an operator has to mend.
fn run(line: CommandLine) -> Result<bool, End> {
    let mut out = io::stdout().lock();
    if let Command::Completions { shell } = line.command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut CommandLine::command(), "waterline", &mut script);
        out.write_all(&script)?;
        return Ok(false);
    }
    let colour = print::is_coloured();
    let again = match (&line.command, line.watch) {
        (_, None) => None,
        (Command::Look(_), Some(seconds)) => Some(Duration::from_secs(seconds)),
        _ => misused(ErrorKind::ArgumentConflict, "--watch is for commands that change nothing"),
    };
    let way = backend::Way::of(&line).unwrap_or_else(|(kind, text)| misused(kind, text));
    #[cfg(feature = "serve")]
    if let Command::Serve { listen } = &line.command {
        drop(out);
        let backend::Way::Store(path) = &way else {
            misused(ErrorKind::ArgumentConflict, "the page is that of files: --store PATH");
        };
        if line.json {
            misused(ErrorKind::ArgumentConflict, "serve is a page for people, whose API below api/ is JSON anyway");
        }
        return serve::run(path, listen).map(|()| false);
    }
    #[cfg(feature = "top")]
    if let Command::Top { every } = line.command {
        drop(out);
        if line.json {
            misused(ErrorKind::ArgumentConflict, "top is a screen for people: `list --json --watch` is for programs");
        }
        return top::run(way, Duration::from_secs(every)).map(|()| false);
    }
    let answer = || {
        let place = backend::open(&way)?;
        match &line.command {
            Command::Look(look) => looked(&*place, look),
            Command::Change(change) => changes::change(place, change),
            _ => Ok(Report::default()),
        }
    };
    let mut report = answer()?;
    loop {
        let clear = if again.is_some() && io::stdout().is_terminal() && !line.json { CLEAR } else { "" };
        let written = write!(out, "{clear}").and_then(|()| report.write(line.json, colour, &mut out));
        written.and_then(|()| out.flush()).map_err(|error| End::Output(error, report.is_bad))?;
        if let Some(fault) = report.failed.take() {
            return Err(fault.into());
        }
        let Some(pause) = again else { return Ok(report.is_bad) };
        report = loop {
            wait(pause);
            match answer() {
                Ok(report) => break report,
                // Keep watching: an operator may be restoring the store.
                Err(fault) => eprintln!("waterline: {fault}"),
            }
        };
    }
}

/// Exits with a usage error.
fn misused(kind: ErrorKind, text: &str) -> ! {
    CommandLine::command().error(kind, text).exit()
}

/// Runs a command that changes nothing.
fn looked(place: &dyn Backend, look: &Look) -> Result<Report, Fault> {
    let mut report = match look {
        Look::List => streams::list(place),
        Look::Show { name } => streams::show(place, name),
        Look::Parked { name } => streams::parked(place, name),
        Look::History { name } => streams::history(place, name),
        Look::Log(LogCommand::Peek { name, from, most }) => content::peek(place, name, *from, most.get()),
        Look::Tables => content::tables(place),
        Look::Table { name, prefix, most } => content::table(place, name, prefix.as_deref(), most.get()),
        Look::Queues => queues::queues(place),
        Look::Jobs { queue, state, kind, most } => queues::jobs(place, queue, *state, kind.as_deref(), most.get()),
        Look::Job { queue, id } => queues::job(place, queue, id),
        Look::Schedules { queue } => queues::schedules(place, queue),
        Look::Workers { queue, most } => workers::workers(place, queue, most.get()),
        Look::Doctor => doctor::examine(place),
    }?;
    report.line(Cell::from(format!("({})", place.freshness())).faint());
    Ok(report)
}
