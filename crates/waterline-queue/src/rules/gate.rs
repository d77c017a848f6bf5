//! The limit of a whole queue in memory. While it is full, no claim looks for a job.

/// The part of a queue's limit that every thread sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gate {
    /// How many jobs run in this process.
    pub(crate) running: u64,
    /// How many jobs may run; `u64::MAX`: any number.
    pub(crate) most: u64,
    alone: Alone,
    /// From when until when the queue has too few tokens for its next job.
    shut: (u64, u64),
    /// Counts ends of jobs that have a limit, and new times of scheduled jobs. A thread that takes
    /// jobs before they are due looks again.
    pub(crate) released: u64,
}

/// The job that runs alone, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alone {
    No,
    /// It starts once nothing else runs. Nothing else starts before.
    Next,
    Runs,
}

impl Gate {
    pub(crate) fn new(most: Option<u32>) -> Self {
        let most = most.map_or(u64::MAX, u64::from);
        Self { running: 0, most, alone: Alone::No, shut: (0, 0), released: 0 }
    }

    /// Returns how many jobs may start.
    pub(crate) fn room(&self) -> u64 {
        match self.alone {
            Alone::Runs => 0,
            Alone::Next if self.running > 0 => 0,
            _ if self.most == u64::MAX => u64::MAX,
            _ => self.most.saturating_sub(self.running),
        }
    }

    pub(crate) fn begin(&mut self, is_alone: bool) {
        self.running += 1;
        self.alone = if is_alone { Alone::Runs } else { Alone::No };
    }

    pub(crate) fn end(&mut self) {
        self.running = self.running.saturating_sub(1);
        if self.alone == Alone::Runs {
            self.alone = Alone::No;
        }
    }

    /// Notes that the next job is to run alone. Returns true if it has to wait for others.
    pub(crate) fn holds_alone(&mut self) -> bool {
        let is_held = self.running > 0;
        self.alone = if is_held { Alone::Next } else { Alone::No };
        is_held
    }

    /// Notes that a job that was to run alone has left its place.
    pub(crate) fn expects_none_alone(&mut self) {
        if self.alone == Alone::Next {
            self.alone = Alone::No;
        }
    }

    /// Returns whether a job runs alone (true) or is to (false); `None`: neither.
    pub(crate) fn alone(&self) -> Option<bool> {
        match self.alone {
            Alone::Runs => Some(true),
            Alone::Next if self.running > 0 => Some(false),
            _ => None,
        }
    }

    pub(crate) fn is_full(&self, wall: u64) -> bool {
        self.room() == 0 || self.shut_until(wall).is_some()
    }

    pub(crate) fn shut(&mut self, from: u64, until: u64) {
        self.shut = (from, until);
    }

    /// Returns until when there are too few tokens; `None` also after the clock was set back.
    pub(crate) fn shut_until(&self, wall: u64) -> Option<u64> {
        let (from, until) = self.shut;
        (from <= wall && wall < until).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_without_a_limit_ignores_running_jobs() {
        let mut gate = Gate::new(None);
        let before = gate.room();
        gate.running = 5;
        assert_eq!((gate.room(), gate.is_full(0)), (before, false));
    }

    #[test]
    fn a_lone_job_and_the_others_wait_for_each_other() {
        let mut gate = Gate::new(Some(2));
        assert!(!gate.holds_alone());
        gate.begin(false);
        assert!(gate.holds_alone() && gate.is_full(0));
        gate.end();
        assert_eq!((gate.room(), gate.holds_alone()), (2, false));
        gate.begin(true);
        assert_eq!((gate.room(), gate.alone()), (0, Some(true)));
        gate.end();
        assert_eq!((gate.room(), gate.alone()), (2, None));
    }

    #[test]
    fn a_gate_is_shut_until_its_time_but_not_by_a_set_back() {
        let mut gate = Gate::new(Some(2));
        gate.shut(1000, 1500);
        assert!(gate.is_full(1000) && gate.is_full(1499) && !gate.is_full(1500) && !gate.is_full(999));
        gate.running = 2;
        assert!(gate.is_full(2000));
    }
}
