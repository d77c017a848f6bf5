//! Indexes the history of a git repository: which paths every commit changes, in parallel, resumable at any moment.
//!
//! ```sh
//! cargo run --release --example git_history -- path/to/repository     # or none: the one that you stand in
//! cargo run --release --example git_history -- --json --workers 8 --db /tmp/history
//! ```
//!
//! Index *i* is the *i*-th commit of the first-parent history, from the root on. Its job lists the paths in which it differs
//! from its first parent, puts one row into a table, and adds to two totals: one write with the fact that the commit is indexed.
//! Press Ctrl-C, or kill it with -9: the next run goes on where this one was, and the totals are those of
//!
//! ```sh
//! git rev-list --count --first-parent HEAD
//! git log --first-parent -m --root --no-renames --name-only --format= | grep -c .
//! ```
//!
//! The database is the directory `waterline` in the repository's git directory, where no work tree shows it. It belongs to
//! one history: when that was rewritten the program refuses to go on, and `--reset` begins anew. Replace refs are not
//! followed. Exit codes: 0 all indexed, 1 failed, 2 wrong usage, 130 interrupted.

use clap::Parser;
use git2::{Delta, DiffDelta, DiffOptions, ErrorCode, Oid, Repository, Tree};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::cell::OnceCell;
use std::fs;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use waterline::{BoxError, Consumer, Error, Handle, Index, Jobs, Retry, State, Store};

/// What the progress and the table of rows are called in the store.
const NAME: &str = "commits";
/// The table of the totals, and its keys.
const TOTALS: &str = "totals";
const COMMITS: &str = "commits";
const CHANGES: &str = "changes";
/// How far above the watermark commits are indexed.
const WINDOW: u64 = 10_000;

/// Index the first-parent history of a git repository: one row for each commit, with the paths that it changes.
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
    /// Commits that are read at the same time [default: one for each CPU]
    #[arg(long, value_name = "N")]
    workers: Option<NonZeroUsize>,
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

/// Whether everything is indexed; otherwise it was interrupted.
fn run(args: &Args) -> Result<bool, BoxError> {
    let begun = Instant::now();
    let repository = open(args.repo.as_deref())?;
    let db = args.db.clone().unwrap_or_else(|| repository.path().join("waterline"));
    if args.reset {
        reset(&db)?;
    }
    let store = Store::open(&db)?;
    let chain = Arc::new(Chain::collect(&repository)?);
    let resumed_from = store.progress(NAME).last_processed()?;
    check_history(&chain, &store, resumed_from)?;
    let last_processed = match chain.last() {
        Some(head) => process(args, &repository, &store, &chain, head)?,
        None => None,
    };
    let totals = store.table(TOTALS)?;
    let (commits, changes) = (totals.counter(COMMITS)?, totals.counter(CHANGES)?);
    let seconds = begun.elapsed().as_secs_f64();
    let mut out = io::stdout().lock();
    if args.json {
        let report = json!({
            "commits": commits, "changes": changes, "head": chain.last(),
            "last_processed": last_processed, "resumed_from": resumed_from, "seconds": seconds,
        });
        writeln!(out, "{report}")?;
    } else {
        writeln!(out, "commits: {commits}, changed paths: {changes} ({seconds:.2} s)")?;
    }
    let complete = last_processed == chain.last();
    if !complete {
        eprintln!("interrupted: everything so far is saved, run the same command again to resume");
    }
    Ok(complete)
}

fn open(path: Option<&Path>) -> Result<Repository, BoxError> {
    // A path that is named must be the repository itself: looking above it could find another one.
    match path {
        Some(path) => Repository::open(path).map_err(|e| format!("no repository at {}: {e}", path.display()).into()),
        None => {
            Repository::discover(".").map_err(|e| format!("no repository around the current directory: {e}").into())
        }
    }
}

/// Removes the database, and nothing that is none.
fn reset(db: &Path) -> Result<(), BoxError> {
    let failed = |e: io::Error| format!("{} cannot be removed: {e}", db.display());
    match fs::read_dir(db).map(|mut entries| entries.next().is_none()) {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed(e).into()),
    }
    if !db.join("CURRENT").is_file() {
        return Err(format!("{} is not removed: it has files, but is no database", db.display()).into());
    }
    // Opening takes the lock. Whatever else is wrong with the database is a reason to remove it.
    if let Err(e @ Error::Locked { .. }) = Store::open(db) {
        return Err(e.into());
    }
    // Renamed first: a reset that is killed half-way must not leave half a database under the name that is opened next.
    let db = db.canonicalize().map_err(failed)?;
    let mut name = db.file_name().unwrap_or_default().to_owned();
    name.push(format!(".removed-{}", std::process::id()));
    let aside = db.with_file_name(name);
    fs::rename(&db, &aside).map_err(failed)?;
    // The name may have been a link to it.
    fs::create_dir(&db).map_err(|e| format!("{} cannot be made anew: {e}", db.display()))?;
    fs::remove_dir_all(&aside).map_err(|e| format!("{} cannot be removed: {e}", aside.display()).into())
}

/// The source: the first-parent history of `HEAD`, the root first. Read once, since what a source shows must be final.
struct Chain(Vec<Oid>);

impl Chain {
    fn collect(repository: &Repository) -> Result<Self, BoxError> {
        let head = match repository.head() {
            Ok(head) => head.peel_to_commit().map_err(|e| format!("HEAD is no commit: {e}"))?,
            // No commit was made yet.
            Err(e) if matches!(e.code(), ErrorCode::UnbornBranch | ErrorCode::NotFound) => return Ok(Self(Vec::new())),
            Err(e) => return Err(format!("HEAD cannot be read: {e}").into()),
        };
        let mut chain = vec![head.id()];
        let mut commit = head;
        // Where a shallow clone ends its commits have no parents here either.
        while commit.parent_count() > 0 {
            commit =
                commit.parent(0).map_err(|e| format!("the first parent of {} cannot be read: {e}", commit.id()))?;
            chain.push(commit.id());
        }
        chain.reverse();
        Ok(Self(chain))
    }

    fn get(&self, index: Index) -> Option<Oid> {
        self.0.get(usize::try_from(index).ok()?).copied()
    }

    fn last(&self) -> Option<Index> {
        (self.0.len() as Index).checked_sub(1)
    }
}

impl Jobs for Chain {
    type Job = Oid;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(self.last())
    }

    fn at_index(&self, index: Index) -> Result<Option<Oid>, BoxError> {
        Ok(self.get(index))
    }
}

/// Refuses a history that is not the one that was indexed so far. A commit's id stands for everything below it, so the highest
/// row tells. It may be above the watermark: what is done there is not done again.
fn check_history(chain: &Chain, store: &Store, last_processed: Option<Index>) -> Result<(), BoxError> {
    let (rows, totals) = (store.table(NAME)?, store.table(TOTALS)?);
    let indexed = last_processed.map_or(0, |index| index + 1);
    if totals.counter(COMMITS)? < i64::try_from(indexed)? {
        return Err("the database has no totals of what was indexed: use --reset to begin anew".into());
    }
    let mut highest = None;
    for index in (indexed.saturating_sub(1)..indexed + WINDOW).rev() {
        if let Some(row) = rows.get(index.to_be_bytes())? {
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

/// Runs the consumer up to the head, or until it is interrupted; returns the watermark.
fn process(
    args: &Args,
    repository: &Repository,
    store: &Store,
    chain: &Arc<Chain>,
    head: Index,
) -> Result<Option<Index>, BoxError> {
    let mut builder = Consumer::builder(chain.clone(), store.progress(NAME))
        .stop_at(head)
        .max_search_ahead(WINDOW)
        // An object that cannot be read now cannot be read a second later either.
        .retry(Retry::none());
    if let Some(workers) = args.workers {
        builder = builder.max_processing(workers.get());
    }
    let (git_dir, rows, totals) = (repository.path().to_owned(), store.table(NAME)?, store.table(TOTALS)?);
    let consumer = builder.start_transactional(move |job, effects| {
        let (row, changes) = with_repository(&git_dir, |repository| describe(repository, job.payload))
            .map_err(|e| format!("commit {} cannot be indexed: {e}", job.payload))?;
        effects.put(&rows, job.index.to_be_bytes(), row.to_string())?;
        effects.add(&totals, COMMITS, 1)?;
        effects.add(&totals, CHANGES, changes)?;
        Ok(())
    })?;
    let handle = consumer.handle();
    ctrlc::set_handler({
        let handle = handle.clone();
        move || handle.request_stop()
    })?;
    match handle.last_processed_index().and_then(|index| Some((index, chain.get(index)?))) {
        Some((index, id)) => eprintln!("resuming after index {index} ({id}), commits to go: {}", head - index),
        None => eprintln!("beginning, commits to go: {}", head + 1),
    }
    watch(&handle, head)?;
    consumer.join()?;
    Ok(handle.last_processed_index())
}

/// Draws a progress bar until the consumer ends; nothing where stderr is no terminal.
fn watch(handle: &Handle, head: Index) -> Result<(), BoxError> {
    let bar = ProgressBar::new(head + 1);
    if bar.is_hidden() {
        return Ok(());
    }
    bar.set_style(ProgressStyle::with_template("{wide_bar} {pos}/{len}, {per_sec}, lag {msg}, {eta} left")?);
    let processed = || handle.last_processed_index().map_or(0, |index| index + 1);
    bar.set_position(processed());
    bar.set_message(handle.status().lag().to_string());
    // The rate is that of this run.
    bar.reset_eta();
    while !handle.wait_for(head, Duration::from_millis(100)) {
        let status = handle.status();
        if status.state != State::Running {
            break;
        }
        bar.set_position(processed());
        bar.set_message(status.lag().to_string());
    }
    bar.finish_and_clear();
    Ok(())
}

thread_local! {
    /// A repository must not be used by two threads at a time, and opening one is dear: each worker thread has its own.
    static REPOSITORY: OnceCell<Repository> = const { OnceCell::new() };
}

fn with_repository<R>(
    git_dir: &Path,
    run: impl FnOnce(&Repository) -> Result<R, git2::Error>,
) -> Result<R, git2::Error> {
    REPOSITORY.with(|cell| match cell.get() {
        Some(repository) => run(repository),
        None => {
            let repository = Repository::open(git_dir)?;
            run(cell.get_or_init(|| repository))
        }
    })
}

/// The row of a commit, and how many paths it changes.
fn describe(repository: &Repository, id: Oid) -> Result<(Value, i64), git2::Error> {
    let commit = repository.find_commit(id)?;
    let tree = commit.tree()?;
    // The root, and the last commit of a shallow clone, is compared with the empty tree.
    let before = match commit.parent_count() {
        0 => None,
        _ => Some(commit.parent(0)?.tree()?),
    };
    let mut options = DiffOptions::new();
    // A file that becomes a symlink or a submodule is one change, as git sees it, not a deletion and an addition.
    options.include_typechange(true);
    let diff = repository.diff_tree_to_tree(before.as_ref(), Some(&tree), Some(&mut options))?;
    let mut paths = Vec::with_capacity(diff.deltas().len());
    for delta in diff.deltas() {
        if is_change(&delta, before.as_ref(), &tree)? {
            let path = delta.new_file().path_bytes().unwrap_or_default();
            // JSON has no bytes: an odd name may come out approximate, but it counts.
            paths.push(String::from_utf8_lossy(path).into_owned());
        }
    }
    let summary = String::from_utf8_lossy(commit.summary_bytes().unwrap_or_default());
    let author_time = commit.author().when().seconds();
    let changes = paths.len() as i64;
    Ok((json!({ "commit": id.to_string(), "author_time": author_time, "summary": summary, "paths": paths }), changes))
}

/// Whether git calls it a change, too: old histories have modes like 100664, which git takes for 100644, and libgit2 does not.
fn is_change(delta: &DiffDelta<'_>, before: Option<&Tree<'_>>, after: &Tree<'_>) -> Result<bool, git2::Error> {
    if delta.status() != Delta::Modified || delta.old_file().id() != delta.new_file().id() {
        return Ok(true);
    }
    match (before, delta.new_file().path()) {
        (Some(before), Some(path)) => Ok(before.get_path(path)?.filemode() != after.get_path(path)?.filemode()),
        _ => Ok(true),
    }
}
