//! What a job costs in CPU time: that of the server, and that of the program with its workers. A
//! rate says little where both wait for a disk.

use crate::row::{line, median};
use crate::server::Server;
use std::time::Instant;

/// A tick of the times that Linux shows, in microseconds.
const TICK: f64 = 10_000.0;

/// The CPU time of one process, and that of its children that have ended, in ticks.
struct Process {
    id: u32,
    parent: u32,
    own: u64,
    ended: u64,
}

fn processes() -> Vec<Process> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let read = |entry: std::fs::DirEntry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // Behind the name, which may have any letter: the state, the parent, and so on.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Process {
            id,
            parent: fields.get(1)?.parse().ok()?,
            own: ticks(11)? + ticks(12)?,
            ended: ticks(13)? + ticks(14)?,
        })
    };
    all.filter_map(read).collect()
}

/// The CPU times of the server with all its processes, and of this program with its workers.
#[derive(Clone, Copy)]
struct Cpu {
    server: f64,
    program: f64,
}

impl Cpu {
    fn now(server: &Server) -> Self {
        let all = processes();
        let sum = |of: &dyn Fn(&Process) -> u64| all.iter().map(of).sum::<u64>() as f64 * TICK;
        let (server, program) = (server.id(), std::process::id());
        Self {
            server: sum(&|one| match (one.id == server, one.parent == server) {
                (true, _) => one.own + one.ended,
                (_, true) => one.own,
                _ => 0,
            }),
            program: sum(&|one| {
                let is_ours = one.id == program || one.parent == program && one.id != server;
                if is_ours { one.own } else { 0 }
            }),
        }
    }
}

/// Jobs a second, and the microseconds of the server and of the program a job.
#[derive(Clone, Copy)]
pub struct Measured([f64; 3]);

pub fn measured(server: &Server, jobs: u64, run: impl FnOnce()) -> Measured {
    let (before, begun) = (Cpu::now(server), Instant::now());
    run();
    let (time, after, jobs) = (begun.elapsed(), Cpu::now(server), jobs as f64);
    let each = |before: f64, after: f64| (after - before) / jobs;
    Measured([jobs / time.as_secs_f64(), each(before.server, after.server), each(before.program, after.program)])
}

fn medians(all: &[Measured]) -> [f64; 3] {
    [0, 1, 2].map(|at| median(all.iter().map(|one| one.0[at]).collect()))
}

/// The median of the rates.
pub fn rate(all: &[Measured]) -> f64 {
    medians(all)[0]
}

/// Prints a row: the rates, and the CPU times a job. Returns whether the rate is at least `least`
/// times the floor's, and the time of the server at most `most` times.
pub fn row(what: &str, (least, most): (f64, f64), floors: &[Measured], all: &[Measured]) -> bool {
    let (floor, ours) = (medians(floors), medians(all));
    line(&format!("{what} (>= {least})"), floor[0], ours[0]);
    println!(
        "    CPU a job, us: server {:.0} : {:.0}, {:.2} (<= {most:.2}); processes {:.0} : {:.0}",
        floor[1],
        ours[1],
        ours[1] / floor[1],
        floor[2],
        ours[2]
    );
    ours[0] >= least * floor[0] && ours[1] <= most * floor[1]
}
