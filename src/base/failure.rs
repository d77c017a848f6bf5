//! Errors by which a job decides its own fate.

use crate::base::{BoxError, guard::guarded};
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::time::Duration;

/// An error that decides the fate of its job: never retry it, or retry it later.
///
/// Return it as the job's error or as a cause of it, anywhere in its chain of
/// [`source`](StdError::source)s. After any other error, [`Retry`](crate::Retry) decides.
///
/// ```
/// use std::time::Duration;
/// use waterline::{Consumer, Error, Failure, MemoryJobs, MemoryProgress, Retry};
///
/// let jobs: MemoryJobs<_> = [Ok("1"), Err("not there yet"), Ok("x")].into_iter().collect();
/// let parse = |job: waterline::Job<Result<&'static str, &'static str>>| match job.payload {
///     // It is no failure that a job is not ready. (Here it never is.)
///     Err(_) => Err(Failure::defer(Duration::from_secs(5)).into()),
///     // No attempt ever succeeds, so there is no second one.
///     Ok(text) => Ok(drop(text.parse::<u64>().map_err(Failure::permanent)?)),
/// };
/// let retry = Retry::fixed(Duration::from_millis(10));
/// let consumer = Consumer::builder(jobs, MemoryProgress::new()).retry(retry).start(parse)?;
/// assert!(matches!(consumer.join(), Err(Error::Job { index: 2, attempt: 1, .. })));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Failure {
    error: Option<BoxError>,
    verdict: Verdict,
}

/// The fate of a job whose attempt did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The retry policy decides.
    Retry,
    /// The job is not retried.
    Permanent,
    /// The job is not ready: it runs again after this time, and the attempt does not count.
    Defer(Duration),
}

impl Failure {
    /// The job will never succeed: it is not retried, whatever [`Retry`](crate::Retry) says.
    ///
    /// The consumer halts, or [parks](crate::OnExhausted::Park) the job. A queue makes its job
    /// dead.
    #[must_use]
    pub fn permanent(error: impl Into<BoxError>) -> Self {
        Self { error: Some(error.into()), verdict: Verdict::Permanent }
    }

    /// The job is not ready, for example since a row that it refers to is missing: run it later.
    ///
    /// It runs again after this time. Nothing has failed: no attempt is counted, so the next one
    /// has the same number. Meanwhile the job holds neither a thread nor a slot of
    /// `max_processing`, only its place in the window.
    #[must_use]
    pub fn defer(delay: Duration) -> Self {
        Self { error: None, verdict: Verdict::Defer(delay) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.error, self.verdict) {
            (Some(error), _) => error.fmt(f),
            (None, Verdict::Defer(delay)) => write!(f, "the job is not ready, and is tried again in {delay:.1?}"),
            (None, _) => f.write_str("the job failed"),
        }
    }
}

impl StdError for Failure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.as_ref()?.source()
    }
}

/// How many causes are searched.
const CAUSES: usize = 32;

/// Returns the fate that this error gives its job. It calls user code: never with a lock held.
pub fn verdict(error: &(dyn StdError + 'static)) -> Verdict {
    guarded(|| Ok(search(error))).ok().flatten().unwrap_or(Verdict::Retry)
}

fn search(error: &(dyn StdError + 'static)) -> Option<Verdict> {
    let mut next = Some(error);
    for _ in 0..=CAUSES {
        let error = next?;
        if let Some(verdict) = verdict_of(error) {
            return Some(verdict);
        }
        next = error.source();
    }
    None
}

fn verdict_of(error: &(dyn StdError + 'static)) -> Option<Verdict> {
    // `io::Error::source` skips the error that it wraps and returns that one's cause.
    let within = || error.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref::<Failure>();
    error.downcast_ref::<Failure>().or_else(within).map(|failure| failure.verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Wrapped(Failure);

    impl fmt::Display for Wrapped {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("wrapped")
        }
    }

    impl StdError for Wrapped {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_verdict_is_found_anywhere_in_the_chain() {
        let errors: [(BoxError, Verdict, &str); 6] = [
            ("refused".into(), Verdict::Retry, "refused"),
            (Failure::permanent("refused").into(), Verdict::Permanent, "refused"),
            (Wrapped(Failure::permanent("refused")).into(), Verdict::Permanent, "wrapped"),
            (
                Failure::defer(Duration::from_secs(2)).into(),
                Verdict::Defer(Duration::from_secs(2)),
                "the job is not ready, and is tried again in 2.0s",
            ),
            (io::Error::other(Failure::permanent("refused")).into(), Verdict::Permanent, "refused"),
            (
                Wrapped(Failure::permanent(Wrapped(Failure::defer(Duration::ZERO)))).into(),
                Verdict::Permanent,
                "wrapped",
            ),
        ];
        for (error, expected, text) in errors {
            assert_eq!((verdict(&*error), error.to_string()), (expected, text.to_owned()));
        }
    }
}
