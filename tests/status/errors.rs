//! Errors as people see them: the output of a program that ends with one, and the bound of error
//! texts.

use common::*;
use std::fmt;
use std::process::Command;
use waterline::{BoxError, ConfigError, Consumer, Error, MemoryProgress, Retry, Store};

/// The variable that marks the child process of the test below.
const CHILD: &str = "WATERLINE_ERRORS_CHILD";

fn halted() -> Error {
    Consumer::builder(numbers(1), MemoryProgress::new())
        .start(|_| Err("connection refused".into()))
        .unwrap()
        .join()
        .unwrap_err()
}

/// Rust prints an error of a test just as one of `main`.
#[test]
fn a_main_that_returns_an_error_child() -> Result<(), Error> {
    if std::env::var_os(CHILD).is_some() { Err(halted()) } else { Ok(()) }
}

#[test]
fn an_error_from_main_prints_a_sentence_and_its_cause() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "errors::a_main_that_returns_an_error_child", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(!child.status.success());
    let printed = String::from_utf8_lossy(&[child.stdout, child.stderr].concat()).into_owned();
    let line = printed.lines().find_map(|line| line.strip_prefix("Error: "));
    assert_eq!(line, Some(halted().report().as_str()), "{printed}");
}

#[test]
fn debug_is_the_report_and_alternate_the_structure() {
    let error = halted();
    assert_eq!(format!("{error:?}"), error.report());
    let report = "job 0 failed in attempt 1, its last: fix the cause and start again, or allow more attempts: connection refused";
    assert_eq!(error.report(), report);
    let structure = "Job {\n    index: 0,\n    attempt: 1,\n    source: \"connection refused\",\n}";
    assert_eq!(format!("{error:#?}"), structure);
    assert_eq!(format!("{:#?}", Error::Stopped), "Stopped");

    let config = Error::from(ConfigError::SkipTooFar { index: 9, next: 0 });
    let text = "job 9 is too far above job 0, the lowest one that is not done, to be skipped: skip jobs below 1073741824, or seek \
                ahead first";
    assert_eq!(format!("{config:?}"), text);
    let structure = "Config(\n    SkipTooFar {\n        index: 9,\n        next: 0,\n    },\n)";
    assert_eq!(format!("{config:#?}"), structure);

    let faulty = waterline::testing::FaultyStore::new().unwrap();
    faulty.fail(..);
    let error = faulty.store().table("t").unwrap().put("k", "v").unwrap_err();
    let Error::Store(store) = &error else { panic!("{error:#?}") };
    assert_eq!(format!("{store:?}"), error.report());
    assert!(format!("{store:?}").ends_with("try again: no space left on device"), "{store:?}");
    assert!(format!("{store:#?}").starts_with("StoreError {\n    doing: \"write\","), "{store:#?}");
}

#[test]
fn the_status_cuts_an_error_text_at_4_kib() {
    let long = "x".repeat(50_000);
    let failing = || Consumer::builder(numbers(1), MemoryProgress::new());
    let retried = failing().retry(Retry::fixed(HOUR)).start({
        let long = long.clone();
        move |_| Err(long.clone().into())
    });
    let retried = retried.unwrap();
    let status = until(&retried.handle(), "the failure", |status| status.failed == 1);
    let waterline::Blocked::Retrying { error, .. } = &status.blocked else { panic!("{status:#?}") };
    assert!(error.len() <= 4_096 && error.ends_with(" … (cut off: the text has 50000 bytes)"), "{error}");
    retried.stop().unwrap();

    let halted = failing().start(move |_| Err(long.clone().into())).unwrap();
    let handle = halted.handle();
    let report = halted.join().unwrap_err().report();
    assert!(report.len() > 50_000);
    let waterline::Blocked::Halted { error, .. } = handle.status().blocked else { panic!("{report}") };
    assert!(error.len() < 5_000 && error.contains("the text has 50000 bytes"), "{error}");
}

#[derive(Debug)]
struct Circle;

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "round")
    }
}

impl std::error::Error for Circle {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self)
    }
}

#[test]
fn an_error_that_is_its_own_cause_hangs_nothing() {
    let consumer =
        Consumer::builder(numbers(1), Store::in_memory().progress("p")).start(|_| Err(BoxError::from(Circle))).unwrap();
    let error = consumer.join().unwrap_err();
    assert_eq!(error.report().matches("round").count(), 32);
    assert!(error.report().ends_with(": … (more than 32 causes)"), "{error}");
}
