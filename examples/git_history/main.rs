//! Indexes the history of a git repository, in parallel, exactly once, and resumable at any moment.
//! The index says which paths every commit changes, and how many lines the changed files have.
//!
//! ```sh
//! make demo ARGS="path/to/repository"     # or none: the one that you stand in
//! make demo ARGS="--json --workers 8 --db /tmp/history"
//! ```
//!
//! It is a pipeline of two stages with a log between them:
//!
//! ```text
//!  first-parent history ──▶ commits ──push──▶ log of changed files ──▶ files
//!                              │                       ▲                 │
//!                      rows and totals                 └───── trim ──────┴── files and lines by extension
//! ```
//!
//! *Commits*: index *i* is the *i*-th commit of the first-parent history, from the root on. Its job
//! lists the paths in which it differs from its first parent, puts one row into a table, adds to
//! two totals, and pushes each changed file to the log. All this is one write with the completion
//! of the job.
//!
//! *Files*: each job reads the blob of one changed file, as it is after the change, and adds its
//! lines to a sum for its extension. This is one write with the completion of the job, too. Lines
//! are counted as `git diff --numstat` counts those of a new file. Binary files, deletions and
//! submodules count as files without lines. A file counts as often as it is changed. The log trims
//! itself: it drops the files that were counted.
//!
//! Press Ctrl-C, or kill it with -9: the next run resumes where this one was. At the end the totals
//! of commits and paths are the same as
//!
//! ```sh
//! git rev-list --count --first-parent HEAD
//! git log --first-parent -m --root --no-renames --name-only --format= | grep -c .
//! ```
//!
//! The database is the directory `waterline` in the repository's git directory, where no work tree
//! shows it. It belongs to one history: if that was rewritten the program refuses to continue, and
//! `--reset` starts over. Replace refs are not followed. A partial clone lacks objects, and the
//! program ends at the first missing one. Exit codes: 0 all indexed, 1 failed, 2 wrong usage, 130
//! interrupted.

use crate::history::Chain;
use crate::pipeline::{CHANGES, COMMITS, Data, Settings, Stage, WINDOW, process};
use clap::Parser;
use serde_json::{Map, Value, json};
use std::cmp::Reverse;
use std::fs;
use std::io::{self, Write};
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use waterline::{BoxError, Engine, Error, Index, Jobs, Store};

mod history;
mod objects;
mod page;
mod pipeline;

/// How many extensions are shown.
const TOP: usize = 5;

/// Index the first-parent history of a git repository: one row for each commit, with the paths that
/// it changes, and the lines of the changed files, by extension. Binary files, deletions and
/// submodules count as files without lines.
#[derive(Parser)]
#[command(name = "git_history")]
struct Args {
    /// The repository, bare or not [default: the one that the current directory is in]
    repo: Option<PathBuf>,
    /// The directory of the database [default: `waterline` in the repository's git directory]
    #[arg(long, value_name = "DIR")]
    db: Option<PathBuf>,
    /// Print the totals as one line of JSON
    #[arg(long)]
    json: bool,
    /// Commits that are read at the same time, and files as well [default: one for each CPU]
    #[arg(long, value_name = "N")]
    workers: Option<NonZeroUsize>,
    /// Say on stderr how far it is, each time that this many more commits or files are saved
    #[arg(long, value_name = "N")]
    every: Option<NonZeroU64>,
    /// The engine of a new database
    #[arg(long, value_name = "NAME", default_value = "sqlite", value_parser = ["sqlite", "rocksdb"])]
    store: String,
    /// Show the stages on a page for the browser, also at the end, until Ctrl-C (feature `page`)
    #[arg(long)]
    page: bool,
    /// Remove the database, and begin anew
    #[arg(long)]
    reset: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(130),
        Err(error) => {
            eprint!("error: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprint!(": {error}");
                cause = error.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}

/// Returns true if everything is indexed, and false if it was interrupted.
fn run(args: &Args) -> Result<bool, BoxError> {
    let begun = Instant::now();
    let repository = history::open(args.repo.as_deref())?;
    let db = args.db.clone().unwrap_or_else(|| repository.path().join("waterline"));
    if args.reset {
        reset(&db)?;
    }
    let engine = match &*args.store {
        "rocksdb" => Engine::RocksDb,
        _ => Engine::Sqlite,
    };
    let is_new = fs::read_dir(&db).map_or(true, |mut files| files.next().is_none());
    let store = if is_new { Store::options().engine(engine).open(&db)? } else { Store::open(&db)? };
    if let Some(engine) = store.engine().filter(|_| !args.json) {
        println!("the store is {engine}, in {}", db.display());
    }
    let data = Data::open(store)?;
    let chain = Arc::new(Chain::collect(&repository)?);
    let resumed_from = data.store.progress(COMMITS).last_processed()?;
    check_history(&chain, &data, resumed_from)?;
    let settings = Settings { workers: args.workers, every: args.every, page: args.page };
    let (stages, page) = process(repository.path(), settings, &data, &chain, resumed_from)?;
    let (commits, changes) = (data.totals.counter(COMMITS)?, data.totals.counter(CHANGES)?);
    let extensions = data.extensions()?;
    let files: i64 = extensions.iter().map(|(_, files, _)| files).sum();
    let lines: i64 = extensions.iter().map(|(.., lines)| lines).sum();
    let seconds = begun.elapsed().as_secs_f64();
    let mut out = io::stdout().lock();
    if args.json {
        let sums = |(name, files, lines)| (name, json!({ "files": files, "lines": lines }));
        let report = json!({
            "commits": commits, "changes": changes, "head": chain.last(),
            "last_processed": stages[0].last_processed, "resumed_from": resumed_from, "seconds": seconds,
            "files": files, "lines": lines, "extensions": extensions.into_iter().map(sums).collect::<Map<_, _>>(),
            "stages": stages.each_ref().map(Stage::to_json),
        });
        writeln!(out, "{report}")?;
    } else {
        writeln!(out, "commits: {commits}, changed paths: {changes} ({seconds:.2} s)")?;
        writeln!(out, "files read: {files}, lines in them: {lines}{}", top(extensions))?;
    }
    let complete = stages.iter().all(Stage::is_complete);
    drop(out);
    if let Some(page) = page.filter(|_| complete) {
        page.stay();
    }
    if !complete {
        eprintln!("interrupted: everything so far is saved, run the same command again to resume");
    }
    Ok(complete)
}

/// Returns the extensions with the most lines, for people.
fn top(mut extensions: Vec<(String, i64, i64)>) -> String {
    extensions.sort_by_key(|(_, files, lines)| (Reverse(*lines), Reverse(*files)));
    let shown = extensions.iter().take(TOP).map(|(name, _, lines)| match name.as_str() {
        "" => format!("no extension {lines}"),
        // The name of an extension may have any characters.
        name => format!(".{} {lines}", name.escape_debug()),
    });
    let shown: Vec<String> = shown.collect();
    if shown.is_empty() { String::new() } else { format!(" (most of them: {})", shown.join(", ")) }
}

/// Removes the database, but nothing that is not one.
fn reset(db: &Path) -> Result<(), BoxError> {
    let failed = |e: io::Error| format!("{} cannot be removed: {e}", db.display());
    match fs::read_dir(db).map(|mut entries| entries.next().is_none()) {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed(e).into()),
    }
    // One file of RocksDB, and one of SQLite.
    if !["CURRENT", "waterline.sqlite"].iter().any(|name| db.join(name).is_file()) {
        return Err(format!("{} is not removed: it has files, but is no database", db.display()).into());
    }
    // Opening it takes the lock. Any other error of the database is a reason to remove it.
    if let Err(e @ Error::Locked { .. }) = Store::open(db) {
        return Err(e.into());
    }
    // Renamed first, so that a reset that is killed half-way leaves no partial database under the
    // name that is opened next.
    let db = db.canonicalize().map_err(failed)?;
    let mut name = db.file_name().unwrap_or_default().to_owned();
    name.push(format!(".removed-{}", std::process::id()));
    let aside = db.with_file_name(name);
    fs::rename(&db, &aside).map_err(failed)?;
    // The name may have been a link to the directory.
    fs::create_dir(&db).map_err(|e| format!("{} cannot be made anew: {e}", db.display()))?;
    fs::remove_dir_all(&aside).map_err(|e| format!("{} cannot be removed: {e}", aside.display()).into())
}

/// Refuses a history other than the one that was indexed so far. A commit's id stands for
/// everything below it, so it suffices to check the highest row. This row may be above the
/// watermark: jobs that are done there do not run again.
fn check_history(chain: &Chain, data: &Data, last_processed: Option<Index>) -> Result<(), BoxError> {
    let indexed = last_processed.map_or(0, |index| index + 1);
    if data.totals.counter(COMMITS)? < i64::try_from(indexed)? {
        return Err("the database has no totals of what was indexed: use --reset to begin anew".into());
    }
    // Each change was pushed in the write that counts it, and the items are numbered from 1.
    if data.totals.counter(CHANGES)? != i64::try_from(data.changed.head()?.unwrap_or(0))? {
        return Err(
            "the database does not have the changed files of what was indexed: use --reset to begin anew".into()
        );
    }
    let mut highest = None;
    for index in (indexed.saturating_sub(1)..indexed + WINDOW).rev() {
        if let Some(row) = data.commits.get(index.to_be_bytes())? {
            highest = Some((index, row));
            break;
        }
    }
    let Some((index, row)) = highest else {
        return match last_processed {
            Some(index) => Err(format!("the database has no row of index {index}: use --reset to begin anew").into()),
            None => Ok(()),
        };
    };
    let row: Value =
        serde_json::from_slice(&row).map_err(|e| format!("the row of index {index} cannot be read: {e}"))?;
    let (indexed, now) = (row["commit"].as_str(), chain.get(index).map(|id| id.to_string()));
    if indexed.is_some() && indexed == now.as_deref() {
        return Ok(());
    }
    let (indexed, now) = (indexed.unwrap_or("nothing"), now.as_deref().unwrap_or("nothing"));
    Err(format!(
        "the history is not the one that was indexed: index {index} was {indexed} and is {now} now (rewritten, or another \
         repository): use --reset to begin anew"
    )
    .into())
}
