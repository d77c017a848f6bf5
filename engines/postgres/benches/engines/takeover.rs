//! The time until a standby has the name, after its holder was killed, stands still, or has
//! stopped. The holder is a process of its own: this program, started once more.

use crate::server::{self, Server};
use crate::{Limit, ROUNDS, Table, median};
use postgres::{Config, NoTls};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use waterline::{Consumer, Handle, MemoryJobs, State};
use waterline_postgres::{PgOptions, PgStore};

const MEMBER: &str = "WATERLINE_BENCH_MEMBER";
const TTL: Duration = Duration::from_secs(1);
/// The line of a member that has the name.
const HAS_IT: &str = "it has the name";

pub(crate) fn rows(table: &mut Table, server: &Server) {
    let names = ["standby: s after kill -9", "standby: s after SIGSTOP", "standby: s after a clean stop"];
    let limits = [TTL.as_secs_f64() + 0.3, TTL.as_secs_f64() + 0.3, 0.2];
    for ((name, limit), end) in names.into_iter().zip(limits).zip([End::Killed, End::Stopped, End::Asked]) {
        if table.wants(name) {
            let mut all: Vec<f64> = (0..ROUNDS).map(|_| takeover(server, end).as_secs_f64()).collect();
            let longest = all.iter().copied().fold(0.0, f64::max);
            let median = median(&mut all);
            table.row(name, Limit::AtMost(limit), longest, "s");
            println!("|   the longest of {ROUNDS}; the median is {median:.3} s");
        }
    }
}

#[derive(Clone, Copy)]
enum End {
    Killed,
    Stopped,
    Asked,
}

fn store(config: Config) -> PgStore {
    PgStore::connect(config, NoTls, PgOptions::new().ttl(TTL)).expect("the server runs")
}

fn start(store: &PgStore) -> Consumer {
    let builder = Consumer::builder(MemoryJobs::<u64>::new(), store.progress("p")).standby();
    builder.start(|_| Ok(())).expect("it waits, or has the name")
}

fn has_name(handle: &Handle) -> bool {
    handle.status().state == State::Running
}

/// Measures from the end of the holder to the standby's having the name.
fn takeover(server: &Server, end: End) -> Duration {
    let database = server.database();
    let store = database.store(PgOptions::new().ttl(TTL));
    let (mut child, _out) = spawn(server.port(), &database.name);
    let standby = start(&store);
    let handle = standby.handle();
    // It has seen that the name is taken, and hears of the end.
    assert!(!handle.wait_for(0, TTL), "there is no job");
    assert!(!has_name(&handle), "the other one has it");
    let begun = Instant::now();
    match end {
        End::Killed => child.kill().expect("it is a child"),
        End::Stopped => server::signal(child.id(), "STOP"),
        End::Asked => drop(child.stdin.take()),
    }
    while !has_name(&handle) {
        assert!(begun.elapsed() < server::PATIENCE, "{}", handle.status());
        _ = handle.wait_for(0, Duration::from_millis(1));
    }
    let took = begun.elapsed();
    _ = child.kill();
    _ = child.wait();
    standby.stop().expect("nothing fails");
    took
}

/// Starts a member, and waits until it has the name.
fn spawn(port: u16, database: &str) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().expect("this program has a path"));
    child.env(MEMBER, format!("host=127.0.0.1 port={port} user=postgres dbname={database}"));
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("this program runs");
    let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut line = String::new();
    out.read_line(&mut line).expect("it says text");
    assert_eq!(line.trim(), HAS_IT);
    (child, out)
}

pub(crate) fn is_member() -> bool {
    std::env::var_os(MEMBER).is_some()
}

/// Has the name until its input ends.
pub(crate) fn member() -> ExitCode {
    let config = std::env::var(MEMBER).expect("it is set").parse().expect("it is a configuration");
    let consumer = start(&store(config));
    let handle = consumer.handle();
    while !has_name(&handle) {
        _ = handle.wait_for(0, Duration::from_millis(1));
    }
    println!("{HAS_IT}");
    _ = std::io::stdin().read_to_end(&mut Vec::new());
    consumer.stop().expect("nothing fails");
    ExitCode::SUCCESS
}
