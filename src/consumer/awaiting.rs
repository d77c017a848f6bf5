//! The calls that wait, as futures: no thread is blocked meanwhile.

use super::{Consumer, Handle};
use crate::base::error::Error;
use crate::base::index::Index;
use crate::base::sync::Arc;
use crate::base::wakers::within;
use crate::driver::end_condition::OutOfReach;
use crate::driver::handlers::control::{Control, Place};
use crate::observe::ended::Ended;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

impl Handle {
    /// Waits, without a thread, until the watermark has reached this index: the future of
    /// [`wait_for`](Self::wait_for). It may be dropped at any time, which changes nothing.
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
        let mut waits = Waits { control: self.control.clone(), index, place: None };
        match within(timeout, poll_fn(|context| waits.poll(context))).await {
            Some(has_come) => has_come,
            None => self.control.wait_for(index, Duration::ZERO),
        }
    }

    /// Waits, without a thread, until the consumer has ended and all its threads are gone: the
    /// future of [`wait_end`](Self::wait_end). It may be dropped at any time, which changes
    /// nothing. Within a job of [`start_async`](crate::Builder::start_async) it returns `None` at
    /// once if the consumer is that of the job: the end would wait for that job.
    ///
    /// # Panics
    /// It panics as [`wait_for_async`](Self::wait_for_async) does.
    pub async fn wait_end_async(&self, timeout: Duration) -> Option<Ended> {
        ended_within(&self.control, timeout).await
    }
}

impl Consumer {
    /// Stops the consumer and waits for its end without a thread: the future of
    /// [`stop`](Self::stop). It asks for the stop when it is first polled.
    ///
    /// The future owns the consumer. If it is dropped before it is ready, the consumer is asked to
    /// stop, and nobody waits: the error of its end is logged.
    ///
    /// # Errors
    /// The errors of [`stop`](Self::stop). Within a job of
    /// [`start_async`](crate::Builder::start_async) of this same consumer it is [`Error::Config`]:
    /// there it only asks, and does not wait.
    pub fn stop_async(self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let leaving = Leaving(Some(self));
        async move {
            leaving.control().inspect(|control| control.request_stop());
            leaving.end(None).await
        }
    }

    /// Stops the consumer within a time limit, and waits for its end without a thread: the future
    /// of [`stop_within`](Self::stop_within). It asks for the stop, and the limit begins, when it
    /// is first polled. Once the limit is over, a thread of the runtime's blocking pool makes the
    /// end: for two seconds at the most, unless a destructor takes longer.
    ///
    /// The future owns the consumer, as that of [`stop_async`](Self::stop_async) does.
    ///
    /// # Errors
    /// Those of [`stop_within`](Self::stop_within) and of [`stop_async`](Self::stop_async), and
    /// [`Error::Runtime`] if the runtime shuts down meanwhile.
    ///
    /// # Panics
    /// If the runtime was built without [`enable_time`](tokio::runtime::Builder::enable_time), or
    /// there is none.
    pub fn stop_within_async(self, limit: Duration) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let leaving = Leaving(Some(self));
        async move {
            leaving.control().inspect(|control| control.request_stop());
            leaving.end(Some(limit)).await
        }
    }

    /// Waits, without a thread, until the consumer ends: the future of [`join`](Self::join).
    ///
    /// The future owns the consumer, as that of [`stop_async`](Self::stop_async) does. To stop the
    /// consumer while this future waits, call [`Handle::request_stop`] and await it to its end.
    ///
    /// # Errors
    /// The errors of [`join`](Self::join), and in a job of this same consumer that of
    /// [`stop_async`](Self::stop_async).
    pub fn join_async(self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let leaving = Leaving(Some(self));
        async move {
            leaving.control().inspect(|control| control.heed_ended_upstreams(OutOfReach::Fail));
            leaving.end(None).await
        }
    }
}

/// A consumer that a future owns until its end. If the future is dropped before that, the consumer
/// is let go: its destructor would block a thread of the runtime.
struct Leaving(Option<Consumer>);

impl Leaving {
    fn control(&self) -> Option<&dyn Control> {
        self.0.as_ref().map(|consumer| &*consumer.control)
    }

    async fn end(mut self, limit: Option<Duration>) -> Result<(), Error> {
        let Some(control) = self.0.as_ref().map(|consumer| consumer.control.clone()) else { return Ok(()) };
        let is_own = control.is_own_thread();
        let gone = is_own || ended_within(&control, limit.unwrap_or(Duration::MAX)).await.is_some();
        let Some(consumer) = self.0.take() else { return Ok(()) };
        if gone {
            // There is nothing to wait for.
            return consumer.wait_end(None);
        }
        let made = tokio::task::spawn_blocking(move || consumer.wait_end(Some(Duration::ZERO))).await;
        made.unwrap_or(Err(Error::Runtime))
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Consumer::let_go);
    }
}

/// A task that waits for an index.
struct Waits {
    control: Arc<dyn Control>,
    index: Index,
    /// Its place among those that wait.
    place: Option<Place>,
}

impl Waits {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        self.control.poll_wait_for(self.index, &mut self.place, context.waker())
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.control.wait_for_no_more(self.place.take());
    }
}

async fn ended_within(control: &Arc<dyn Control>, timeout: Duration) -> Option<Ended> {
    let ended = || control.wait_ended(Duration::ZERO);
    if control.is_own_thread() {
        return None;
    }
    within(timeout, control.awaited().wait(ended)).await.or_else(ended)
}
