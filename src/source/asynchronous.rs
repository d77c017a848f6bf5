//! Sources whose calls are futures, such as network clients.

use crate::base::sync::{Arc, Mutex};
use crate::base::{BoxError, Index, time};
use crate::source::futures::{Call, Futures, ReadFutures};
use crate::source::{Gate, Jobs, READ_PATIENCE, Sparse, forward, sparse::dense_run, wakeup::Wakeup};
use std::fmt;
use std::ops::RangeInclusive;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;
use tokio::runtime::{Handle, RuntimeFlavor};

/// How long the start of a consumer waits for the first index where it may block the runtime.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// How long a call may take, unless the user sets another time.
const CALL_PATIENCE: Duration = Duration::from_secs(30);

const UNDRIVEN: &str = "the source has not said for 10 s where it begins: if this thread is the one that drives the runtime, start \
                        the consumer within `spawn_blocking`";

/// [`Jobs`] whose calls are futures, which [`on`](Self::on) turns into a source on a tokio runtime.
///
/// The rules are those of [`Jobs`]. The consumer makes one call at a time, ahead of the jobs that
/// run (prefetch), from a thread of its own, which waits for the answer. So a slow source holds up
/// no job that was read. [`Builder::max_reading`](crate::Builder::max_reading) lets many reads be
/// under way at once, as tasks of the runtime. A call without an answer within 30 s is dropped, and
/// counts as failed: [`Builder::source_timeout`](crate::Builder::source_timeout) sets another time.
/// A call without an answer when the consumer ends is dropped too, so a hanging call holds up no
/// stop.
///
/// ```
/// use waterline::{AsyncJobs, BoxError, Consumer, Index, MemoryProgress};
///
/// /// A client of a node; each call is a request.
/// struct Node(Vec<&'static str>);
///
/// impl AsyncJobs for Node {
///     type Job = &'static str;
///     async fn head(&self) -> Result<Option<Index>, BoxError> {
///         tokio::task::yield_now().await;
///         Ok((self.0.len() as Index).checked_sub(1))
///     }
///     async fn at_index(&self, index: Index) -> Result<Option<&'static str>, BoxError> {
///         tokio::task::yield_now().await;
///         Ok(self.0.get(index as usize).copied())
///     }
/// }
///
/// let runtime = tokio::runtime::Runtime::new()?;
/// let node = Node(vec!["genesis", "alice pays bob", "bob pays carol"]);
/// let consumer = Consumer::builder(node.on(runtime.handle()), MemoryProgress::new())
///     .stop_at(2)
///     .start_async(runtime.handle(), |job| async move {
///         println!("{}: {}", job.index, job.payload);
///         Ok(())
///     })?;
/// runtime.block_on(consumer.join_async())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait AsyncJobs: Send + Sync + 'static {
    /// The job that a worker gets; see [`Jobs::Job`].
    type Job: Send + 'static;

    /// Returns the lowest index that the source still has; see [`Jobs::first`]. Default: 0.
    ///
    /// The start of the consumer waits for it. On the thread of a `current_thread` runtime that
    /// blocks the runtime: then the start fails after ten seconds, unless the answer needs no
    /// runtime. Call it within `spawn_blocking` there.
    ///
    /// # Errors
    /// The errors of [`Jobs::first`].
    fn first(&self) -> impl Future<Output = Result<Index, BoxError>> + Send {
        std::future::ready(Ok(0))
    }

    /// Returns the highest available index, or `None` while there is none; see [`Jobs::head`].
    ///
    /// # Errors
    /// The errors of [`Jobs::head`].
    fn head(&self) -> impl Future<Output = Result<Option<Index>, BoxError>> + Send;

    /// Returns the job at this index, if the source has it (yet); see [`Jobs::at_index`].
    ///
    /// # Errors
    /// The errors of [`Jobs::at_index`].
    fn at_index(&self, index: Index) -> impl Future<Output = Result<Option<Self::Job>, BoxError>> + Send;

    /// Reads a run of consecutive jobs in one call; see [`Jobs::read`].
    ///
    /// Implement it if one request can bring many jobs. (For many requests at a time, set
    /// [`max_reading`](crate::Builder::max_reading).) The
    /// default awaits [`at_index`](Self::at_index) for one job after the other, and returns after
    /// the first answer that comes later than 10 ms.
    ///
    /// # Errors
    /// The errors of [`Jobs::read`].
    fn read(
        &self,
        run: RangeInclusive<Index>,
        into: &mut Vec<Self::Job>,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        async move {
            let begun = time::coarse_uncached();
            for index in run {
                match self.at_index(index).await? {
                    Some(job) => into.push(job),
                    None => break,
                }
                if time::coarse_uncached().duration_since(begun) >= READ_PATIENCE {
                    break;
                }
            }
            Ok(())
        }
    }

    /// Reads jobs of a source whose indices have gaps; see [`Jobs::read_sparse`].
    ///
    /// The default awaits [`read`](Self::read) for a run of `most` indices.
    ///
    /// # Errors
    /// The errors of [`Jobs::read_sparse`].
    fn read_sparse(
        &self,
        run: RangeInclusive<Index>,
        most: usize,
        into: &mut Sparse<Self::Job>,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        async move { self.read(dense_run(&run, most, into)?, into.dense()).await }
    }

    /// Returns about how many bytes of memory this job takes; see [`Jobs::weight`]. Default: the
    /// size of its type.
    fn weight(&self, job: &Self::Job) -> usize {
        let _ = job;
        size_of::<Self::Job>()
    }

    /// Takes the wake-up to ring whenever a job appears; see [`Jobs::subscribe`].
    ///
    /// Return true if the source does so. Default: false, so the consumer asks for the head every
    /// second.
    fn subscribe(&self, wakeup: Wakeup) -> bool {
        let _ = wakeup;
        false
    }

    /// Returns the limit up to which jobs may start; see [`Jobs::gate`]. Default: [`Gate::Open`].
    fn gate(&self) -> Gate {
        Gate::Open
    }

    /// Returns why the source shows no job above its head yet; see [`Jobs::waits_for`]. Default:
    /// `None`.
    fn waits_for(&self) -> Option<String> {
        None
    }

    /// Turns these jobs into a source whose calls run in the context of this runtime.
    fn on(self, runtime: &Handle) -> OnRuntime<Self>
    where
        Self: Sized,
    {
        OnRuntime {
            jobs: self,
            runtime: runtime.clone(),
            wakeups: Mutex::default(),
            patience: Mutex::new(CALL_PATIENCE),
        }
    }
}

/// [`AsyncJobs`] as a source of a consumer, created by [`AsyncJobs::on`].
///
/// The thread that calls it waits for the answer. If the runtime has shut down, or is not driven, a
/// call that needs it fails or hangs: errors are retried, and `status().blocked` names both.
pub struct OnRuntime<J> {
    jobs: J,
    runtime: Handle,
    /// The wake-ups of the consumers that read from here. Once all have ended, a call is dropped.
    wakeups: Mutex<Vec<Wakeup>>,
    /// How long a call may take.
    patience: Mutex<Duration>,
}

impl<J: AsyncJobs> OnRuntime<J> {
    /// Runs a call to its end on this thread, in the context of the runtime. If it takes too long,
    /// it is dropped.
    fn call<R>(&self, call: impl Future<Output = Result<R, BoxError>>) -> Result<R, BoxError> {
        self.call_within(None, call)
    }

    /// The same, where this thread may block the runtime for at most `undriven`.
    fn call_within<R>(
        &self,
        undriven: Option<Duration>,
        call: impl Future<Output = Result<R, BoxError>>,
    ) -> Result<R, BoxError> {
        let _context = self.runtime.enter();
        let waker = Waker::from(Arc::new(Unparks(std::thread::current())));
        let context = &mut Context::from_waker(&waker);
        let mut call = pin!(call);
        if let Poll::Ready(answer) = call.as_mut().poll(context) {
            return answer;
        }
        let patience = *self.patience.lock();
        let limit = undriven.map_or(patience, |undriven| undriven.min(patience));
        // A time beyond the end of the clock is no limit.
        let until = time::now().checked_add(limit);
        let _ends = EndWakeups::of(self.wakeups.lock().clone(), &waker);
        loop {
            if self.is_over() {
                return Err("the consumer has ended, so the call was dropped".into());
            }
            match until.map(|until| until.saturating_duration_since(time::now())) {
                Some(Duration::ZERO) if limit < patience => return Err(UNDRIVEN.into()),
                Some(Duration::ZERO) => return Err(unanswered(patience)),
                Some(left) => std::thread::park_timeout(left),
                None => std::thread::park(),
            }
            if let Poll::Ready(answer) = call.as_mut().poll(context) {
                return answer;
            }
        }
    }

    /// True if all consumers that read from here have ended.
    fn is_over(&self) -> bool {
        let wakeups = self.wakeups.lock();
        !wakeups.is_empty() && wakeups.iter().all(Wakeup::is_stale)
    }
}

/// Returns the error of a call that was dropped after this time.
pub(crate) fn unanswered(after: Duration) -> BoxError {
    let help = "the call was dropped; if calls may take longer, raise source_timeout";
    format!("it has not answered within {after:.1?}, so {help}").into()
}

impl<J: AsyncJobs> ReadFutures<J::Job> for J {
    fn first(&self) -> Call<'_, Index> {
        Box::pin(AsyncJobs::first(self))
    }

    fn read_sparse<'a>(
        &'a self,
        run: RangeInclusive<Index>,
        most: usize,
        into: &'a mut Sparse<J::Job>,
    ) -> Call<'a, ()> {
        Box::pin(AsyncJobs::read_sparse(self, run, most, into))
    }
}

/// The consumers whose end wakes a call.
struct EndWakeups(Vec<(Wakeup, Option<u64>)>);

impl EndWakeups {
    fn of(wakeups: Vec<Wakeup>, waker: &Waker) -> Self {
        let enter = |wakeup: Wakeup| {
            let mut place = None;
            wakeup.calls().enter(&mut place, waker);
            (wakeup, place)
        };
        Self(wakeups.into_iter().map(enter).collect())
    }
}

impl Drop for EndWakeups {
    fn drop(&mut self) {
        self.0.iter().for_each(|(wakeup, place)| wakeup.calls().leave(*place));
    }
}

/// Wakes a thread that waits for an answer.
struct Unparks(Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

impl<J: AsyncJobs> Jobs for OnRuntime<J> {
    type Job = J::Job;

    fn first(&self) -> Result<Index, BoxError> {
        // The thread that waits here may be the one that would drive the runtime.
        let may_block = self.runtime.runtime_flavor() == RuntimeFlavor::CurrentThread && Handle::try_current().is_ok();
        self.call_within(may_block.then_some(START_PATIENCE), self.jobs.first())
    }

    fn head(&self) -> Result<Option<Index>, BoxError> {
        self.call(self.jobs.head())
    }

    fn at_index(&self, index: Index) -> Result<Option<Self::Job>, BoxError> {
        self.call(self.jobs.at_index(index))
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Self::Job>) -> Result<(), BoxError> {
        self.call(self.jobs.read(run, into))
    }

    fn read_sparse(&self, run: RangeInclusive<Index>, most: usize, into: &mut Sparse<J::Job>) -> Result<(), BoxError> {
        self.call(self.jobs.read_sparse(run, most, into))
    }

    forward!(self: self.jobs => weight, gate, waits_for);

    fn futures(&self) -> Option<Futures<'_, J::Job>> {
        Some(Futures::new(&self.runtime, &self.jobs))
    }

    fn call_timeout(&self, after: Option<Duration>) -> Option<Duration> {
        let mut patience = self.patience.lock();
        *patience = after.unwrap_or(*patience);
        Some(*patience)
    }

    fn subscribe(&self, wakeup: Wakeup) -> bool {
        let mut wakeups = self.wakeups.lock();
        wakeups.retain(|wakeup| !wakeup.is_stale());
        wakeups.push(wakeup.clone());
        drop(wakeups);
        self.jobs.subscribe(wakeup)
    }
}

impl<J> fmt::Debug for OnRuntime<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnRuntime").field("runtime", &self.runtime).finish_non_exhaustive()
    }
}
