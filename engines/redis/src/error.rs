//! The errors of this crate.

use crate::error_class::{Fault, fault_of};
use crate::keys::Keys;
use std::sync::Arc;

/// The reason why a call into Redis failed.
///
/// Where calls of a queue return an error, it is among its sources, so `downcast_ref` finds it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The setup cannot work as it is. Nothing is retried.
    #[error("{what}: {advice}")]
    Config {
        /// The fault.
        what: String,
        /// The remedy.
        advice: String,
    },
    /// The server cannot keep a queue as it is set up, or one of the two sides does not trust the
    /// other one. Nothing was changed.
    #[error("the server {server} {what}: {advice}")]
    Server {
        /// The address of the server.
        server: String,
        /// What is wrong with it.
        what: String,
        /// What to do.
        advice: String,
    },
    /// The functions on the server are newer, and no longer serve this program.
    #[error(
        "the functions on {server} have version {found}, and this program knows those up to {known}: install a newer version of it"
    )]
    NewerFunctions {
        /// The address of the server.
        server: String,
        /// The version of the functions there.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// The functions on the server are missing or older than this program. Nothing was changed.
    #[error("the functions on {at} do not fit: {what}; call `RedisStore::migrate`")]
    Functions {
        /// The server, and the queue of the call.
        at: String,
        /// What is missing.
        what: String,
    },
    /// There is no connection to the server. The call was not made, so a retry is safe.
    #[error(
        "{at} cannot be reached, so nothing was changed: look whether the server runs, the address is right, and both sides speak TLS (rediss://) or none"
    )]
    Lost {
        /// The server, and the queue of the call.
        at: String,
        /// Why the connection failed.
        source: redis::RedisError,
    },
    /// The call was sent, and whether it counts is not known: its answer was lost, or too few
    /// replicas have confirmed it. A push with an id may be made again: the two make
    /// one job, which runs once more only if it has ended between them.
    #[error("whether a call counts on {at} is unknown: {why}")]
    Unsure {
        /// The server, and the queue of the call.
        at: String,
        /// What is missing.
        why: String,
    },
    /// The server refused the call. Nothing was changed.
    #[error("{at} refused the call ({code} {text}): {advice}")]
    Refused {
        /// The server, and the queue of the call.
        at: String,
        /// The first word of its answer: `OOM`, `READONLY`, `NOPERM` …
        code: String,
        /// The rest of its answer.
        text: String,
        /// What to do.
        advice: &'static str,
    },
    /// A function of the library refused the call, since it breaks a rule of the queue. Nothing was
    /// changed.
    #[error("{at} refused the call: {code} {message}")]
    Function {
        /// The server, and the queue of the call.
        at: String,
        /// The word for the rule: `WQ001` …
        code: Box<str>,
        /// The queue at fault, which may be one of several.
        queue: Box<str>,
        /// The id or the number that it is about, or nothing.
        detail: Box<str>,
        /// The other id or number, or nothing.
        hint: Box<str>,
        /// The sentence.
        message: Box<str>,
    },
    /// A write of yours beside the end of a job is refused. Nothing was changed: none of the keys,
    /// and not the job. See [`Writes`](crate::Writes).
    #[error("{at}: {what}")]
    Write {
        /// The queue of the job.
        at: String,
        /// The key, or the channel.
        key: String,
        /// The command of Redis: `SET`, `INCRBY` …
        name: &'static str,
        /// The kind of fault.
        fault: WriteFault,
        /// The fault, and the remedy.
        what: String,
    },
    /// The answer of a server cannot be true.
    #[error("the answer of {at} cannot be true: {what}; look whether it is a Redis server, and what is in front of it")]
    Odd {
        /// The server, and the queue of the call.
        at: String,
        /// The part that cannot be true.
        what: String,
    },
    /// Another call of this process met this error, for which this one waited.
    #[error("{at}: {source}")]
    Shared {
        /// The queue of the call.
        at: String,
        /// The error of the other call.
        source: Arc<Self>,
    },
}

/// Why a write beside the end of a job is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteFault {
    /// Its key has a value of another type.
    Type,
    /// Its key, or what it was given, is no number of the kind that it needs; or the sum would have
    /// more than 64 bits.
    Number,
    /// The user of the connection has no right to the command.
    Right,
    /// Its key is in another slot of the cluster.
    Slot,
    /// Its key is one of a queue.
    Queue,
    /// There are too many writes, or too large ones.
    Bounds,
}

impl Error {
    pub(crate) fn config(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::Config { what: what.into(), advice: advice.into() }
    }

    pub(crate) fn server(server: impl ToString, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::Server { server: server.to_string(), what: what.into(), advice: advice.into() }
    }

    pub(crate) fn odd(at: impl ToString, what: impl Into<String>) -> Self {
        Self::Odd { at: at.to_string(), what: what.into() }
    }

    pub(crate) fn unsure(at: impl ToString, why: impl Into<String>) -> Self {
        Self::Unsure { at: at.to_string(), why: why.into() }
    }

    pub(crate) fn shared(source: Arc<Self>) -> Self {
        Self::Shared { at: String::new(), source }
    }

    /// Names the queues of the call, too.
    pub(crate) fn about(mut self, queues: &[&Keys]) -> Self {
        let names: Vec<_> = queues.iter().map(|queue| format!("{:?}", queue.name)).collect();
        let name = format!("queue {}", names.join(", "));
        match &mut self {
            Self::Shared { at, .. } => *at = name,
            Self::Server { server: at, .. }
            | Self::NewerFunctions { server: at, .. }
            | Self::Functions { at, .. }
            | Self::Lost { at, .. }
            | Self::Unsure { at, .. }
            | Self::Refused { at, .. }
            | Self::Function { at, .. }
            | Self::Write { at, .. }
            | Self::Odd { at, .. } => *at = format!("{at} ({name})"),
            Self::Config { .. } => {}
        }
        self
    }

    /// True if the call was sent and may count.
    #[must_use]
    pub fn is_unsure(&self) -> bool {
        match self {
            Self::Unsure { .. } => true,
            Self::Shared { source, .. } => source.is_unsure(),
            _ => false,
        }
    }

    /// True if nothing was changed, and the same call may succeed later without any change of the
    /// program: the server is down, starts, is full, moves a slot, or became a replica.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Lost { .. } | Self::Functions { .. } | Self::Server { .. } => true,
            Self::Refused { code, .. } => fault_of(code) != Fault::Final,
            Self::Shared { source, .. } => source.may_pass(),
            _ => false,
        }
    }
}
