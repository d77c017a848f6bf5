//! One connection to the server, which comes back by itself.

use crate::error::Error;
use crate::options::PgOptions;
use crate::tls::Connector;
use postgres::config::{SslMode, TargetSessionAttrs};
use postgres::{Client, Config};
use std::fmt;
use std::time::Duration;
use tokio::runtime::Handle;

/// Calls code that may block on the driver's own runtime. Within a runtime of the user's, which
/// refuses that, a thread that ends with this call makes it.
pub(crate) fn blocking<R: Send>(call: impl FnOnce() -> R + Send) -> R {
    if Handle::try_current().is_err() {
        return call();
    }
    std::thread::scope(|scope| match scope.spawn(call).join() {
        Ok(answer) => answer,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// What it takes to connect.
#[derive(Clone)]
pub(crate) struct Dial {
    config: Config,
    tls: Connector,
    /// The time after which a statement, or an attempt to connect, is given up.
    limit: Duration,
}

impl Dial {
    pub(crate) fn new(mut config: Config, tls: Connector, options: &PgOptions) -> Self {
        let limit = options.ttl.min(options.connect_timeout);
        config.connect_timeout(limit).tcp_user_timeout(options.ttl);
        config.keepalives(true).keepalives_idle(options.ttl.max(Duration::from_secs(1)));
        if tls.is_plain() {
            config.ssl_mode(SslMode::Disable);
        }
        // A list of hosts is one server that writes, and others that may write after it.
        if config.get_hosts().len() > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if config.get_application_name().is_none() {
            config.application_name("waterline");
        }
        Self { config, tls, limit: options.ttl }
    }

    /// Opens a connection.
    pub(crate) fn connect(&self) -> Result<Client, Error> {
        Ok(self.config.connect(self.tls.clone())?)
    }
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dial").field("hosts", &self.config.get_hosts()).field("limit", &self.limit).finish()
    }
}

/// A connection that is opened when it is needed, and anew after it broke. It may be used and
/// dropped within a runtime.
pub(crate) struct Connection {
    dial: Dial,
    client: Option<Client>,
    /// The number of times that it was opened.
    opened: u64,
}

impl Connection {
    pub(crate) fn new(dial: Dial) -> Self {
        Self { dial, client: None, opened: 0 }
    }

    /// Returns the number of times that it was opened.
    pub(crate) fn opened(&self) -> u64 {
        self.opened
    }

    /// Makes a call with the connection. A connection that broke is dropped; the next call opens
    /// another one.
    pub(crate) fn call<R: Send>(
        &mut self,
        call: impl FnOnce(&mut Client) -> Result<R, Error> + Send,
    ) -> Result<R, Error> {
        blocking(|| {
            if self.client.as_ref().is_none_or(Client::is_closed) {
                self.client = None;
                self.client = Some(self.dial.connect()?);
                self.opened += 1;
            }
            let Some(client) = &mut self.client else { unreachable!("it was opened above") };
            let answer = call(client);
            if client.is_closed() {
                self.client = None;
            }
            answer
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let client = self.client.take();
        if client.is_some() {
            blocking(|| drop(client));
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("open", &self.client.is_some()).finish_non_exhaustive()
    }
}
