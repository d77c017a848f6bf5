//! A connection to the server that reconnects by itself.

use crate::error::Error;
use crate::error_class::ends_connection;
use crate::options::PgOptions;
use crate::statements::Statements;
use crate::tls::Connector;
use postgres::config::{Host, SslMode, SslNegotiation, TargetSessionAttrs};
use postgres::tls::{MakeTlsConnect, TlsConnect};
use postgres::{Client, Config, Socket};
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::runtime::Handle;

/// How long a transaction of several statements may idle between two of them before the server ends
/// it: other calls wait for its locks meanwhile. A second call of the same process may have waited
/// for such a lock and then idle as long, and both together stay well below two seconds.
pub(crate) const STANDS: Duration = Duration::from_millis(700);

#[cfg(feature = "queue")]
/// True if the server ended a transaction that idled for longer. Nothing of it was written.
pub(crate) fn has_stood_still(error: &postgres::Error) -> bool {
    error.code() == Some(&postgres::error::SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT)
}

#[cfg(feature = "queue")]
/// Makes a call in a transaction that states its isolation level and bounds its idle time.
pub(crate) fn in_transaction<R>(
    client: &mut Client,
    call: impl FnOnce(&mut Client) -> Result<R, Error>,
) -> Result<R, Error> {
    let still = STANDS.as_millis();
    let begun = client.batch_execute(&format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = {still}"
    ));
    // A failure between the two statements leaves a transaction, which is rolled back, too.
    let answer = begun.map_err(Error::from).and_then(|()| call(client));
    if answer.is_ok() {
        client.batch_execute("COMMIT")?;
    } else {
        // The first error says more than one of the rollback.
        _ = client.batch_execute("ROLLBACK");
    }
    answer
}

/// Calls code that may block on the driver's own runtime. Where tokio refuses that, a thread of its
/// own makes the call: within a runtime of the user's, and in a thread-local's destructor that runs
/// after that of the runtime. (The last thread of a runner may drop the store there.)
pub(crate) fn blocking<R: Send>(call: impl FnOnce() -> R + Send) -> R {
    if Handle::try_current().is_err_and(|error| error.is_missing_context()) {
        return call();
    }
    std::thread::scope(|scope| match scope.spawn(call).join() {
        Ok(answer) => answer,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Everything that is needed to connect.
#[derive(Clone)]
pub(crate) struct Dial {
    config: Config,
    /// The same for this crate's own threads, which wait for several things at once.
    own: tokio_postgres::Config,
    tls: Connector,
}

impl Dial {
    pub(crate) fn new<T>(mut config: Config, tls: T, options: &PgOptions) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::TlsConnect: Send + 'static,
        T::Stream: Send + 'static,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let (mode, negotiation) = (config.get_ssl_mode(), config.get_ssl_negotiation());
        config.connect_timeout(options.ttl.min(options.connect_timeout)).tcp_user_timeout(options.ttl);
        let idle = options.ttl.max(Duration::from_secs(1));
        config.keepalives(true).keepalives_idle(idle).keepalives_interval(idle).keepalives_retries(2);
        // Of several hosts, one accepts writes, and the others may do so after a failover.
        let hosts = config.get_hosts().len().max(config.get_hostaddrs().len());
        if hosts > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if config.get_application_name().is_none() {
            config.application_name("waterline");
        }
        if config.get_hosts().is_empty() {
            // The driver hands a socket to a connector only if the host has a name.
            let addresses: Vec<_> = config.get_hostaddrs().iter().map(ToString::to_string).collect();
            addresses.iter().for_each(|address| _ = config.host(address));
        }
        // A Unix socket has no TLS, and no network that can fail.
        if config.get_hosts().iter().all(|host| matches!(host, Host::Tcp(_))) {
            config.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
        } else {
            config.ssl_mode(SslMode::Disable);
        }
        let own = copy(&config);
        Self { config, own, tls: Connector::new(tls, mode, negotiation, options.answer_limit()) }
    }

    /// Refuses a mix of Unix sockets and network hosts, since TLS and timeouts fit only one kind.
    pub(crate) fn check(config: &Config) -> Result<(), Error> {
        let hosts = config.get_hosts();
        let has_network = hosts.iter().any(|host| matches!(host, Host::Tcp(_)));
        let has_socket = hosts.iter().any(|host| !matches!(host, Host::Tcp(_)));
        if has_socket && has_network {
            let advice = "name hosts of one kind, since TLS is for a network only";
            return Err(Error::config("one host is a Unix socket, and another one is not", advice));
        }
        if has_socket && config.get_ssl_mode() == SslMode::Require {
            let advice = "take sslmode=require away, or name a host of a network";
            return Err(Error::config("the host is a Unix socket, which has no TLS", advice));
        }
        Ok(())
    }

    fn connect(&self) -> Result<(Client, Statements), Error> {
        let (tls, process) = self.tls.for_one();
        let mut client = self.config.connect(tls)?;
        let statements = Statements::of(&mut client, process.load(Ordering::Acquire))?;
        Ok((client, statements))
    }

    pub(crate) async fn connect_own(&self) -> Result<(tokio_postgres::Client, OwnConnection), Error> {
        Ok(self.own.connect(self.tls.clone()).await?)
    }
}

/// The half of a connection that carries its bytes.
pub(crate) type OwnConnection = tokio_postgres::Connection<Socket, crate::bounded::Bounded>;

/// Copies a configuration for the driver below, since the other one does not give it away.
fn copy(config: &Config) -> tokio_postgres::Config {
    let mut own = tokio_postgres::Config::new();
    config.get_user().map(|user| own.user(user));
    config.get_password().map(|password| own.password(password));
    config.get_dbname().map(|name| own.dbname(name));
    config.get_options().map(|options| own.options(options));
    config.get_application_name().map(|name| own.application_name(name));
    for host in config.get_hosts() {
        match host {
            Host::Tcp(host) => own.host(host),
            #[cfg(unix)]
            Host::Unix(path) => own.host_path(path),
        };
    }
    config.get_hostaddrs().iter().for_each(|address| _ = own.hostaddr(*address));
    config.get_ports().iter().for_each(|port| _ = own.port(*port));
    config.get_connect_timeout().map(|timeout| own.connect_timeout(*timeout));
    config.get_tcp_user_timeout().map(|timeout| own.tcp_user_timeout(*timeout));
    own.keepalives(config.get_keepalives()).keepalives_idle(config.get_keepalives_idle());
    config.get_keepalives_interval().map(|interval| own.keepalives_interval(interval));
    config.get_keepalives_retries().map(|retries| own.keepalives_retries(retries));
    own.ssl_mode(config.get_ssl_mode()).ssl_negotiation(config.get_ssl_negotiation());
    own.target_session_attrs(config.get_target_session_attrs());
    own.channel_binding(config.get_channel_binding()).load_balance_hosts(config.get_load_balance_hosts());
    own
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dial").field("hosts", &self.config.get_hosts()).field("tls", &self.tls).finish_non_exhaustive()
    }
}

/// A connection that is opened when it is needed, and again after a loss. It may be used and
/// dropped within a runtime.
pub(crate) struct Connection {
    dial: Dial,
    client: Option<Client>,
    statements: Statements,
    /// How often it was opened.
    opened: u64,
}

impl Connection {
    pub(crate) fn new(dial: Dial) -> Self {
        Self { dial, client: None, statements: Statements::default(), opened: 0 }
    }

    pub(crate) fn opened(&self) -> u64 {
        self.opened
    }

    /// Makes a call. A broken connection is dropped, and the next call opens another one.
    pub(crate) fn call<R: Send>(
        &mut self,
        call: impl FnOnce(&mut Client) -> Result<R, Error> + Send,
    ) -> Result<R, Error> {
        self.ask(|client, _| call(client))
    }

    /// Makes a call with the connection and the statements that it has prepared.
    pub(crate) fn ask<R: Send>(
        &mut self,
        call: impl FnOnce(&mut Client, &mut Statements) -> Result<R, Error> + Send,
    ) -> Result<R, Error> {
        let answer = self.with_both(|both| both.and_then(|(client, statements)| call(client, statements)));
        if let Err(Error::Database(error)) = &answer
            && ends_connection(error)
        {
            self.close();
        }
        answer
    }

    /// Makes a call that tells a failure to connect from its own errors.
    pub(crate) fn with<R: Send>(&mut self, call: impl FnOnce(Result<&mut Client, Error>) -> R + Send) -> R {
        self.with_both(|both| call(both.map(|(client, _)| client)))
    }

    fn with_both<R: Send>(
        &mut self,
        call: impl FnOnce(Result<(&mut Client, &mut Statements), Error>) -> R + Send,
    ) -> R {
        blocking(|| {
            if self.client.as_ref().is_none_or(Client::is_closed) {
                self.client = None;
                match self.dial.connect() {
                    Ok((client, statements)) => {
                        (self.client, self.statements) = (Some(client), statements);
                        self.opened += 1;
                    }
                    Err(error) => return call(Err(error)),
                }
            }
            let Some(client) = &mut self.client else { unreachable!("it was opened above") };
            let answer = call(Ok((client, &mut self.statements)));
            if client.is_closed() {
                self.client = None;
            }
            answer
        })
    }

    /// Closes the connection, so that the next call opens another one.
    pub(crate) fn close(&mut self) {
        let (client, statements) = (self.client.take(), std::mem::take(&mut self.statements));
        if client.is_some() {
            blocking(|| drop((statements, client)));
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("open", &self.client.is_some()).finish_non_exhaustive()
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::panic::catch_unwind;
    use std::sync::mpsc::{Sender, channel};

    /// Makes a call at the end of its thread, and reports whether that worked.
    struct Last(Sender<bool>);

    impl Drop for Last {
        fn drop(&mut self) {
            let own =
                || tokio::runtime::Builder::new_current_thread().build().map(|runtime| runtime.block_on(async { 7 }));
            let _ = self.0.send(catch_unwind(|| blocking(own)).is_ok_and(|answer| answer.is_ok()));
        }
    }

    #[test]
    fn calls_work_within_a_runtime_and_after_its_end() {
        thread_local!(static LAST: RefCell<Option<Last>> = const { RefCell::new(None) });
        let (made, is_made) = channel();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async { drop(Last(made.clone())) });
        let ends = move || {
            // The first thread-local is destroyed last.
            LAST.with(|last| *last.borrow_mut() = Some(Last(made)));
            assert!(Handle::try_current().is_err());
        };
        std::thread::spawn(ends).join().unwrap();
        assert_eq!(is_made.iter().collect::<Vec<_>>(), [true, true]);
    }

    #[test]
    fn a_unix_socket_with_other_hosts_or_tls_is_refused() {
        let is_refused = |config: &str| {
            let config: Config = config.parse().unwrap();
            matches!(Dial::check(&config), Err(Error::Config { .. }))
        };
        assert!(is_refused("host=/run/postgresql,localhost") && is_refused("host=localhost,/run/postgresql"));
        assert!(is_refused("host=/run/postgresql sslmode=require"));
        assert!(!is_refused("host=/run/postgresql,/tmp") && !is_refused("host=a,b sslmode=require"));
        assert!(!is_refused("hostaddr=127.0.0.1 sslmode=require"));
    }
}
