//! A consumer at work: it reads a stream, runs its jobs and ends, in each mode, alone and beside
//! others.

mod ancestor;
#[cfg(feature = "tokio")]
mod asynchronous;
mod at_once;
mod batched;
mod ended;
mod ends;
#[cfg(feature = "tokio")]
mod futures;
mod gaps;
mod gates;
mod hostile;
mod keys;
mod looks;
mod modes;
#[cfg(unix)]
mod no_threads;
mod ordered;
mod outside;
mod promises;
mod read_ahead;
mod reading;
mod retries;
mod semantics;
mod sources;
mod stages;
mod timeout;
