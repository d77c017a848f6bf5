//! What is the same in each run: the settings of its queue, and what may happen.

use std::time::Duration;
use waterline::Retry;
use waterline_queue::{Limit, QueueOptions, Retention};

pub const LEASE: Duration = Duration::from_millis(2000);
/// The most jobs of the kind `narrow` at once.
const NARROW: u32 = 2;

pub fn options() -> QueueOptions {
    QueueOptions::default()
        .lease(LEASE)
        .retry(Retry::fixed(Duration::from_millis(50)))
        .unlimited_crashes()
        .retention(Retention::Keep)
        .limit(Limit::each_key().at_once(1))
        .limit(Limit::kind("narrow").at_once(NARROW))
}

/// A fault of one of the workers, or of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    Kill,
    /// It is frozen for longer than its leases, and goes on.
    Stop,
    /// All of its connections are cut.
    Disconnect,
    /// A connection is cut at an end: with true, after the server got it.
    CutEnd(bool),
    /// The server dies, and comes back.
    Crash,
    /// No table can grow; later the disk has room again.
    FullDisk,
    /// The log cannot be written, so the server dies, and comes back when there is room.
    FullLog,
    /// The server dies, and its replica takes its place. Each acknowledged commit is there.
    Failover,
}
