//! The two stages, and their data in the store.

use crate::history::Chain;
use crate::objects::{Change, count_lines, describe, extension, with_repository};
use crate::page::Page;
use crossbeam_channel::{RecvTimeoutError, bounded};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use waterline::{
    BoxError, Builder, Consumer, Error, Handle, Index, JobLog, Jobs, Pipeline, Retry, Store, StoreProgress, Table,
};

/// The names of the stages and of their progress. The rows of commits and the log of files have
/// them, too.
pub(crate) const COMMITS: &str = "commits";
pub(crate) const FILES: &str = "files";
/// The counter of changed paths, next to that of commits.
pub(crate) const CHANGES: &str = "changes";
/// The width of the window of the first stage, in commits.
pub(crate) const WINDOW: u64 = 10_000;
/// The time between two updates of the progress bars.
const TICK: Duration = Duration::from_millis(100);

/// The data of both stages, in one store, so that the changes of each job are one atomic write.
pub(crate) struct Data {
    pub(crate) store: Store,
    /// A row for each commit.
    pub(crate) commits: Table,
    /// The numbers of commits and of changed paths.
    pub(crate) totals: Table,
    /// The log from the first stage to the second: every changed file, in the order in which
    /// commits are written.
    pub(crate) changed: JobLog<Change>,
    /// How many files were read, and how many lines they have, for each extension.
    pub(crate) files: Table,
    pub(crate) lines: Table,
}

impl Data {
    pub(crate) fn open(store: Store) -> Result<Self, Error> {
        Ok(Self {
            commits: store.table(COMMITS)?,
            totals: store.table("totals")?,
            changed: store.log(FILES)?,
            files: store.table("files")?,
            lines: store.table("lines")?,
            store,
        })
    }

    /// Returns each extension with its files and lines.
    pub(crate) fn extensions(&self) -> Result<Vec<(String, i64, i64)>, Error> {
        let row = |row: Result<(Vec<u8>, Vec<u8>), Error>| {
            let key = row?.0;
            let (files, lines) = (self.files.counter(&key)?, self.lines.counter(&key)?);
            Ok((String::from_utf8_lossy(&key).into_owned(), files, lines))
        };
        self.files.iter().map(row).collect()
    }
}

/// The settings of both stages.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    /// How many jobs of a stage run at a time.
    pub(crate) workers: Option<NonZeroUsize>,
    /// After how many saved jobs a stage reports its position.
    pub(crate) every: Option<NonZeroU64>,
    /// A page for the browser shows the stages.
    pub(crate) page: bool,
}

impl Settings {
    fn apply<J: Jobs>(self, stage: &'static str, builder: Builder<J, StoreProgress>) -> Builder<J, StoreProgress> {
        // If an object cannot be read now, it cannot be read a second later either.
        let mut builder = builder.retry(Retry::none());
        if let Some(workers) = self.workers {
            builder = builder.max_processing(workers.get());
        }
        if let Some(every) = self.every {
            builder = builder.on_processed(move |run| {
                if (run.end() + 1) / every > *run.start() / every {
                    eprintln!("{stage}: saved up to index {}", run.end());
                }
            });
        }
        builder
    }
}

/// The position of a stage.
pub(crate) struct Stage {
    name: &'static str,
    /// Its lowest index: commits are numbered from 0, and the items of a log from 1.
    first: Index,
    head: Option<Index>,
    pub(crate) last_processed: Option<Index>,
    /// How many jobs were done in this run.
    done: u64,
}

impl Stage {
    fn new(name: &'static str, first: Index, head: Option<Index>, handle: Option<&Handle>) -> Self {
        let done = handle.map_or(0, |handle| handle.status().done);
        Self { name, first, head, last_processed: handle.and_then(Handle::last_processed_index), done }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.last_processed == self.head
    }

    pub(crate) fn to_json(&self) -> Value {
        // The head of the status may be old: the first stage may have pushed since the second one
        // looked.
        let end = |index: Option<Index>| index.map_or(self.first, |index| index + 1);
        let lag = end(self.head) - end(self.last_processed);
        json!({
            "name": self.name, "head": self.head, "last_processed": self.last_processed, "lag": lag, "done": self.done,
        })
    }
}

/// Runs both stages until all jobs are done, or until it is interrupted. Returns their positions,
/// and the page that shows them.
pub(crate) fn process(
    git_dir: &Path,
    settings: Settings,
    data: &Data,
    chain: &Arc<Chain>,
    resumed_from: Option<Index>,
) -> Result<([Stage; 2], Option<Page>), BoxError> {
    let Some(head) = chain.last() else {
        return Ok(([Stage::new(COMMITS, 0, None, None), Stage::new(FILES, 1, None, None)], None));
    };
    let pipeline = Pipeline::builder()
        .stage(COMMITS, |stage| start_commits(stage, git_dir, settings, data, chain))
        .stage(FILES, |stage| start_files(stage, git_dir, settings, data))
        .stop_at(head)
        .start()?;
    let handle = pipeline.handle();
    let [first, second] = [COMMITS, FILES].map(|name| handle.stage(name).expect("it was added just now"));
    let (interrupt, interrupted) = bounded::<()>(1);
    ctrlc::set_handler({
        // Both stop at once: the log keeps the items that the second stage has not processed.
        let stages = [first.clone(), second.clone()];
        move || {
            stages.iter().for_each(Handle::request_stop);
            // One is enough.
            let _ = interrupt.try_send(());
        }
    })?;
    let page = if settings.page { Some(Page::serve(&data.store, &handle, interrupted)?) } else { None };
    // Not the handle's watermark: the stages already run, and it may have moved.
    match resumed_from.and_then(|index| Some((index, chain.get(index)?))) {
        Some((index, id)) => eprintln!("resuming after index {index} ({id}), commits to go: {}", head - index),
        None => eprintln!("beginning, commits to go: {}", head + 1),
    }
    let bars = Bars::new(head)?;
    let (ended, at_the_end) = bounded::<()>(0);
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            bars.begin(&first, &second, &data.changed);
            while at_the_end.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                bars.draw(&first, &second, &data.changed);
            }
        });
        let outcome = pipeline.join();
        drop(ended);
        outcome
    });
    outcome?;
    let last = data.changed.head()?;
    let stages = [Stage::new(COMMITS, 0, Some(head), Some(&first)), Stage::new(FILES, 1, last, Some(&second))];
    Ok((stages, page))
}

/// Starts the first stage: commits become rows, and their changed files go into the log.
fn start_commits(
    stage: &waterline::Stage<'_>,
    git_dir: &Path,
    settings: Settings,
    data: &Data,
    chain: &Arc<Chain>,
) -> Result<Consumer, Error> {
    let builder = stage.consumer(chain.clone(), data.store.progress(COMMITS)).max_search_ahead(WINDOW);
    let (git_dir, rows, totals) = (git_dir.to_owned(), data.commits.clone(), data.totals.clone());
    let changed = data.changed.clone();
    settings.apply(COMMITS, builder).start_transactional(move |job, effects| {
        let (row, changes) = with_repository(&git_dir, |repository| describe(repository, job.payload))
            .map_err(|e| format!("commit {} cannot be indexed: {e}", job.payload))?;
        effects.put(&rows, job.index.to_be_bytes(), row.to_string())?;
        effects.add(&totals, COMMITS, 1)?;
        effects.add(&totals, CHANGES, changes.len() as i64)?;
        changes.iter().try_for_each(|change| effects.push(&changed, change))?;
        Ok(())
    })
}

/// Starts the second stage: it adds up the lines of the files in the log by extension.
fn start_files(
    stage: &waterline::Stage<'_>,
    git_dir: &Path,
    settings: Settings,
    data: &Data,
) -> Result<Consumer, Error> {
    let builder = stage.consumer(data.changed.clone(), data.store.progress(FILES));
    let (git_dir, files, lines) = (git_dir.to_owned(), data.files.clone(), data.lines.clone());
    let consumer = settings.apply(FILES, builder).start_transactional(move |job, effects| {
        let (path, blob, _) = &job.payload;
        let counted = with_repository(&git_dir, |repository| count_lines(repository, &job.payload))
            .map_err(|e| format!("file {path} (blob {blob}) cannot be read: {e}"))?;
        effects.add(&files, extension(path), 1)?;
        effects.add(&lines, extension(path), counted)?;
        Ok(())
    })?;
    data.changed.retain([consumer.handle()]);
    Ok(consumer)
}

/// Progress bars for both stages, which draw nothing if stderr is no terminal.
struct Bars {
    commits: ProgressBar,
    files: ProgressBar,
}

impl Bars {
    fn new(head: Index) -> Result<Self, BoxError> {
        let both = MultiProgress::new();
        let bar = |name, length, more| {
            let template = format!("{{prefix:>7}} {{wide_bar}} {{pos}}/{{len}}, {{per_sec}}, lag {{msg}}{more}");
            let style = ProgressStyle::with_template(&template)?;
            Ok::<_, BoxError>(both.add(ProgressBar::new(length)).with_style(style).with_prefix(name))
        };
        // The end of the files is unknown while commits add more of them.
        Ok(Self { commits: bar(COMMITS, head + 1, ", {eta} left")?, files: bar(FILES, 0, "")? })
    }

    /// Starts the bars at this run's beginning, so that their rates are those of this run.
    fn begin(&self, first: &Handle, second: &Handle, log: &JobLog<Change>) {
        self.draw(first, second, log);
        self.commits.reset_eta();
        self.files.reset_eta();
    }

    fn draw(&self, first: &Handle, second: &Handle, log: &JobLog<Change>) {
        self.files.set_length(log.head().ok().flatten().unwrap_or(0));
        // Commits are numbered from 0, and items of the log from 1.
        self.commits.set_position(first.last_processed_index().map_or(0, |index| index + 1));
        self.files.set_position(second.last_processed_index().unwrap_or(0));
        self.commits.set_message(first.status().lag().to_string());
        self.files.set_message(second.status().lag().to_string());
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.commits.finish_and_clear();
        self.files.finish_and_clear();
    }
}
