//! What the other crates of this project build on.
//!
//! It is no part of the API: any version may change it, so a crate that uses it pins one version
//! (`=`). Every name that crosses the seam is listed here, and no other file makes one public.
#![allow(missing_docs, clippy::missing_errors_doc, reason = "only the crates of this project use it")]

use crate::base::advice::{Advice, Verdict};
use crate::base::clock::Clock;
use crate::base::config::{ConfigError, DEFAULT_EFFECTS};
use crate::base::error::StoreError;
use crate::base::retry::Retry;
use crate::base::sync::{Arc, Condvar, MutexGuard};
use crate::base::{BoxError, Error};
use crate::effects::Effects;
use crate::kv::{QUEUE, READY};
use crate::store::Store;
use std::any::Any;
use std::sync::{OnceLock, Weak};
use std::time::{Duration, Instant};

// The atomic write.

/// The changes of one job, in order.
pub use crate::commit::changes::Changes;
/// The store that changes are meant for.
pub use crate::commit::changes::Home;
/// A batch that is being built.
pub use crate::commit::draft::Draft;
/// A call that runs within a batch.
pub use crate::commit::intent::Intent;
/// The answer of an intent, for the caller that waits for it.
pub use crate::commit::intent::Ticket;
/// The error of an intent whose batch was not written.
pub use crate::commit::intent::failed;
/// The database as it will be after the batch.
pub use crate::commit::overlay::Overlay;
/// Work that is deferred until a batch is written.
pub use crate::commit::participant::Cleanup;
/// A part of the store that accepts operations and runs them within a batch.
pub use crate::commit::participant::Participant;
/// The error that fails only one job.
pub use crate::commit::refusal::Refusal;
/// Reads a sealed record.
pub use crate::commit::sealed::Fields;
/// A kind of sealed record.
pub use crate::commit::sealed::Kind;
/// The length of a checksum in bytes.
pub use crate::commit::sealed::SUM;
/// Writes a sealed record.
pub use crate::commit::sealed::Writer;

// The database underneath.

/// A family of records: its name, and its number in this database.
pub use crate::kv::Family;
/// Keys from a first one up to an excluded end.
pub use crate::kv::KeyRange;
/// The database, whatever its engine.
pub use crate::kv::Kv;
/// The order of a scan.
pub use crate::kv::Order;
/// The number of a family.
pub use crate::kv::batch::FamilyId;
/// Records that are put and deleted together.
pub use crate::kv::batch::Records;
/// The first key after all keys with this prefix.
pub use crate::kv::prefix_end;

// Threads.

/// Tasks to wake once no lock is held.
pub use crate::base::wakers::Called;
/// Tasks that wait at one place.
pub use crate::base::wakers::Tasks;
/// Waits asynchronously until a look at the state has an answer.
#[cfg(feature = "tokio")]
pub use crate::base::wakers::wait_at;
/// Awaits a future for a limited time.
#[cfg(feature = "tokio")]
pub use crate::base::wakers::within;
/// What has threads and their work.
pub use crate::threads::Host;
/// Marks a thread as one of a host.
pub use crate::threads::Own;
/// The thread counts of a host, guarded by the lock of the work.
pub use crate::threads::ThreadRegistry;
/// The worker threads of a runner.
pub use crate::threads::Threads;

// Shared types and helpers.

/// The help text of the metrics that show a verdict.
#[cfg(feature = "metrics")]
pub use crate::base::advice::VERDICT;
/// Hears that a test has set a clock.
pub use crate::base::clock::Waits as ClockWaits;
/// Refuses a timeout of zero.
pub use crate::base::config::check_attempt_timeout;
/// Refuses a limit of 0 crashes.
pub use crate::base::config::check_max_crashes;
/// Refuses a pool for 0 jobs.
pub use crate::base::config::check_max_processing;
/// Refuses a number outside its range.
pub use crate::base::config::check_number;
/// Refuses an unsupported setting.
pub use crate::base::config::check_supported;
/// Refuses a 0.
pub use crate::base::config::check_zero;
/// An error and its causes, in one line.
pub use crate::base::error::describe;
/// The fate that an error gives its job.
pub use crate::base::failure::Verdict as FailureVerdict;
/// Returns the fate that this error gives its job.
pub use crate::base::failure::verdict as failure_verdict;
/// Drops a user's value, whose destructor may panic.
pub use crate::base::guard::drop_guarded;
/// Calls user code, which may panic.
pub use crate::base::guard::guarded;
/// The metrics recorder that the program has installed.
#[cfg(feature = "metrics")]
pub use crate::base::recorder::Recorder;
/// How the back-off of a retry grows.
pub use crate::base::retry::Growth;
/// Converts a time to milliseconds since 1970.
pub use crate::base::time::millis;
/// Reads the monotonic clock.
pub use crate::base::time::now;
/// Macros: `Serialize` of a struct, and `{:#?}` of an error.
pub use crate::{fields, structure};

/// Returns the name of this machine, or that of the container.
pub fn host() -> &'static str {
    static HOST: OnceLock<String> = OnceLock::new();
    HOST.get_or_init(|| {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        match host.trim() {
            "" => std::env::var("HOSTNAME").unwrap_or_else(|_| "this host".to_owned()),
            host => host.to_owned(),
        }
    })
}

// A store.

/// The database of a store.
pub fn kv(store: &Store) -> &dyn Kv {
    store.kv()
}

/// The families of queues: rows with payloads, and the index entries that find the next job.
pub fn queue_families(store: &Store) -> Result<[Family; 2], Error> {
    Ok([store.family(QUEUE)?, store.family(READY)?])
}

/// Starts the writer thread, if it does not run yet.
pub fn start_writer(store: &Store) -> Result<(), Error> {
    store.writer().start().map_err(|source| Error::Spawn { source })
}

/// Adds an intent to the next batch, and writes the batch unless another thread does.
pub fn write_together(store: &Store, intent: Box<dyn Intent>) {
    store.writer().write_together(intent);
}

/// Writes records outside of any batch.
pub fn write_records(store: &Store, records: &Records) -> Result<(), StoreError> {
    store.write_records(records)
}

/// Returns an error if the store is read-only.
pub fn writable(store: &Store) -> Result<(), Error> {
    store.writable()
}

/// True if each write waits for the disk.
pub fn is_synced(store: &Store) -> bool {
    store.is_synced()
}

/// The identity of the store, as the changes of a job name it.
pub fn home(store: &Store) -> Home {
    store.home()
}

/// The state that a crate keeps in a store, one value for each type.
pub fn extension<T: Any + Default + Send + Sync>(store: &Store) -> Arc<T> {
    store.extension()
}

/// Reserves a number of the store for a thing of this kind, whose name is noted as in use. An error
/// if the caller or the store creates none.
pub fn new_number(store: &Store, what: &'static str, name: &str, makes: bool) -> Result<u32, Error> {
    if !(store.creates() && makes) {
        return store.not_found(what, name);
    }
    store.note_in_use(what)?;
    store.ids().next()
}

// The effects of a job.

/// Creates the effects of a job, limited to the default size of a stream's.
pub fn new_effects(store: Home) -> Effects {
    Effects::new(Changes::default(), store, DEFAULT_EFFECTS)
}

/// Creates the effects of a job that is a future, and the mark by which they are known again.
#[cfg(feature = "tokio")]
pub fn marked_effects(store: Home) -> (Effects, u64) {
    Effects::of_future(store, DEFAULT_EFFECTS)
}

/// True if these are the effects that were created with this mark.
#[cfg(feature = "tokio")]
pub fn has_mark(effects: &Effects, mark: u64) -> bool {
    effects.has_mark(mark)
}

/// Returns the requested changes, and an error if one was refused.
pub fn finish_effects(effects: Effects) -> (Changes, Result<(), Error>) {
    effects.finish()
}

/// Requests an operation on a part of this store, which its participant may still refuse.
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

/// Refuses a change, so that the write fails with the error that `make` creates, and returns it.
pub fn refuse(effects: &mut Effects, make: impl Fn() -> Error + Send + Sync + 'static) -> Error {
    effects.refuse(make)
}

// A clock.

/// The moment of one call: both clocks, and a random number.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Milliseconds since 1970. It may jump, and decides when jobs of a queue are due.
    pub wall: u64,
    /// The monotonic clock, by which leases expire.
    pub now: Instant,
    /// A random number in 0..=1.
    pub chance: f64,
}

impl Moment {
    /// Returns the end of a pause that begins now, or `None` if it never ends.
    pub fn after(&self, pause: Option<Duration>) -> Option<Instant> {
        pause.and_then(|pause| self.now.checked_add(pause))
    }
}

/// The parts of a [`Clock`] that are not public.
pub trait ClockExt {
    /// The time, and a random number.
    fn moment(&self) -> Moment;
    /// The monotonic time.
    fn now(&self) -> Instant;
    /// True if only a test moves it.
    fn is_manual(&self) -> bool;
    /// Registers waits that are told when a test moves the clock.
    fn tell(&self, waits: Weak<dyn ClockWaits>);
    /// The deadline of a wait on the system's clock, or `None` if only a test ends the wait.
    fn deadline(&self, until: Option<Instant>) -> Option<Instant>;
    /// Waits until woken or until this moment. Returns true if the moment came.
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

// Values whose fields are private.

/// A finding for the operator of the program.
pub fn advice(reason: &'static str, verdict: Verdict, sentence: String, help: &'static str) -> Advice {
    Advice { reason, verdict, sentence, help }
}

/// A failure of a database that is elsewhere. `look_at` names what its user should check.
pub fn store_error(doing: String, look_at: &'static str, source: BoxError) -> StoreError {
    StoreError::elsewhere(doing, look_at, source)
}

/// The parts of a retry: first pause, growth, cap, attempts and jitter.
pub fn retry_parts(retry: &Retry) -> (Duration, Growth, Duration, Option<u32>, f64) {
    retry.parts()
}

/// A retry of these parts, unchecked.
pub fn retry_of(parts: (Duration, Growth, Duration, Option<u32>, f64)) -> Retry {
    Retry::of_parts(parts)
}

/// Returns an error if the retry is invalid.
pub fn check_retry(retry: &Retry) -> Result<(), ConfigError> {
    retry.validate()
}

// For tests.

/// The checks that each sealed record has to pass.
#[cfg(feature = "testing")]
pub use crate::commit::sealed::checks::{check_any, check_records};
/// A sealed record as it is stored: its value and its bytes.
#[cfg(feature = "testing")]
pub use crate::commit::sealed::samples::{Sample, samples};
/// The work of a deletion.
#[cfg(feature = "testing")]
pub use crate::kv::Deletion;
/// A database whose writes fail on demand.
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
