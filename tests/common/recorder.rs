//! A recorder of the crate `metrics` that keeps all values.

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Keeps the metrics of one test: the value of a gauge or counter, the count of a histogram.
#[derive(Clone, Default)]
pub struct Kept {
    cells: Arc<Mutex<BTreeMap<String, Arc<Cell>>>>,
    pub described: Arc<Mutex<BTreeSet<String>>>,
    pub panics: Arc<AtomicBool>,
}

#[derive(Default)]
struct Cell(Mutex<f64>, Arc<AtomicBool>);

impl CounterFn for Cell {
    fn increment(&self, by: u64) {
        *self.0.lock() += by as f64;
    }
    fn absolute(&self, _: u64) {
        unimplemented!("the library counts up")
    }
}

impl GaugeFn for Cell {
    fn increment(&self, _: f64) {
        unimplemented!("the library sets its gauges")
    }
    fn decrement(&self, _: f64) {
        unimplemented!("the library sets its gauges")
    }
    fn set(&self, value: f64) {
        assert!(!self.1.load(Ordering::SeqCst), "the recorder is broken");
        *self.0.lock() = value;
    }
}

impl HistogramFn for Cell {
    fn record(&self, value: f64) {
        assert!((0.0..60.0).contains(&value), "{value} are seconds");
        *self.0.lock() += 1.0;
    }
}

impl Kept {
    pub fn is_empty(&self) -> bool {
        self.cells.lock().is_empty()
    }

    /// Returns the value of the metric with this name and these labels, in their order.
    #[track_caller]
    pub fn number(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let (cells, name) = (self.cells.lock(), named(name, labels.iter().copied()));
        *cells.get(&name).unwrap_or_else(|| panic!("{name} is not in {:?}", cells.keys())).0.lock()
    }

    fn cell(&self, key: &Key) -> Arc<Cell> {
        let name = named(key.name(), key.labels().map(|label| (label.key(), label.value())));
        let new = || Arc::new(Cell(Mutex::default(), self.panics.clone()));
        self.cells.lock().entry(name).or_insert_with(new).clone()
    }

    fn describe(&self, name: &KeyName, unit: Option<Unit>, text: &SharedString) {
        assert!(unit.is_some() && text.ends_with('.'), "{text}");
        self.described.lock().insert(name.as_str().to_owned());
    }
}

fn named<'a>(name: &str, labels: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    format!("{name}{:?}", labels.collect::<Vec<_>>())
}

impl Recorder for Kept {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(&name, unit, &text);
    }
    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(&name, unit, &text);
    }
    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(&name, unit, &text);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.cell(key))
    }
}
