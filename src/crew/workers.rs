//! The threads of the pool: how many are needed, which one is woken for a job, and which one ends.
//!
//! To wake a thread costs as much as hundreds of short jobs. So at most one thread is woken at a
//! time, and none is woken if one is awake anyway. A run of jobs wakes one worker, which wakes the
//! next if work remains. A worker without a job stays awake for a moment while a job is about to
//! come. While somebody supervises the pool, the supervisor checks from time to time if the workers
//! that are awake cope. If they do not, it wakes as many again.

use crate::base::config::available_parallelism;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Workers that take a job each in less time than this use their processors, and wait for nothing.
/// So there need not be more of them than processors.
const BRISK: Duration = Duration::from_micros(2);

/// A visit to the core moves so many times as much from one processor to the other as one to the
/// tray of the next jobs.
const TRAY: u32 = 4;

/// The work of all workers together that is worth to be laid out at once. So long a success may
/// wait until it is counted, if jobs stay as short as they are.
const HANDFUL: Duration = Duration::from_micros(40);

/// The part of a visit that always counts, also after much shorter ones.
const LONGER: Duration = Duration::from_nanos(400);

/// The time from one look at the workers to the next. If a job suddenly takes long, the jobs behind
/// it may wait for this time.
pub(crate) const LOOK_EVERY: Duration = Duration::from_micros(100);

/// The same while all threads are awake, so that a look wakes nobody: it grows up to this.
const LOOK_SELDOM: Duration = LOOK_EVERY.saturating_mul(16);

/// The time for which the operating system is not asked for one more thread once it gave none.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A thread that sleeps for so long without a job ends. Starting it again costs less than a hundred
/// microseconds. So this is long enough for bursts that come every few seconds, and short enough
/// that a burst is forgotten before anybody counts threads.
const KEEP: Duration = Duration::from_secs(10);

/// The longest time between two jobs for which another look at the workers is worth it.
const LIVELY: Duration = Duration::from_micros(20);

/// The work that the pool is needed for at this moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// True if a job can run now.
    pub(crate) runnable: bool,
    /// The most jobs that may be in flight.
    pub(crate) limit: usize,
    /// True once there is no work, and none will come.
    pub(crate) over: bool,
}

/// The threads of the pool.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    /// The most threads that the user wants; never more than the jobs that may be in flight.
    pub(crate) fixed: Option<usize>,
    /// The number of threads beyond which the operating system gave none when it was last asked.
    pub(crate) cap: Option<usize>,
    capped: Option<Instant>,
    pub(crate) threads: usize,
    asleep: usize,
    /// For tests: the time for which a thread without a job is kept, where that is not [`KEEP`].
    #[cfg(test)]
    pub(crate) keep: Option<Duration>,
    /// For tests: the answer of [`handful`](Self::handful), however long jobs take.
    #[cfg(test)]
    pub(crate) always: Option<u64>,
    /// The lowest number that slept at any time since `counted`: so many threads are not needed.
    spare: usize,
    counted: Option<Instant>,
    /// The number of threads that end instead of falling asleep. They were spare for as long as a
    /// thread is kept.
    surplus: usize,
    /// True while a thread without a job stays awake for a moment, since a job is about to come.
    expectant: bool,
    /// True while a thread is being woken or started.
    waking: bool,
    /// True while a thread reads for itself. If that takes long, another thread takes its place.
    reading: bool,
    /// True once a thread has read for itself. The one that took its place is kept then, since the
    /// next read is about to come, and to start a thread costs more than hundreds of short jobs.
    has_read: bool,
    /// The number that may be woken before the next look, though others are awake.
    allowed: usize,
    /// The number of jobs that were taken since the last look, and that of those from trays.
    taken: u32,
    from_trays: u32,
    /// The time at which a job was last taken, to within a tick of the system's timer.
    last_taken: Option<coarsetime::Instant>,
    looked: Option<Instant>,
    /// The number of jobs that the workers took within [`HANDFUL`] when they were last looked at.
    handful: u64,
    /// The time in which the supervisor locked the core of late, in the mean.
    visit: Duration,
    /// The time to the next look, if the last one could wake nobody.
    pause: Option<Duration>,
}

/// Returns the number of processors. It is asked for once: the system may have to read files.
fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(available_parallelism)
}

/// The result of a look at the workers.
pub(crate) struct Sight {
    /// True if they take jobs so fast that one more would be none the faster.
    pub(crate) cope: bool,
    /// The time until the next look; `None`: there is nothing to see then.
    pub(crate) look_again: Option<Duration>,
}

/// The next thing that a worker without a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// It ends, and is counted out.
    End,
    /// It is counted as asleep until somebody wakes it, or until this time.
    Sleep(Option<Instant>),
}

/// The thread that is told of a job.
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
    /// Says whom to wake. The demand is asked for only if somebody may be woken, since this is done
    /// for each job. `has_other_work` is true if there is work that a supervisor does not look
    /// after.
    #[inline]
    pub(crate) fn wake(&mut self, supervised: bool, has_other_work: bool, demand: impl FnOnce() -> Demand) -> Wake {
        let left_to_supervisor = supervised && self.allowed == 0 && self.awake() > 0 && !has_other_work;
        if self.waking || left_to_supervisor {
            return Wake::Nobody;
        }
        let demand = demand();
        if !(has_other_work || demand.runnable) {
            Wake::Nobody
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
            Wake::Nobody
        }
    }

    /// Notes that the operating system gave no thread. It is asked again after a pause.
    pub(crate) fn refused(&mut self, now: Instant) {
        self.threads -= 1;
        self.waking = false;
        self.cap = Some(self.threads.max(1));
        self.capped = Some(now);
    }

    /// Somebody supervises the pool from now on.
    pub(crate) fn supervised_from(&mut self, now: Instant) {
        if self.capped.is_some_and(|capped| now.saturating_duration_since(capped) >= ASK_AGAIN) {
            (self.cap, self.capped) = (None, None);
        }
        (self.looked, self.taken, self.from_trays, self.allowed, self.handful) = (Some(now), 0, 0, 0, 0);
    }

    /// The supervisor has locked the core in this time. It counts little by little, and up to a
    /// bound: on a busy machine the time is long since a thread that has the lock does not run, and
    /// workers whose jobs take long would seem to cope.
    pub(crate) fn visited(&mut self, took: Duration) {
        self.visit = self.visit - self.visit / 8 + took.min(2 * self.visit + LONGER) / 8;
    }

    /// True if one more worker would be none the faster, at this rate of jobs.
    ///
    /// A job that is taken from the core moves so much from one processor to the other that a
    /// second worker makes short jobs slower. One that is taken from a tray makes the others wait
    /// for a part of a visit to the core, whatever the number of workers is.
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

    /// Looks at the workers for their supervisor, when there is work that nobody has taken, or
    /// none.
    pub(crate) fn look(&mut self, limit: usize, now: Instant, work: bool) -> Sight {
        let elapsed = self.looked.map_or(Duration::ZERO, |looked| now.saturating_duration_since(looked));
        let (taken, from_trays) = (std::mem::take(&mut self.taken), std::mem::take(&mut self.from_trays));
        self.looked = Some(now);
        self.handful =
            (HANDFUL.as_nanos() * u128::from(taken) / elapsed.as_nanos().max(1)).try_into().unwrap_or(u64::MAX);
        let cope = self.cope(taken, from_trays, elapsed);
        let all_awake = self.all_busy(limit).is_some();
        let pause = self.pause.filter(|_| all_awake).map_or(LOOK_EVERY, |pause| (2 * pause).min(LOOK_SELDOM));
        self.pause = Some(pause);
        self.allowed = if work && !cope { self.awake().max(1) } else { 0 };
        let lively = LIVELY.saturating_mul(taken) >= elapsed;
        let looks_again = self.handful > 1 || if work { cope || !all_awake } else { taken > 0 && lively };
        Sight { cope, look_again: looks_again.then_some(pause) }
    }

    /// A thread of the pool begins its life.
    pub(crate) fn started(&mut self) {
        self.waking = false;
    }

    /// A worker takes a job.
    #[inline]
    pub(crate) fn takes_job(&mut self, now: coarsetime::Instant) {
        self.taken = self.taken.saturating_add(1);
        self.last_taken = Some(now);
    }

    /// The workers have taken so many jobs from a tray.
    pub(crate) fn took(&mut self, jobs: u64, now: coarsetime::Instant) {
        let jobs = u32::try_from(jobs).unwrap_or(u32::MAX);
        self.taken = self.taken.saturating_add(jobs);
        self.from_trays = self.from_trays.saturating_add(jobs);
        self.last_taken = Some(now);
    }

    /// Returns the number of jobs that are worth to be laid out for all workers at once.
    #[cfg(not(test))]
    #[inline]
    pub(crate) fn handful(&self) -> u64 {
        self.handful
    }

    #[cfg(test)]
    pub(crate) fn handful(&self) -> u64 {
        self.always.unwrap_or(self.handful)
    }

    pub(crate) fn last_taken(&self) -> Option<coarsetime::Instant> {
        self.last_taken
    }

    /// True if a worker without a job is to stay awake for the next one: one does, while a job is
    /// about to come.
    pub(crate) fn expects_jobs(&mut self, about_to_come: bool) -> bool {
        let expects = about_to_come && !self.expectant;
        self.expectant |= expects;
        expects
    }

    /// Notes that the worker that stayed awake no longer does so.
    pub(crate) fn expects_no_more(&mut self) {
        self.expectant = false;
    }

    /// Says what a worker without a job is to do. It may have slept for as long as it is kept,
    /// without being needed.
    ///
    /// One always stays, and sleeps in full. The operating system decides which of those that sleep
    /// is woken, so a few jobs may keep many threads from ever sleeping for long. These are found
    /// by counting how many were asleep all the time.
    pub(crate) fn idle(&mut self, demand: Demand, slept: bool, now: impl FnOnce() -> Instant) -> Idle {
        if demand.over || self.threads > self.most_kept(demand.limit) {
            self.threads -= 1;
            return Idle::End;
        }
        let mut until = None;
        if self.threads > 1 {
            let (now, keep) = (now(), self.keep());
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
        if self.pause > Some(LOOK_EVERY) {
            // The supervisor knows of none who sleeps, and looks too seldom to wake this one.
            self.allowed += 1;
        }
        self.asleep += 1;
        Idle::Sleep(until)
    }

    /// A worker sleeps until a batch has waited for long enough. It is needed then, so it does not
    /// end.
    pub(crate) fn lingers(&mut self) {
        self.asleep += 1;
    }

    /// A worker sleeps no more: it was woken, or its time was over. Either way it looks for a job
    /// itself, so the wake-up that may have been meant for it is not lost.
    pub(crate) fn awoken(&mut self) {
        self.asleep -= 1;
        self.spare = self.spare.min(self.asleep);
        // A burst has come: those that were spare before it no longer are.
        self.surplus = self.surplus.min(self.spare);
        self.waking = false;
    }

    #[cfg(not(test))]
    #[allow(clippy::unused_self)]
    fn keep(&self) -> Duration {
        KEEP
    }

    #[cfg(test)]
    fn keep(&self) -> Duration {
        self.keep.unwrap_or(KEEP)
    }

    /// A thread reads for itself from now on, or no longer does.
    pub(crate) fn reads(&mut self, reading: bool) {
        self.reading = reading;
        self.has_read = true;
    }

    #[inline]
    fn most(&self, limit: usize) -> usize {
        self.most_beside(limit, self.reading)
    }

    /// Returns the number of threads beyond which one that has no job ends.
    fn most_kept(&self, limit: usize) -> usize {
        self.most_beside(limit, self.has_read)
    }

    #[inline]
    fn most_beside(&self, limit: usize, reader: bool) -> usize {
        let [fixed, cap] = [self.fixed, self.cap].map(|most| most.unwrap_or(usize::MAX));
        limit.min(fixed).saturating_add(usize::from(reader)).min(cap)
    }

    /// Returns the number of threads that are awake, if no more are needed.
    pub(crate) fn all_busy(&self, limit: usize) -> Option<usize> {
        (self.awake() >= self.most(limit)).then_some(self.awake())
    }

    /// Returns the number of those that run a job or are about to ask for one.
    pub(crate) fn awake(&self) -> usize {
        self.threads - self.asleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 100;

    /// More jobs than anybody takes.
    const BUSY: Demand = Demand { runnable: true, limit: LIMIT, over: false };

    /// Wakes and starts as many as it may before the next look.
    fn woken(workers: &mut Workers) -> usize {
        let wakes = std::iter::from_fn(|| {
            let wake = workers.wake(true, false, || BUSY);
            workers.waking = false;
            (wake != Wake::Nobody).then_some(wake)
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
        // The microseconds of a visit, the part of the jobs that come from trays, and the
        // microseconds of a job.
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

    /// All of them, one after the other, and none that slept for long.
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
        assert_eq!(workers.wake(false, false, || demand), Wake::Nobody);
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
        // Always two at a time have a job, and each of them sleeps for less than it is kept.
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
        assert_eq!(workers.wake(false, false, || BUSY), Wake::Nobody);
        workers.supervised_from(now + ASK_AGAIN / 2);
        assert_eq!(workers.wake(false, false, || BUSY), Wake::Nobody);
        workers.supervised_from(now + ASK_AGAIN);
        assert_eq!(workers.wake(false, false, || BUSY), Wake::Spawn);
    }
}
