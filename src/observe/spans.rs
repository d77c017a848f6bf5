//! The `tracing` span of an attempt.

use crate::base::{Index, sync::Arc};
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing::span::EnteredSpan;

#[derive(Clone, Debug)]
pub(crate) struct Spans {
    consumer: Arc<str>,
}

impl Spans {
    pub(crate) fn new(consumer: &str) -> Self {
        Self { consumer: consumer.into() }
    }

    /// Enters the span of this attempt until the guard is dropped. If no subscriber wants spans of
    /// this level, that costs reading one number.
    #[inline]
    pub(crate) fn enter(&self, index: Index, attempt: u32) -> Option<Box<EnteredSpan>> {
        if Level::DEBUG <= LevelFilter::current() { Some(self.entered(index, attempt)) } else { None }
    }

    /// Enters the span of a batch: its lowest index, and how many jobs.
    #[inline]
    pub(crate) fn enter_batch(&self, index: Index, jobs: usize) -> Option<Box<EnteredSpan>> {
        if Level::DEBUG <= LevelFilter::current() { Some(self.entered_batch(index, jobs)) } else { None }
    }

    #[cold]
    fn entered_batch(&self, index: Index, jobs: usize) -> Box<EnteredSpan> {
        let span = tracing::debug_span!(target: "waterline", "batch", consumer = &*self.consumer, index, jobs);
        Box::new(span.entered())
    }

    /// The guard is boxed, so that a job without a span has only one register to check afterwards.
    #[cold]
    fn entered(&self, index: Index, attempt: u32) -> Box<EnteredSpan> {
        let span = tracing::debug_span!(target: "waterline", "job", consumer = &*self.consumer, index, attempt);
        Box::new(span.entered())
    }
}
