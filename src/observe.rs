//! Where a consumer reports what happens: it collects every event that a person may want to know.
//!
//! The driver pushes an [`Event`] where it happens, with the core's lock held. The event becomes a
//! [`Line`], or is counted by the next line of its kind. One thread at a time writes the lines once
//! the lock is free, in the order of the events. A job that succeeds is no event.
//!
//! [`events`] does the same for user code: an [`Observer`](events::Observer) hears of each attempt
//! at once, and of the rest as [`Notice`]s, which wait in the queue of lines.

mod advice;
pub(crate) mod behind;
pub(crate) mod busy_key;
pub(crate) mod events;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
pub(crate) mod observers;
#[cfg(test)]
mod page;
mod sentences;
mod serialized;
pub(crate) mod spans;
pub(crate) mod status;
pub(crate) mod strip;

use self::observers::Notice;
use self::status::SourceCalls;
use crate::base::Index;
use std::time::{Duration, Instant};
use tracing::Level;
use tracing::level_filters::LevelFilter;

/// The shortest time between two lines of one kind.
const PACE: Duration = Duration::from_secs(1);

/// How many lines and notices may wait before saves are merged.
const CROWD: usize = 1024;

/// The kind of an event. The page `service` lists the kinds for readers of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    AttemptFailed,
    Deferred,
    PutBack,
    BatchFailed,
    Exhausted,
    Parked,
    RedriveFailed,
    Died,
    RunsAlone,
    Retried,
    Missing,
    Gone,
    SourceFailed,
    SaveFailed,
    ClosurePanicked,
    ThreadRefused,
    ObserverPanicked,
    Stalled,
    Waits,
    NotAsked,
    TookOver,
    Halted,
    /// Last, so that lines of the other kinds which are held back come before it.
    Ended,
}

const KINDS: usize = EventKind::Ended as usize + 1;

impl EventKind {
    fn level(self) -> Level {
        match self {
            Self::AttemptFailed
            | Self::Deferred
            | Self::PutBack
            | Self::BatchFailed
            | Self::Retried
            | Self::Missing
            | Self::Ended => Level::DEBUG,
            Self::Waits | Self::TookOver => Level::INFO,
            _ => Level::WARN,
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::AttemptFailed => "an attempt failed, and the job has attempts left",
            Self::Deferred => "a job is not ready; it is tried again, and the attempt does not count",
            Self::PutBack => {
                "an attempt ended with an error while the consumer stops; the job is put back, and the attempt does not count"
            }
            Self::BatchFailed => "a batch of jobs failed; each of them runs alone, and the attempt does not count",
            Self::Exhausted => "an attempt failed, and the job has no attempt left",
            Self::Parked => "an attempt failed, the job has no attempt left, and it is parked: see `Store::parked`",
            Self::RedriveFailed => "a parked job ran once more and failed; it stays parked",
            Self::Died => "the process died in the life before: jobs that may have been in flight are recorded first",
            Self::RunsAlone => "a job runs alone, since the process died while it may have run",
            Self::Retried => "a failed job is tried again",
            Self::Missing => "the source reports a head at or above this index but returned no job at it; retrying",
            Self::Gone => "a failed job is no longer there and never will be: the source calls it a gap; it is passed",
            Self::SourceFailed => "the source failed; retrying",
            Self::SaveFailed => "the progress could not be saved",
            Self::ClosurePanicked => "the closure that starts deferred jobs panicked",
            Self::ThreadRefused => "a thread could not be started; the consumer goes on with fewer threads",
            Self::ObserverPanicked => "an observer or a call of on_stall panicked; nothing else changes",
            Self::Stalled => "the watermark does not move, though there is work",
            Self::Waits => "another consumer has the name; this one waits, and takes over once the name is free",
            Self::NotAsked => {
                "the storage of the progress could not be asked for the name; the consumer waits, and tries again"
            }
            Self::TookOver => "the consumer has the name that it waited for, and takes over",
            Self::Halted => "the consumer halts",
            Self::Ended => "the consumer has ended",
        }
    }

    /// True if a subscriber wants events of this kind. An unwanted event costs only this check.
    pub(crate) fn is_heard(self) -> bool {
        self.level() <= LevelFilter::current()
    }
}

#[derive(Debug)]
pub(crate) struct Event<'a> {
    pub(crate) kind: EventKind,
    pub(crate) index: Option<Index>,
    pub(crate) attempt: Option<u32>,
    pub(crate) error: Option<&'a str>,
    /// How long it has lasted.
    pub(crate) elapsed: Option<Duration>,
    /// The calls into the source, if one of them failed, and when it is called again.
    pub(crate) source: Option<SourceCalls>,
}

impl<'a> Event<'a> {
    pub(crate) fn new(kind: EventKind, index: Index) -> Self {
        Self { kind, index: Some(index), attempt: None, error: None, elapsed: None, source: None }
    }

    pub(crate) fn attempt(self, attempt: u32) -> Self {
        Self { attempt: Some(attempt), ..self }
    }

    pub(crate) fn error(self, error: &'a str) -> Self {
        Self { error: Some(error), ..self }
    }
}

/// One line of the log, for one event or for several of a kind, with the fields of the last one.
#[derive(Debug)]
pub(crate) struct Line {
    kind: EventKind,
    index: Option<Index>,
    attempt: Option<u32>,
    error: Option<String>,
    elapsed: Option<Duration>,
    source: Option<SourceCalls>,
    /// How many events the line stands for.
    count: u64,
}

impl Line {
    fn of(Event { kind, index, attempt, error, elapsed, source }: &Event<'_>) -> Self {
        let (index, attempt, elapsed, source) = (*index, *attempt, *elapsed, *source);
        Self { kind: *kind, index, attempt, error: error.map(str::to_owned), elapsed, source, count: 1 }
    }

    fn add(&mut self, event: &Event<'_>) {
        (self.index, self.attempt, self.elapsed) = (event.index, event.attempt, event.elapsed);
        self.source = event.source;
        match (&mut self.error, event.error) {
            // The buffer is reused: so many of these may come that each allocation counts.
            (Some(text), Some(error)) => {
                text.clear();
                text.push_str(error);
            }
            (text, error) => *text = error.map(str::to_owned),
        }
        self.count += 1;
    }

    /// Writes the line to the subscriber, which is user code: never call it with a lock held.
    pub(crate) fn write(&self, consumer: &str) {
        let Self { kind, index, attempt, error, elapsed, source, count } = self;
        let (text, seconds) = (error.as_deref(), elapsed.map(|elapsed| elapsed.as_secs_f64()));
        // Nothing has failed: a search for errors must not find these.
        let (reason, error) =
            if matches!(kind, EventKind::Waits | EventKind::Died) { (text, None) } else { (None, text) };
        let (calls, failed_calls) = (source.map(|source| source.made), source.map(|source| source.failed));
        let retry_in = source.and_then(|source| source.retry_in).map(|retry_in| retry_in.as_secs_f64());
        let message = kind.message();
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    target: "waterline", consumer, index, attempt, error, reason, seconds, retry_in, failed_calls, calls, count,
                    "{message}"
                )
            };
        }
        match kind.level() {
            Level::WARN => line!(warn),
            Level::INFO => line!(info),
            _ => line!(debug),
        }
    }
}

/// A message to deliver once the lock is free.
#[derive(Debug)]
pub(crate) enum Told {
    /// A line, for the subscriber.
    Line(Line),
    /// An event, for the observers.
    Notice(Notice),
}

/// When the last line of one kind was written, and the line of that kind that is held back.
#[derive(Debug, Default)]
struct LinePace {
    last: Option<Instant>,
    held: Option<Line>,
}

/// The lines to write, and those held back since one of their kind was written a moment ago.
#[derive(Debug, Default)]
pub(crate) struct Telling {
    /// The lines to write and the notices to deliver, in the order of the events.
    lines: Vec<Told>,
    /// The pace of each kind. Empty until something happens, so that it takes no memory.
    paces: Vec<LinePace>,
    /// True if a thread writes lines. It checks for more of them before it ends.
    writing: bool,
    ended: bool,
}

impl Telling {
    pub(crate) fn push(&mut self, now: Instant, event: &Event<'_>) {
        if !event.kind.is_heard() {
            return;
        }
        self.paces.resize_with(KINDS, LinePace::default);
        let pace = &mut self.paces[event.kind as usize];
        match &mut pace.held {
            Some(held) => held.add(event),
            None => pace.held = Some(Line::of(event)),
        }
        // After the end nothing is held back, since no later line would count it. But a thread that
        // is writing now checks for held lines before it ends.
        let over = self.ended && !self.writing;
        if over || pace.last.is_none_or(|last| now.saturating_duration_since(last) >= PACE) {
            pace.last = Some(now);
            self.lines.extend(pace.held.take().map(Told::Line));
        }
    }

    /// Adds an event for the observers. If very many wait, saves and measurements are merged.
    pub(crate) fn notice(&mut self, notice: Notice) {
        let unmerged = if self.lines.len() < CROWD { Some(notice) } else { self.merge(notice) };
        self.lines.extend(unmerged.map(Told::Notice));
    }

    /// Merges it with the last one of its kind if only measurements or saves came since: all others
    /// keep their order.
    fn merge(&mut self, mut notice: Notice) -> Option<Notice> {
        for told in self.lines.iter_mut().rev() {
            let Told::Notice(earlier) = told else { continue };
            notice = earlier.merge(notice)?;
            if !earlier.may_be_passed_by(&notice) {
                break;
            }
        }
        Some(notice)
    }

    /// Makes the lines that were held back for a second ready to be written.
    pub(crate) fn flush(&mut self, now: Instant) {
        for pace in &mut self.paces {
            if pace.held.is_some() && pace.last.is_none_or(|last| now.saturating_duration_since(last) >= PACE) {
                pace.last = Some(now);
                self.lines.extend(pace.held.take().map(Told::Line));
            }
        }
    }

    /// Makes all held lines ready to be written. From now on none is held back.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        self.release();
    }

    fn release(&mut self) {
        let held = self.paces.iter_mut().filter_map(|pace| pace.held.take());
        self.lines.extend(held.map(Told::Line));
    }

    /// Returns true if the caller must write lines, by calling [`take`](Self::take) until it
    /// returns `None`.
    #[inline]
    pub(crate) fn begin(&mut self) -> bool {
        let begins = !self.lines.is_empty() && !self.writing;
        self.writing |= begins;
        begins
    }

    /// Returns the lines to write now, or `None` if there are none and the caller stops writing.
    pub(crate) fn take(&mut self) -> Option<Vec<Told>> {
        if self.ended && self.lines.is_empty() {
            self.release();
        }
        self.writing = !self.lines.is_empty();
        self.writing.then(|| std::mem::take(&mut self.lines))
    }
}

#[cfg(test)]
pub(crate) mod listening {
    use crate::base::sync::{Arc, Mutex};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Metadata, Subscriber};

    /// Counts the events of a subscriber that wants them all.
    #[derive(Clone, Default)]
    pub(crate) struct Listens(pub(crate) Arc<Mutex<u64>>);

    impl Subscriber for Listens {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            *self.0.lock() += 1;
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }
}

#[cfg(test)]
mod tests {
    use super::listening::Listens;
    use super::*;

    fn said(telling: &mut Telling) -> Vec<(Option<Index>, u64)> {
        let lines = if telling.begin() { telling.take() } else { None };
        assert!(telling.take().is_none());
        let line = |told| match told {
            Told::Line(line) => Some((line.index, line.count)),
            Told::Notice(_) => None,
        };
        lines.into_iter().flatten().filter_map(line).collect()
    }

    #[test]
    fn unheard_saves_are_merged_and_all_counted() {
        let mut telling = Telling::default();
        let saved = |last| Notice::Saved { last_processed: Some(last), elapsed: Duration::ZERO, count: 1 };
        (0..3 * CROWD as u64).for_each(|last| telling.notice(saved(last)));
        telling.notice(Notice::Halted { index: 9, attempt: None, error: String::new() });
        telling.notice(saved(7));
        assert!(telling.begin());
        let told = telling.take().unwrap();
        assert_eq!(told.len(), CROWD + 2);
        let saves: Vec<_> = told
            .iter()
            .map(|told| match told {
                Told::Notice(Notice::Saved { last_processed: Some(last), count, .. }) => (*last, *count),
                _ => (0, 0),
            })
            .collect();
        assert_eq!(saves.iter().map(|(_, count)| count).sum::<u64>(), 3 * CROWD as u64 + 1);
        let last = (saves[CROWD - 1].0, saves[CROWD + 1].0);
        assert_eq!(last, (3 * CROWD as u64 - 1, 7), "the order is that of the events");
    }

    #[test]
    fn one_line_a_second_counts_its_events() {
        let listens = Listens::default();
        let _listens = tracing::subscriber::set_default(listens.clone());
        let (mut telling, now) = (Telling::default(), Instant::now());
        let failed = |index| Event::new(EventKind::AttemptFailed, index).attempt(1).error("refused");
        (0..1000).for_each(|index| telling.push(now + Duration::from_millis(index), &failed(index)));
        telling.push(now, &Event::new(EventKind::Halted, 5));
        assert_eq!(said(&mut telling), [(Some(0), 1), (Some(5), 1)], "each kind has its own pace");
        telling.push(now + PACE, &failed(1000));
        assert_eq!(said(&mut telling), [(Some(1000), 1000)]);
        telling.push(now + PACE * 3 / 2, &failed(1001));
        telling.flush(now + PACE * 3 / 2);
        assert_eq!(said(&mut telling), []);
        telling.flush(now + PACE * 2);
        assert_eq!(said(&mut telling), [(Some(1001), 1)], "a held line is written without a further event");
        telling.push(now + PACE * 2, &failed(1002));
        telling.end();
        assert_eq!(said(&mut telling), [(Some(1002), 1)]);
        telling.push(now + PACE * 2, &failed(1003));
        assert_eq!(said(&mut telling), [(Some(1003), 1)], "no line is held back after the end");
        Line::of(&failed(7)).write("p");
        assert_eq!(*listens.0.lock(), 1);
    }

    #[test]
    fn one_thread_at_a_time_writes_the_lines() {
        let _listens = tracing::subscriber::set_default(Listens::default());
        let (mut telling, now) = (Telling::default(), Instant::now());
        assert!(!telling.begin(), "there is nothing to write");
        telling.push(now, &Event::new(EventKind::Stalled, 1));
        assert!(telling.begin());
        assert_eq!(telling.take().map(|lines| lines.len()), Some(1));
        telling.push(now, &Event::new(EventKind::Halted, 1));
        assert!(!telling.begin(), "the thread that writes takes it");
        assert_eq!(telling.take().map(|lines| lines.len()), Some(1));
        assert!(telling.take().is_none() && !telling.begin());
    }
}
