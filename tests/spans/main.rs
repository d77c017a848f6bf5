//! The `tracing` spans in which attempts run. It is one test, since the subscriber is that of the
//! whole process.

use common::*;
use crossbeam_channel::unbounded;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};
use waterline::{Builder, Consumer, MemoryJobs, Retry, Store, StoreProgress};

/// The fields of a span: consumer, index, attempt.
type Fields = (String, String, String);

thread_local! {
    static INSIDE: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Keeps all spans of consumers, while it wants them.
#[derive(Default)]
struct Spans {
    wants: AtomicBool,
    all: Mutex<Vec<Fields>>,
}

struct Listener(Arc<Spans>);

#[derive(Default)]
struct Read(HashMap<&'static str, String>);

impl Visit for Read {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "waterline" && self.0.wants.load(Ordering::SeqCst)
    }
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(if self.0.wants.load(Ordering::SeqCst) { LevelFilter::DEBUG } else { LevelFilter::INFO })
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        assert_eq!((span.metadata().name(), *span.metadata().level()), ("job", Level::DEBUG));
        let mut read = Read::default();
        span.record(&mut read);
        let field = |name| read.0.get(name).cloned().unwrap_or_default();
        let mut all = self.0.all.lock();
        all.push((field("consumer"), field("index"), field("attempt")));
        Id::from_u64(all.len() as u64)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, id: &Id) {
        INSIDE.with_borrow_mut(|inside| inside.push(id.into_u64()));
    }
    fn exit(&self, id: &Id) {
        assert_eq!(INSIDE.with_borrow_mut(Vec::pop), Some(id.into_u64()));
    }
}

impl Spans {
    fn want(&self, wants: bool) {
        self.wants.store(wants, Ordering::SeqCst);
        tracing::callsite::rebuild_interest_cache();
    }

    /// Returns the span that the calling thread is in, which is one at most.
    fn here(&self) -> Option<Fields> {
        let inside = INSIDE.with_borrow(Vec::clone);
        assert!(inside.len() <= 1);
        inside.first().map(|id| self.all.lock()[*id as usize - 1].clone())
    }
}

fn named(name: &str) -> Builder<MemoryJobs<u64>, StoreProgress> {
    let builder = Consumer::builder(numbers(20), Store::in_memory().progress(name));
    builder.max_processing(3).retry(Retry::fixed(Duration::ZERO)).stop_at(19)
}

/// Runs a consumer in each mode, and checks the span around each attempt, or that there is none.
fn run_all_modes(spans: &Arc<Spans>, wanted: bool) {
    let check = |name: &'static str| {
        let spans = spans.clone();
        move |index: u64, attempt: u32| {
            let is = spans.here();
            let wants = wanted.then(|| (name.to_owned(), index.to_string(), attempt.to_string()));
            if is != wants {
                return Err(format!("{is:?} is not {wants:?}"));
            }
            match attempt {
                1 if index == 3 => panic!("the span is left"),
                1 if index == 7 => Err("once".to_owned()),
                _ => Ok(()),
            }
        }
    };
    let outside = {
        let spans = spans.clone();
        move || assert_eq!(spans.here(), None, "the span is around the closure alone")
    };
    let direct = check("direct");
    let after = outside.clone();
    let consumer = named("direct").on_job_done(move |_| after()).start(move |job| Ok(direct(job.index, job.attempt)?));
    let deferred = check("deferred");
    let deferred = named("deferred").start_deferred(move |job, done| match deferred(job.index, job.attempt) {
        Ok(()) => done.complete(),
        Err(error) => done.fail(error),
    });
    let ordered = check("ordered");
    let ordered = named("ordered").start_ordered(
        move |job| Ok(ordered(job.index, job.attempt)?),
        move |_, ()| {
            outside();
            Ok(())
        },
    );
    let transactional = check("transactional");
    let transactional =
        named("transactional").start_transactional(move |job, _| Ok(transactional(job.index, job.attempt)?));
    let (send, failures) = unbounded();
    for consumer in [consumer, deferred, ordered, transactional] {
        let consumer = consumer.unwrap();
        let handle = consumer.handle();
        // A wrong span fails each attempt, so the consumer would not get there.
        if !handle.wait_for(19, LONG) || handle.status().failed != 2 {
            send.send(format!("{}", handle.status())).unwrap();
        }
        consumer.stop().unwrap();
    }
    drop(send);
    assert_eq!(failures.iter().collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn each_attempt_has_its_own_span_if_subscribed() {
    let spans = Arc::<Spans>::default();
    tracing::subscriber::set_global_default(Listener(spans.clone())).expect("it is the first");
    spans.want(false);
    run_all_modes(&spans, false);
    assert_eq!(spans.all.lock().len(), 0);
    spans.want(true);
    run_all_modes(&spans, true);
    let mut all = spans.all.lock().clone();
    assert_eq!(all.len(), 4 * 22);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4 * 22, "an attempt has one span");
}
