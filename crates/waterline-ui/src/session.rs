//! The token of a page, and the sessions of people who typed it.

use crate::serve::ServeError;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};
use subtle::{Choice, ConstantTimeEq};

/// The shortest token. One that can be guessed protects nothing.
const SHORTEST: usize = 16;

/// The sessions that are kept. The oldest one goes when there are more.
const SESSIONS: usize = 64;

/// The time for which a session lasts, whatever is done in it: a working day.
pub(crate) const LASTS: Duration = Duration::from_secs(12 * 60 * 60);

/// The token of a page. It has no `Display`, and its `Debug` shows nothing of it.
#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    pub(crate) fn new(token: String) -> Self {
        // A file with a token often ends with a line break, which no header can have.
        Self(token.trim().to_owned())
    }

    pub(crate) fn check(&self) -> Result<(), ServeError> {
        if self.0.len() < SHORTEST { Err(ServeError::ShortToken { least: SHORTEST }) } else { Ok(()) }
    }

    /// True if this is the token. The time that it takes depends on the length of what was given,
    /// and on nothing of the token.
    pub(crate) fn is(&self, given: &str) -> bool {
        let own = self.0.as_bytes();
        let is_as_long = (own.len() as u64).ct_eq(&(given.len() as u64));
        let compare = |same: Choice, (at, byte): (usize, u8)| same & byte.ct_eq(&own[at % own.len()]);
        !own.is_empty() && given.bytes().enumerate().fold(is_as_long, compare).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The sessions of people who typed the token. They are in memory, and end after [`LASTS`], or with
/// the page.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<VecDeque<Session>>);

struct Session {
    secret: String,
    begun: Instant,
}

impl Session {
    /// The time that it takes tells nothing of the secret.
    fn is(&self, secret: &str) -> bool {
        self.secret.as_bytes().ct_eq(secret.as_bytes()).into()
    }
}

impl Sessions {
    /// Begins a session now, and returns its secret. `None` if the system has no random numbers.
    pub(crate) fn begin(&self, now: Instant) -> Option<String> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).ok()?;
        let secret: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut sessions = self.0.lock();
        if sessions.len() == SESSIONS {
            sessions.pop_front();
        }
        sessions.push_back(Session { secret: secret.clone(), begun: now });
        Some(secret)
    }

    /// True if this is the secret of a session that has not ended.
    pub(crate) fn has(&self, secret: &str, now: Instant) -> bool {
        let mut sessions = self.0.lock();
        sessions.retain(|session| now.saturating_duration_since(session.begun) < LASTS);
        // All are compared, so that the time tells nothing of the place.
        sessions.iter().fold(false, |found, session| found | session.is(secret))
    }

    pub(crate) fn end(&self, secret: &str) {
        self.0.lock().retain(|session| !session.is(secret));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_equal_to_itself_alone_and_is_never_shown() {
        let token = Token::new("0123456789abcdef".to_owned());
        assert!(token.is("0123456789abcdef"));
        for other in
            ["", "0123456789abcde", "0123456789abcdef0", "0123456789abcdeF", "0123456789abcdef0123456789abcdef"]
        {
            assert!(!token.is(other), "{other}");
        }
        assert_eq!(format!("{token:?}"), "Token(…)");
        assert!(token.check().is_ok());
        assert!(Token::new("short".to_owned()).check().is_err());
    }

    #[test]
    fn a_session_lasts_for_twelve_hours_unless_it_ends_or_too_many_have_begun_after_it() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let first = sessions.begin(now).unwrap();
        let second = sessions.begin(now).unwrap();
        let has = |secret: &str, after: Duration| sessions.has(secret, now + after);
        assert!(first.len() == 64 && first != second && has(&first, Duration::ZERO) && has(&second, Duration::ZERO));
        sessions.end(&second);
        assert!(has(&first, Duration::ZERO) && !has(&second, Duration::ZERO) && !has("", Duration::ZERO));
        let third = sessions.begin(now + LASTS / 2).unwrap();
        assert!(has(&first, LASTS - Duration::from_millis(1)) && !has(&first, LASTS));
        assert!(has(&third, LASTS) && !has(&third, LASTS * 3 / 2), "each has its own beginning");
        let fourth = sessions.begin(now).unwrap();
        (0..SESSIONS).for_each(|_| drop(sessions.begin(now)));
        assert!(!has(&fourth, Duration::ZERO));
    }
}
