//! Whole runners, beside the program of another queue: eight processes each, on one server. npm
//! installs that program into the target folder. Without npm the row is left out.

use crate::cpu::{Measured, measured, row};
use crate::member::{self, queue};
use crate::row::PAYLOAD;
use crate::server::{Database, Server};
use postgres::{Client, NoTls};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use waterline_postgres::{PgOptions, PgStore};
use waterline_queue::{Outcome, Runner};

const ROLE: &str = "whole";

/// The newest version, the Node that it needs, and the last version for an older Node.
const NEW: (&str, (u32, u32)) = ("0.18.0", (22, 18));
const OLD: &str = "0.17.3";

const PROCESSES: usize = 8;
/// A process of the other queue takes this many jobs from the database at once.
const MAX_PROCESSING: usize = 500;
const JOBS: u64 = 80_000;
/// After a first round, which does not count.
const ROUNDS: usize = 3;

/// If this is the process of a worker, works until its input ends.
pub fn is_worker() -> bool {
    let Some(config) = member::config(ROLE) else { return false };
    let store = PgStore::connect(config, NoTls, PgOptions::new()).expect("the server runs");
    let runner =
        Runner::builder(&queue(&store)).max_processing(MAX_PROCESSING).on("k", |_, _: String| Ok(Outcome::Done));
    let runner = runner.start().expect("the queue is open");
    println!("ready");
    _ = std::io::stdin().read_line(&mut String::new());
    drop(runner);
    true
}

/// Processes that are killed on drop.
struct Workers(Vec<Child>);

impl Workers {
    /// Starts them, and waits until each listens.
    fn start(command: impl Fn() -> Command) -> Self {
        let spawn = |_| command().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program runs");
        let mut workers = Self((0..PROCESSES).map(spawn).collect());
        for worker in &mut workers.0 {
            let mut lines = BufReader::new(worker.stdout.take().expect("it is piped")).lines();
            let is_ready = lines.by_ref().map_while(Result::ok).any(|line| line == "ready");
            assert!(is_ready, "a worker ended at its start");
            // A thread reads all later output, so that the process never waits for us.
            std::thread::spawn(move || lines.for_each(drop));
        }
        workers
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.0 {
            _ = worker.kill();
            _ = worker.wait();
        }
    }
}

/// Prints the row. Returns whether it is within its limit, or left out.
pub fn measure(server: &Server) -> bool {
    let (version, module) = match install() {
        Ok(installed) => installed,
        Err(error) => {
            println!("whole runners, {PROCESSES} processes: left out, since there is no other queue: {error}");
            return true;
        }
    };
    let (ours, theirs) = (server.database(), server.database());
    drop(queue(&ours.store(PgOptions::new())));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/ratios/graphile.js");
    let url = format!("postgres://postgres@127.0.0.1:{}/{}", server.port(), theirs.name);
    let node = || {
        let mut node = Command::new("node");
        node.arg(script).arg(&module).arg(&url);
        node
    };
    let own = || member::command(ROLE, server.port(), &ours);
    let _workers = (Workers::start(node), Workers::start(own));
    let push = "SELECT count(*) FROM waterline.push_many('q', array_fill('k'::text, ARRAY[$2::int]),
        array_fill(to_json($1::text)::text, ARRAY[$2::int]))";
    let add = "SELECT count(*) FROM graphile_worker.add_jobs(ARRAY(SELECT json_populate_record(
        NULL::graphile_worker.job_spec, json_build_object('identifier', 'k', 'payload', to_json($1::text)))
        FROM generate_series(1, $2::int)))";
    let (mut floors, mut all) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let their = work_off(server, &theirs, add, "graphile_worker._private_jobs");
        let our = work_off(server, &ours, push, "waterline.job");
        if round > 0 {
            floors.push(their);
            all.push(our);
        }
    }
    let what = format!("whole runners, {PROCESSES} processes, jobs/s: graphile-worker {version}");
    row(&what, (1.2, 0.8), &floors, &all)
}

/// Pushes jobs in one transaction, and measures how they are done after its commit.
fn work_off(server: &Server, database: &Database, push: &str, table: &str) -> Measured {
    let mut client: Client = database.client();
    let mut transaction = client.transaction().expect("the server runs");
    transaction.query_one(push, &[&PAYLOAD, &i32::try_from(JOBS).expect("they are few")]).expect("it is right");
    // Plans of the other queue depend on statistics.
    transaction.batch_execute(&format!("ANALYZE {table}")).expect("it is right");
    let left = format!("SELECT EXISTS (SELECT FROM {table})");
    let mut watcher = database.client();
    measured(server, JOBS, || {
        transaction.commit().expect("the server runs");
        // Each query reads the rows that are gone, too.
        let is_done = (0..2_400).any(|_| {
            let left: bool = watcher.query_one(&left, &[]).expect("the server runs").get(0);
            if left {
                std::thread::park_timeout(Duration::from_millis(50));
            }
            !left
        });
        assert!(is_done, "the workers have stopped: jobs are left in {table}");
    })
}

/// Installs the program, unless it is there. Returns its version, and the folder of its module.
fn install() -> Result<(&'static str, PathBuf), String> {
    let said = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        } else {
            Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
    };
    let node = said("node", &["--version"])?;
    let mut numbers = node.trim_start_matches('v').split('.').map_while(|number| number.parse::<u32>().ok());
    let is_new = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default()) >= NEW.1;
    let version = if is_new { NEW.0 } else { OLD };
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let target = program.ancestors().nth(3).ok_or("this program is in no target folder")?;
    let folder = target.join(format!("graphile-worker-{version}"));
    let module = folder.join("node_modules/graphile-worker");
    if !module.join("package.json").is_file() {
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let prefix = folder.to_str().ok_or("the target folder has no name in UTF-8")?;
        let package = format!("graphile-worker@{version}");
        said("npm", &["install", "--no-audit", "--no-fund", "--prefix", prefix, &package])?;
    }
    Ok((version, module))
}
