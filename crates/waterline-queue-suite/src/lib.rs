//! The suite of tests that every database of queues has to pass, for use as a dev-dependency.
#![allow(clippy::unwrap_used, reason = "a case that fails panics")]

use bench::{Beginner, Benches, Database, Opener};
use panics::text_of;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use waterline_queue::{Queue, QueueError, QueueOptions};

mod after;
pub mod bench;
mod bounded;
mod calls;
mod cases;
mod claims;
mod clocks;
mod group;
mod group_runner;
mod kinds;
mod leases;
mod limits;
mod lives;
mod meta;
mod pages;
mod panics;
mod parity;
mod periodic;
mod requeue;
mod roots;
mod runner;
mod runner_drains;
mod runner_ends;
#[cfg(feature = "tokio")]
mod runner_futures;
mod runner_gates;
mod runner_losses;
mod runner_slots;
mod runner_stalls;
mod sorts;
mod states;
mod time;
mod unique;

/// The name of a case, and its function.
type Case = (&'static str, fn(&Benches<'_>));

macro_rules! listed {
    ([] $($file:ident: $($case:ident),+;)+) => {
        const CASES: &[Case] = &[$($((stringify!($case), $file::$case),)+)+];
    };
}
crate::__each_queue_case!(listed,);

/// Checks that a database of queues keeps the rules of a [`Queue`].
///
/// The suite takes a closure that makes an empty database and returns how to open a queue of it. A
/// case opens a queue, drops it and opens it again, as a restart does, and may open others beside
/// it. They must use the clock in their [`QueueOptions`], which the case moves. A case that fails
/// panics.
///
/// ```
/// use waterline::Store;
/// use waterline_queue::Queue;
/// use waterline_queue_suite::QueueSuite;
///
/// QueueSuite::new(|| {
///     let store = Store::in_memory();
///     move |name: &str, options| Queue::open(&store, name, options)
/// })
/// .case("c12_each_push_wakes_one_of_many_callers");
/// ```
///
/// [`queue_suite!`] makes a test of each case, which run in parallel and fail by name.
///
/// No case kills a process within a write, since only the database knows how. Cases of random calls
/// compare each answer with a [`QueueModel`](waterline_queue::testing::QueueModel) that can do as
/// much. If one fails, it prints the seed and the shortest list of calls that it has found.
#[must_use = "nothing is checked before `run`"]
pub struct QueueSuite<'a>(Benches<'a>);

impl<'a> QueueSuite<'a> {
    /// Makes a suite for the empty databases that this closure makes.
    ///
    /// It returns a closure that opens a queue by its name, as [`Queue::open`] does.
    pub fn new<D>(database: impl Fn() -> D + 'a) -> Self
    where
        D: Fn(&str, QueueOptions) -> Result<Queue, QueueError> + Send + Sync + 'static,
    {
        Self::on(move || Database::Other(Arc::new(database())))
    }

    /// Makes a suite for databases whose processes can die.
    ///
    /// The closure makes a database, and returns one that begins a process of it. That one returns
    /// what the closure of [`new`](Self::new) does. Later writes of the process before must have no
    /// effect.
    ///
    /// ```no_run
    /// use std::sync::Mutex;
    /// use waterline_queue::Queue;
    /// use waterline::testing::FaultyStore;
    /// use waterline_queue_suite::QueueSuite;
    ///
    /// QueueSuite::mortal(|| {
    ///     let disk = Mutex::new(FaultyStore::new().unwrap());
    ///     move || {
    ///         let mut disk = disk.lock().unwrap();
    ///         *disk = disk.after_crash().unwrap();
    ///         let store = disk.store();
    ///         move |name: &str, options| Queue::open(&store, name, options)
    ///     }
    /// })
    /// .run();
    /// ```
    pub fn mortal<P, D>(database: impl Fn() -> P + 'a) -> Self
    where
        P: Fn() -> D + Send + Sync + 'static,
        D: Fn(&str, QueueOptions) -> Result<Queue, QueueError> + Send + Sync + 'static,
    {
        Self::on(move || {
            let begin = database();
            let begin: Arc<Beginner> = Arc::new(move || -> Arc<Opener> { Arc::new(begin()) });
            Database::Mortal(begin(), begin)
        })
    }

    #[doc(hidden)]
    pub fn on(database: impl Fn() -> Database + 'a) -> Self {
        Self(Benches { make: Box::new(database), calls: 400, seed: 0 })
    }

    /// Sets the number and the seed of each case's random calls. Default: 400, and 0.
    pub fn random_calls(mut self, calls: u64, seed: u64) -> Self {
        (self.0.calls, self.0.seed) = (calls, seed);
        self
    }

    /// Makes random lives of a store's queue on disks that fail or stop taking writes.
    #[doc(hidden)]
    pub fn lives_on_disks_at_fault(calls: u64, seed: u64) {
        lives::on_disks_at_fault(calls, seed);
    }

    /// Returns the names of all cases.
    pub fn cases() -> impl Iterator<Item = &'static str> {
        CASES.iter().map(|(name, _)| *name)
    }

    /// Checks the case with this name.
    ///
    /// # Panics
    /// If it fails, and if there is no such case.
    pub fn case(&self, name: &str) {
        let case = CASES.iter().find(|(case, _)| *case == name);
        let (_, check) = case.unwrap_or_else(|| panic!("the suite has no case {name:?}"));
        check(&self.0);
    }

    /// Checks all cases, one after the other.
    ///
    /// # Panics
    /// If some fail, with the name of each and the text of its panic.
    #[track_caller]
    pub fn run(&self) {
        let failure = |(name, check): &Case| {
            let panic = catch_unwind(AssertUnwindSafe(|| check(&self.0))).err()?;
            Some(format!("\n  {name} {}", text_of(&*panic)))
        };
        let failed: Vec<_> = CASES.iter().filter_map(failure).collect();
        assert!(failed.is_empty(), "{} of {} cases failed:{}", failed.len(), CASES.len(), failed.concat());
    }
}

impl fmt::Debug for QueueSuite<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueSuite").finish_non_exhaustive()
    }
}

/// Makes a test of each case of a [`QueueSuite`].
///
/// ```
/// # #[cfg(test)]
/// mod queues_in_memory {
///     use waterline_queue::testing::QueueModel;
///     use waterline_queue_suite::QueueSuite;
///
///     fn suite() -> QueueSuite<'static> {
///         QueueSuite::new(|| {
///             let model = QueueModel::new();
///             move |name: &str, options| model.open(name, options)
///         })
///     }
///
///     waterline_queue_suite::queue_suite!(suite());
/// }
/// ```
#[macro_export]
macro_rules! queue_suite {
    ([$suite:expr] $($file:ident: $($case:ident),+;)+) => {
        $($(
            #[test]
            fn $case() {
                $suite.case(stringify!($case));
            }
        )+)+
    };
    ($suite:expr) => {
        $crate::__each_queue_case!($crate::queue_suite, $suite);
    };
}
