//! Plants the bugs of `tests/mutants.txt` in a copy of the sources, and runs the test that must
//! find each: `plant COPY TARGET [PART OF THE TITLE]`. All bugs are compiled at once, and a
//! variable chooses the one that runs.

use planted::{Bug, VARIABLE};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, iter, thread};

/// How often a test runs that has not found its bug.
const RUNS: usize = 3;

/// The time limit of a test without a bug.
const LIMIT: Duration = Duration::from_secs(600);

/// The time limit of a test with a bug, in addition to ten times its time without one.
const HANGS: Duration = Duration::from_secs(20);

/// The crates with bugs, which get the code that chooses one.
const CRATES: [&str; 3] = ["src/lib.rs", "crates/waterline-queue/src/lib.rs", "engines/redis/src/lib.rs"];

/// The other packages, which start no server, and their features.
const OTHERS: [&str; 11] = [
    "-p",
    "waterline",
    "-p",
    "waterline-queue",
    "-p",
    "waterline-queue-tests",
    "-p",
    "waterline-tests",
    "--no-default-features",
    "--features",
    "cron,metrics,sqlite,tokio",
];

/// The end of a test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Passed,
    /// It failed, or exceeded its time limit.
    Failed,
    NoTest,
}

/// The compiled programs by name, each with the folder of its package, where cargo runs it.
type Programs = BTreeMap<String, (PathBuf, PathBuf)>;

fn write(copy: &Path, bugs: &[&Bug]) -> Result<(), String> {
    let files: BTreeSet<_> = bugs.iter().map(|bug| bug.file.as_str()).chain(CRATES).collect();
    for file in files {
        let path = copy.join(file);
        let text = fs::read_to_string(&path).map_err(|error| format!("{file}: {error}"))?;
        let here: Vec<_> = bugs.iter().filter(|bug| bug.file == file).copied().collect();
        let mut text = planted::plant(&text, &here)?;
        if CRATES.contains(&file) {
            text += &planted::chooser();
        }
        fs::write(&path, text).map_err(|error| format!("{file}: {error}"))?;
    }
    Ok(())
}

/// Compiles the programs of these bugs. The compiler's errors go to stderr.
fn build(copy: &Path, target: &Path, bugs: &[&Bug]) -> Result<Programs, String> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(copy).env("CARGO_TARGET_DIR", target).stdin(Stdio::null()).stderr(Stdio::inherit());
    cargo.args(["test", "--locked", "--no-run"]);
    let programs: BTreeSet<_> = bugs.iter().map(|bug| bug.program.as_str()).collect();
    let is_of_redis = |program: &&str| program.starts_with("redis-");
    if programs.iter().any(is_of_redis) {
        cargo.args(["-p", "waterline-redis"]);
    }
    if !programs.iter().all(is_of_redis) {
        cargo.args(OTHERS);
    }
    cargo.arg("--message-format=json-render-diagnostics");
    // Cargo takes the word for all libraries once.
    let programs: BTreeSet<_> = programs.iter().map(|program| program.trim_start_matches("redis-")).collect();
    if programs.iter().any(|program| program.ends_with("lib")) {
        cargo.arg("--lib");
    }
    for program in programs.iter().filter(|program| !program.ends_with("lib")) {
        cargo.args(["--test", program]);
    }
    let output = cargo.output().map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err("a bug of the list does not compile".to_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let program = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let file = PathBuf::from(message["executable"].as_str()?);
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        let of_redis = folder.ends_with("engines/redis");
        let name = match (message["target"]["kind"][0].as_str()?, message["target"]["name"].as_str()?) {
            ("test", "queue") if of_redis => "redis-queue",
            ("test", _) if of_redis => return None,
            ("lib", "waterline_redis") => "redis-lib",
            ("test", name) => name,
            ("lib", "waterline") => "lib",
            ("lib", "waterline_queue") => "queue-lib",
            _ => return None,
        };
        Some((name.to_owned(), (file, folder)))
    };
    Ok(text.lines().filter_map(program).collect())
}

/// Runs a test with one of the bugs or none, and measures its time.
fn run(programs: &Programs, call: (&str, &str, &str), bug: Option<&Bug>, limit: Duration) -> (End, Duration) {
    let (program, test, store) = call;
    let (file, folder) = &programs[program];
    let begun = Instant::now();
    // `timeout` also ends the processes that the test has started.
    let mut run = Command::new("timeout");
    run.args(["--signal=KILL", &limit.as_secs().to_string()]).arg(file).arg(test).current_dir(folder);
    run.env("CARGO_MANIFEST_DIR", folder).env("WATERLINE_STORE", store).env_remove(VARIABLE);
    run.envs(bug.map(|bug| (VARIABLE, bug.number.to_string())));
    // To a file, since a process that outlives the test may hold a pipe open.
    let said = tempfile::NamedTempFile::new().expect("a temporary file");
    let out = |file: &File| Stdio::from(file.try_clone().expect("a handle"));
    run.stdin(Stdio::null()).stdout(out(said.as_file())).stderr(out(said.as_file()));
    let status = run.status().expect("`timeout` is installed");
    let said = fs::read(said.path()).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let ran = said.lines().filter_map(|line| line.strip_prefix("running ")).any(|rest| !rest.starts_with("0 "));
    let end = match (ran, status.success()) {
        (false, _) => End::NoTest,
        (true, true) => End::Passed,
        (true, false) => End::Failed,
    };
    (end, begun.elapsed())
}

/// Runs the job for each value, on a thread for each core.
fn each<T: Sync, R: Send>(all: &[T], job: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take = || {
        let at = next.fetch_add(1, Ordering::Relaxed);
        Some((at, job(all.get(at)?)))
    };
    let mut done: Vec<_> = thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(|| iter::from_fn(take).collect::<Vec<_>>())).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no job panics")).collect()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, end)| end).collect()
}

/// Returns whether each bug was found.
fn find() -> Result<bool, String> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [copy, target, title] = &*arguments else { return Err("plant COPY TARGET TITLE".to_owned()) };
    let (copy, target) = (Path::new(copy), Path::new(target));
    let list = fs::read_to_string(copy.join("tests/mutants.txt")).map_err(|error| error.to_string())?;
    let functions = planted::functions(copy).map_err(|error| error.to_string())?;
    let bugs = planted::read(&list)?.into_iter().filter(|bug| bug.title.contains(title.as_str()));
    let bugs: Vec<_> = bugs.map(|bug| planted::in_rust(bug, &functions)).collect::<Result<_, _>>()?;
    let bugs: Vec<_> = bugs.iter().collect();
    write(copy, &bugs)?;
    let programs = build(copy, target, &bugs)?;

    let calls: Vec<_> = bugs.iter().map(|bug| bug.call()).collect::<BTreeSet<_>>().into_iter().collect();
    let sound: BTreeMap<_, _> =
        calls.iter().copied().zip(each(&calls, |call| run(&programs, *call, None, LIMIT))).collect();
    let ends = each(&bugs, |bug| {
        let (end, took) = sound[&bug.call()];
        let end = if end == End::Passed {
            // Random calls and threads that race miss a bug now and then.
            let finds = |_| run(&programs, bug.call(), Some(bug), HANGS + took * 10).0 == End::Failed;
            if (0..RUNS).any(finds) { "found" } else { "SURVIVED" }
        } else if end == End::NoTest {
            "NO TEST"
        } else {
            "FAILS WITHOUT"
        };
        println!("{end:<13} {} ({} {})", bug.title, bug.program, bug.test);
        end == "found"
    });
    let found = ends.iter().filter(|found| **found).count();
    println!("{} planted, {found} found", ends.len());
    Ok(found == ends.len() && found > 0)
}

fn main() -> ExitCode {
    match find() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("plant: {error}");
            ExitCode::FAILURE
        }
    }
}
