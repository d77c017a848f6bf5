//! The status of a pipeline, for an operator.

use crate::base::serialized::{fields, long};
use crate::observe::status::{Blocked, Status};
use std::fmt;
use std::time::Duration;

/// The status of one stage of a [`Pipeline`](crate::Pipeline).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StageStatus {
    /// The name of the stage in the pipeline.
    pub name: String,
    /// The status of its consumer.
    pub status: Status,
    /// The throughput: jobs that became processed per second, over the last minute. It is measured
    /// from the start of the pipeline, or from the first call of its status if that was later.
    pub jobs_per_second: f64,
    /// The time that the stage needs to its head at that throughput, by the
    /// [weights](crate::Stage::weight) of the jobs if there are any. `None` if unknown, for example
    /// while the stage needs an operator to go on.
    pub time_left: Option<Duration>,
}

/// The status of a [`Pipeline`](crate::Pipeline): a line for each stage, upstream first.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PipelineStatus {
    /// The stages, in the order in which they were added.
    pub stages: Vec<StageStatus>,
}

impl PipelineStatus {
    /// Returns the stage with this name.
    #[must_use]
    pub fn stage(&self, name: &str) -> Option<&StageStatus> {
        self.stages.iter().find(|stage| stage.name == name)
    }
}

fields!(StageStatus, of: name, status, jobs_per_second, time_left = of.time_left.map(long));

fields!(PipelineStatus, of: stages, text = of.to_string());

impl fmt::Display for StageStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, status, jobs_per_second, time_left } = self;
        write!(f, "{name}: {}, ", status.state)?;
        match (status.last_processed, status.head) {
            (Some(last), Some(head)) => write!(f, "{last} of {head} processed, ")?,
            (None, Some(head)) => write!(f, "none of {head} processed, ")?,
            (Some(last), None) => write!(f, "{last} processed, ")?,
            (None, None) => write!(f, "nothing to process yet, ")?,
        }
        write!(f, "lag {}, {jobs_per_second:.1}/s", status.lag())?;
        if let Some(left) = time_left.filter(|left| !left.is_zero()) {
            write!(f, ", {} left", Rough(left))?;
        }
        if status.blocked != Blocked::No {
            write!(f, "; {}", status.reason())?;
        }
        Ok(())
    }
}

impl fmt::Display for PipelineStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, stage) in self.stages.iter().enumerate() {
            if nth > 0 {
                writeln!(f)?;
            }
            write!(f, "{stage}")?;
        }
        Ok(())
    }
}

/// A time that is only an estimate.
struct Rough(Duration);

impl fmt::Display for Rough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0..60 => write!(f, "{} s", seconds.max(1)),
            60..3_600 => write!(f, "{} min {} s", seconds / 60, seconds % 60),
            3_600..86_400 => write!(f, "{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
            _ => write!(f, "{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_shows_its_two_largest_units() {
        let said = |seconds| Rough(Duration::from_secs(seconds)).to_string();
        assert_eq!([said(0), said(59), said(61), said(7_260)], ["1 s", "59 s", "1 min 1 s", "2 h 1 min"]);
        assert_eq!(said(90_000), "1 d 1 h");
    }
}
