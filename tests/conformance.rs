//! The suites of `waterline::testing`: what keeps the rules passes, and for each rule what breaks it is refused by its name.

mod conformance {
    mod jobs;
    mod parts;
    mod progress;

    /// What is said of something broken.
    pub fn refusal(what: impl std::fmt::Debug, run: impl FnOnce()) -> String {
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
            Ok(()) => format!("nobody noticed {what:?}"),
            Err(panic) => *panic.downcast().expect("a panic with a text"),
        }
    }
}
