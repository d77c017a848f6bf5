//! Waiting calls as futures, which block no thread.

use super::{Consumer, Handle};
use crate::base::{Error, Index, sync::Arc, wakers::within};
use crate::driver::{Driver, WaiterKey, end_condition::OutOfReach};
use crate::observe::status::Ended;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

impl Handle {
    /// Waits asynchronously until the watermark has reached this index.
    ///
    /// This is the future of [`wait_for`](Self::wait_for). It may be dropped at any time.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress};
    ///
    /// let runtime = tokio::runtime::Runtime::new()?;
    /// let jobs: MemoryJobs<_> = (0..5).collect();
    /// let consumer = Consumer::builder(jobs, MemoryProgress::new()).start(|_| Ok(()))?;
    /// let handle = consumer.handle();
    /// runtime.block_on(async {
    ///     assert!(handle.wait_for_async(4, Duration::from_secs(20)).await);
    ///     consumer.stop_async().await
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// If the runtime was built without [`enable_time`](tokio::runtime::Builder::enable_time), or
    /// there is none. Timeouts of zero and of [`Duration::MAX`] need neither.
    pub async fn wait_for_async(&self, index: Index, timeout: Duration) -> bool {
        let mut waits = AwaitedConsumer { control: self.control.clone(), index, place: None };
        match within(timeout, poll_fn(|context| waits.poll(context))).await {
            Some(has_come) => has_come,
            None => self.control.wait_for(index, Duration::ZERO),
        }
    }

    /// Waits asynchronously until the consumer has ended and all its threads are gone.
    ///
    /// This is the future of [`wait_end`](Self::wait_end). It may be dropped at any time without
    /// effect. Within a job of [`start_async`](crate::Builder::start_async) it returns `None` at
    /// once if the consumer is that job's: the end would wait for the job.
    ///
    /// # Panics
    /// Like [`wait_for_async`](Self::wait_for_async).
    pub async fn wait_end_async(&self, timeout: Duration) -> Option<Ended> {
        ended_within(&self.control, timeout).await
    }
}

impl Consumer {
    /// Stops the consumer and waits for its end asynchronously: the future of [`stop`](Self::stop).
    ///
    /// The first poll requests the stop. The future owns the consumer: if it is dropped before it
    /// is ready, the consumer is only asked to stop, and the error of its end is logged.
    ///
    /// # Errors
    /// The errors of [`stop`](Self::stop). Within a job of this same consumer's
    /// [`start_async`](crate::Builder::start_async) it is [`Error::Config`]: there it only requests
    /// the stop, and does not wait.
    pub fn stop_async(self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let leaving = LeavingConsumer(Some(self));
        async move {
            leaving.control().inspect(|control| control.request_stop());
            leaving.end(None).await
        }
    }

    /// Stops the consumer within a time limit: the future of [`stop_within`](Self::stop_within).
    ///
    /// The first poll requests the stop and starts the limit. Once the limit is over, a thread of
    /// the runtime's blocking pool ends the consumer: for at most two seconds, unless a destructor
    /// takes longer. The future owns the consumer, as in [`stop_async`](Self::stop_async).
    ///
    /// # Errors
    /// The errors of [`stop_within`](Self::stop_within) and [`stop_async`](Self::stop_async), and
    /// [`Error::Runtime`] if the runtime shuts down meanwhile.
    ///
    /// # Panics
    /// If the runtime was built without [`enable_time`](tokio::runtime::Builder::enable_time), or
    /// there is none.
    pub fn stop_within_async(self, limit: Duration) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let leaving = LeavingConsumer(Some(self));
        async move {
            leaving.control().inspect(|control| control.request_stop());
            leaving.end(Some(limit)).await
        }
    }

    /// Waits asynchronously until the consumer ends: the future of [`join`](Self::join).
    ///
    /// The future owns the consumer, as in [`stop_async`](Self::stop_async). To stop the consumer
    /// while this future waits, call [`Handle::request_stop`] and await the future to its end.
    ///
    /// # Errors
    /// The errors of [`join`](Self::join), and in a job of this same consumer [`Error::Config`], as
    /// [`stop_async`](Self::stop_async) returns it.
    pub fn join_async(self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let leaving = LeavingConsumer(Some(self));
        async move {
            leaving.control().inspect(|control| control.heed_ended_upstreams(OutOfReach::Fail));
            leaving.end(None).await
        }
    }
}

/// A consumer that a future owns until its end. If the future is dropped earlier, the consumer is
/// let go without waiting: its destructor would block a thread of the runtime.
struct LeavingConsumer(Option<Consumer>);

impl LeavingConsumer {
    fn control(&self) -> Option<&Driver> {
        self.0.as_ref().map(|consumer| &*consumer.control)
    }

    async fn end(mut self, limit: Option<Duration>) -> Result<(), Error> {
        let Some(control) = self.0.as_ref().map(|consumer| consumer.control.clone()) else { return Ok(()) };
        let is_own = control.is_own_thread();
        let gone = is_own || ended_within(&control, limit.unwrap_or(Duration::MAX)).await.is_some();
        let Some(consumer) = self.0.take() else { return Ok(()) };
        if gone {
            return consumer.wait_end(None);
        }
        let made = tokio::task::spawn_blocking(move || consumer.wait_end(Some(Duration::ZERO))).await;
        made.unwrap_or(Err(Error::Runtime))
    }
}

impl Drop for LeavingConsumer {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Consumer::let_go);
    }
}

struct AwaitedConsumer {
    control: Arc<Driver>,
    index: Index,
    place: Option<WaiterKey>,
}

impl AwaitedConsumer {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        self.control.poll_wait_for(self.index, &mut self.place, context.waker())
    }
}

impl Drop for AwaitedConsumer {
    fn drop(&mut self) {
        self.control.wait_for_no_more(self.place.take());
    }
}

async fn ended_within(control: &Driver, timeout: Duration) -> Option<Ended> {
    let ended = || control.wait_ended(Duration::ZERO);
    if control.is_own_thread() {
        return None;
    }
    within(timeout, control.awaited().wait(ended)).await.or_else(ended)
}
