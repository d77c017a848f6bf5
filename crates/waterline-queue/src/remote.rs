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
//! error that implements [`CallError`]. `Remote::new` makes the engine of it, which goes to
//! `engine_api::open`. `engines/postgres/src/queue/server.rs` is the example.
//!
//! * A call is *atomic*: all of it, or nothing. It is on the server when it has answered, as far as
//!   the server keeps anything: what it may lose later is for the documentation of the engine.
//! * A call is *bounded*: it gives up a server that does not answer, well within a lease, and
//!   blocks no other call meanwhile. Many threads call at once. The method itself tries again what
//!   the server has refused without a write, such as a conflict.
//! * An error says whether the server has refused the call ([`CallError::is_undone`]). If not, the
//!   *outcome is unknown*: the connection was lost, or the answer. Then ends are looked up by
//!   `ended_by` before they are sent again, renewals are repeated, and claimed jobs come back with
//!   their leases. A push is not repeated: its caller gets the error, and an id makes one job of
//!   both tries.
//! * An end, a renewal or an edit counts only with the token of the lease. Tokens and numbers are
//!   never used again, not even by a server that has forgotten its last second. So an end or a
//!   renewal may be sent twice. `tick_once` counts only from the last tick that it names.
//! * Times are those of the server's clock: no caller sends the current time. Only a test does, in
//!   [`At::clock`].
//! * Ids are texts of up to 255 bytes; payloads, data and metadata are JSON as text, and come back
//!   byte for byte.
//!
//! What may be lost: a bell, and a change that nobody asks for again. Who waits for a job looks
//! once a second, and waiters of a job are told by `states_of`. What does not fit into an answer is
//! counted by a `more`, and a claimed job without its payload is loaded by `load`.
#![allow(
    missing_debug_implementations,
    missing_docs,
    clippy::missing_errors_doc,
    reason = "only the crates of this project use it"
)]

mod answers;
mod engine;
mod faults;
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
