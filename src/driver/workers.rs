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

/// So long the operating system is not asked for one more thread once it gave none.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A thread that sleeps for so long without a job ends. Starting it again costs less than a hundred microseconds, so this is long
/// enough for bursts that come every few seconds, and short enough that a burst is forgotten before anybody counts threads.
const KEEP: Duration = Duration::from_secs(10);

/// While a job is taken at least this often there is something to see at the next look.
const LIVELY: Duration = Duration::from_micros(20);

/// The threads of the pool.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    /// The most threads there may be; never more than `max_processing`.
    pub(crate) fixed: Option<usize>,
    /// The operating system gave no more threads than this, when it was last asked for one more.
    pub(crate) cap: Option<usize>,
    pub(crate) capped: Option<Instant>,
    pub(crate) threads: usize,
    pub(crate) parked: usize,
    /// How long a thread without a job is kept, where that is not [`KEEP`].
    pub(crate) keep: Option<Duration>,
    /// The fewest that slept at any time since `counted`: so many are not needed.
    spare: usize,
    counted: Option<Instant>,
    /// So many that would fall asleep are to end instead, since they were spare for all of the time that a thread is kept.
    surplus: usize,
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
    /// When a job was last taken, to within a tick of the system's timer.
    pub(crate) last_taken: Option<coarsetime::Instant>,
    looked: Option<Instant>,
}

/// What a look at the workers showed.
pub(crate) struct Sight {
    /// They take jobs so fast that one more would be none the faster.
    pub(crate) cope: bool,
    /// There is something to see at the next look.
    pub(crate) look_again: bool,
}

/// What a worker without a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// It is to end, and is counted out.
    End,
    /// It is counted as asleep until somebody wakes it, or until this time.
    Sleep(Option<Instant>),
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
    /// Whom to wake for what the window would hand out now, or for a turn that a pause has held up.
    #[inline]
    pub(crate) fn wake(&mut self, window: &Window, reader_watches: bool, has_turn: bool) -> Wake {
        // The reader looks after jobs only, not after a turn.
        let left_to_reader = reader_watches && self.allowed == 0 && self.awake() > 0 && !has_turn;
        if self.waking || left_to_reader || !(has_turn || window.can_run()) {
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

    /// The operating system gave no more threads: it is asked again, but not at once.
    pub(crate) fn refused(&mut self, now: Instant) {
        self.threads -= 1;
        self.waking = false;
        self.cap = Some(self.threads.max(1));
        self.capped = Some(now);
    }

    /// The watch begins.
    pub(crate) fn watched_from(&mut self, now: Instant) {
        if self.capped.is_some_and(|capped| now.saturating_duration_since(capped) >= ASK_AGAIN) {
            (self.cap, self.capped) = (None, None);
        }
        (self.looked, self.taken, self.allowed) = (Some(now), 0, 0);
    }

    /// A look at the workers, on watch, when there is work that nobody has taken, or none.
    pub(crate) fn look(&mut self, window: &Window, now: Instant, work: bool) -> Sight {
        let elapsed = self.looked.map_or(Duration::ZERO, |looked| now.saturating_duration_since(looked));
        let taken = std::mem::take(&mut self.taken);
        self.looked = Some(now);
        let awake = u32::try_from(self.awake()).unwrap_or(u32::MAX);
        let cope = awake > 0 && BRISK.saturating_mul(taken) >= elapsed.saturating_mul(awake);
        let all_awake = self.all_busy(window).is_some();
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

    /// What a worker without a job is to do, which may have slept for as long as it is kept, without being needed.
    ///
    /// One always stays, and sleeps in full. Which of those that sleep is woken is up to the operating system, so a few jobs may
    /// keep many threads from ever sleeping for long: these are found by counting how many were asleep all the time.
    pub(crate) fn idle(&mut self, window: &Window, slept: bool, now: impl FnOnce() -> Instant) -> Idle {
        if window.has_ended() || self.threads > self.most(window) {
            self.threads -= 1;
            return Idle::End;
        }
        let mut until = None;
        if self.threads > 1 {
            let (now, keep) = (now(), self.keep.unwrap_or(KEEP));
            let counted = *self.counted.get_or_insert(now);
            if now.saturating_duration_since(counted) >= keep {
                (self.counted, self.surplus, self.spare) = (Some(now), self.spare, self.parked);
            }
            if slept || self.surplus > 0 {
                self.surplus = self.surplus.saturating_sub(1);
                self.threads -= 1;
                return Idle::End;
            }
            until = now.checked_add(keep);
        }
        self.parked += 1;
        Idle::Sleep(until)
    }

    /// A worker sleeps no more, whether it was woken or its time was over: either way it looks for a job itself, so the wake-up
    /// that may have been meant for it is not lost.
    pub(crate) fn awoken(&mut self) {
        self.parked -= 1;
        self.spare = self.spare.min(self.parked);
        // A burst has come: those that were spare before it no longer are.
        self.surplus = self.surplus.min(self.spare);
        self.waking = false;
    }

    #[inline]
    fn most(&self, window: &Window) -> usize {
        let [fixed, cap] = [self.fixed, self.cap].map(|most| most.unwrap_or(usize::MAX));
        window.limits().max_processing.min(fixed).saturating_add(usize::from(self.reading)).min(cap)
    }

    /// How many threads there are, if none of them sleeps and there may be no more.
    pub(crate) fn all_busy(&self, window: &Window) -> Option<usize> {
        (self.parked == 0 && self.threads >= self.most(window)).then_some(self.threads)
    }

    /// Running a job, or about to ask for one.
    pub(crate) fn awake(&self) -> usize {
        self.threads - self.parked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::Limits;

    /// With more jobs than anybody takes.
    fn busy() -> Window {
        let mut window = Window::begin(0, Limits { max_processing: 100, max_search_ahead: 1000 });
        window.handle_head(Some(1_000));
        assert!(window.poll().is_some());
        window.handle_fetched(200);
        window
    }

    /// Wakes and starts as many as it may before the next look.
    fn woken(workers: &mut Workers, window: &Window) -> usize {
        let wakes = std::iter::from_fn(|| {
            let wake = workers.wake(window, true, false);
            workers.waking = false;
            (wake != Wake::Nobody).then_some(wake)
        });
        wakes.count()
    }

    #[test]
    fn as_many_again_are_woken_when_they_do_not_cope_and_none_when_they_do() {
        let (window, now) = (busy(), Instant::now());
        let mut workers = Workers { threads: 1, ..Workers::default() };
        workers.watched_from(now);
        assert_eq!(woken(&mut workers, &window), 0, "one is awake, and nothing is known of it yet");
        let mut counts = Vec::new();
        for look in 1..8 {
            workers.taken = 3;
            let sight = workers.look(&window, now + LOOK_EVERY * look, true);
            assert!(!sight.cope && sight.look_again == (workers.threads < 100));
            woken(&mut workers, &window);
            counts.push(workers.threads);
        }
        assert_eq!(counts, [2, 4, 8, 16, 32, 64, 100], "never more than max_processing");
        workers.taken = 100 * 60;
        assert!(workers.look(&window, now + LOOK_EVERY * 8, true).cope);
    }

    #[test]
    fn a_watch_without_anything_to_see_is_over() {
        let (window, now) = (busy(), Instant::now());
        let mut workers = Workers { threads: 1, parked: 1, ..Workers::default() };
        workers.watched_from(now);
        assert!(!workers.look(&window, now + LOOK_EVERY, false).look_again, "nobody took a job");
        workers.taken = 50;
        assert!(workers.look(&window, now + LOOK_EVERY * 2, false).look_again, "more may come");
    }

    /// All of them, one after the other, and none that slept for long.
    fn fall_asleep(workers: &mut Workers, window: &Window, now: Instant) {
        (0..workers.threads).for_each(|_| assert_ne!(workers.idle(window, false, || now), Idle::End));
    }

    #[test]
    fn a_thread_that_slept_for_as_long_as_it_is_kept_ends_and_the_last_one_sleeps_in_full() {
        let (window, now) = (busy(), Instant::now());
        let mut workers = Workers { threads: 3, ..Workers::default() };
        let until = Idle::Sleep(Some(now + KEEP));
        let asleep = [(); 3].map(|()| workers.idle(&window, false, || now));
        assert_eq!((asleep, workers.parked), ([until; 3], 3));
        let woken = [(); 3].map(|()| {
            workers.awoken();
            workers.idle(&window, true, || now + KEEP)
        });
        assert_eq!(woken, [Idle::End, Idle::End, Idle::Sleep(None)]);
        assert_eq!((workers.threads, workers.parked), (1, 1));
    }

    #[test]
    fn threads_that_are_woken_in_turn_end_when_fewer_would_have_done() {
        let (window, now) = (busy(), Instant::now());
        let mut workers = Workers { threads: 9, ..Workers::default() };
        fall_asleep(&mut workers, &window, now);
        // Always two at a time have a job, and each of them sleeps for less than it is kept.
        let mut ended = Vec::new();
        for second in 1..40 {
            workers.awoken();
            workers.awoken();
            let idle = [(); 2].map(|()| workers.idle(&window, false, || now + Duration::from_secs(second)));
            if idle.contains(&Idle::End) {
                ended.push(second);
            }
        }
        assert_eq!((workers.threads, workers.parked), (2, 2), "as many as had a job");
        assert!(ended.iter().all(|second| (10..30).contains(second)), "{ended:?}");
    }

    #[test]
    fn a_burst_keeps_all_threads_that_it_needs() {
        let (window, now) = (busy(), Instant::now());
        let mut workers = Workers { threads: 9, ..Workers::default() };
        fall_asleep(&mut workers, &window, now);
        for burst in 1..40 {
            (0..9).for_each(|_| workers.awoken());
            fall_asleep(&mut workers, &window, now + Duration::from_secs(9 * burst));
            assert_eq!((workers.threads, workers.parked), (9, 9), "in burst {burst}");
        }
    }

    #[test]
    fn a_system_that_gave_no_thread_is_asked_again_after_a_while() {
        let (window, now) = (busy(), Instant::now());
        let mut workers = Workers { threads: 1, ..Workers::default() };
        assert_eq!(workers.wake(&window, false, false), Wake::Spawn);
        workers.refused(now);
        assert_eq!(workers.wake(&window, false, false), Wake::Nobody);
        workers.watched_from(now + ASK_AGAIN / 2);
        assert_eq!(workers.wake(&window, false, false), Wake::Nobody);
        workers.watched_from(now + ASK_AGAIN);
        assert_eq!(workers.wake(&window, false, false), Wake::Spawn);
    }
}
