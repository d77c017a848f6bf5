//! Which thread of the pool is woken for a job: at most one at a time, and none where somebody is awake anyway.
//!
//! Waking a thread costs as much as hundreds of short jobs. So a run of jobs wakes one worker, which wakes the next if work
//! remains; a worker without a job stays awake for a moment while somebody reads; and while the reader is on watch, it is
//! left to it to see, every now and then, whether those who are awake cope. If they do not, as many again are woken.

use crate::window::Window;
use std::time::{Duration, Instant};

/// Workers that take a job each in less time than this cope: one more would wait for the lock more than it helps.
const BRISK: Duration = Duration::from_micros(2);

/// From one look at the workers to the next. So long may jobs wait behind one that is unlike those before it.
pub(crate) const LOOK_EVERY: Duration = Duration::from_micros(100);

/// While a job is taken at least this often there is something to see at the next look.
const LIVELY: Duration = Duration::from_micros(20);

/// The threads of the pool.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    /// The most threads there may be; never more than `max_processing`.
    pub(crate) fixed: Option<usize>,
    /// The operating system gave no more threads than this.
    pub(crate) cap: Option<usize>,
    pub(crate) threads: usize,
    pub(crate) parked: usize,
    /// One has no job, and stays awake for a moment since the reader is about to bring some.
    pub(crate) expectant: bool,
    /// One is being woken or started.
    pub(crate) waking: bool,
    /// One reads for itself. Should that take long, another may take its place.
    pub(crate) reading: bool,
    /// How many may be woken before the next look, though others are awake.
    allowed: usize,
    /// Jobs taken since the last look.
    pub(crate) taken: u32,
    looked: Option<Instant>,
}

/// What a look at the workers showed.
pub(crate) struct Sight {
    /// They take jobs so fast that one more would be none the faster.
    pub(crate) cope: bool,
    /// There is something to see at the next look.
    pub(crate) look_again: bool,
}

/// Who is told that there is a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wake {
    #[default]
    Nobody,
    /// The one that is awake and expects it.
    Beckon,
    One,
    /// A new thread, which is counted already.
    Spawn,
}

impl Workers {
    /// Whom to wake for what the window would hand out now.
    #[inline]
    pub(crate) fn wake(&mut self, window: &Window, reader_watches: bool) -> Wake {
        let left_to_reader = reader_watches && self.allowed == 0 && self.awake() > 0;
        if self.waking || left_to_reader || !window.can_run() {
            Wake::Nobody
        } else if self.expectant {
            Wake::Beckon
        } else if self.parked > 0 {
            self.waking = true;
            self.allowed = self.allowed.saturating_sub(1);
            Wake::One
        } else if self.threads < self.most(window) {
            self.waking = true;
            self.allowed = self.allowed.saturating_sub(1);
            self.threads += 1;
            Wake::Spawn
        } else {
            Wake::Nobody
        }
    }

    /// The watch begins.
    pub(crate) fn watched_from(&mut self, now: Instant) {
        (self.looked, self.taken, self.allowed) = (Some(now), 0, 0);
    }

    /// A look at the workers, on watch, when there is work that nobody has taken, or none.
    pub(crate) fn look(&mut self, window: &Window, now: Instant, work: bool) -> Sight {
        let elapsed = self.looked.map_or(Duration::ZERO, |looked| now.saturating_duration_since(looked));
        let taken = std::mem::take(&mut self.taken);
        self.looked = Some(now);
        let awake = u32::try_from(self.awake()).unwrap_or(u32::MAX);
        let cope = awake > 0 && BRISK.saturating_mul(taken) >= elapsed.saturating_mul(awake);
        let all_awake = self.parked == 0 && self.threads >= self.most(window);
        self.allowed = if work && !cope { self.awake().max(1) } else { 0 };
        let lively = LIVELY.saturating_mul(taken) >= elapsed;
        Sight { cope, look_again: if work { cope || !all_awake } else { taken > 0 && lively } }
    }

    /// Whether a worker without a job should stay awake for the next: one does, while the reader reads.
    pub(crate) fn expects_jobs(&mut self, reader_reads: bool) -> bool {
        let expects = reader_reads && !self.expectant;
        self.expectant |= expects;
        expects
    }

    /// Whether a worker without a job is to end; then it is counted out.
    pub(crate) fn retires(&mut self, window: &Window) -> bool {
        let retires = window.has_ended() || self.threads > self.most(window);
        self.threads -= usize::from(retires);
        retires
    }

    #[inline]
    fn most(&self, window: &Window) -> usize {
        let [fixed, cap] = [self.fixed, self.cap].map(|most| most.unwrap_or(usize::MAX));
        window.limits().max_processing.min(fixed).saturating_add(usize::from(self.reading)).min(cap)
    }

    /// Running a job, or about to ask for one.
    pub(crate) fn awake(&self) -> usize {
        self.threads - self.parked
    }
}
