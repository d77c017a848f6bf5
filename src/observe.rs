//! What a consumer tells of itself: the one place where everything that a person may want to hear of is collected.
//!
//! An [`Event`] is pushed where it happens, with the core's lock held. Here it becomes a [`Line`], or is counted by the next one
//! of its kind; lines are written once the lock is free, by one thread at a time, in the order in which things happened.
//! A job that succeeds is no event. Whoever else is to hear of events is told here, beside [`Telling::push`].

pub(crate) mod ended;
pub(crate) mod status;

use crate::base::index::Index;
use std::time::{Duration, Instant};
use tracing::Level;
use tracing::level_filters::LevelFilter;

/// At least this long from one line to the next of its kind.
const PACE: Duration = Duration::from_secs(1);

/// What the events of one kind have in common. The page `design` lists them for the reader of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AttemptFailed,
    Exhausted,
    Retried,
    Missing,
    SourceFailed,
    SaveFailed,
    ClosurePanicked,
    ThreadRefused,
    Stalled,
    Halted,
    /// The last, so that what was held back of the others is told before it.
    Ended,
}

const KINDS: usize = Kind::Ended as usize + 1;

impl Kind {
    fn level(self) -> Level {
        match self {
            Self::AttemptFailed | Self::Retried | Self::Missing | Self::Ended => Level::DEBUG,
            Self::Exhausted
            | Self::SourceFailed
            | Self::SaveFailed
            | Self::ClosurePanicked
            | Self::ThreadRefused
            | Self::Stalled
            | Self::Halted => Level::WARN,
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::AttemptFailed => "an attempt failed, and the job has attempts left",
            Self::Exhausted => "an attempt failed, and the job has no attempt left",
            Self::Retried => "a failed job is tried again",
            Self::Missing => {
                "the source reports a head at or above this index but returned no job at it; it is asked again"
            }
            Self::SourceFailed => "the source failed; it is asked again",
            Self::SaveFailed => "the progress could not be saved",
            Self::ClosurePanicked => "the closure that starts deferred jobs panicked",
            Self::ThreadRefused => "a thread could not be started; the consumer goes on with fewer",
            Self::Stalled => "the watermark does not move, though there is work",
            Self::Halted => "the consumer halts",
            Self::Ended => "the consumer has ended",
        }
    }

    /// True if anybody may hear of it. An event that nobody hears of costs no more than this.
    pub(crate) fn is_heard(self) -> bool {
        self.level() <= LevelFilter::current()
    }
}

/// Something that happened.
#[derive(Debug)]
pub(crate) struct Event<'a> {
    pub(crate) kind: Kind,
    pub(crate) index: Option<Index>,
    pub(crate) attempt: Option<u32>,
    pub(crate) error: Option<&'a str>,
    /// How long it has lasted.
    pub(crate) elapsed: Option<Duration>,
}

impl<'a> Event<'a> {
    pub(crate) fn new(kind: Kind, index: Index) -> Self {
        Self { kind, index: Some(index), attempt: None, error: None, elapsed: None }
    }

    pub(crate) fn attempt(self, attempt: u32) -> Self {
        Self { attempt: Some(attempt), ..self }
    }

    pub(crate) fn error(self, error: &'a str) -> Self {
        Self { error: Some(error), ..self }
    }
}

/// What is written of one event, or of several of a kind: then it is the last of them.
#[derive(Debug)]
pub(crate) struct Line {
    kind: Kind,
    index: Option<Index>,
    attempt: Option<u32>,
    error: Option<String>,
    elapsed: Option<Duration>,
    /// How many events it stands for.
    count: u64,
}

impl Line {
    fn of(Event { kind, index, attempt, error, elapsed }: &Event<'_>) -> Self {
        let (index, attempt, elapsed) = (*index, *attempt, *elapsed);
        Self { kind: *kind, index, attempt, error: error.map(str::to_owned), elapsed, count: 1 }
    }

    /// Stands for this event, too.
    fn add(&mut self, event: &Event<'_>) {
        (self.index, self.attempt, self.elapsed) = (event.index, event.attempt, event.elapsed);
        match (&mut self.error, event.error) {
            // In the buffer that is there: so many of these may come that each allocation counts.
            (Some(text), Some(error)) => {
                text.clear();
                text.push_str(error);
            }
            (text, error) => *text = error.map(str::to_owned),
        }
        self.count += 1;
    }

    /// Hands it to whoever listens, which is the user's code: never with a lock held.
    pub(crate) fn write(&self, consumer: &str) {
        let Self { kind, index, attempt, error, elapsed, count } = self;
        let (error, seconds) = (error.as_deref(), elapsed.map(|elapsed| elapsed.as_secs_f64()));
        let message = kind.message();
        if kind.level() == Level::WARN {
            tracing::warn!(target: "waterline", consumer, index, attempt, error, seconds, count, "{message}");
        } else {
            tracing::debug!(target: "waterline", consumer, index, attempt, error, seconds, count, "{message}");
        }
    }
}

/// What was said of one kind, and what was not.
#[derive(Debug, Default)]
struct Pace {
    last: Option<Instant>,
    held: Option<Line>,
}

/// Lines that are to be written, and those that are held back since there was one of their kind a moment ago.
#[derive(Debug, Default)]
pub(crate) struct Telling {
    /// In the order in which things happened.
    lines: Vec<Line>,
    /// By kind. Empty, without memory, until something happens.
    paces: Vec<Pace>,
    /// A thread is writing, and looks for more lines when it is done.
    writing: bool,
    ended: bool,
}

impl Telling {
    pub(crate) fn push(&mut self, now: Instant, event: &Event<'_>) {
        if !event.kind.is_heard() {
            return;
        }
        self.paces.resize_with(KINDS, Pace::default);
        let pace = &mut self.paces[event.kind as usize];
        match &mut pace.held {
            Some(held) => held.add(event),
            None => pace.held = Some(Line::of(event)),
        }
        // After the end no later line would say what is held back.
        if self.ended || pace.last.is_none_or(|last| now.saturating_duration_since(last) >= PACE) {
            pace.last = Some(now);
            self.lines.extend(pace.held.take());
        }
    }

    /// What is held back is said, if its second is over by now.
    pub(crate) fn flush(&mut self, now: Instant) {
        for pace in &mut self.paces {
            if pace.held.is_some() && pace.last.is_none_or(|last| now.saturating_duration_since(last) >= PACE) {
                pace.last = Some(now);
                self.lines.extend(pace.held.take());
            }
        }
    }

    /// The end has come: what is held back is said, and nothing is from now on.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        self.lines.extend(self.paces.iter_mut().filter_map(|pace| pace.held.take()));
    }

    /// Whether the caller is to write lines: it then [takes](Self::take) them until there are none.
    #[inline]
    pub(crate) fn begin(&mut self) -> bool {
        let begins = !self.lines.is_empty() && !self.writing;
        self.writing |= begins;
        begins
    }

    /// What is to be written now; `None`: nothing, and the caller writes no more.
    pub(crate) fn take(&mut self) -> Option<Vec<Line>> {
        self.writing = !self.lines.is_empty();
        self.writing.then(|| std::mem::take(&mut self.lines))
    }
}

#[cfg(test)]
pub(crate) mod listening {
    use crate::base::sync::{Arc, Mutex};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Metadata, Subscriber};

    /// Hears everything, and counts it.
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
        lines.into_iter().flatten().map(|line| (line.index, line.count)).collect()
    }

    #[test]
    fn a_line_a_second_says_how_many_events_it_stands_for_and_the_end_says_the_rest() {
        let listens = Listens::default();
        let _listens = tracing::subscriber::set_default(listens.clone());
        let (mut telling, now) = (Telling::default(), Instant::now());
        let failed = |index| Event::new(Kind::AttemptFailed, index).attempt(1).error("refused");
        (0..1000).for_each(|index| telling.push(now + Duration::from_millis(index), &failed(index)));
        telling.push(now, &Event::new(Kind::Halted, 5));
        assert_eq!(said(&mut telling), [(Some(0), 1), (Some(5), 1)], "each kind has a pace of its own");
        telling.push(now + PACE, &failed(1000));
        assert_eq!(said(&mut telling), [(Some(1000), 1000)]);
        telling.push(now + PACE * 3 / 2, &failed(1001));
        telling.flush(now + PACE * 3 / 2);
        assert_eq!(said(&mut telling), []);
        telling.flush(now + PACE * 2);
        assert_eq!(said(&mut telling), [(Some(1001), 1)], "without a next one, too");
        telling.push(now + PACE * 2, &failed(1002));
        telling.end();
        assert_eq!(said(&mut telling), [(Some(1002), 1)]);
        telling.push(now + PACE * 2, &failed(1003));
        assert_eq!(said(&mut telling), [(Some(1003), 1)], "nothing is held back for ever");
        Line::of(&failed(7)).write("p");
        assert_eq!(*listens.0.lock(), 1);
    }

    #[test]
    fn one_thread_at_a_time_writes_and_takes_what_comes_meanwhile() {
        let _listens = tracing::subscriber::set_default(Listens::default());
        let (mut telling, now) = (Telling::default(), Instant::now());
        assert!(!telling.begin(), "there is nothing to write");
        telling.push(now, &Event::new(Kind::Stalled, 1));
        assert!(telling.begin());
        assert_eq!(telling.take().map(|lines| lines.len()), Some(1));
        telling.push(now, &Event::new(Kind::Halted, 1));
        assert!(!telling.begin(), "whoever writes takes it");
        assert_eq!(telling.take().map(|lines| lines.len()), Some(1));
        assert!(telling.take().is_none() && !telling.begin());
    }
}
