//! The command line.

mod looks;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
pub(crate) use looks::{LogCommand, Look, State};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Looks at the streams and queues of a waterline store, beside the application that runs them, and
/// mends what does not move.
///
/// A look takes no lock, writes nothing, and shows what is saved at this moment. A change is a dry
/// run unless --yes is given. Of files, it needs a store that no application has open. The exit
/// code is 0, 1 after an error or if `doctor` has found anything, or 2 for a wrong command line.
#[derive(Debug, Parser)]
#[command(name = "waterline", version, disable_help_subcommand = true)]
pub(crate) struct CommandLine {
    /// The directory of a store, or the SQLite file of yours that it is in. It is read beside its
    /// application.
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) store: Option<PathBuf>,
    /// The address of the page that the application serves. WATERLINE_TOKEN has its token.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// The address of a database in PostgreSQL: postgres://user@host/database?sslmode=require.
    /// PGPASSWORD has its password, or a passfile: ~/.pgpass, or the file that PGPASSFILE names.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) postgres: Option<String>,
    /// The schema of the tables in PostgreSQL.
    #[arg(long, global = true, value_name = "NAME", default_value = "waterline")]
    pub(crate) schema: String,
    /// The address of a Redis or Valkey server: redis://user@host:port/database, or rediss:// for
    /// TLS. Several, with commas, if one of them is the master. REDISCLI_AUTH has the password.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) redis: Option<String>,
    #[command(flatten)]
    pub(crate) in_redis: InRedis,
    /// Print an object of JSON a line, with the names that the README lists.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Look again each 2 seconds, or as often as is said, until it is interrupted.
    #[arg(long, global = true, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
        default_missing_value = "2", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) watch: Option<u64>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where the queues are in Redis.
#[derive(Clone, Debug, Args)]
pub(crate) struct InRedis {
    /// The word with which the keys in Redis begin.
    #[arg(long, global = true, value_name = "WORD", default_value = "wl")]
    pub(crate) redis_prefix: String,
    /// The tag of the queues in Redis.
    #[arg(long, global = true, value_name = "TAG")]
    pub(crate) tag: Option<String>,
    /// The addresses of --redis are those of Sentinels, which know the master by this name.
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "cluster")]
    pub(crate) sentinel: Option<String>,
    /// The addresses of --redis are those of nodes of a cluster.
    #[arg(long, global = true)]
    pub(crate) cluster: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Look(Look),
    #[command(flatten)]
    Change(Change),
    /// Show all of it on a live screen: lag, rates, and why something does not move
    #[cfg(feature = "top")]
    Top {
        /// The seconds between two looks.
        #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3_600))]
        every: u64,
    },
    /// Serve the page for the browser for a store that no application serves: read-only
    ///
    /// It needs --store. On an address that other machines reach it needs a token, of 16 bytes or
    /// more, in WATERLINE_TOKEN. It has no TLS.
    #[cfg(feature = "serve")]
    Serve {
        /// The address to listen on; with port 0 any that is free.
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
        listen: String,
    },
    /// Print the completions for a shell
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// A command that changes something, with --yes.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Change {
    /// Make the next consumer run a parked job once more
    Redrive {
        /// The name of its progress.
        name: String,
        /// The index of the job.
        #[arg(required_unless_present = "all")]
        index: Option<u64>,
        /// Redrive all parked jobs.
        #[arg(long, conflicts_with = "index")]
        all: bool,
        #[command(flatten)]
        how: Note,
    },
    /// Give parked jobs up: their records are removed, and nothing runs them any more
    Discard {
        /// The name of their progress.
        name: String,
        #[command(flatten)]
        which: Parked,
        #[command(flatten)]
        how: Note,
    },
    /// Pass a job that is not done: no consumer runs it, and it counts as parked
    Skip {
        /// The name of its progress.
        name: String,
        /// The index of the job.
        index: u64,
        #[command(flatten)]
        how: Reason,
    },
    /// Set the next job to run: everything below it counts as processed
    Seek {
        /// The name of its progress.
        name: String,
        /// The index of the next job.
        next: u64,
        /// The name is one under which nothing is saved, for a consumer that has not run yet.
        #[arg(long)]
        new: bool,
        #[command(flatten)]
        how: Reason,
    },
    /// Give a consumer the name of another one, whose progress, tables and logs go
    ///
    /// Its progress, its parked jobs, its history, and the tables and logs that belong to it take
    /// the names of those of the other one.
    Replace {
        /// The name of the progress that takes the other name.
        from: String,
        /// The name that it takes.
        to: String,
        #[command(flatten)]
        how: Note,
    },
    /// Remove a progress with its parked jobs and its history, so that its consumer starts anew
    ///
    /// The tables and logs that belong to it are cleared.
    Remove {
        /// The name of the progress.
        name: String,
        #[command(flatten)]
        how: Note,
    },
    /// Make a consumer look at its source now, with --url
    Check {
        /// The name of its progress.
        name: String,
        #[command(flatten)]
        how: Yes,
    },
    /// Remove a queue of a database with all its jobs
    ///
    /// It is refused while a worker was heard of within a lease.
    RemoveQueue {
        /// The name of the queue.
        queue: String,
        #[command(flatten)]
        how: Yes,
    },
    #[command(flatten)]
    OfQueue(QueueChange),
}

/// A change of a queue.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum QueueChange {
    /// Make a dead job of a queue ready again
    ///
    /// A job that died while it waited for others waits again for those of them that live. With
    /// --dead those that others waited for come first: jobs that died together run in their order.
    Requeue {
        /// The name of the queue.
        queue: String,
        /// The id of the job.
        #[arg(required_unless_present = "dead")]
        id: Option<String>,
        /// Requeue all dead jobs.
        #[arg(long, conflicts_with = "id")]
        dead: bool,
        #[command(flatten)]
        how: Yes,
    },
    /// Remove a job of a queue, in any state
    ///
    /// The future of a job that runs is dropped at its next await point: at once through the page
    /// of its process, else with the next renewal of its lease. A function sees that it is to stop,
    /// and holds its slot until it returns.
    Cancel {
        /// The name of the queue.
        queue: String,
        /// The id of the job.
        id: String,
        #[command(flatten)]
        how: Yes,
    },
    /// Make a scheduled job of a queue due now
    RunNow {
        /// The name of the queue.
        queue: String,
        /// The id of the job.
        id: String,
        #[command(flatten)]
        how: Yes,
    },
    /// Pause a queue until somebody resumes it: no job of it starts
    Pause {
        /// The name of the queue.
        #[arg(value_name = "QUEUE")]
        queue: String,
        /// The name is that of a consumer, which only a page can pause: --url.
        #[arg(long)]
        consumer: bool,
        #[command(flatten)]
        how: Yes,
    },
    /// End the pause of a queue
    Resume {
        /// The name of the queue.
        #[arg(value_name = "QUEUE")]
        queue: String,
        /// The name is that of a consumer, which only a page can resume: --url.
        #[arg(long)]
        consumer: bool,
        #[command(flatten)]
        how: Yes,
    },
    /// Push a job into a queue that is there
    ///
    /// Only with --url are its hook and its bound asked, which its program alone knows.
    Push {
        /// The name of the queue.
        queue: String,
        /// The kind of the job.
        kind: String,
        /// The payload of the job.
        #[arg(value_name = "JSON", allow_negative_numbers = true, value_parser = json)]
        payload: serde_json::Value,
        /// The id of the job; without it the queue makes one.
        #[arg(long)]
        id: Option<String>,
        #[command(flatten)]
        how: Yes,
    },
}

impl QueueChange {
    /// Returns the name of the queue.
    pub(crate) fn queue(&self) -> &str {
        match self {
            Self::Requeue { queue, .. }
            | Self::Cancel { queue, .. }
            | Self::RunNow { queue, .. }
            | Self::Pause { queue, .. }
            | Self::Resume { queue, .. }
            | Self::Push { queue, .. } => queue,
        }
    }
}

impl Change {
    /// Returns true if the change is to be made, and the reason that was given.
    pub(crate) fn how(&self) -> (bool, Option<&str>) {
        match self {
            Self::Redrive { how, .. }
            | Self::Discard { how, .. }
            | Self::Replace { how, .. }
            | Self::Remove { how, .. } => (how.sure.yes, how.reason.as_deref()),
            Self::Skip { how, .. } | Self::Seek { how, .. } => (how.sure.yes, Some(&how.reason)),
            Self::Check { how, .. }
            | Self::RemoveQueue { how, .. }
            | Self::OfQueue(
                QueueChange::Requeue { how, .. }
                | QueueChange::Cancel { how, .. }
                | QueueChange::RunNow { how, .. }
                | QueueChange::Pause { how, .. }
                | QueueChange::Resume { how, .. }
                | QueueChange::Push { how, .. },
            ) => (how.yes, None),
        }
    }
}

/// The parked jobs that are meant: one, all, or those in a range.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Parked {
    /// The index of the job.
    #[arg(required_unless_present_any = ["all", "from", "to"])]
    pub(crate) index: Option<u64>,
    /// All parked jobs.
    #[arg(long, conflicts_with_all = ["index", "from", "to"])]
    pub(crate) all: bool,
    /// The parked jobs from this index on.
    #[arg(long, conflicts_with = "index")]
    pub(crate) from: Option<u64>,
    /// The parked jobs up to this index, with it.
    #[arg(long, conflicts_with = "index")]
    pub(crate) to: Option<u64>,
}

impl Parked {
    /// Returns the indices in which the jobs are.
    pub(crate) fn range(self) -> RangeInclusive<u64> {
        match self.index {
            Some(index) => index..=index,
            None => self.from.unwrap_or(0)..=self.to.unwrap_or(u64::MAX),
        }
    }
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Yes {
    /// Make the change. Without this the command only says what it would do.
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Reason {
    /// The reason, which the history of the consumer keeps.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) sure: Yes,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Note {
    /// The reason, which is printed; a store keeps those of `seek` and `skip` alone.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) sure: Yes,
}

/// Parses a payload. (By default clap would take any text, as a JSON string.)
fn json(text: &str) -> Result<serde_json::Value, serde_json::Error> {
    serde_json::from_str(text)
}
