//! The worker threads: how many are needed, which one is woken for a job, and which one ends.
//!
//! Waking a thread costs as much as hundreds of short jobs. So at most one thread is woken at a
//! time, and none while another is awake anyway. A run of jobs wakes one worker, which wakes the
//! next if work remains. A worker without a job spins for a moment while a job is about to come.
//! While the pool is supervised, the supervisor checks from time to time whether the awake workers
//! cope; if not, it doubles their number. If they take jobs so fast that they mostly wait for each
//! other, half of them go to sleep.

use crate::base::config::available_parallelism;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Workers that take less time than this for each job use their processors and wait for nothing, so
/// no more of them than processors are needed.
const BRISK: Duration = Duration::from_micros(2);

/// If the processors together take less time than this for each visit to the core, they mostly wait
/// for each other: fewer workers are faster.
const SHORT: Duration = Duration::from_nanos(1_500);

/// A visit to the core moves this many times as much between processors as a visit to the tray.
const TRAY: u32 = 4;

/// The total work of all workers that is put into a tray at once. A success may wait this long
/// until it is counted, if jobs stay this short.
const HANDFUL: Duration = Duration::from_micros(40);

/// The part of a visit that always counts, even after much shorter ones.
const LONGER: Duration = Duration::from_nanos(400);

/// The time between two looks at the workers. Jobs behind one that suddenly takes long may wait for
/// it.
pub(crate) const LOOK_EVERY: Duration = Duration::from_micros(100);

/// The longest such time while all threads are awake, so that a look would wake none.
const LOOK_SELDOM: Duration = LOOK_EVERY.saturating_mul(16);

/// How long to wait after the operating system refused a thread.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A thread that sleeps this long without a job ends. Starting one takes less than 100 µs. So this
/// is long enough for bursts every few seconds, and short enough that no idle threads are left for
/// long.
const KEEP: Duration = Duration::from_secs(10);

/// The longest time between two jobs for which another look at the workers is worth it.
const LIVELY: Duration = Duration::from_micros(20);

/// The current demand for workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    pub(crate) runnable: bool,
    /// The most jobs that may be in flight.
    pub(crate) limit: usize,
    /// True once there is no more work to come.
    pub(crate) over: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Workers {
    /// The most threads, if the mode has a bound; never more than the jobs that may be in flight.
    pub(crate) fixed: Option<usize>,
    /// True if the user set that bound: then no thread takes the place of one that reads.
    pub(crate) is_strict: bool,
    /// The number of threads beyond which the operating system last refused one.
    pub(crate) cap: Option<usize>,
    capped: Option<Instant>,
    pub(crate) threads: usize,
    asleep: usize,
    /// For tests: how long an idle thread is kept, instead of [`KEEP`].
    #[cfg(test)]
    pub(crate) keep: Option<Duration>,
    /// For tests: the answer of [`handful`](Self::handful), however long jobs take.
    #[cfg(test)]
    pub(crate) always: Option<u64>,
    /// The fewest threads asleep at any time since `counted`, so this many are not needed.
    spare: usize,
    counted: Option<Instant>,
    /// The number of threads that will end instead of falling asleep, since this many were spare
    /// for as long as a thread is kept.
    surplus: usize,
    /// True while a worker spins because a job is about to come.
    expectant: bool,
    waking: bool,
    /// True while a worker reads. If that takes long, another thread takes its place.
    reading: bool,
    /// True once a worker has read. The thread that took its place is then kept for the next read,
    /// since starting a thread costs more than hundreds of short jobs.
    has_read: bool,
    /// How many may be woken before the next look, though others are awake.
    allowed: usize,
    /// True if workers take many jobs at once, so that the time of one says nothing of them.
    pub(crate) in_batches: bool,
    /// How many awake workers are too many: each of them sleeps instead of taking its next job.
    excess: usize,
    /// The number of jobs taken since the last look, and how many of them from trays.
    taken: u32,
    from_trays: u32,
    /// The number of results that workers took to a sink in visits of their own since then.
    turns: u32,
    /// When a job was last taken, to within a tick of the system's timer.
    pub(crate) last_taken: Option<coarsetime::Instant>,
    looked: Option<Instant>,
    /// How many jobs the workers took within [`HANDFUL`] at the last look.
    handful: u64,
    /// The mean time that the supervisor lately took to lock the core.
    visit: Duration,
    /// The time until the next look, if the last one could wake no thread.
    pause: Option<Duration>,
}

/// Returns the number of processors, cached since the system may have to read files.
fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(available_parallelism)
}

pub(crate) struct Sight {
    /// True if one more worker would make the jobs no faster.
    pub(crate) cope: bool,
    /// The time until the next look; `None` if there will be nothing to see.
    pub(crate) look_again: Option<Duration>,
}

/// What a worker without a job does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// It ends and is counted out.
    End,
    /// It is counted as asleep until a wake-up, or until this time.
    Sleep(Option<Instant>),
}

/// Which thread to wake for a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wake {
    #[default]
    None,
    /// The spinning one, which expects it.
    Beckon,
    One,
    /// A new thread, already counted.
    Spawn,
}

impl Workers {
    /// Decides whom to wake. The demand is computed only if a thread may be woken, since this runs
    /// for each job. `has_other_work`: there is work that the supervisor does not look after.
    #[inline]
    pub(crate) fn wake(&mut self, supervised: bool, has_other_work: bool, demand: impl FnOnce() -> Demand) -> Wake {
        let left_to_supervisor = supervised && self.allowed == 0 && self.awake() > 0 && !has_other_work;
        if self.waking || left_to_supervisor {
            return Wake::None;
        }
        let demand = demand();
        if !(has_other_work || demand.runnable) {
            Wake::None
        } else if self.expectant {
            Wake::Beckon
        } else if self.asleep > 0 {
            self.waking = true;
            self.allowed = self.allowed.saturating_sub(1);
            Wake::One
        } else if self.threads < self.most(demand.limit) {
            self.waking = true;
            self.allowed = self.allowed.saturating_sub(1);
            self.threads += 1;
            Wake::Spawn
        } else {
            Wake::None
        }
    }

    /// Notes that the operating system refused a thread. It is asked again after a pause.
    pub(crate) fn refused(&mut self, now: Instant) {
        self.threads -= 1;
        self.waking = false;
        self.cap = Some(self.threads.max(1));
        self.capped = Some(now);
    }

    /// Notes that the pool is supervised from now on.
    pub(crate) fn supervised_from(&mut self, now: Instant) {
        if self.capped.is_some_and(|capped| now.saturating_duration_since(capped) >= ASK_AGAIN) {
            (self.cap, self.capped) = (None, None);
        }
        (self.looked, self.taken, self.from_trays, self.turns) = (Some(now), 0, 0, 0);
        (self.allowed, self.handful) = (0, 0);
        self.excess = 0;
    }

    /// Notes how long the supervisor took to lock the core. Counts little by little and up to a
    /// bound: on a busy machine this takes long because the holder of the lock does not run, and
    /// then workers with long jobs would seem to cope.
    pub(crate) fn visited(&mut self, took: Duration) {
        self.visit = self.visit - self.visit / 8 + took.min(2 * self.visit + LONGER) / 8;
    }

    /// True if one more worker would make jobs no faster at this rate.
    ///
    /// A job taken from the core moves so much between processors that a second worker makes short
    /// jobs slower. A job taken from a tray makes the others wait for a part of a visit to the
    /// core, however many workers there are.
    fn cope(&self, taken: u32, from_trays: u32, elapsed: Duration) -> bool {
        let awake = u32::try_from(self.awake()).unwrap_or(u32::MAX);
        let are_brisk = BRISK.saturating_mul(taken) >= elapsed.saturating_mul(awake);
        if awake == 0 {
            return false;
        }
        if from_trays <= taken / 8 * 7 {
            return are_brisk;
        }
        let pass = (self.visit / TRAY).min(BRISK);
        are_brisk && self.awake() >= processors() || pass.saturating_mul(taken) >= elapsed
    }

    /// Looks at the workers for their supervisor. `work`: whether there is untaken work.
    pub(crate) fn look(&mut self, limit: usize, now: Instant, work: bool) -> Sight {
        let elapsed = self.looked.map_or(Duration::ZERO, |looked| now.saturating_duration_since(looked));
        let (taken, from_trays) = (std::mem::take(&mut self.taken), std::mem::take(&mut self.from_trays));
        let visits = taken.saturating_add(std::mem::take(&mut self.turns));
        self.looked = Some(now);
        self.handful =
            (HANDFUL.as_nanos() * u128::from(taken) / elapsed.as_nanos().max(1)).try_into().unwrap_or(u64::MAX);
        let at_once = u32::try_from(self.awake().min(processors())).unwrap_or(u32::MAX);
        let one_by_one = taken > 0 && !self.in_batches && from_trays <= taken / 8 * 7;
        let are_short = one_by_one && SHORT.saturating_mul(visits) >= elapsed.saturating_mul(at_once);
        self.excess = if are_short { self.awake() / 2 } else { 0 };
        let cope = are_short || self.cope(taken, from_trays, elapsed);
        let all_awake = self.all_busy(limit).is_some();
        let pause = self.pause.filter(|_| all_awake).map_or(LOOK_EVERY, |pause| (2 * pause).min(LOOK_SELDOM));
        self.pause = Some(pause);
        self.allowed = if work && !cope { self.awake().max(1) } else { 0 };
        let lively = LIVELY.saturating_mul(taken) >= elapsed;
        let looks_again = self.handful > 1 || if work { cope || !all_awake } else { taken > 0 && lively };
        Sight { cope, look_again: looks_again.then_some(pause) }
    }

    /// Notes that a new worker thread runs.
    pub(crate) fn started(&mut self) {
        self.waking = false;
    }

    #[inline]
    pub(crate) fn takes_job(&mut self, now: coarsetime::Instant) {
        self.taken = self.taken.saturating_add(1);
        self.last_taken = Some(now);
    }

    /// Notes that a worker takes a result to the sink.
    #[inline]
    pub(crate) fn takes_turn(&mut self) {
        self.turns = self.turns.saturating_add(1);
    }

    /// Notes that the workers have taken this many jobs from a tray.
    pub(crate) fn took(&mut self, jobs: u64, now: coarsetime::Instant) {
        let jobs = u32::try_from(jobs).unwrap_or(u32::MAX);
        self.taken = self.taken.saturating_add(jobs);
        self.from_trays = self.from_trays.saturating_add(jobs);
        self.last_taken = Some(now);
    }

    /// Returns how many jobs are worth a tray for all workers.
    #[inline]
    pub(crate) fn handful(&self) -> u64 {
        #[cfg(test)]
        if let Some(always) = self.always {
            return always;
        }
        self.handful
    }

    /// Returns true if a worker without a job has to spin: one does while a job is about to come.
    pub(crate) fn expects_jobs(&mut self, about_to_come: bool) -> bool {
        let expects = about_to_come && !self.expectant;
        self.expectant |= expects;
        expects
    }

    /// Notes that the spinning worker has stopped.
    pub(crate) fn expects_no_more(&mut self) {
        self.expectant = false;
    }

    /// True if a worker that asks for a job is not needed, by the last look of the supervisor.
    #[inline]
    pub(crate) fn are_too_many(&self) -> bool {
        self.excess > 0 && self.awake() > 1
    }

    /// Decides what a worker without a job does. `slept`: it has slept for as long as it is kept,
    /// unneeded.
    ///
    /// One thread always stays and sleeps without a limit. The operating system decides which
    /// sleeper is woken, so a few jobs may keep many threads from ever sleeping for long. Such
    /// threads are found by counting how many were asleep all the time.
    pub(crate) fn idle(&mut self, demand: Demand, slept: bool, now: impl FnOnce() -> Instant) -> Idle {
        if demand.over || self.threads > self.most_kept(demand.limit) {
            self.threads -= 1;
            return Idle::End;
        }
        let mut until = None;
        if self.threads > 1 {
            let now = now();
            #[cfg(not(test))]
            let keep = KEEP;
            #[cfg(test)]
            let keep = self.keep.unwrap_or(KEEP);
            let counted = *self.counted.get_or_insert(now);
            if now.saturating_duration_since(counted) >= keep {
                (self.counted, self.surplus, self.spare) = (Some(now), self.spare, self.asleep);
            }
            if slept || self.surplus > 0 {
                self.surplus = self.surplus.saturating_sub(1);
                self.threads -= 1;
                return Idle::End;
            }
            until = now.checked_add(keep);
        }
        if self.excess > 0 {
            self.excess -= 1;
        } else if self.pause > Some(LOOK_EVERY) {
            // The supervisor does not know of this sleeper, and looks too rarely to wake it.
            self.allowed += 1;
        }
        self.asleep += 1;
        Idle::Sleep(until)
    }

    /// Notes that a worker sleeps with a partial batch. It does not end, since it is needed then.
    pub(crate) fn lingers(&mut self) {
        self.asleep += 1;
    }

    /// Notes that a worker no longer sleeps, after a wake-up or its time. Either way it looks for a
    /// job itself, so a wake-up meant for it is not lost.
    pub(crate) fn awoken(&mut self) {
        self.asleep -= 1;
        self.spare = self.spare.min(self.asleep);
        // In a burst, the spare threads from before it no longer are.
        self.surplus = self.surplus.min(self.spare);
        self.waking = false;
    }

    /// Notes that a worker begins to read, or has read.
    pub(crate) fn reads(&mut self, reading: bool) {
        self.reading = reading;
        self.has_read = true;
    }

    #[inline]
    pub(crate) fn most(&self, limit: usize) -> usize {
        self.most_beside(limit, self.reading)
    }

    /// Returns the number of threads beyond which an idle one ends.
    fn most_kept(&self, limit: usize) -> usize {
        self.most_beside(limit, self.has_read)
    }

    #[inline]
    fn most_beside(&self, limit: usize, reader: bool) -> usize {
        let [fixed, cap] = [self.fixed, self.cap].map(|most| most.unwrap_or(usize::MAX));
        limit.min(fixed).saturating_add(usize::from(reader)).min(cap)
    }

    /// Returns the number of awake threads, if no more may be woken.
    pub(crate) fn all_busy(&self, limit: usize) -> Option<usize> {
        (self.awake() >= self.most(limit)).then_some(self.awake())
    }

    /// Returns the number of threads that run a job or are about to ask for one.
    pub(crate) fn awake(&self) -> usize {
        self.threads - self.asleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 100;

    /// More jobs than are ever taken.
    const BUSY: Demand = Demand { runnable: true, limit: LIMIT, over: false };

    /// Wakes and starts as many threads as allowed before the next look.
    fn woken(workers: &mut Workers) -> usize {
        let wakes = std::iter::from_fn(|| {
            let wake = workers.wake(true, false, || BUSY);
            workers.waking = false;
            (wake != Wake::None).then_some(wake)
        });
        wakes.count()
    }

    #[test]
    fn workers_are_doubled_until_they_cope() {
        let now = Instant::now();
        let mut workers = Workers { threads: 1, ..Workers::default() };
        workers.supervised_from(now);
        assert_eq!(woken(&mut workers), 0, "one is awake, and nothing is known of it yet");
        let mut counts = Vec::new();
        for look in 1..8 {
            workers.taken = 3;
            let sight = workers.look(LIMIT, now + LOOK_EVERY * look, true);
            assert!(!sight.cope && sight.look_again == (workers.threads < 100).then_some(LOOK_EVERY));
            woken(&mut workers);
            counts.push(workers.threads);
        }
        assert_eq!(counts, [2, 4, 8, 16, 32, 64, 100], "never more than max_processing");
        workers.taken = 100 * 60;
        assert!(workers.look(LIMIT, now + LOOK_EVERY * 8, true).cope);
    }

    #[test]
    fn workers_with_long_jobs_never_cope() {
        let now = Instant::now();
        // The microseconds of a visit, the percentage of jobs from trays, the microseconds of a
        // job.
        for (visit, trays, most) in [(0.5, 0, 2.0), (0.5, 87, 2.0), (1.0, 100, 0.25), (4.0, 100, 1.0), (1e6, 100, 2.0)]
        {
            let mut workers = Workers { threads: 1, ..Workers::default() };
            (0..99).for_each(|_| workers.visited(Duration::from_secs_f64(visit / 1e6)));
            for (job, copes) in [(0.9 * most, true), (1.1 * most, false)] {
                let elapsed = Duration::from_secs_f64(job * 800.0 / 1e6);
                workers.supervised_from(now);
                (workers.taken, workers.from_trays) = (800, trays * 8);
                assert_eq!(workers.look(LIMIT, now + elapsed, true).cope, copes, "{visit}, {trays}, {job}");
            }
        }
    }

    #[test]
    fn two_workers_at_the_core_cope_if_each_is_brisk() {
        let now = Instant::now();
        let mut workers = Workers { threads: 2, ..Workers::default() };
        for (taken, copes) in [(110, true), (90, false)] {
            workers.supervised_from(now);
            workers.taken = taken;
            assert_eq!(workers.look(LIMIT, now + LOOK_EVERY, true).cope, copes);
        }
    }

    #[test]
    fn workers_that_wait_for_each_other_go_to_sleep() {
        let mut now = Instant::now();
        let mut workers = Workers { threads: 8, ..Workers::default() };
        workers.supervised_from(now);
        let at_once = u32::try_from(8.min(processors())).unwrap();
        // In a look, at least as many jobs as are short, or fewer.
        let short = at_once * 100 * 2 / 3;
        let mut look = |workers: &mut Workers, taken| {
            workers.taken = taken;
            now += LOOK_EVERY;
            workers.look(LIMIT, now, true);
            let asleep = std::iter::from_fn(|| {
                workers.are_too_many().then(|| assert!(matches!(workers.idle(BUSY, false, || now), Idle::Sleep(_))))
            });
            asleep.count()
        };
        assert_eq!([look(&mut workers, short - at_once), workers.awake()], [0, 8], "they work");
        workers.in_batches = true;
        assert_eq!([look(&mut workers, 8 * short), workers.awake()], [0, 8], "a batch may wait");
        workers.in_batches = false;
        (0..2 * at_once).for_each(|_| workers.takes_turn());
        assert_eq!([look(&mut workers, short - at_once), workers.awake()], [4, 4], "a turn is a visit, too");
        let counts = [8, 8, 8].map(|per| look(&mut workers, per * short));
        assert_eq!((counts, workers.awake()), ([2, 1, 0], 1), "one is left, and is not woken for nothing");
        assert_eq!(woken(&mut workers), 0);
        assert_eq!([look(&mut workers, 10), woken(&mut workers)], [0, 1], "jobs that take long wake them again");
    }

    #[test]
    fn a_supervisor_that_sees_nothing_stops_looking() {
        let now = Instant::now();
        let mut workers = Workers { threads: 1, asleep: 1, ..Workers::default() };
        workers.supervised_from(now);
        assert_eq!(workers.look(LIMIT, now + LOOK_EVERY, false).look_again, None, "nobody took a job");
        workers.taken = 50;
        assert_eq!(workers.look(LIMIT, now + LOOK_EVERY * 2, false).look_again, Some(LOOK_EVERY), "more may come");
    }

    #[test]
    fn a_supervisor_with_none_to_wake_looks_less_often() {
        let mut now = Instant::now();
        let mut workers = Workers { threads: 1, ..Workers::default() };
        workers.supervised_from(now);
        let mut look = |workers: &mut Workers, limit: usize| {
            workers.taken = 50;
            now += LOOK_EVERY;
            workers.look(limit, now, false).look_again.unwrap().as_micros()
        };
        assert_eq!([(); 6].map(|()| look(&mut workers, 1)), [100, 200, 400, 800, 1_600, 1_600]);
        workers.threads = 2;
        assert_ne!(workers.idle(BUSY, false, Instant::now), Idle::End);
        assert_eq!(workers.wake(true, false, || BUSY), Wake::One, "there is somebody now");
        assert_eq!(look(&mut workers, 2), 100);
    }

    /// Lets all threads fall asleep, none of which has slept for long.
    fn fall_asleep(workers: &mut Workers, now: Instant) {
        (0..workers.threads).for_each(|_| assert_ne!(workers.idle(BUSY, false, || now), Idle::End));
    }

    #[test]
    fn idle_threads_end_after_their_keep_but_for_one() {
        let now = Instant::now();
        let mut workers = Workers { threads: 3, ..Workers::default() };
        let until = Idle::Sleep(Some(now + KEEP));
        let asleep = [(); 3].map(|()| workers.idle(BUSY, false, || now));
        assert_eq!((asleep, workers.asleep), ([until; 3], 3));
        let woken = [(); 3].map(|()| {
            workers.awoken();
            workers.idle(BUSY, true, || now + KEEP)
        });
        assert_eq!(woken, [Idle::End, Idle::End, Idle::Sleep(None)]);
        assert_eq!((workers.threads, workers.asleep), (1, 1));
    }

    #[test]
    fn the_stand_in_for_a_reading_worker_is_kept() {
        let now = Instant::now();
        let demand = Demand { runnable: true, limit: 1, over: false };
        let mut workers = Workers { threads: 1, ..Workers::default() };
        assert_eq!(workers.wake(false, false, || demand), Wake::None);
        workers.reads(true);
        assert_eq!(workers.wake(false, false, || demand), Wake::Spawn);
        workers.reads(false);
        assert_ne!(workers.idle(demand, false, || now), Idle::End);
        assert_eq!(workers.all_busy(1), Some(1), "it is not missed meanwhile");
        assert_eq!(workers.idle(demand, true, || now + KEEP), Idle::End, "not for ever");
    }

    #[test]
    fn surplus_threads_end_though_woken_in_turn() {
        let now = Instant::now();
        let mut workers = Workers { threads: 9, ..Workers::default() };
        fall_asleep(&mut workers, now);
        // Two at a time always have a job, and none sleeps for as long as it is kept.
        let mut ended = Vec::new();
        for second in 1..40 {
            workers.awoken();
            workers.awoken();
            let idle = [(); 2].map(|()| workers.idle(BUSY, false, || now + Duration::from_secs(second)));
            if idle.contains(&Idle::End) {
                ended.push(second);
            }
        }
        assert_eq!((workers.threads, workers.asleep), (2, 2), "as many as had a job");
        assert!(ended.iter().all(|second| (10..30).contains(second)), "{ended:?}");
    }

    #[test]
    fn a_burst_keeps_all_threads_that_it_needs() {
        let now = Instant::now();
        let mut workers = Workers { threads: 9, ..Workers::default() };
        fall_asleep(&mut workers, now);
        for burst in 1..40 {
            (0..9).for_each(|_| workers.awoken());
            fall_asleep(&mut workers, now + Duration::from_secs(9 * burst));
            assert_eq!((workers.threads, workers.asleep), (9, 9), "in burst {burst}");
        }
    }

    #[test]
    fn a_refused_thread_is_requested_again_later() {
        let now = Instant::now();
        let mut workers = Workers { threads: 1, ..Workers::default() };
        assert_eq!(workers.wake(false, false, || BUSY), Wake::Spawn);
        workers.refused(now);
        assert_eq!(workers.wake(false, false, || BUSY), Wake::None);
        workers.supervised_from(now + ASK_AGAIN / 2);
        assert_eq!(workers.wake(false, false, || BUSY), Wake::None);
        workers.supervised_from(now + ASK_AGAIN);
        assert_eq!(workers.wake(false, false, || BUSY), Wake::Spawn);
    }
}
