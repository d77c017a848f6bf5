//! Retries to open a database that is open elsewhere, with pauses.

use crate::base::Error;
use std::time::Duration;

/// The pause after the first attempt. It doubles with each, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Opens the database, and retries while it is open elsewhere. The last attempt is at the timeout.
pub(super) fn retry<T>(
    timeout: Duration,
    elapsed: impl Fn() -> Duration,
    wait: impl Fn(Duration),
    mut open: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let mut pause = FIRST_PAUSE;
    loop {
        // Computed before the attempt: one that begins at the timeout is the last.
        let left = timeout.saturating_sub(elapsed());
        match open() {
            Err(Error::Locked { .. }) if !left.is_zero() => wait(pause.min(left)),
            opened => return opened,
        }
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// The result of `retry`, and its pauses. An attempt takes 1 ms; the first `held` ones fail.
    fn tried(timeout: Duration, held: usize, then: fn() -> Result<(), Error>) -> (Result<(), Error>, Vec<Duration>) {
        let (clock, slept, tries) = (Cell::new(Duration::ZERO), RefCell::new(Vec::new()), Cell::new(0));
        let sleep = |pause: Duration| {
            clock.set(clock.get() + pause);
            slept.borrow_mut().push(pause);
        };
        let opened = retry(
            timeout,
            || clock.get(),
            sleep,
            || {
                clock.set(clock.get() + Duration::from_millis(1));
                tries.set(tries.get() + 1);
                if tries.get() > held { then() } else { Err(Error::Locked { path: "data".into() }) }
            },
        );
        assert_eq!(tries.get(), slept.borrow().len() + 1, "it sleeps between two tries");
        (opened, slept.into_inner())
    }

    #[test]
    fn a_locked_database_is_retried_with_growing_pauses() {
        let (opened, slept) = tried(Duration::MAX, 8, || Ok(()));
        assert!(opened.is_ok());
        assert_eq!(slept, [5, 10, 20, 40, 80, 160, 200, 200].map(Duration::from_millis));
    }

    #[test]
    fn a_locked_database_is_an_error_at_the_timeout() {
        let (opened, slept) = tried(Duration::from_secs(1), usize::MAX, || Ok(()));
        assert!(matches!(opened, Err(Error::Locked { .. })), "{opened:?}");
        let all: Duration = slept.iter().sum();
        assert!(all <= Duration::from_secs(1) && all >= Duration::from_millis(900), "{slept:?}");
        // With a timeout of zero there is one attempt.
        let (opened, slept) = tried(Duration::ZERO, usize::MAX, || Ok(()));
        assert!(matches!(opened, Err(Error::Locked { .. })) && slept.is_empty(), "{opened:?}");
    }

    #[test]
    fn any_other_error_is_returned_at_once() {
        for held in [0, 3] {
            let (opened, slept) = tried(Duration::MAX, held, || Err(Error::Stopped));
            assert!(matches!(opened, Err(Error::Stopped)) && slept.len() == held, "{opened:?}");
        }
    }
}
