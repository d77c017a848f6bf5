//! The engine of queues on a server that many processes share, only for the crates of this project.
//!
//! It is not part of the API: any version may change it. [`Remote`] does what is the same for each
//! such server: which leases this process has, and their renewal; a look that serves for a second;
//! pushes of several threads in one call; the ticks of schedules; who waits, and what they hear.
//! All rules are functions of the server. They answer with [`Answer`]s, whose words are those of
//! `engines/postgres/docs/from_another_language.md`.
//!
//! # An engine on another server
//!
//! It is a type that implements [`Server`], with a method for each function of the server, and an
//! error that implements [`CallError`]. [`Remote::new`] makes the engine of it, which goes to
//! `engine_api::open`. `engines/postgres/src/queue/server.rs` is the example.
//!
//! * A call is *atomic*: all of it, or nothing. Only the ends of a turn may go in several calls,
//!   of which the last one claims. When a call has answered, its change is on the server; what
//!   that may still lose is for the documentation of the engine.
//! * A call is *bounded*: it gives up a server that does not answer well within a lease, and
//!   blocks no other call meanwhile. Many threads call at once. The method itself tries again
//!   what the server has refused without a change, such as a conflict.
//! * An error says whether the server has refused the call ([`CallError::is_undone`]). Otherwise
//!   its *outcome is unknown*: the connection was lost, or the answer. If users have to tell this
//!   from a server that is away, the error is [`is_unsure`](CallError::is_unsure), too.
//! * Times are those of the server's clock. Only a test hands its own over, in [`At::clock`].
//! * Ids are texts of 1 to 255 bytes. Payloads, data and metadata are JSON as text, and come back
//!   byte for byte.
//! * A token or a number never comes again, not even if the server has forgotten its last second.
//!
//! | call | if it is made twice | if its outcome is unknown |
//! |---|---|---|
//! | `turn`, its ends | the first one counts, by the token | `ended_by`; those that still run are sent again |
//! | `turn`, its claim | it claims other jobs | the jobs come back with their leases |
//! | `push`, `push_plain`, `push_across` | a job without an id is there twice | the caller gets the error |
//! | `renew`, `note_stop` | the same | made again at a third of the lease, or the lease ends |
//! | `edit`, `steer` | the same | the caller gets the error |
//! | `change_note` | `add` counts twice | the caller gets the error |
//! | `tick_once` | the first one counts, by the last tick | the next look makes it again |
//! | `open`, `register_periodic`, `set_average` | the same | the caller gets the error |
//!
//! What may be lost: a bell, since who waits for a job looks once a second, too; and the answers
//! that tell of changes, since waiters of a job poll it by `states_of`, and those who watch a queue
//! read its last changes by `changes`, if the server keeps them (`TELLS`). Those that do not fit
//! are counted by a `more`. A claimed job that does not fit has no payload, and `load` brings it.
#![allow(
    missing_debug_implementations,
    missing_docs,
    clippy::missing_errors_doc,
    reason = "only the crates of this project use it"
)]

mod answers;
mod engine;
mod faults;
mod hearing;
mod joining;
mod leases;
mod looks;
mod opened;
mod opening;
mod periodics;
mod presence;
mod pushing;
mod queues;
mod registered;
mod renewing;
mod rows;
mod server;
mod settings;
mod telling;
mod turning;
mod watch;
mod watching;
mod workers;

pub use crate::types::page::Place;
pub use answers::{Answer, Ended, each_ended, ended, signed};
pub use faults::{CallError, NO_TEXT, Refused, not_found, queue_error};
pub use presence::said;
pub use pushing::pushed;
pub use queues::Remote;
pub use rows::{LimitRow, PeriodicRow, Shown, WorkerRow};
pub use server::{
    Answers, At, Average, EditCall, PeriodicCall, PlainPush, PushCall, Renewal, Renewer, Ring, Runs, Server, TurnCall,
};
