//! The consumer's hold on its name: the progress may hold it back, take the name away, or make it
//! wait while another consumer has the name.

use crate::base::{BoxError, Error, caught::Caught, guard::Panic, retry::Retry, time::Now};
use crate::observe::status::Blocked;
use crate::progress::Tenure;
use crate::window::Window;
use std::time::{Duration, Instant};

/// The shortest pause between two tries to acquire a name.
const SHORTEST: Duration = Duration::from_millis(20);

/// The longest pause between two tries: how soon a released name is acquired.
const LONGEST: Duration = Duration::from_millis(500);

/// The pauses between tries while the storage of the progress fails.
const OUTAGE: Retry = Retry::exponential(SHORTEST, Duration::from_secs(5));

#[derive(Default)]
pub(crate) struct Tenancy {
    /// The handle by which the progress steers this consumer; `None` in tests without a progress.
    pub(crate) tenure: Option<Tenure>,
    /// The fencing token of this life, which each job gets.
    pub(crate) fence: u64,
    /// True while the user has paused the consumer.
    pub(super) paused: bool,
    /// Why the progress lets nothing start.
    held: Option<String>,
    /// True if another consumer has the name, so no save begins.
    pub(super) lost: bool,
    /// The wait for the name; `None` once the consumer has it.
    pub(super) awaited: Option<Box<Awaited>>,
}

impl Tenancy {
    /// Returns why nothing starts while the window is paused. A user's pause is named first, since
    /// only the user can end it.
    pub(super) fn blocked(&self) -> Blocked {
        match &self.held {
            Some(why) if !self.paused => Blocked::Held { why: why.clone() },
            _ => Blocked::Paused,
        }
    }

    pub(super) fn set_paused(&mut self, paused: bool, window: &mut Window) {
        self.paused = paused;
        self.fit_pause(window);
    }

    /// Pauses or resumes the window, which has one pause for both the user and the progress.
    pub(super) fn fit_pause(&self, window: &mut Window) {
        window.set_paused(self.paused || self.held.is_some());
    }

    /// Takes over the state of the tenure. Returns true if that ends a time of being held back.
    pub(super) fn heed(&mut self, window: &mut Window) -> bool {
        let Some(tenure) = &self.tenure else { return false };
        let held_before = std::mem::replace(&mut self.held, tenure.held()).is_some();
        self.fit_pause(window);
        held_before && self.held.is_none()
    }

    /// Notes that another consumer still has the name.
    pub(super) fn waits_on(&mut self, refusal: NameInUse, now: &Now) {
        match &mut self.awaited {
            // A call made since the try began stays.
            Some(awaited) => {
                let lapses = lapse(refusal.expires_in, now);
                (awaited.holder, awaited.lapses, awaited.outage) = (refusal.holder, lapses, None);
            }
            None => self.awaited = Some(Awaited::new(refusal, now)),
        }
    }

    /// Notes that the storage failed during a try. Returns the pause before the next one.
    pub(super) fn waits_out(&mut self, error: String, now: &Now) -> Duration {
        let Some(awaited) = &mut self.awaited else { return LONGEST };
        let tries = awaited.outage.take().map_or(1, |(tries, _)| tries.saturating_add(1));
        awaited.outage = Some((tries, error));
        OUTAGE.jitter(0.2).delay(tries, now.chance()).unwrap_or(LONGEST)
    }

    pub(super) fn is_called_to_try(&mut self) -> bool {
        self.awaited.as_mut().is_some_and(|awaited| std::mem::take(&mut awaited.called))
    }
}

/// Returns when a name is free that expires after this duration.
fn lapse(expires_in: Option<Duration>, now: &Now) -> Option<Instant> {
    now.get().checked_add(expires_in?)
}

/// The holder of a name if the progress does not say.
const ANOTHER: &str = "another consumer";

/// The refusal of a progress whose name is in use.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NameInUse {
    pub(crate) name: String,
    holder: String,
    /// When the name becomes free unless its holder renews it.
    expires_in: Option<Duration>,
}

impl NameInUse {
    /// Returns the error as a refusal, or unchanged if it is another one.
    pub(crate) fn of(error: Error) -> Result<Self, Error> {
        match error {
            Error::InUse { name } => Ok(Self { name, holder: ANOTHER.to_owned(), expires_in: None }),
            Error::Leased { name, holder, expires_in } => Ok(Self { name, holder, expires_in: Some(expires_in) }),
            error => Err(error),
        }
    }

    pub(crate) fn pause(&self) -> Duration {
        self.expires_in.map_or(LONGEST, |expires_in| expires_in.clamp(SHORTEST, LONGEST))
    }
}

/// True if the error may heal while the consumer waits: the storage was unreachable. A panic leaves
/// the progress in an unknown state.
pub(crate) fn is_outage(error: &Error) -> bool {
    matches!(error, Error::Progress { source } if source.downcast_ref::<Panic>().is_none())
}

/// A consumer's wait for its name.
pub(super) struct Awaited {
    holder: String,
    /// When the name becomes free unless its holder renews it.
    lapses: Option<Instant>,
    /// When the wait began.
    pub(super) since: Instant,
    /// True if the name may be free now.
    pub(super) called: bool,
    /// The number of tries in a row that failed in the storage, and the last error.
    outage: Option<(u32, String)>,
}

impl Awaited {
    fn new(NameInUse { holder, expires_in, .. }: NameInUse, now: &Now) -> Box<Self> {
        let lapses = lapse(expires_in, now);
        Box::new(Self { holder, lapses, since: now.get(), called: false, outage: None })
    }

    pub(super) fn blocked(&self, now: &Now) -> Blocked {
        if let Some((_, error)) = &self.outage {
            return Blocked::Progress { error: error.clone() };
        }
        let expires_in = self.lapses.map(|lapses| lapses.saturating_duration_since(now.get()));
        Blocked::InUse { holder: self.holder.clone(), expires_in }
    }
}

/// Makes the error for a name that another consumer has, or takes the one that the progress made.
pub(crate) fn fenced(name: String, error: BoxError) -> Error {
    match error.downcast() {
        Ok(fenced) if matches!(*fenced, Error::Fenced { .. }) => *fenced,
        Ok(other) => Error::Fenced { name, holder: Caught::from(other as BoxError).text },
        Err(other) => Error::Fenced { name, holder: Caught::from(other).text },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leased(expires_in: Duration) -> NameInUse {
        let error = Error::Leased { name: "a name".to_owned(), holder: "node a".to_owned(), expires_in };
        NameInUse::of(error).unwrap()
    }

    #[test]
    fn the_next_try_follows_the_lease_within_bounds() {
        let (second, millis) = (Duration::from_secs(1), Duration::from_millis);
        assert_eq!(NameInUse::of(Error::InUse { name: "p".to_owned() }).unwrap().pause(), LONGEST);
        let pauses = [Duration::ZERO, millis(19), millis(70), second, Duration::MAX].map(|rest| leased(rest).pause());
        assert_eq!(pauses, [SHORTEST, SHORTEST, millis(70), LONGEST, LONGEST]);
        let other = NameInUse::of(Error::Stopped);
        assert!(matches!(other, Err(Error::Stopped)), "no other error is a reason to wait");
    }
}
