//! The state of a queue within a batch.

use crate::embedded::codec::head::Head;
use crate::embedded::keys::Fronts;
use crate::embedded::kind_lines::KindLines;
use crate::embedded::wall::Wall;
use crate::rules::gate::Gate;
use crate::rules::lanes::LANES;
use crate::types::events::Event;
use crate::types::job::JobState;
use parking_lot::Mutex;
use std::sync::Arc;

/// The state of a queue after everything in the batch.
#[derive(Clone)]
pub(crate) struct Staged {
    pub(crate) head: Head,
    /// Whether the batch changes the head.
    pub(crate) changed: bool,
    pub(crate) from: Fronts,
    pub(crate) kinds: KindLines,
    pub(crate) gate: Gate,
    pub(crate) wall: Wall,
    /// The number of jobs set aside because they cannot be read.
    pub(crate) damaged: u64,
    /// The events of the batch: the first `count` ones. The others are of intents that were undone.
    told: Arc<Mutex<Vec<Event>>>,
    count: usize,
    /// The first token since the queue was opened.
    pub(crate) life: u64,
    /// The number of jobs that waited when the batch began.
    pub(crate) waited: u64,
    /// The ends of the ready logs when the batch began, and how many later jobs claims of other
    /// kinds have put into lines. Their takers have to be woken.
    ends: [u64; LANES],
    pub(crate) met: u64,
    /// Whether no caller that waits for the batch writes its log lines.
    pub(crate) nobody_settles: bool,
    /// Whether new jobs are told, as something watches.
    is_watched: bool,
    /// The number of new jobs that were not told, as nothing watched.
    pub(crate) untold: u64,
    /// The number of jobs that were pushed.
    pub(crate) placed: u64,
}

impl Staged {
    pub(crate) fn new(
        head: Head,
        (from, kinds): (Fronts, KindLines),
        gate: Gate,
        wall: Wall,
        damaged: u64,
        life: u64,
        is_watched: bool,
    ) -> Self {
        let (waited, told) = (head.waiting(), Arc::default());
        let (ends, met) = (head.lanes.map(|lane| lane.end), 0);
        let (changed, nobody_settles) = (false, false);
        let (count, untold, placed) = (0, 0, 0);
        Self {
            head,
            changed,
            from,
            kinds,
            gate,
            wall,
            damaged,
            life,
            told,
            count,
            waited,
            ends,
            met,
            nobody_settles,
            is_watched,
            untold,
            placed,
        }
    }

    pub(crate) fn note_in_line(&mut self, kind: &str, lane: usize, index: u64) {
        self.kinds.note(kind, lane, index);
        self.met += u64::from(index >= self.ends[lane]);
    }

    pub(crate) fn tell(&mut self, happened: Event) {
        // A subscriber of a job that is removed now may see it again.
        self.is_watched |= matches!(happened, Event::Seen { state: None, .. });
        let mut told = self.told.lock();
        told.truncate(self.count);
        told.push(happened);
        self.count += 1;
    }

    /// Tells of a new job, if something watched when the batch began.
    pub(crate) fn tell_new(&mut self, id: &str, state: JobState) {
        if self.is_watched {
            self.tell(Event::Seen { id: id.to_owned(), state: Some(state), data: Some(None), error: None });
        } else {
            self.untold += 1;
        }
    }

    /// Takes the events, once the batch is written.
    pub(crate) fn take_told(&self) -> Vec<Event> {
        let mut told = std::mem::take(&mut *self.told.lock());
        told.truncate(self.count);
        told
    }

    pub(crate) fn is_changed(&self) -> bool {
        self.changed
    }
}
