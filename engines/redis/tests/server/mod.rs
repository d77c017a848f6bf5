//! A real Redis server, as a child of the test's process: in a directory of its own, on a free port
//! of the loopback.

#![allow(dead_code, reason = "each program of the tests uses a part of it")]

use parking_lot::Mutex;
use redis::{Client, Cmd, RedisError, Value};
use std::ffi::OsString;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use waterline_redis::{RedisOptions, RedisStore, redis};

pub mod cluster;
pub mod proxy;
pub mod sentinel;
#[cfg(feature = "tls")]
pub mod tls;

/// The variable with the server's program, if it is not the one on the PATH: a Valkey, for example.
const PROGRAM: &str = "WATERLINE_REDIS_SERVER";

const MISSING: &str = "there is no Redis server (redis-server) on this machine: run `bash .ci/setup engines`, or \
    `apt-get install redis-server`";

/// Functions for the tests. `t_add` counts calls in the head of the queue.
pub const FUNCTIONS: &str = "#!lua name=of_tests
local function add(keys) return redis.call('HINCRBY', keys[1], 'n', 1) end
redis.register_function('t_add', add)
redis.register_function({ function_name = 't_count', flags = { 'no-writes' },
    callback = function(keys) return tonumber(redis.call('HGET', keys[1], 'n') or 0) end })
redis.register_function({ function_name = 't_echo', flags = { 'no-writes' }, callback = function(_, args) return args end })
redis.register_function('t_say', function(_, args) return redis.error_reply(args[1]) end)
redis.register_function('t_ring', function(keys) return redis.call('SPUBLISH', keys[1]:sub(1, -5) .. 'bell', '') end)
redis.register_function({ function_name = 't_spin', flags = { 'no-writes' }, callback = function() while true do end end })
redis.register_function('t_keys', function(keys) for _, key in ipairs(keys) do redis.call('SET', key, 1) end return #keys end)
";

/// A server. Its drop, or the death of the test's process, kills it and removes its directory.
pub struct Server {
    program: OsString,
    directory: PathBuf,
    port: u16,
    settings: Vec<String>,
    child: Mutex<Option<Child>>,
    /// A shell that waits for the end of its input, which is the end of this value.
    watcher: Child,
}

impl Server {
    /// Starts one with an append-only file, and with these settings of `redis.conf`. (With
    /// `everysec` a busy disk delays its writes, so that a kill may lose some.)
    pub fn start(settings: &[(&str, &str)]) -> Self {
        let standard =
            [("appendonly", "yes"), ("appendfsync", "always"), ("save", ""), ("repl-diskless-sync-delay", "0")];
        Self::start_as(&[], &[&standard, settings].concat())
    }

    /// Starts one with the test's functions and ours, and a store on it.
    pub fn with_store(options: RedisOptions) -> (Self, RedisStore) {
        let server = Self::start(&[]);
        server.ask(&["FUNCTION", "LOAD", FUNCTIONS]);
        let store = RedisStore::connect(server.url(), options).unwrap();
        store.migrate().unwrap();
        (server, store)
    }

    /// Starts the program with these arguments before the settings. It may write to its file, as a
    /// Sentinel does with what it learns.
    pub fn start_as(first: &[&str], settings: &[(&str, &str)]) -> Self {
        Self::start_program(std::env::var_os(PROGRAM).unwrap_or_else(|| "redis-server".into()), first, settings)
    }

    /// Starts one of this program with an append-only file. `None`: this machine does not have it.
    pub fn of(program: &str) -> Option<Self> {
        Command::new(program).arg("--version").stdout(Stdio::null()).status().ok()?;
        Some(Self::start_program(program.into(), &[], &[("appendonly", "yes"), ("appendfsync", "always")]))
    }

    fn start_program(program: OsString, first: &[&str], settings: &[(&str, &str)]) -> Self {
        let directory = tempfile::Builder::new().prefix("waterline-redis-").tempdir().expect("a directory").keep();
        std::fs::write(directory.join("conf"), "").expect("it is ours");
        let watch = "read -r _; if [ -f pid ]; then kill -KILL $(cat pid) 2>/dev/null; fi; rm -rf \"$PWD\"";
        let mut watcher = Command::new("sh");
        let watcher = watcher.args(["-c", watch]).current_dir(&directory).stdin(Stdio::piped());
        let watcher = watcher.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn().expect("a shell");
        let words = |value: &str| {
            if value.is_empty() { vec![String::new()] } else { value.split(' ').map(str::to_owned).collect() }
        };
        let given = settings.iter().flat_map(|(name, value)| [vec![format!("--{name}")], words(value)].concat());
        let settings = first.iter().map(|arg| (*arg).to_owned()).chain(given).collect();
        let mut server = Self { program, directory, port: 0, settings, child: Mutex::new(None), watcher };
        // Another program may take a port between the check and the start.
        for _ in 0..20 {
            let free = TcpListener::bind(("127.0.0.1", 0)).expect("the loopback has a free port");
            server.port = free.local_addr().expect("it is bound").port();
            // The port of a node's bus is higher by 10,000.
            if server.port < 50_000 {
                drop(free);
                if server.try_start() {
                    return server;
                }
            }
        }
        panic!("the server does not start: {}", server.log());
    }

    fn try_start(&self) -> bool {
        let mut started = Command::new(&self.program);
        let port: &[&str] = if self.has_tls() { &["--port", "0", "--tls-port"] } else { &["--port"] };
        started.arg("conf").args(&self.settings).args(port).args([&self.port.to_string(), "--bind", "127.0.0.1"]);
        started.args(["--pidfile", "pid", "--logfile", "log", "--daemonize", "no"]);
        let started = started.current_dir(&self.directory).process_group(0).stdin(Stdio::null());
        let mut started = started.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect(MISSING);
        let mut runs = false;
        common::eventually("the server answers", || {
            // (One that is not the server of its address answers, too.)
            let says = |error: RedisError| {
                !error.is_io_error() && error.code() != Some("LOADING") || error.to_string().contains("certificate")
            };
            runs = self.try_ask(&["PING"]).map_or_else(says, |_| true);
            runs || started.try_wait().expect("it is a child").is_some()
        });
        *self.child.lock() = Some(started);
        runs
    }

    /// Kills it, so that nothing more is written.
    pub fn kill(&self) {
        let child = self.child.lock().take();
        let Some(mut child) = child else { return };
        child.kill().expect("it is a child");
        _ = child.wait();
    }

    /// Starts it again after [`kill`](Self::kill), on the same port and folder.
    pub fn start_again(&self) {
        assert!(self.try_start(), "the server does not start: {}", self.log());
    }

    /// Sends a signal: `STOP`, `CONT`.
    pub fn signal(&self, name: &str) {
        let id = self.child.lock().as_ref().expect("the server runs").id();
        let sent = Command::new("kill").args([&format!("-{name}"), &id.to_string()]).status();
        assert!(sent.expect("there is a program kill").success());
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        let address = if self.has_tls() { "rediss://localhost" } else { "redis://127.0.0.1" };
        format!("{address}:{}", self.port)
    }

    /// True if it has a port for TLS, and no other one.
    fn has_tls(&self) -> bool {
        self.settings.iter().any(|setting| setting == "--tls-cert-file")
    }

    fn client(&self) -> Result<Client, RedisError> {
        #[cfg(feature = "tls")]
        if let Some(authority) = tls::authority_of(&self.settings) {
            return Client::build_with_tls(self.url(), tls::of_client(&authority));
        }
        Client::open(self.url())
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    pub fn try_ask(&self, args: &[&str]) -> Result<Value, RedisError> {
        ask(&self.client()?, args)
    }

    pub fn ask(&self, args: &[&str]) -> Value {
        self.try_ask(args).unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }

    /// Sends a command of bytes.
    pub fn ask_bytes(&self, args: &[&[u8]]) -> Value {
        let mut connection = self.client().unwrap().get_connection().unwrap();
        let mut command = Cmd::new();
        args.iter().for_each(|arg| _ = command.arg(*arg));
        command.query(&mut connection).unwrap()
    }

    /// Whether INFO has this text now.
    pub fn says(&self, section: &str, text: &str) -> bool {
        let said = self.try_ask(&["INFO", section]);
        said.is_ok_and(|said| redis::from_redis_value::<String>(said).is_ok_and(|said| said.contains(text)))
    }

    /// The answer as a text.
    pub fn text(&self, args: &[&str]) -> String {
        redis::from_redis_value(self.ask(args)).expect("it is a text")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        drop(self.watcher.stdin.take());
        _ = self.watcher.wait();
    }
}

/// Sends one command on a connection of its own.
pub fn ask_at(url: &str, args: &[&str]) -> Result<Value, RedisError> {
    ask(&Client::open(url)?, args)
}

fn ask(client: &Client, args: &[&str]) -> Result<Value, RedisError> {
    // Without a limit of time for the answer: with one, a read fails if the process is stopped in
    // it and goes on.
    let mut connection = client.get_connection_with_timeout(Duration::from_secs(10))?;
    let mut command = Cmd::new();
    args.iter().for_each(|arg| _ = command.arg(*arg));
    command.query(&mut connection)
}

/// A library of this version, which serves programs from the second one on.
pub fn functions(version: u32, serves: u32) -> String {
    format!(
        "#!lua name=waterline\nredis.register_function({{ function_name = 'wl_version', flags = {{ 'no-writes' }}, \
         callback = function() return {{ {version}, {serves} }} end }})\nredis.register_function('wl_greet', \
         function(keys, args) return redis.call('RPUSH', keys[26], args[2]) end)"
    )
}
