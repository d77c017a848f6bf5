//! The names of types that programs from before the first version have.

use waterline::AttemptOutcome;
use waterline::queue::{AttemptEnd, DrainLimits, RunnerGate};

#[test]
fn each_old_name_is_still_the_type_that_has_a_new_name() {
    let outcome: AttemptOutcome<'_> = waterline::Outcome::Done;
    let end: AttemptEnd = waterline::queue::Ended::Finished;
    let limits: DrainLimits = waterline::queue::Limits::default().jobs(1);
    let gate: RunnerGate = waterline::queue::Gate::new("disk", || true);
    assert_eq!((outcome, end, limits), (AttemptOutcome::Done, AttemptEnd::Finished, DrainLimits::default().jobs(1)));
    assert!(format!("{gate:?}").starts_with("RunnerGate"), "{gate:?}");
}
