//! A connection to one server, which was looked at before its first call.

use crate::address::Node;
use crate::checks::{Facts, NEWEST, SECTIONS, Version, Wanted};
use crate::error::Error;
use crate::error_class::{self, Fault};
use crate::keys::Keys;
use crate::options::RedisOptions;
use redis::io::tcp::TcpSettings;
use redis::{Client, Cmd, ConnectionInfo, ErrorKind, ProtocolVersion, RedisError, ServerError, Value};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A connection that idled for this long may have been lost without a sign, so it is asked first.
/// Otherwise its next call might have come through or not.
const TRUSTED: Duration = Duration::from_secs(1);

/// Everything that is needed to connect.
#[derive(Debug)]
pub(crate) struct Dial {
    /// The first one is that of all servers that are found later.
    pub(crate) infos: Vec<ConnectionInfo>,
    wanted: Wanted,
    connect_timeout: Duration,
    pub(crate) answer_timeout: Duration,
    has_warned: AtomicBool,
}

impl Dial {
    pub(crate) fn new(infos: Vec<ConnectionInfo>, wanted: Wanted, options: &RedisOptions) -> Self {
        let with_login = |info: ConnectionInfo| {
            let Some((user, password)) = &options.login else { return info };
            let mut settings = info.redis_settings().clone().set_password(password);
            if !user.is_empty() {
                settings = settings.set_username(user);
            }
            info.set_redis_settings(settings)
        };
        Self {
            infos: infos.into_iter().map(with_login).collect(),
            wanted,
            connect_timeout: options.connect_timeout,
            answer_timeout: options.answer_timeout,
            has_warned: AtomicBool::new(false),
        }
    }

    pub(crate) fn info(&self, node: &Node) -> ConnectionInfo {
        let own = self.infos.iter().find(|info| info.addr() == &**node);
        own.unwrap_or(&self.infos[0]).clone().set_addr((**node).clone())
    }

    /// Connects, and looks at nothing.
    pub(crate) fn raw(&self, info: ConnectionInfo) -> Result<redis::Connection, Error> {
        let at = info.addr().to_string();
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let connected = Client::open(info).and_then(|client| {
            let connection = client.get_connection_with_timeout(self.connect_timeout)?;
            connection.set_write_timeout(Some(self.answer_timeout))?;
            connection.set_read_timeout(Some(self.answer_timeout))?;
            Ok(connection)
        });
        connected.map_err(|error| opening(&at, error))
    }

    /// Connects for messages.
    pub(crate) fn raw_for_messages(&self, node: &Node) -> Result<redis::Connection, Error> {
        let info = self.info(node);
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        self.raw(info.set_redis_settings(settings))
    }

    /// Connects, and refuses a server that cannot keep queues.
    pub(crate) fn open(&self, node: &Node) -> Result<Connection, Error> {
        let inner = self.raw(self.info(node))?;
        let mut connection = Connection {
            node: Arc::clone(node),
            inner,
            run_id: String::new(),
            functions: None,
            greeted: BTreeSet::new(),
            answer_timeout: self.answer_timeout,
            used: Instant::now(),
        };
        let server = connection.server();
        let facts = connection.facts()?;
        facts.check(&server, self.wanted)?;
        facts.run_id().clone_into(&mut connection.run_id);
        if facts.evicts_some() && !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "waterline",
                server,
                "the server evicts keys with a time to live (maxmemory-policy volatile-*): no key of a queue has one, \
                 so nothing else may be left to evict, and pushes are refused when it is full"
            );
        }
        if let Some(found) = connection.look_for_functions()? {
            found.check(&server)?;
        }
        Ok(connection)
    }
}

/// A connection to a server that can keep queues.
pub(crate) struct Connection {
    pub(crate) node: Node,
    inner: redis::Connection,
    /// Of the start of the server.
    run_id: String,
    functions: Option<Version>,
    /// The heads of the queues that know which server this is.
    greeted: BTreeSet<String>,
    answer_timeout: Duration,
    used: Instant,
}

/// Why a command got no answer that counts.
pub(crate) enum Failure {
    NotSent(RedisError),
    NoAnswer(RedisError),
    Said(ServerError),
}

impl Connection {
    pub(crate) fn server(&self) -> String {
        self.node.to_string()
    }

    /// Sends a command, and waits for its answer.
    pub(crate) fn ask(&mut self, command: &Cmd) -> Result<Value, Failure> {
        self.used = Instant::now();
        // What was sent in part is no command.
        self.inner.send_packed_command(&command.get_packed_command()).map_err(Failure::NotSent)?;
        match self.inner.recv_response() {
            Ok(Value::ServerError(error)) => Err(Failure::Said(error)),
            Ok(answer) => Ok(answer),
            Err(error) => Err(Failure::NoAnswer(error)),
        }
    }

    /// The same for a command that changes nothing, or may be made twice.
    pub(crate) fn order(&mut self, command: &Cmd) -> Result<Value, Error> {
        let server = self.server();
        self.ask(command).map_err(|failure| match failure {
            Failure::NoAnswer(source) => Error::Lost { at: server, source },
            other => other.into_error(&server),
        })
    }

    pub(crate) fn facts(&mut self) -> Result<Facts, Error> {
        match self.order(&command("INFO", &SECTIONS))? {
            Value::BulkString(text) => Ok(Facts::read(&String::from_utf8_lossy(&text))),
            other => Err(Error::odd(self.server(), format!("INFO says {other:?}"))),
        }
    }

    /// Returns false if the connection idled, and was lost meanwhile.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.used.elapsed() < TRUSTED || self.ask(&command("PING", &[])).is_ok()
    }

    pub(crate) fn look_for_functions(&mut self) -> Result<Option<Version>, Error> {
        self.functions = match self.ask(&command("FCALL", &["wl_version", "0", ""])) {
            Ok(answer) => Version::of(&answer),
            Err(Failure::Said(said)) if error_class::lacks_function(said.code(), said.details().unwrap_or("")) => None,
            Err(Failure::NoAnswer(source)) => return Err(Error::Lost { at: self.server(), source }),
            Err(failure) => return Err(failure.into_error(&self.server())),
        };
        Ok(self.functions)
    }

    /// Refuses a call for which the functions are missing. Another process may have loaded them.
    pub(crate) fn check_functions(&mut self) -> Result<(), Error> {
        let fits = |version: Option<Version>| version.is_some_and(|version| version.found >= NEWEST);
        if fits(self.functions) || fits(self.look_for_functions()?) {
            return Ok(());
        }
        let what = self.functions.map_or("there are none".to_owned(), |version| {
            format!("they have version {}, and this program needs {NEWEST}", version.found)
        });
        Err(Error::Functions { at: self.server(), what })
    }

    /// The functions are gone that were there.
    pub(crate) fn forget_functions(&mut self) {
        self.functions = None;
    }

    /// Tells a queue which server this is: after another one, its numbers skip those that this one
    /// may not have received.
    pub(crate) fn greet(&mut self, queue: &Keys, asking: bool) -> Result<(), Failure> {
        if self.greeted.contains(&queue.keys[0]) {
            return Ok(());
        }
        if asking {
            self.ask(&command("ASKING", &[]))?;
        }
        let mut greet = redis::cmd("FCALL");
        greet.arg("wl_greet").arg(26).arg(&queue.keys).arg("").arg(&self.run_id);
        match self.ask(&greet) {
            Ok(_) => _ = self.greeted.insert(queue.keys[0].clone()),
            // There is no such queue: the call itself says so, or makes it.
            Err(Failure::Said(said)) if said.code() == "WQ001" => {}
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Waits until replicas have what this connection wrote. Returns how many have it.
    pub(crate) fn wait_for_replicas(&mut self, count: usize, timeout: Duration) -> Result<usize, Failure> {
        let wait = command("WAIT", &[&count.to_string(), &timeout.as_millis().max(1).to_string()]);
        let set = |inner: &redis::Connection, limit| inner.set_read_timeout(Some(limit)).map_err(Failure::NoAnswer);
        set(&self.inner, self.answer_timeout + timeout)?;
        let answer = self.ask(&wait)?;
        set(&self.inner, self.answer_timeout)?;
        Ok(if let Value::Int(count) = answer { usize::try_from(count).unwrap_or(0) } else { 0 })
    }
}

impl Failure {
    /// The error for the caller: `at` names the server, and the queue of the call.
    pub(crate) fn into_error(self, at: &str) -> Error {
        match self {
            Self::NotSent(source) => Error::Lost { at: at.to_owned(), source },
            Self::NoAnswer(error) => Error::unsure(at, format!("its answer was lost ({error})")),
            Self::Said(said) => of_answer(at, said.code(), said.details().unwrap_or("")),
        }
    }

    pub(crate) fn fault(&self) -> Fault {
        match self {
            Self::NotSent(_) => Fault::NotSent,
            Self::NoAnswer(_) => Fault::NoAnswer,
            Self::Said(said) => error_class::fault_of(said.code()),
        }
    }
}

pub(crate) fn of_answer(at: &str, code: &str, text: &str) -> Error {
    let (at, code, text) = (at.to_owned(), code.to_owned(), text.to_owned());
    if error_class::lacks_function(&code, &text) {
        return Error::Functions { at, what: "they are gone".to_owned() };
    }
    match error_class::advice(&code, &text) {
        Some(advice) => Error::Refused { at, code, text, advice },
        None => {
            let [queue, detail, hint, message] = error_class::parts(&text);
            Error::Function { at, code: code.into(), queue, detail, hint, message }
        }
    }
}

/// The error of a connection that was not opened, or of a command before its first call.
pub(crate) fn opening(at: &str, error: RedisError) -> Error {
    #[cfg(feature = "tls")]
    if let Some(refused) = crate::tls::refused(at, &error) {
        return refused;
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => of_answer(at, "WRONGPASS", "the user or the password is refused"),
        ErrorKind::Server(_) | ErrorKind::Extension => {
            of_answer(at, error.code().unwrap_or("ERR"), error.detail().unwrap_or(""))
        }
        ErrorKind::Parse => Error::odd(at, error.to_string()),
        _ => Error::Lost { at: at.to_owned(), source: error },
    }
}

pub(crate) fn command(name: &str, args: &[&str]) -> Cmd {
    let mut command = redis::cmd(name);
    args.iter().for_each(|arg| _ = command.arg(*arg));
    command
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("node", &self.node.to_string()).finish_non_exhaustive()
    }
}
