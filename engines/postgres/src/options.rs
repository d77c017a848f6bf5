//! The settings of a store.

use crate::error::Error;
use std::time::Duration;

/// The shortest TTL of a name.
const SHORTEST_TTL: Duration = Duration::from_millis(100);
/// The longest name of a schema, in bytes. PostgreSQL cuts longer ones.
const LONGEST_NAME: usize = 63;

/// The settings of a [`PgStore`](crate::PgStore).
///
/// ```
/// use std::time::Duration;
/// use waterline_postgres::PgOptions;
///
/// let options = PgOptions::new().schema("orders").ttl(Duration::from_secs(5));
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct PgOptions {
    pub(crate) schema: String,
    pub(crate) ttl: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) idle: Duration,
    pub(crate) holder: String,
}

impl PgOptions {
    /// Makes the default settings.
    #[must_use]
    pub fn new() -> Self {
        Self {
            schema: "waterline".to_owned(),
            ttl: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            idle: Duration::from_secs(60),
            holder: format!("process {} on {}", std::process::id(), waterline::seam::host()),
        }
    }

    /// Sets the schema that has the tables. Default: `waterline`.
    ///
    /// [`migrate`](crate::PgStore::migrate) makes it if it is missing.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// Sets how long a consumer keeps its name without a sign of life. Then a standby takes over.
    /// At least 100 ms; default: 10 s.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets when an attempt to connect is given up. A shorter [`ttl`](Self::ttl) counts instead.
    /// Default: 5 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long a connection of queue calls may idle before it is closed. Default: 60 s.
    ///
    /// The next call that ends closes it. A process has one connection that listens, one that
    /// renews leases while it has some, one for operators' calls, and one for each concurrent call
    /// of a queue, so those of a burst stay for this time. The server bounds all of them
    /// (`max_connections`, by default 100).
    #[must_use]
    pub fn close_idle_after(mut self, time: Duration) -> Self {
        self.idle = time;
        self
    }

    /// Sets the text that names this process in the tables and in errors. Default: the number of
    /// the process and the name of the host.
    #[must_use]
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = holder.into();
        self
    }

    /// How long an answer may take before the connection counts as broken. The server itself gives
    /// up a statement sooner.
    pub(crate) fn answer_limit(&self) -> Duration {
        self.ttl + self.ttl / 2 + Duration::from_secs(1)
    }

    /// Checks what can be checked without a server.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.ttl < SHORTEST_TTL {
            return Err(Error::config(
                format!("the ttl is {} ms", self.ttl.as_millis()),
                format!("set it to {} ms or more, so that renewals come through", SHORTEST_TTL.as_millis()),
            ));
        }
        if self.ttl > Duration::from_secs(86_400) {
            return Err(Error::config(
                "the ttl is longer than a day",
                "set a shorter one, so that a standby takes over",
            ));
        }
        if !(1..=LONGEST_NAME).contains(&self.schema.len()) || self.schema.contains(char::is_control) {
            return Err(Error::config(
                format!("the name of the schema is {:?}", self.schema),
                format!("give it one of 1 to {LONGEST_NAME} bytes, without control characters"),
            ));
        }
        if self.holder.contains('\0') {
            return Err(Error::config(
                format!("the text of the holder is {:?}", self.holder),
                "take the zero out of it",
            ));
        }
        Ok(())
    }
}

impl Default for PgOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the name quoted as an identifier.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_below_100_ms_and_a_bad_schema_are_refused() {
        let refused = |options: PgOptions| matches!(options.check(), Err(Error::Config { .. }));
        assert!(!refused(PgOptions::new().ttl(SHORTEST_TTL)));
        assert!(refused(PgOptions::new().ttl(SHORTEST_TTL - Duration::from_millis(1))));
        assert!(refused(PgOptions::new().ttl(Duration::MAX)));
        assert!(refused(PgOptions::new().schema("")));
        assert!(refused(PgOptions::new().schema("s".repeat(64))));
        assert!(refused(PgOptions::new().schema("a\nb")) && refused(PgOptions::new().schema("a\0")));
        assert!(!refused(PgOptions::new().schema("s".repeat(63))));
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
