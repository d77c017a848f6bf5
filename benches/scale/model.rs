//! What many workers get done that share locks. Pure: a closed network of queues, solved by mean
//! value analysis.
//!
//! Each worker runs a job for some time, and then visits the stations, one after the other: the
//! locks, and the source, from which one reads at a time. A station serves one worker; the others
//! wait. What moves to another processor is added to the time of a visit.

/// The time for which a cache line moves between two of many processors, in nanoseconds.
pub(crate) const MOVE: f64 = 70.0;

/// The cache lines that a visit moves if another processor made the one before.
///
/// The core: its lock, the state of the workers, the limits and ends of the window, the word of its
/// bits, the queue of what was read, the flights (two), what waits to be saved, the times of saving
/// and of reading, the tray, and its values: a dozen. The tray: its lock with the range and the
/// bits, where its values begin, and the next value.
pub(crate) const LINES: Lines = Lines { core: 12.0, tray: 3.0 };

pub(crate) struct Lines {
    pub(crate) core: f64,
    pub(crate) tray: f64,
}

/// The most jobs in a tray, and the work that it has at most, in nanoseconds.
const TRAY: (f64, f64) = (64.0, 40_000.0);

/// What one worker needs for a job, in nanoseconds, as it was measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Job {
    /// Outside of all stations, with the job itself.
    pub(crate) alone: f64,
    /// Visits to the core a job, and the time of one.
    pub(crate) core: (f64, f64),
    /// The time of a visit to the tray.
    pub(crate) tray: f64,
    pub(crate) source: f64,
}

impl Job {
    /// Returns how many jobs a second this many workers do, or fewer of them if that is more: the
    /// supervisor sends to sleep those that are in the way.
    pub(crate) fn rate(&self, workers: u32, line: f64) -> f64 {
        (1..=workers).map(|n| self.rate_of(n, if n == 1 { 0.0 } else { line })).fold(0.0, f64::max)
    }

    fn rate_of(&self, workers: u32, line: f64) -> f64 {
        let alone = |job: &Self| 1e9 / (job.alone + job.core.0 * job.core.1 + job.source + job.tray);
        let handful = |rate: f64| (TRAY.1 * rate / 1e9).clamp(1.0, TRAY.0);
        // The visits that one worker makes for each handful.
        let visits = self.core.0 * handful(alone(self));
        // The handful depends on the rate, and the rate on the handful.
        let mut rate = alone(self) * f64::from(workers);
        for _ in 0..50 {
            let jobs = handful(rate);
            let core = (visits / jobs).min(self.core.0.max(1.0));
            let is_filled = jobs > 1.5;
            let stations = [
                core * (self.core.1 + LINES.core * line),
                if is_filled { (1.0 - 1.0 / jobs) * (self.tray + LINES.tray * line) } else { 0.0 },
                self.source,
            ];
            rate = (rate + solve(workers, self.alone, &stations)) / 2.0;
        }
        rate
    }

    /// Returns the time of a move, in nanoseconds, with which two workers have this rate.
    pub(crate) fn line_at(&self, rate: f64) -> f64 {
        let (mut low, mut high) = (0.0, 1_000.0);
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            if self.rate_of(2, middle) > rate { low = middle } else { high = middle }
        }
        low
    }
}

/// Returns the jobs a second of this many workers (mean value analysis).
fn solve(workers: u32, alone: f64, stations: &[f64]) -> f64 {
    let mut queues = vec![0.0; stations.len()];
    let mut rate = 0.0;
    for n in 1..=workers {
        let times: Vec<f64> = stations.iter().zip(&queues).map(|(time, queue)| time * (1.0 + queue)).collect();
        rate = f64::from(n) / (alone + times.iter().sum::<f64>());
        queues = times.iter().map(|time| rate * time).collect();
    }
    rate * 1e9
}
