//! The elapsed time and the CPU time of a run.

use cpu_time::ProcessTime;
use std::iter::Sum;
use std::ops::{Add, Mul};
use std::time::{Duration, Instant};

/// The elapsed time, and the CPU time of all threads of the process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
}

/// The clock and the CPU time at the beginning of a run.
pub(crate) struct Stopwatch(Instant, ProcessTime);

impl Stopwatch {
    pub(crate) fn now() -> Self {
        Self(Instant::now(), ProcessTime::now())
    }

    pub(crate) fn elapsed(&self) -> Cost {
        Cost { wall: self.0.elapsed(), cpu: self.1.elapsed() }
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { wall: self.wall + other.wall, cpu: self.cpu + other.cpu }
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), Add::add)
    }
}

impl Mul<u32> for Cost {
    type Output = Self;

    fn mul(self, times: u32) -> Self {
        Self { wall: self.wall * times, cpu: self.cpu * times }
    }
}
