//! The suites of `waterline::testing`: what keeps the rules passes, and for each rule what breaks it is refused by its name.

mod conformance {
    mod jobs;
    mod parts;
    mod progress;

    /// What a suite says of something broken.
    pub fn refusal(run: impl FnOnce() + std::panic::UnwindSafe) -> String {
        let panic = std::panic::catch_unwind(run).expect_err("it is broken, and the suite did not notice");
        panic.downcast_ref::<String>().expect("a panic with a text").clone()
    }
}
