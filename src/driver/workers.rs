//! Which thread of the pool is woken for a job: at most one at a time, and none where somebody is awake anyway.
//!
//! Waking a thread costs as much as hundreds of short jobs. So a run of jobs wakes one worker, which wakes the next if work
//! remains; a worker without a job stays awake for a moment while the reader reads; and while the reader is awake, it is left
//! to it to see, a moment later, whether those who are awake cope.

use crate::window::Window;

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
        let left_to_reader = reader_watches && self.threads > self.parked;
        if self.waking || left_to_reader || !window.can_run() {
            Wake::Nobody
        } else if self.expectant {
            Wake::Beckon
        } else if self.parked > 0 {
            self.waking = true;
            Wake::One
        } else if self.threads < self.most(window) {
            self.waking = true;
            self.threads += 1;
            Wake::Spawn
        } else {
            Wake::Nobody
        }
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
        window.limits().max_processing.min(fixed).min(cap)
    }
}
