//! The suites of `waterline::testing`: a part that keeps the rules passes, and one that breaks a
//! rule fails with the name of that rule.

mod engines;
mod jobs;
mod parts;
mod progress;

fn refusal(what: impl std::fmt::Debug, run: impl FnOnce()) -> String {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(()) => format!("nobody noticed {what:?}"),
        Err(panic) => *panic.downcast().expect("a panic with a text"),
    }
}
