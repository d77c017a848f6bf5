//! The settings of a store.

use crate::error::Error;
use std::fmt;
use std::time::Duration;

/// The longest prefix and tag, in bytes. (Both are in each of the 26 keys of a queue.)
const LONGEST_NAME: usize = 64;
/// The longest time that a call may wait for its answer.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The settings of a [`RedisStore`](crate::RedisStore).
///
/// ```
/// use std::time::Duration;
/// use waterline_redis::RedisOptions;
///
/// let options = RedisOptions::new().tag("shop").replicas(1, Duration::from_secs(1));
/// # let _ = options;
/// ```
#[derive(Clone)]
pub struct RedisOptions {
    pub(crate) prefix: String,
    pub(crate) tag: Option<String>,
    pub(crate) allow_loss: bool,
    pub(crate) replicas: Option<(usize, Duration)>,
    pub(crate) connect_timeout: Duration,
    pub(crate) answer_timeout: Duration,
    pub(crate) idle: Duration,
    pub(crate) login: Option<(String, String)>,
    pub(crate) holder: String,
    #[cfg(feature = "tls")]
    pub(crate) tls: crate::tls::Tls,
}

impl RedisOptions {
    /// Makes the default settings.
    #[must_use]
    pub fn new() -> Self {
        Self {
            prefix: "wl".to_owned(),
            tag: None,
            allow_loss: false,
            replicas: None,
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            login: None,
            holder: format!("process {} on {}", std::process::id(), waterline::seam::host()),
            #[cfg(feature = "tls")]
            tls: crate::tls::Tls::default(),
        }
    }

    /// Sets the word with which all keys begin. 1 to 64 bytes, without braces; default: `wl`.
    ///
    /// Queues of another prefix are other queues, so several applications may share a server.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Puts all queues of this store into one slot of a cluster, so that one push may go into
    /// several of them. 1 to 64 bytes, without braces. Default: none; each queue has a slot of its
    /// own, so that the nodes share the work.
    ///
    /// A queue with a tag is another one than the queue of the same name without it.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Takes a server that has no append-only file. Default: such a server is refused, since it
    /// loses all jobs since the last snapshot, or all of them, when it dies.
    #[must_use]
    pub fn allow_loss(mut self) -> Self {
        self.allow_loss = true;
        self
    }

    /// Lets each push and each end of a job wait until this many replicas have it, for this time at
    /// most. Default: none is waited for.
    ///
    /// If fewer have confirmed it, the call is the error [`Unsure`](Error::Unsure). If all replicas
    /// that may take over are among them, a failover loses nothing that was acknowledged. At least
    /// 1 replica and 1 ms; `WAIT` is the command.
    #[must_use]
    pub fn replicas(mut self, count: usize, timeout: Duration) -> Self {
        self.replicas = Some((count, timeout));
        self
    }

    /// Sets when an attempt to connect is given up. 1 ms to an hour; default: 5 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long a call waits for its answer, and for a slot that is moving. 1 ms to an hour;
    /// default: 10 s, longer than a server stands still that forks or has a slow disk.
    #[must_use]
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = timeout;
        self
    }

    /// Sets how long a connection may idle before it is closed. Default: 60 s.
    ///
    /// The next call that ends closes it. A process has one connection for each call at the same
    /// time, and one that listens while a worker waits.
    #[must_use]
    pub fn close_idle_after(mut self, time: Duration) -> Self {
        self.idle = time;
        self
    }

    /// Sets the user and the password for the servers. Default: those of the addresses. With
    /// [`sentinel`](crate::RedisStore::sentinel) those of the addresses are for the Sentinels
    /// alone. An empty user is the default one.
    #[must_use]
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Some((user.into(), password.into()));
        self
    }

    /// Sets the authorities that vouch for the certificates of the servers, as PEM: one certificate
    /// or several. Default: those that this machine trusts, or those in the file that the variable
    /// `SSL_CERT_FILE` names.
    ///
    /// A server has to prove that it is the one of its address. It is needed with an address of
    /// TLS alone (`rediss://`), and is an error with another one.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls.authority = Some(pem.into());
        self
    }

    /// Sets the certificate of this process and its key, each as PEM, for servers that ask for one:
    /// a Redis does so unless it has the setting `tls-auth-clients no`. Default: none.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn identity(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.tls.identity = Some((certificate.into(), key.into()));
        self
    }

    /// Sets the text that names this process in the queue. Default: the number of the process and
    /// the name of the host.
    #[must_use]
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = holder.into();
        self
    }

    /// Checks what can be checked without a server.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (what, name) in [("prefix", Some(&self.prefix)), ("tag", self.tag.as_ref())] {
            let Some(name) = name else { continue };
            let is_bad = |char: char| char == '{' || char == '}' || char.is_control();
            if !(1..=LONGEST_NAME).contains(&name.len()) || name.contains(is_bad) {
                return Err(Error::config(
                    format!("the {what} of the keys is {name:?}"),
                    format!("give it one of 1 to {LONGEST_NAME} bytes, without braces and control characters"),
                ));
            }
        }
        let waits = [
            ("time to connect", self.connect_timeout),
            ("time for an answer", self.answer_timeout),
            ("time for replicas", self.replicas.map_or(self.answer_timeout, |(_, timeout)| timeout)),
        ];
        for (what, time) in waits {
            if time < Duration::from_millis(1) || time > LONGEST_WAIT {
                return Err(Error::config(format!("the {what} is {time:?}"), "set it to 1 ms to an hour"));
            }
        }
        if self.replicas.is_some_and(|(count, _)| count == 0) {
            let advice = "give a number of 1 or more, or leave `replicas` out";
            return Err(Error::config("a call is to wait for 0 replicas", advice));
        }
        if self.holder.contains('\0') {
            let what = format!("the text of the holder is {:?}", self.holder);
            return Err(Error::config(what, "take the zero out of it"));
        }
        Ok(())
    }
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Without the password.
impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("prefix", &self.prefix)
            .field("tag", &self.tag)
            .field("allow_loss", &self.allow_loss)
            .field("replicas", &self.replicas)
            .field("user", &self.login.as_ref().map(|(user, _)| user))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_beyond_their_bounds_are_refused_and_those_at_them_taken() {
        let (ms, hour) = (Duration::from_millis(1), Duration::from_secs(3600));
        let new = RedisOptions::new;
        let taken = [
            new(),
            new().prefix("p".repeat(64)).tag("t"),
            new().replicas(1, ms).connect_timeout(hour).answer_timeout(ms),
        ];
        for options in taken {
            options.check().unwrap_or_else(|error| panic!("{options:?}: {error}"));
        }
        let refused = [
            new().prefix(""),
            new().prefix("p".repeat(65)),
            new().prefix("a{b"),
            new().prefix("a\n"),
            new().tag(""),
            new().tag("t}"),
            new().tag("t\0"),
            new().replicas(0, ms),
            new().replicas(1, Duration::ZERO),
            new().replicas(1, Duration::MAX),
            new().connect_timeout(Duration::ZERO),
            new().answer_timeout(hour + ms),
            new().holder("a\0b"),
        ];
        for options in refused {
            assert!(matches!(options.check(), Err(Error::Config { .. })), "{options:?}");
        }
        assert!(!format!("{:?}", new().login("app", "secret")).contains("secret"));
    }
}
