//! The log lines of a test, from its own thread.

use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use tracing::field::{Field, Visit};
use tracing::subscriber::{Interest, Subscriber, with_default};
use tracing::{Event, Metadata, span};

/// Keeps the text of each log line.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

/// The fields of one line.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl Subscriber for Lines {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "waterline"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().push(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Runs this, and returns its log lines.
pub(crate) fn lines_of(run: impl FnOnce()) -> Vec<String> {
    let lines = Lines::default();
    with_default(lines.clone(), run);
    lines.0.lock().clone()
}
