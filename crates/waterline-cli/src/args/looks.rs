//! The commands that change nothing.

use clap::{Args, Subcommand, ValueEnum};
use waterline_queue::JobState;

/// A command that changes nothing.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Look {
    /// List the consumers and the logs
    List,
    /// Show one consumer or one log
    Show {
        /// The name of the progress of a consumer, or of a log.
        name: String,
    },
    /// List the parked jobs of a consumer
    Parked {
        /// The name of its progress.
        name: String,
    },
    /// List the moves of a consumer that an operator made on purpose: seeks and skips
    History {
        /// The name of its progress.
        name: String,
    },
    /// Look into a log
    #[command(subcommand)]
    Log(LogCommand),
    /// List the tables
    Tables,
    /// Show the rows of a table
    Table {
        /// The name of the table.
        name: String,
        /// Only rows whose key begins with this text, or with these bytes: 0x, hexadecimal digits.
        #[arg(long, value_name = "P")]
        prefix: Option<String>,
        #[command(flatten)]
        most: Most,
    },
    /// List the queues
    Queues,
    /// List the jobs of a queue
    Jobs {
        /// The name of the queue.
        queue: String,
        /// Only jobs in this state.
        #[arg(long, value_name = "S")]
        state: Option<State>,
        /// Only jobs of this kind.
        #[arg(long, value_name = "K")]
        kind: Option<String>,
        #[command(flatten)]
        most: Most,
    },
    /// Show one job of a queue
    Job {
        /// The name of the queue.
        queue: String,
        /// The id of the job.
        id: String,
    },
    /// List the periodic jobs of a queue
    Schedules {
        /// The name of the queue.
        queue: String,
    },
    /// List the workers of a queue, with the jobs that each of them runs
    ///
    /// A worker says which slots it has, and which of them are busy, with each third of a lease.
    /// One that is no longer heard of has died, or stands still: its jobs come back when their
    /// leases end. A store has one process, which alone knows more than the jobs that run: --url
    /// asks it.
    Workers {
        /// The name of the queue.
        queue: String,
        #[command(flatten)]
        most: Most,
    },
    /// Read everything, and say what is damaged or cannot move, and which command helps
    Doctor,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum LogCommand {
    /// Show items of a log
    Peek {
        /// The name of the log.
        name: String,
        /// The index of the first item; without it the first one that is there.
        #[arg(long, value_name = "I")]
        from: Option<u64>,
        #[command(flatten)]
        most: Most,
    },
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Most {
    /// The most that is shown; 0: all.
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
}

impl Most {
    pub(crate) fn get(self) -> usize {
        if self.limit == 0 { usize::MAX } else { self.limit }
    }
}

/// A state of a job, as a word of the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum State {
    Running,
    Ready,
    Scheduled,
    Waiting,
    Dead,
    Finished,
    Damaged,
}

impl State {
    /// The states in the order in which jobs are listed.
    pub(crate) const ALL: [Self; 7] =
        [Self::Running, Self::Ready, Self::Scheduled, Self::Waiting, Self::Dead, Self::Finished, Self::Damaged];

    pub(crate) fn of_job(self) -> JobState {
        match self {
            Self::Running => JobState::Running,
            Self::Ready => JobState::Ready,
            Self::Scheduled => JobState::Scheduled,
            Self::Waiting => JobState::Waiting,
            Self::Dead => JobState::Dead,
            Self::Finished => JobState::Finished,
            Self::Damaged => JobState::Damaged,
        }
    }
}
