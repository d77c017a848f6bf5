//! The rows that a place shows. Each is read from the library's own value as `serde` writes it, so
//! files, pages and databases share one form, which is also that of `--json`.

use crate::error::Fault;
use crate::format::At;
use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Converts a value into rows by way of JSON.
pub(crate) fn read<T: DeserializeOwned>(value: impl Serialize) -> Result<T, Fault> {
    let read = serde_json::to_value(value).and_then(serde_json::from_value);
    read.map_err(|error| Fault::new(format!("an answer has another form than this version of the tool knows: {error}")))
}

/// An integer. A page sends one above 2^53 as a string.
#[derive(Deserialize)]
#[serde(untagged)]
enum Exact {
    Number(u64),
    Digits(String),
}

fn exact<'d, D: Deserializer<'d>>(from: D) -> Result<u64, D::Error> {
    match Exact::deserialize(from)? {
        Exact::Number(number) => Ok(number),
        Exact::Digits(digits) => digits.parse().map_err(serde::de::Error::custom),
    }
}

fn maybe_exact<'d, D: Deserializer<'d>>(from: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    struct Number(#[serde(deserialize_with = "exact")] u64);
    Ok(Option::<Number>::deserialize(from)?.map(|number| number.0))
}

/// A consumer: its saved progress, and what its process says of it, where that was asked.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Consumer {
    pub(crate) name: String,
    #[serde(deserialize_with = "maybe_exact")]
    pub(crate) last_processed: Option<u64>,
    /// The lowest index that is not done.
    #[serde(deserialize_with = "maybe_exact")]
    pub(crate) next: Option<u64>,
    #[serde(deserialize_with = "exact")]
    pub(crate) done_ahead: u64,
    #[serde(deserialize_with = "exact")]
    pub(crate) parked: u64,
    pub(crate) moved_at: Option<At>,
    pub(crate) life_open: Option<bool>,
    pub(crate) last_halt: Option<Halt>,
    /// The log that it reads, if that is known.
    #[serde(default)]
    pub(crate) log: Option<String>,
    /// The tables and logs that belong to it.
    pub(crate) owns: Vec<Owned>,
    /// Why its records cannot be read.
    pub(crate) unreadable: Option<String>,
    #[serde(flatten)]
    pub(crate) advice: Advice,
    /// What is left over: parked jobs.
    pub(crate) also: Vec<Advice>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) live: Option<Live>,
}

impl Consumer {
    /// Returns the last halt, if its job is still not done.
    pub(crate) fn standing_halt(&self) -> Option<&Halt> {
        self.last_halt.as_ref().filter(|halt| self.next.is_none_or(|next| next <= halt.index))
    }
}

/// A table or a log that belongs to a consumer.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Owned {
    /// `table` or `log`.
    pub(crate) what: String,
    pub(crate) name: String,
}

/// Lists these in words.
pub(crate) fn owned(all: &[Owned]) -> String {
    let texts: Vec<_> = all.iter().map(|one| format!("the {} {:?}", one.what, one.name)).collect();
    texts.join(", ")
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Halt {
    #[serde(deserialize_with = "exact")]
    pub(crate) index: u64,
    pub(crate) error: String,
    pub(crate) at: At,
    /// True if the job failed for good, or killed its process.
    #[serde(default)]
    pub(crate) is_of_job: bool,
}

/// The state of a consumer that only its process knows.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Live {
    /// `running`, `halted` and so on, as the library writes it.
    pub(crate) state: String,
    #[serde(default, deserialize_with = "maybe_exact")]
    pub(crate) head: Option<u64>,
    /// `None` if the head is unknown.
    #[serde(default, deserialize_with = "maybe_exact")]
    pub(crate) lag: Option<u64>,
    #[serde(deserialize_with = "exact")]
    pub(crate) processing: u64,
    /// The rate of the last minute.
    #[serde(default)]
    pub(crate) jobs_per_second: Option<f64>,
    /// The age of the oldest unprocessed job.
    #[serde(default)]
    pub(crate) behind_seconds: Option<f64>,
    #[serde(default)]
    pub(crate) seconds_left: Option<f64>,
    /// The jobs in retry, if only this consumer was asked for.
    #[serde(default)]
    pub(crate) retrying: Vec<Retry>,
}

/// The sentence that says why something does not move, and what helps.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Advice {
    /// The reason as a word: `caught_up`, `halted`.
    pub(crate) reason: String,
    pub(crate) sentence: String,
    pub(crate) verdict: Verdict,
    /// The help in words; empty if nothing has to be done.
    pub(crate) help: String,
    /// The command of this tool that helps.
    pub(crate) command: Option<String>,
}

/// The verdict of the library, as `serde` writes it.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    #[default]
    GoesWell,
    Waits,
    NeedsYou,
}

/// A job of a consumer that is retried.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Retry {
    #[serde(deserialize_with = "exact")]
    pub(crate) index: u64,
    pub(crate) attempt: u64,
    /// In milliseconds.
    pub(crate) retry_in: u64,
    pub(crate) error: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Log {
    pub(crate) name: String,
    #[serde(deserialize_with = "exact")]
    pub(crate) first: u64,
    #[serde(deserialize_with = "maybe_exact")]
    pub(crate) head: Option<u64>,
    /// How many items below the first one are kept only for parked jobs.
    #[serde(default)]
    pub(crate) parked: u64,
    pub(crate) codec: String,
    pub(crate) unreadable: Option<String>,
}

impl Log {
    pub(crate) fn items(&self) -> u64 {
        self.head.map_or(0, |head| head.saturating_add(1).saturating_sub(self.first))
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct ParkedRow {
    #[serde(deserialize_with = "exact")]
    pub(crate) index: u64,
    pub(crate) attempts: u64,
    pub(crate) crashes: u64,
    pub(crate) error: String,
    pub(crate) first_failed_at: At,
    pub(crate) last_failed_at: At,
    pub(crate) parked_at: At,
    pub(crate) redrive_wanted: bool,
}

/// A move that an operator made on purpose.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Move {
    pub(crate) at: At,
    /// `seek` or `skip`.
    #[serde(rename(serialize = "move"))]
    pub(crate) kind: String,
    #[serde(deserialize_with = "maybe_exact")]
    pub(crate) from: Option<u64>,
    #[serde(deserialize_with = "exact")]
    pub(crate) to: u64,
    pub(crate) reason: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Queue {
    pub(crate) name: String,
    pub(crate) counts: Counts,
    pub(crate) oldest_ready: Option<OldestReady>,
    pub(crate) paused: bool,
    #[serde(flatten)]
    pub(crate) advice: Advice,
    /// What is left over: dead and damaged jobs, and those without a handler.
    #[serde(default)]
    pub(crate) also: Vec<Advice>,
    /// The rates of the last minute, where they are counted.
    #[serde(default)]
    pub(crate) pushes_per_second: Option<f64>,
    #[serde(default)]
    pub(crate) starts_per_second: Option<f64>,
    #[serde(default)]
    pub(crate) ends_per_second: Option<f64>,
}

/// The jobs in each state.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Counts {
    pub(crate) ready: u64,
    pub(crate) running: u64,
    pub(crate) scheduled: u64,
    pub(crate) waiting: u64,
    pub(crate) dead: u64,
    pub(crate) finished: u64,
    pub(crate) damaged: u64,
}

/// The ready job that has waited longest.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct OldestReady {
    pub(crate) id: String,
    pub(crate) age_ms: u64,
}

/// A page of the jobs of a queue.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Jobs {
    pub(crate) jobs: Vec<Job>,
    /// The cursor of the next page, if there is one.
    pub(crate) next: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) state: String,
    pub(crate) failures: u64,
    pub(crate) crashes: u64,
    pub(crate) runs_alone: bool,
    pub(crate) pushed_at: At,
    pub(crate) run_at: Option<At>,
    pub(crate) since: At,
    pub(crate) kept_until: Option<At>,
    pub(crate) expires_at: Option<At>,
    pub(crate) waits_for: u64,
    pub(crate) key: Option<String>,
    pub(crate) held_by: Option<String>,
    pub(crate) error: Option<String>,
    #[serde(default)]
    pub(crate) data: Option<Value>,
    #[serde(default)]
    pub(crate) meta: Map<String, Value>,
    pub(crate) progress: Option<Progress>,
    pub(crate) damaged: Option<String>,
    /// The other fields of the library.
    #[serde(flatten)]
    pub(crate) more: Map<String, Value>,
}

/// The progress that a worker reports for its job.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Progress {
    pub(crate) fraction: f64,
    pub(crate) note: String,
    pub(crate) at: At,
}

/// A job with its payload and its related jobs.
#[derive(Clone, Debug)]
pub(crate) struct Whole {
    pub(crate) job: Job,
    /// Pretty JSON, or hexadecimal digits.
    pub(crate) payload: String,
    pub(crate) waits_for: Vec<String>,
    pub(crate) awaited_by: Vec<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Periodic {
    pub(crate) name: String,
    /// Only its process knows it.
    pub(crate) schedule: Option<String>,
    /// `None` before the first one.
    pub(crate) last_tick: Option<At>,
    pub(crate) next_tick: Option<At>,
    pub(crate) last_run: Option<String>,
    pub(crate) skipped: u64,
    pub(crate) damaged: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Worker {
    /// The name under which it claims; from files, that of its program.
    pub(crate) name: Option<String>,
    pub(crate) process: Option<u32>,
    pub(crate) host: Option<String>,
    pub(crate) language: Option<String>,
    pub(crate) version: Option<String>,
    /// `None` if it takes all.
    pub(crate) kinds: Option<Vec<String>>,
    /// `None` if it has no bound, or has not reported it.
    pub(crate) slots: Option<u32>,
    pub(crate) busy: u32,
    pub(crate) began: Option<At>,
    /// In milliseconds, as each time below.
    pub(crate) silent_for: u64,
    pub(crate) is_silent: bool,
    pub(crate) is_stopping: bool,
    /// Some of its jobs, the oldest first.
    pub(crate) jobs: Vec<WorkerJob>,
    pub(crate) newest_ran_for: Option<u64>,
    /// How long until its jobs come back, if it stays silent.
    pub(crate) lease_left: Option<u64>,
}

/// A job that a worker runs.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct WorkerJob {
    pub(crate) id: String,
    pub(crate) kind: String,
    /// In milliseconds.
    pub(crate) ran_for: u64,
}
