//! Metrics of a consumer or of a queue, in the recorder of the crate `metrics`.
//!
//! A recorder never drops a metric, so a gauge outlives its consumer or runner. The next one of the
//! same name sets the same gauge.

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Unit, with_recorder};

const METADATA: Metadata<'static> = Metadata::new("waterline", Level::INFO, None);

/// The installed recorder, for metrics with common labels. It is user code.
pub struct Recorder<'a> {
    inner: &'a dyn metrics::Recorder,
    labels: Vec<Label>,
}

impl Recorder<'_> {
    /// Registers metrics with this label.
    pub fn make<M>(label: &'static str, value: &str, make: impl FnOnce(&Recorder<'_>) -> M) -> M {
        let labels = vec![Label::new(label, value.to_owned())];
        with_recorder(|inner| make(&Recorder { inner, labels }))
    }

    /// Returns the recorder with one more label.
    #[must_use]
    pub fn with(&self, label: &'static str, value: &'static str) -> Self {
        let labels = self.labels.iter().cloned().chain([Label::new(label, value)]);
        Self { inner: self.inner, labels: labels.collect() }
    }

    pub fn counter(&self, name: &'static str, text: &'static str) -> Counter {
        self.inner.describe_counter(name.into(), Some(Unit::Count), text.into());
        self.inner.register_counter(&self.key(name), &METADATA)
    }

    pub fn gauge(&self, name: &'static str, unit: Unit, text: &'static str) -> Gauge {
        self.inner.describe_gauge(name.into(), Some(unit), text.into());
        self.inner.register_gauge(&self.key(name), &METADATA)
    }

    /// Registers a histogram of durations, in seconds.
    pub fn seconds(&self, name: &'static str, text: &'static str) -> Histogram {
        self.inner.describe_histogram(name.into(), Some(Unit::Seconds), text.into());
        self.inner.register_histogram(&self.key(name), &METADATA)
    }

    fn key(&self, name: &'static str) -> Key {
        Key::from_parts(name, self.labels.clone())
    }
}

/// Converts to the float of a gauge, which is exact up to 2^53.
pub(crate) fn as_f64(number: u64) -> f64 {
    number as f64
}
