//! What a server of queues is asked: one call for each function of the server.

use super::answers::Answer;
use super::faults::CallError;
use super::rows::{LimitRow, PeriodicRow, Shown, WorkerRow};
use crate::engine::QueueNo;
use crate::types::capabilities::Capabilities;
use crate::types::page::Place;
use serde_json::Value;
use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

/// The queue of a call, and the time of a clock that a test has set, in milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    pub queue: &'a str,
    pub clock: Option<u64>,
}

/// Runs of jobs, as the server knows them: element by element a queue, a job's number in it, and
/// the token of the lease. A job that this process does not know has the number 0.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    pub queues: Vec<QueueNo>,
    pub numbers: Vec<i64>,
    pub tokens: Vec<i64>,
}

impl FromIterator<(QueueNo, i64, i64)> for Runs {
    fn from_iter<I: IntoIterator<Item = (QueueNo, i64, i64)>>(runs: I) -> Self {
        let mut all = Self::default();
        for (queue, number, token) in runs {
            all.queues.push(queue);
            all.numbers.push(number);
            all.tokens.push(token);
        }
        all
    }
}

/// Jobs without settings. No rule but that of their kind decides about them.
#[derive(Debug, Default)]
pub struct PlainPush {
    pub kinds: Vec<String>,
    pub payloads: Vec<String>,
}

/// Jobs for one queue, whose settings are JSON.
#[derive(Debug)]
pub struct PushCall {
    pub kinds: Vec<String>,
    pub payloads: Vec<String>,
    pub settings: Vec<Option<String>>,
    /// True if some of them wait for others of them.
    pub is_batch: bool,
}

/// The ends of attempts, each with its word, a time or (below 0) a delay, an error and data; and
/// the claim behind them.
#[derive(Debug, Default)]
pub struct TurnCall<'a> {
    pub runs: Runs,
    pub ends: Vec<&'static str>,
    pub ats: Vec<Option<i64>>,
    pub errors: Vec<Option<String>>,
    pub datas: Vec<Option<Cow<'a, str>>>,
    /// Whether it is about the queue, too: a claim, or what is due.
    pub is_of_queue: bool,
    /// How many jobs it claims at most; `None`: it claims none.
    pub most: Option<i32>,
    pub kinds: Option<&'a [String]>,
    /// Only jobs that are due by this time.
    pub due_by: Option<i64>,
    /// The lease in milliseconds; `None`: that of the queue.
    pub lease: Option<i64>,
    /// Whether it does at once what is due.
    pub tick: bool,
    /// For how long, in milliseconds, a bell is wanted if there is no job.
    pub arm: i64,
    /// Tell of the jobs that became due since then.
    pub due_since: Option<i64>,
    /// What the caller reports of itself as a worker, as JSON: a list of objects.
    pub about: Option<String>,
}

/// A change of one job. With a token only if that lease holds.
#[derive(Debug, Default)]
pub struct EditCall<'a> {
    pub id: &'a str,
    pub number: Option<i64>,
    pub token: Option<i64>,
    pub what: &'static str,
    pub key: Option<&'a str>,
    pub value: Option<&'a str>,
    pub at: Option<i64>,
    pub fraction: Option<f64>,
}

/// A schedule, the job that each of its ticks makes, and its next tick.
#[derive(Debug)]
pub struct PeriodicCall<'a> {
    pub name: &'a str,
    pub kind: &'a str,
    pub payload: String,
    pub settings: Option<String>,
    pub next: Option<i64>,
}

/// How leases are renewed: for this many milliseconds (`None`: those of the queue); whether they
/// end by silence; and whether their runner stops, so that such an end counts no attempt.
#[derive(Clone, Copy, Debug)]
pub struct Renewal {
    pub lease: Option<i64>,
    pub is_silent: bool,
    pub is_stopping: bool,
}

/// What rings when another process has pushed. It never blocks.
pub type Ring = Arc<dyn Fn() + Send + Sync>;

/// Renews leases, with reports of this process as a worker. It keeps no server open, so that a
/// thread may have it. Its answer is that of [`Server::renew`].
pub type Renewer<E> = Box<dyn FnMut(&Runs, &[Value]) -> Result<Vec<bool>, E> + Send>;

/// A kind, and the count, the mean and the last of its durations in nanoseconds.
pub type Average = (String, [Option<i64>; 3]);

pub type Answers<E> = Result<Vec<Answer>, E>;

/// The functions of a server. See [the module](super) for what each has to guarantee.
pub trait Server: Send + Sync + 'static {
    type Error: CallError;

    const CAPABILITIES: Capabilities;

    /// How the names of threads begin: `wl-pg`.
    const THREADS: &'static str;

    /// How many turns a runner makes at once.
    const TURNS: usize;

    /// Whether the server may forget a queue, as when all its keys are removed: then one that is
    /// opened again while it is open is made anew.
    const FORGETS: bool = false;

    /// Whether it tells the changes of all processes, by [`changes`](Self::changes).
    const TELLS: bool = false;

    /// The most plain jobs of several threads in one call.
    const JOINED: usize;

    /// Returns the name of this process as a worker. No other process has the same.
    fn worker(&self) -> &str;

    // Queues.

    fn names(&self) -> Result<Vec<String>, Self::Error>;

    /// Makes a queue or gives it these options, which are JSON; `None`: it is there and stays as it
    /// is. Returns its number in this process. It checks that the server has the functions that all
    /// other calls need.
    fn open(&self, name: &str, options: Option<&str>) -> Result<(QueueNo, Vec<Average>), Self::Error>;

    /// Rings when another process pushes, until the answer is dropped. A bell may be lost, and a
    /// server may have none (`None`): who waits looks once a second anyway.
    fn listen(&self, _at: At<'_>, _ring: Ring) -> Result<Option<Box<dyn Any + Send + Sync>>, Self::Error> {
        Ok(None)
    }

    /// Rings when there are changes of a queue that is watched, until the answer is dropped. A ring
    /// may be lost.
    fn hear(&self, _at: At<'_>, _ring: Ring) -> Result<Option<Box<dyn Any + Send + Sync>>, Self::Error> {
        Ok(None)
    }

    /// Returns `heard` with the number of the last change; and behind the one with this number
    /// (`None`: it begins now) what `turn` tells of each, and `more` for those that are not kept.
    /// It is called once a second while a caller watches, and the server keeps changes only then.
    fn changes(&self, _at: At<'_>, _behind: Option<i64>) -> Answers<Self::Error> {
        Ok(Vec::new())
    }

    // Changes. Each is atomic.

    /// Pushes jobs: all or none. The answers have a `pushed` for each, in their order.
    fn push(&self, at: At<'_>, jobs: &PushCall) -> Answers<Self::Error>;

    /// Pushes jobs into several queues: all or none. The answers of each are in their order.
    fn push_across(&self, pushes: &[(At<'_>, &PushCall)]) -> Result<Vec<Vec<Answer>>, Self::Error>;

    /// Pushes plain jobs: all or none. Returns their numbers; `None`: nothing was pushed, since
    /// only [`push`](Self::push) knows what the rules of the queue say.
    fn push_plain(&self, at: At<'_>, jobs: &PlainPush) -> Result<Option<Vec<i64>>, Self::Error>;

    /// Ends attempts, and then claims jobs. An end that its token does not fit changes nothing, and
    /// is no error.
    fn turn(&self, at: At<'_>, turn: &TurnCall<'_>) -> Answers<Self::Error>;

    fn edit(&self, at: At<'_>, edit: &EditCall<'_>) -> Answers<Self::Error>;

    /// Changes a queue. `purge` and `requeue_dead` take a bounded piece a call, and the `number` of
    /// `steered` is 0 when there is no more.
    fn steer(&self, at: At<'_>, what: &str, id: Option<&str>, time: Option<i64>) -> Answers<Self::Error>;

    /// Changes a note. Returns its value and its end (0: none) before and after.
    fn change_note(
        &self,
        at: At<'_>,
        of: &str,
        what: &str,
        value: Option<&str>,
        time: i64,
    ) -> Result<[Option<(String, i64)>; 2], Self::Error>;

    /// Renews leases of one or several queues. Returns for each whether it holds.
    fn renew(&self, at: At<'_>, runs: &Runs, renewal: Renewal) -> Result<Vec<bool>, Self::Error>;

    fn renewer(&self) -> Renewer<Self::Error>;

    /// Notes that the runner of these jobs stops, with a report for each of its queues.
    fn note_stop(&self, at: At<'_>, runs: &Runs, about: &[Value]) -> Result<(), Self::Error>;

    /// Registers a schedule, by its text. It may make the first job, unless `at_next`.
    fn register_periodic(
        &self,
        at: At<'_>,
        periodic: &PeriodicCall<'_>,
        schedule: &str,
        at_next: bool,
    ) -> Answers<Self::Error>;

    /// Makes the jobs of these ticks, if the last tick of the schedule is the first of `last`, and
    /// sets it to the second.
    fn tick_once(
        &self,
        at: At<'_>,
        periodic: &PeriodicCall<'_>,
        last: (i64, i64),
        ticks: &[i64],
        may_overlap: bool,
    ) -> Answers<Self::Error>;

    /// Stores the durations of a kind: count, mean and last, the two in nanoseconds.
    fn set_average(&self, at: At<'_>, kind: &str, durations: [i64; 3]) -> Result<(), Self::Error>;

    // Reads. None has an effect, but that a look may do what is due and notes the caller.

    /// Loads claimed jobs that did not fit into their answer: as many as fit now, one at least. An
    /// answer has token, id, kind, payload, data, more and error.
    fn load(&self, at: At<'_>, runs: &Runs) -> Answers<Self::Error>;

    /// Returns for each run its word and the state of the job: `held` (it still runs by this
    /// lease), `counted` (this lease has ended it), or another one.
    fn ended_by(&self, at: At<'_>, runs: &Runs) -> Result<Vec<(String, Option<String>)>, Self::Error>;

    /// Returns a `peek`, for a claim of these kinds.
    fn peek_now(&self, at: At<'_>, kinds: Option<&[String]>, about: Option<&str>) -> Answers<Self::Error>;

    fn get(&self, at: At<'_>, id: &str) -> Result<Option<Shown>, Self::Error>;

    /// Returns the jobs of a state behind this place, in their order.
    fn list(&self, at: At<'_>, state: &str, behind: Option<&Place>, most: i64) -> Result<Vec<Shown>, Self::Error>;

    /// Returns the jobs of these ids that are there, with what waiters are told: id, state, data,
    /// error and progress.
    fn states_of(&self, at: At<'_>, ids: &[&str]) -> Result<Vec<Shown>, Self::Error>;

    /// Returns states, how many jobs each has, and the age of that number in milliseconds.
    fn counts(&self, at: At<'_>) -> Result<Vec<(String, i64, i64)>, Self::Error>;

    /// Returns what a status is made from: an object with the members that `looks.rs` reads.
    fn status_inputs(&self, at: At<'_>) -> Result<Value, Self::Error>;

    /// Returns the number of running jobs, and the one that has run longest, for how many
    /// milliseconds.
    fn who_runs(&self, at: At<'_>) -> Result<(i64, Option<String>, Option<i64>), Self::Error>;

    /// Returns since when the next job has waited.
    fn waits_since(&self, at: At<'_>) -> Result<Option<i64>, Self::Error>;

    fn limits_used(&self, at: At<'_>) -> Result<Vec<LimitRow>, Self::Error>;

    /// Returns the ids of the jobs that one waits for, and of those that wait for it.
    fn related_to(&self, at: At<'_>, id: &str, most: i64) -> Result<(Vec<String>, Vec<String>), Self::Error>;

    /// Returns notes: place, value, and end (0: none).
    fn notes_of(
        &self,
        at: At<'_>,
        prefix: &str,
        behind: Option<&str>,
        most: i64,
    ) -> Result<Vec<(String, String, i64)>, Self::Error>;

    fn periodics_of(&self, at: At<'_>) -> Result<Vec<PeriodicRow>, Self::Error>;

    fn workers_of(&self, at: At<'_>, jobs: i32) -> Result<Vec<WorkerRow>, Self::Error>;
}
