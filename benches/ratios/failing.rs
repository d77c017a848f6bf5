//! Sources that fail now and then, beside ones that never do. Each call takes as long as a request
//! to a near server, and every hundredth one fails.
//!
//! The first failure after an answer is retried at once, so it costs one more call. If calls fail
//! at random, with a chance of 1 %, one in ten thousand is the second failure in a row, and waits
//! for 50 ms: that costs 4.5 µs a call, however long a call takes.
//!
//! * **nulls**: one answer in fifty has no job, although the head is above it. After jobs of the
//!   same run the job is read again at once, otherwise after 20 ms.

use crate::cost::{Cost, Stopwatch};
use crate::table::{Row, Table};
use parking_lot::Mutex;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use waterline::{BoxError, Consumer, Index, Jobs, MemoryProgress, Sparse, Wakeup};

const MS: Duration = Duration::from_millis(1);

/// The call that takes time, and may fail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Head,
    AtIndex,
    Read,
    ReadSparse,
}

/// A source in which calls of one kind take time.
struct Calls {
    jobs: u64,
    kind: Call,
    takes: Duration,
    /// One in this many calls fails; 0: none.
    fails: u64,
    /// One in this many calls returns nothing.
    nulls: u64,
    made: AtomicU64,
    looks: AtomicU64,
    wakeup: Mutex<Option<Wakeup>>,
}

impl Calls {
    fn new(jobs: u64, kind: Call, takes: Duration, fails: u64, nulls: u64) -> Self {
        let (made, looks) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { jobs, kind, takes, fails, nulls, made, looks, wakeup: Mutex::new(None) }
    }

    /// Returns the answer to the next call; `None` if nothing is there.
    fn answer(&self) -> Result<Option<()>, BoxError> {
        let made = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let is_nth = |every: u64| every > 0 && made.is_multiple_of(every);
        if is_nth(self.fails) { Err("no route".into()) } else { Ok((!is_nth(self.nulls)).then_some(())) }
    }

    fn call(&self, kind: Call) -> Result<Option<()>, BoxError> {
        if kind != self.kind {
            return Ok(Some(()));
        }
        let until = Instant::now() + self.takes;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            std::thread::park_timeout(left);
        }
        self.answer()
    }

    /// If looks take time, each one shows one more job.
    fn shown(&self) -> Option<Index> {
        let looks = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
        Some(if self.kind == Call::Head { looks.min(self.jobs) } else { self.jobs } - 1)
    }
}

/// The same, with the default `read`.
struct OneByOne(Calls);

impl Jobs for OneByOne {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(self.0.call(Call::Head)?.and_then(|()| self.0.shown()))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        self.0.wakeup.lock().iter().for_each(|wakeup| _ = wakeup.ring());
        Ok(self.0.call(Call::AtIndex)?.map(|()| index))
    }

    fn subscribe(&self, wakeup: Wakeup) -> bool {
        *self.0.wakeup.lock() = (self.0.kind == Call::Head).then_some(wakeup);
        self.0.kind == Call::Head
    }
}

/// The same, with eight jobs a call.
struct InRuns(Calls);

impl Jobs for InRuns {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(self.0.shown())
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(Some(index))
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Index>) -> Result<(), BoxError> {
        let there = self.0.call(Call::Read)?.is_some();
        into.extend(run.take(8).filter(|_| there));
        Ok(())
    }

    fn read_sparse(&self, run: RangeInclusive<Index>, most: usize, into: &mut Sparse<Index>) -> Result<(), BoxError> {
        if self.0.call(Call::ReadSparse)?.is_some() {
            let mut jobs = Vec::new();
            self.read(run.clone(), &mut jobs)?;
            (*run.start()..).zip(jobs).take(most).for_each(|(index, job)| into.job(index, job));
        }
        Ok(())
    }
}

#[cfg(feature = "tokio")]
mod futures {
    use super::*;
    use waterline::AsyncJobs;

    /// The same with futures.
    pub(super) struct Futures(pub(super) Calls);

    impl AsyncJobs for Futures {
        type Job = Index;

        async fn head(&self) -> Result<Option<Index>, BoxError> {
            Ok(self.0.shown())
        }

        async fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
            tokio::time::sleep(self.0.takes).await;
            Ok(self.0.answer()?.map(|()| index))
        }
    }
}

fn consume(jobs: impl Jobs<Job = Index>, last: Index) -> Cost {
    let begun = Stopwatch::now();
    let consumer = Consumer::builder(jobs, MemoryProgress::new()).max_processing(2).stop_at(last).start(|_| Ok(()));
    consumer.and_then(Consumer::join).expect("jobs that do nothing do not fail");
    begun.elapsed()
}

pub(crate) fn rows(table: &Table) {
    let takes = MS / 10;
    for (name, kind, jobs) in [
        ("at_index", Call::AtIndex, 2_000),
        ("read", Call::Read, 16_000),
        ("read_sparse", Call::ReadSparse, 16_000),
        ("head", Call::Head, 2_000),
    ] {
        let name = format!("failing source: 1 % of {name}");
        let row = Row { name: &name, floor: "none fails", times: jobs, most: 1.05 };
        let ours = |fails| {
            let calls = Calls::new(jobs, kind, takes, fails, 0);
            match kind {
                Call::Head | Call::AtIndex => consume(OneByOne(calls), jobs - 1),
                Call::Read | Call::ReadSparse => consume(InRuns(calls), jobs - 1),
            }
        };
        table.row(row, || ours(0), || ours(100));
    }
    #[cfg(feature = "tokio")]
    {
        use waterline::AsyncJobs;
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let jobs = 400;
        let row = Row { name: "failing source: 1 % of AsyncJobs", floor: "none fails", times: jobs, most: 1.05 };
        let ours = |fails| {
            let calls = Calls::new(jobs, Call::AtIndex, MS, fails, 0);
            consume(futures::Futures(calls).on(runtime.handle()), jobs - 1)
        };
        table.row(row, || ours(0), || ours(100));
    }
    for (name, takes, jobs, most) in [("5 ms", 5 * MS, 200, 1.3), ("100 µs", takes, 1_000, 2.0)] {
        let name = format!("failing source: 2 % nulls, {name} a call");
        let row = Row { name: &name, floor: "all are there", times: jobs, most };
        let ours = |nulls| consume(OneByOne(Calls::new(jobs, Call::AtIndex, takes, 0, nulls)), jobs - 1);
        table.row(row, || ours(0), || ours(50));
    }
}
