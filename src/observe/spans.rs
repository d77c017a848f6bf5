//! The span of an attempt, for a subscriber of `tracing` that wants it.

use crate::base::index::Index;
use crate::base::sync::Arc;
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing::span::EnteredSpan;

/// Makes the spans of one consumer.
#[derive(Clone, Debug)]
pub(crate) struct Spans {
    consumer: Arc<str>,
}

impl Spans {
    pub(crate) fn new(consumer: &str) -> Self {
        Self { consumer: consumer.into() }
    }

    /// Enters the span of this attempt until the answer is dropped. If no subscriber wants spans of
    /// this level, that is a look at one number.
    #[inline]
    pub(crate) fn enter(&self, index: Index, attempt: u32) -> Option<Box<EnteredSpan>> {
        if Level::DEBUG <= LevelFilter::current() { Some(self.entered(index, attempt)) } else { None }
    }

    /// Enters the span of a batch of jobs: its lowest index, and the number of jobs.
    #[inline]
    pub(crate) fn enter_batch(&self, index: Index, jobs: usize) -> Option<Box<EnteredSpan>> {
        if Level::DEBUG <= LevelFilter::current() { Some(self.entered_batch(index, jobs)) } else { None }
    }

    #[cold]
    fn entered_batch(&self, index: Index, jobs: usize) -> Box<EnteredSpan> {
        let span = tracing::debug_span!(target: "waterline", "batch", consumer = &*self.consumer, index, jobs);
        Box::new(span.entered())
    }

    /// The answer is boxed, so that a job without a span has one register to check behind it.
    #[cold]
    fn entered(&self, index: Index, attempt: u32) -> Box<EnteredSpan> {
        let span = tracing::debug_span!(target: "waterline", "job", consumer = &*self.consumer, index, attempt);
        Box::new(span.entered())
    }
}
