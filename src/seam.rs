//! What the queue builds on, for the crates of this project alone.
//!
//! It is no part of the API: any version may change it, so a crate that uses it names one version
//! (`=`). Each name is here with a sentence, and no other file makes one public.
#![allow(missing_docs, clippy::missing_errors_doc, reason = "only the crates of this project use it")]

use crate::base::advice::{Advice, Verdict};
use crate::base::clock::Clock;
use crate::base::config::{ConfigError, DEFAULT_EFFECTS};
use crate::base::error::{Error, StoreError};
use crate::base::index::BoxError;
use crate::base::retry::Retry;
use crate::base::sync::{Arc, Condvar, MutexGuard};
use crate::effects::Effects;
use crate::kv::{QUEUE, READY};
use crate::store::Store;
use std::any::Any;
use std::sync::Weak;
use std::time::{Duration, Instant};

// The atomic write.

/// The changes of one job, in order.
pub use crate::commit::changes::Changes;
/// The store that changes are meant for.
pub use crate::commit::changes::Home;
/// A batch that is being made.
pub use crate::commit::draft::Draft;
/// A call that is made within a batch.
pub use crate::commit::intent::Intent;
/// The answer of an intent, for whoever waits for it.
pub use crate::commit::intent::Ticket;
/// The error of an intent whose batch was not written.
pub use crate::commit::intent::failed;
/// The database as a batch leaves it.
pub use crate::commit::overlay::Overlay;
/// Work that is left until a batch is written.
pub use crate::commit::participant::Cleanup;
/// A part of the store that takes operations, and makes them within a batch.
pub use crate::commit::participant::Participant;
/// The error that fails one job alone.
pub use crate::commit::refusal::Refusal;
/// A sealed record that is read.
pub use crate::commit::sealed::Fields;
/// A kind of sealed record.
pub use crate::commit::sealed::Kind;
/// The bytes of a checksum.
pub use crate::commit::sealed::SUM;
/// A sealed record that is written.
pub use crate::commit::sealed::Writer;

// The database below.

/// A family of records: its name, and its number in this database.
pub use crate::kv::Family;
/// Keys from one on, up to another one.
pub use crate::kv::KeyRange;
/// The database, whichever engine it is.
pub use crate::kv::Kv;
/// The order of a scan.
pub use crate::kv::Order;
/// The number of a family.
pub use crate::kv::batch::FamilyId;
/// Records that are put and deleted together.
pub use crate::kv::batch::Records;
/// The first key behind all those with this prefix.
pub use crate::kv::prefix_end;

// Threads.

/// Tasks that are to be woken once no lock is held.
pub use crate::base::wakers::Called;
/// Tasks that wait at one place.
pub use crate::base::wakers::Tasks;
/// Waits, as a task, until a look at the state has an answer.
#[cfg(feature = "tokio")]
pub use crate::base::wakers::wait_at;
/// Awaits a future for a time.
#[cfg(feature = "tokio")]
pub use crate::base::wakers::within;
/// The threads of a runner.
pub use crate::crew::Crew;
/// The part that has a crew and its work.
pub use crate::crew::Host;
/// Marks a thread as one of a crew.
pub use crate::crew::Own;
/// The threads of a crew that are counted under the lock of the work.
pub use crate::crew::Roster;

// Words.

/// The text of the metric of a verdict.
#[cfg(feature = "metrics")]
pub use crate::base::advice::VERDICT;
/// Hears that a test has set a clock.
pub use crate::base::clock::Waits as ClockWaits;
/// Refuses a timeout of no time.
pub use crate::base::config::check_attempt_timeout;
/// Refuses a number of 0 crashes.
pub use crate::base::config::check_max_crashes;
/// Refuses a pool of 0 jobs.
pub use crate::base::config::check_max_processing;
/// Refuses a number outside its range.
pub use crate::base::config::check_number;
/// Refuses a setting that cannot be kept to.
pub use crate::base::config::check_supported;
/// Refuses a 0.
pub use crate::base::config::check_zero;
/// An error and its causes, in one line.
pub use crate::base::error::describe;
/// What an error says about the attempt that failed with it.
pub use crate::base::failure::Verdict as FailureVerdict;
/// What this error says about it.
pub use crate::base::failure::verdict as failure_verdict;
/// Drops a value of the user's, whose destructor may panic.
pub use crate::base::guard::drop_guarded;
/// Calls code of the user's, which may panic.
pub use crate::base::guard::guarded;
/// The name of this machine.
pub use crate::base::process::host;
/// The recorder of metrics that the program has installed.
#[cfg(feature = "metrics")]
pub use crate::base::recorder::Recorder;
/// The growth of the back-off of a retry.
pub use crate::base::retry::Growth;
/// A time as milliseconds since 1970.
pub use crate::base::time::millis;
/// The monotonic clock, which one file reads.
pub use crate::base::time::now;
/// Macros: a value as `serde` writes it, and `{:#?}` of an error.
pub use crate::{fields, structure};

// A store.

/// The database of a store.
pub fn kv(store: &Store) -> &dyn Kv {
    store.kv()
}

/// The families of queues: that of their rows and payloads, and that of the entries by which they
/// find their next job.
pub fn queue_families(store: &Store) -> Result<[Family; 2], Error> {
    Ok([store.family(QUEUE)?, store.family(READY)?])
}

/// Starts the thread that writes, if it does not run yet.
pub fn start_writer(store: &Store) -> Result<(), Error> {
    store.writer().start().map_err(|source| Error::Spawn { source })
}

/// Leaves an intent for the next batch, and writes that unless another thread does.
pub fn write_together(store: &Store, intent: Box<dyn Intent>) {
    store.writer().write_together(intent);
}

/// Writes records that belong to no batch.
pub fn write_records(store: &Store, records: &Records) -> Result<(), StoreError> {
    store.write_records(records)
}

/// An error if the store is only read.
pub fn writable(store: &Store) -> Result<(), Error> {
    store.writable()
}

/// True if each write waits for the disk.
pub fn is_synced(store: &Store) -> bool {
    store.is_synced()
}

/// The store, as the changes of a job name it.
pub fn home(store: &Store) -> Home {
    store.home()
}

/// What a crate keeps in a store, one of each type.
pub fn extension<T: Any + Default + Send + Sync>(store: &Store) -> Arc<T> {
    store.kept()
}

/// A new number of the store for a thing of this kind, whose name is noted as in use. An error if
/// the caller or the store makes none.
pub fn new_number(store: &Store, what: &'static str, name: &str, makes: bool) -> Result<u32, Error> {
    if !(store.creates() && makes) {
        return store.not_found(what, name);
    }
    store.note_in_use(what)?;
    store.ids().next()
}

// The effects of a job.

/// Collects the effects of a job, of as many bytes as a stream has by default.
pub fn new_effects(store: Home) -> Effects {
    Effects::new(Changes::default(), store, DEFAULT_EFFECTS)
}

/// The changes that a job asked for, and the error if one was refused.
pub fn finish_effects(effects: Effects) -> (Changes, Result<(), Error>) {
    effects.finish()
}

/// Asks for an operation on a thing of this store, which its participant may refuse later.
pub fn operate(
    effects: &mut Effects,
    store: &Store,
    (what, name): (&'static str, &str),
    participant: Arc<impl Participant>,
    operation: Vec<u8>,
) -> Result<(), Error> {
    effects.admit(store, what, name, operation.len())?;
    effects.changes.refusable_op(participant, operation);
    Ok(())
}

/// Refuses a change, so that the write fails, for an error that this makes, and returns the error.
pub fn refuse(effects: &mut Effects, make: impl Fn() -> Error + Send + Sync + 'static) -> Error {
    effects.refuse_for(make)
}

// A clock.

/// The moment of one call: both clocks, and its chance.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Milliseconds since 1970. It may jump, and decides when jobs of a queue are due.
    pub wall: u64,
    /// The monotonic clock, by which leases run out.
    pub now: Instant,
    /// A random number in 0..=1.
    pub chance: f64,
}

impl Moment {
    /// Returns the end of a pause that begins now; `None`: it has no end.
    pub fn after(&self, pause: Option<Duration>) -> Option<Instant> {
        pause.and_then(|pause| self.now.checked_add(pause))
    }
}

/// The parts of a [`Clock`] that its users do not need.
pub trait ClockExt {
    /// The time, and a random number.
    fn moment(&self) -> Moment;
    /// The monotonic time.
    fn now(&self) -> Instant;
    /// True if only a test moves it.
    fn is_manual(&self) -> bool;
    /// Has this told when a test moves the clock.
    fn tell(&self, waits: Weak<dyn ClockWaits>);
    /// The end of a wait by the clock of the system; `None`: a test ends it.
    fn deadline(&self, until: Option<Instant>) -> Option<Instant>;
    /// Waits for a call, and until this moment. Returns true if it is over.
    fn wait<T>(&self, condvar: &Condvar, guard: &mut MutexGuard<'_, T>, until: Option<Instant>) -> bool;
}

impl ClockExt for Clock {
    fn moment(&self) -> Moment {
        let now = self.when_asked();
        Moment { wall: now.wall(), now: now.get(), chance: now.chance() }
    }

    fn now(&self) -> Instant {
        Self::now(self)
    }

    fn is_manual(&self) -> bool {
        Self::is_manual(self)
    }

    fn tell(&self, waits: Weak<dyn ClockWaits>) {
        Self::tell(self, waits);
    }

    fn deadline(&self, until: Option<Instant>) -> Option<Instant> {
        Self::deadline(self, until)
    }

    fn wait<T>(&self, condvar: &Condvar, guard: &mut MutexGuard<'_, T>, until: Option<Instant>) -> bool {
        Self::wait(self, condvar, guard, until)
    }
}

// Words whose parts are nobody's.

/// A sentence for whoever operates the program.
pub fn advice(reason: &'static str, verdict: Verdict, sentence: String, help: &'static str) -> Advice {
    Advice { reason, verdict, sentence, help }
}

/// The error of a database that is elsewhere. `look_at` says where its user finds the reason.
pub fn store_error(doing: String, look_at: &'static str, source: BoxError) -> StoreError {
    StoreError::elsewhere(doing, look_at, source)
}

/// The parts of a retry: first pause, growth, cap, attempts and jitter.
pub fn retry_parts(retry: &Retry) -> (Duration, Growth, Duration, Option<u32>, f64) {
    retry.parts()
}

/// A retry of these parts, which nothing has checked.
pub fn retry_of(parts: (Duration, Growth, Duration, Option<u32>, f64)) -> Retry {
    Retry::of_parts(parts)
}

/// An error if it can be none.
pub fn check_retry(retry: &Retry) -> Result<(), ConfigError> {
    retry.validate()
}

// For tests.

/// The tests that each sealed record has to pass.
#[cfg(feature = "testing")]
pub use crate::commit::sealed::checks::{check_any, check_records};
/// A sealed record as it lies on disks, by its value and its bytes.
#[cfg(feature = "testing")]
pub use crate::commit::sealed::samples::{Sample, samples};
/// The work of a deletion.
#[cfg(feature = "testing")]
pub use crate::kv::Deletion;
/// A database whose writes fail when a test says so.
#[cfg(feature = "testing")]
pub use crate::kv::double::Double;
/// A database in memory.
#[cfg(feature = "testing")]
pub use crate::kv::memory::MemoryKv;

/// A store on this database.
#[cfg(feature = "testing")]
pub fn store_on(kv: Arc<dyn Kv>) -> Result<Store, Error> {
    Store::on(kv, &Store::options(), &"memory")
}
