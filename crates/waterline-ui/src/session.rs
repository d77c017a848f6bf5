//! The token of a page, and the sessions of its login form.

use crate::error::ServeError;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};
use subtle::{Choice, ConstantTimeEq};

/// The shortest token. One that can be guessed protects nothing.
const SHORTEST: usize = 16;

/// The maximum number of sessions. A further one ends the oldest.
const SESSIONS: usize = 64;

/// How many wrong tokens a minute it takes until each is answered late.
const MANY: usize = 20;

/// The delay of an answer to a wrong token then.
const LATE: Duration = Duration::from_secs(1);

/// How long a session lasts, even if it is in use: a working day.
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

    /// True if this is the token. The time that it takes depends only on the length of `given`.
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

/// The sessions of the login form. They live in memory, and end after [`LASTS`] or with the page.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<VecDeque<Session>>);

struct Session {
    secret: String,
    begun: Instant,
}

impl Session {
    /// Compares in a time that reveals nothing of the secret.
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
        // Compare with all, so that the time reveals nothing of the place.
        sessions.iter().fold(false, |found, session| found | session.is(secret))
    }

    pub(crate) fn end(&self, secret: &str) {
        self.0.lock().retain(|session| !session.is(secret));
    }
}

/// The wrong tokens of the last minute, oldest first, at most [`MANY`] of them.
#[derive(Default)]
pub(crate) struct Wrong(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    times: VecDeque<Instant>,
    /// When a line was last logged.
    told: Option<Instant>,
}

impl Wrong {
    /// Notes a wrong token, and waits before the answer if there were many within a minute.
    pub(crate) async fn noted(&self) {
        if self.note(Instant::now()) {
            tokio::time::sleep(LATE).await;
        }
    }

    /// Notes a wrong token at this time. Returns true if its answer is to be late.
    fn note(&self, now: Instant) -> bool {
        let minute = Duration::from_secs(60);
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < minute;
        let mut noted = self.0.lock();
        noted.times.retain(is_recent);
        if noted.times.len() == MANY {
            noted.times.pop_front();
        }
        noted.times.push_back(now);
        let is_late = noted.times.len() == MANY;
        let tells = is_late && !noted.told.as_ref().is_some_and(is_recent);
        if tells {
            noted.told = Some(now);
        }
        drop(noted);
        if tells {
            tracing::warn!(target: "waterline", wrong = MANY, "a caller tries tokens of the page: each wrong one is answered a second later for now");
        }
        is_late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_twentieth_wrong_token_in_a_minute_is_delayed() {
        let (wrong, now) = (Wrong::default(), Instant::now());
        let second = Duration::from_secs(1);
        let late = |seconds: u32| wrong.note(now + second * seconds);
        let mut first = Vec::new();
        let told = crate::lines::lines_of(|| first.extend((0..25).map(late)));
        assert!(told.len() == 1 && told[0].contains("a caller tries tokens"), "{told:?}");
        assert_eq!(first.iter().position(|late| *late), Some(MANY - 1));
        assert!(first[MANY - 1..].iter().all(|late| *late));
        // The first one is a minute ago.
        assert_eq!([late(60), late(60), late(61)], [true, true, true]);
        assert!(!late(300), "a minute without any");
    }

    #[test]
    fn a_token_equals_only_itself_and_is_never_shown() {
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
    fn a_session_lasts_twelve_hours_or_until_evicted() {
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
