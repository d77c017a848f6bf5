//! A real PostgreSQL server, as a child of the test's process: in a directory of its own, on a free
//! port of the loopback. Tests that run as root, which PostgreSQL refuses, run it as another user,
//! who owns that directory.

#![allow(dead_code, reason = "each program of the tests uses a part of it")]

use parking_lot::{Condvar, Mutex};
use postgres::{Client, Config, NoTls};
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use waterline_postgres::{PgOptions, PgStore};

pub mod pooler;
pub mod replica;
pub mod tls;

/// The place of a server's directory: on a disk if it waits for the disk. Otherwise in memory if
/// that has room: each database has 300 small files, which keep a file system busy.
fn place(flushes: bool) -> PathBuf {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    if flushes {
        return std::env::temp_dir();
    }
    let place = PLACE.get_or_init(|| {
        let gigabytes = || {
            let said = Command::new("df").args(["--output=avail", "-B1G", "/dev/shm"]).output().ok()?;
            String::from_utf8(said.stdout).ok()?.lines().last()?.trim().parse::<u32>().ok()
        };
        if gigabytes().is_some_and(|room| room >= 8) { PathBuf::from("/dev/shm") } else { std::env::temp_dir() }
    });
    place.clone()
}

/// Longer than anything here takes on the slowest machine. Only a test that fails waits for it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The variable with the directory of the server's programs, if it is not the distribution's.
const PROGRAMS: &str = "WATERLINE_PG_BIN";

const MISSING: &str = "there is no PostgreSQL server (initdb and postgres) on this machine: run `bash .ci/setup engines`, or \
    `apt-get install postgresql-15` (create_main_cluster = false in /etc/postgresql-common/createcluster.conf keeps it \
    from starting a cluster)";

/// A server. Its drop, or the death of the test's process, kills it and removes its directory.
pub struct Server {
    programs: PathBuf,
    owner: Option<(u32, u32)>,
    /// It has the database in `data`.
    directory: PathBuf,
    port: u16,
    settings: HashMap<String, String>,
    /// The largest file that it may write, in blocks of 512 bytes (`ulimit -f`).
    largest_file: Mutex<Option<u64>>,
    child: Mutex<Option<Child>>,
    said: Arc<Said>,
    /// A shell that waits for the end of its input, which is the end of this value. Then it kills
    /// the server, and removes the directory.
    watcher: Child,
    databases: AtomicU32,
}

#[derive(Default)]
struct Said {
    log: Mutex<Log>,
    changed: Condvar,
}

#[derive(Default)]
struct Log {
    text: String,
    starts: u32,
    /// The last start that led to a server which was ready, and the last whose server has ended.
    ready: u32,
    ended: u32,
}

#[derive(Clone, Copy, Debug)]
pub enum End {
    /// All connections are cut, and a checkpoint is written.
    Fast,
    /// Like a crash: nothing more is written.
    Immediate,
}

impl Server {
    /// The server that the tests of a program share. Each has a database of its own in it.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(&[]))
    }

    pub fn start(settings: &[(&str, &str)]) -> Self {
        let server = Self::prepare(settings);
        let mut initdb = run_as(server.owner, &server.programs.join("initdb"));
        let initdb = initdb.arg("-D").arg(server.data());
        let initdb = initdb.args(["-U", "postgres", "-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8"]);
        // Small files of the log, so that a test can bound all files.
        let initdb = initdb.arg("--wal-segsize=1");
        let made = initdb.current_dir(&server.directory).output().unwrap_or_else(|error| panic!("{MISSING}: {error}"));
        assert!(made.status.success(), "initdb failed: {}", String::from_utf8_lossy(&made.stderr));
        server.on_a_free_port()
    }

    /// Makes the directory of a server, and the watcher that removes it.
    fn prepare(settings: &[(&str, &str)]) -> Self {
        let programs = programs();
        let owner = owner();
        let place = place(settings.contains(&("fsync", "on")));
        let directory = tempfile::Builder::new().prefix("waterline-postgres-").tempdir_in(place);
        let directory = directory.expect("a directory").keep();
        if let Some((user, group)) = owner {
            std::os::unix::fs::chown(&directory, Some(user), Some(group)).expect("root may give a directory away");
        }
        let watch = "read -r _; if [ -f data/postmaster.pid ]; then read -r pid <data/postmaster.pid; \
            kill -CONT \"$pid\"; kill -QUIT \"$pid\"; while kill -0 \"$pid\" 2>/dev/null; do sleep 0.05; done; fi; \
            rm -rf \"$PWD\"";
        let mut watcher = run_as(owner, Path::new("sh"));
        let watcher = watcher.args(["-c", watch]).current_dir(&directory).stdin(Stdio::piped());
        let watcher = watcher.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn().expect("a shell");
        let given = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let standard = [
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", ""),
            ("max_connections", "200"),
            ("max_prepared_transactions", "64"),
            // Only killed servers are part of these tests, and no power failures.
            ("fsync", "off"),
            ("shared_buffers", "32MB"),
            ("min_wal_size", "8MB"),
            ("max_wal_size", "128MB"),
            ("deadlock_timeout", "200ms"),
        ];
        let standard = standard.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Self {
            programs,
            owner,
            directory,
            port: 0,
            settings: standard.into_iter().chain(given).collect(),
            largest_file: Mutex::new(None),
            child: Mutex::new(None),
            said: Arc::default(),
            watcher,
            databases: AtomicU32::new(0),
        }
    }

    /// Starts it. Another program may take a port between the check and the start.
    fn on_a_free_port(mut self) -> Self {
        for _ in 0..20 {
            let free = TcpListener::bind(("127.0.0.1", 0)).expect("the loopback has a free port");
            self.port = free.local_addr().expect("it is bound").port();
            drop(free);
            if self.try_start() {
                return self;
            }
        }
        panic!("the server does not start: {}", self.log());
    }

    /// Starts the server, and waits until it is ready; false if it ended before.
    fn try_start(&self) -> bool {
        let mut child = self.child.lock();
        assert!(child.is_none(), "it runs already");
        let mut postgres = match *self.largest_file.lock() {
            None => run_as(self.owner, &self.programs.join("postgres")),
            Some(blocks) => {
                let mut shell = run_as(self.owner, Path::new("sh"));
                shell.args(["-c", "ulimit -f \"$0\"; exec \"$@\"", &blocks.to_string()]);
                shell.arg(self.programs.join("postgres"));
                shell
            }
        };
        postgres.arg("-D").arg(self.directory.join("data")).args(["-p", &self.port.to_string()]);
        for (key, value) in &self.settings {
            postgres.args(["-c", &format!("{key}={value}")]);
        }
        // Not in the group of the test, which a Ctrl-C ends: the watcher has to clean up.
        let postgres = postgres.current_dir(&self.directory).process_group(0);
        let postgres = postgres.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut started = postgres.spawn().unwrap_or_else(|error| panic!("{MISSING}: {error}"));
        let (start, said) = (self.said.begin(), Arc::clone(&self.said));
        let lines = BufReader::new(started.stderr.take().expect("it is piped"));
        std::thread::spawn(move || said.hear(start, lines));
        let ready = self.said.wait(start);
        if ready {
            *child = Some(started);
        } else {
            _ = started.wait();
        }
        ready
    }

    pub fn stop(&self, end: End) {
        let child = self.child.lock().take();
        let Some(mut child) = child else { return };
        signal(child.id(), if matches!(end, End::Fast) { "INT" } else { "QUIT" });
        _ = child.wait();
    }

    /// Starts it again after [`stop`](Self::stop), on the same port.
    pub fn start_again(&self) {
        assert!(self.try_start(), "the server does not start: {}", self.log());
    }

    /// Bounds the files that the server writes from its next start on, as `ulimit -f` does: a write
    /// beyond fails as on a full disk.
    pub fn bound_files(&self, blocks: Option<u64>) {
        *self.largest_file.lock() = blocks;
    }

    /// Copies the database of a stopped server.
    pub fn copy(&self) -> PathBuf {
        let copy = self.directory.join("copy");
        self.copy_to(&self.data(), &copy);
        copy
    }

    /// Puts a copy back, in place of what is there now.
    pub fn restore(&self, copy: &Path) {
        std::fs::remove_dir_all(self.data()).expect("the directory is ours");
        self.copy_to(copy, &self.data());
    }

    fn copy_to(&self, from: &Path, to: &Path) {
        let copied = run_as(self.owner, Path::new("cp")).arg("-a").args([from, to]).status();
        assert!(copied.expect("there is a program cp").success());
    }

    /// Writes a file into the directory of the database.
    pub fn write_file(&self, name: &str, text: &str) {
        let path = self.data().join(name);
        std::fs::write(&path, text).expect("the directory is ours");
        if let Some((user, group)) = self.owner {
            std::os::unix::fs::chown(&path, Some(user), Some(group)).expect("root may give a file away");
        }
    }

    pub fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// The user and the group that the server runs as, if it is another one.
    pub fn owner(&self) -> Option<(u32, u32)> {
        self.owner
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn id(&self) -> u32 {
        self.child.lock().as_ref().expect("the server runs").id()
    }

    /// Sends a signal (`STOP`, `CONT`) to each process of the server: each leads its own group.
    pub fn signal_all(&self, name: &str) {
        self.each_process("kill", &[&format!("-{name}")]);
    }

    /// Bounds the files that the running server writes, in bytes: a write beyond fails as on a full
    /// disk.
    pub fn bound_files_now(&self, bytes: Option<u64>) {
        let bound = bytes.map_or("unlimited".to_owned(), |bytes| bytes.to_string());
        // Only the soft bound, which its owner may lift again.
        self.each_process("prlimit", &[&format!("--fsize={bound}:"), "--pid"]);
    }

    /// Calls this program, as the owner, for each process of the server, the main one first: the
    /// others are its children.
    fn each_process(&self, program: &str, arguments: &[&str]) {
        let main = self.id();
        let command = || run_as(self.owner, Path::new(program));
        let called = command().args(arguments).arg(main.to_string()).status();
        assert!(called.expect("there is such a program").success(), "{program} {arguments:?}");
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        for process in processes {
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            // After the name of the program: its state, and its parent.
            let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
            if parent == Some(main) {
                // It may just have ended.
                _ = command().args(arguments).arg(process.to_string()).stderr(Stdio::null()).status();
            }
        }
    }

    pub fn log(&self) -> String {
        self.said.log.lock().text.clone()
    }

    /// A program of the server's version, such as `pg_dump`, that connects to this server. `None`:
    /// the server was named by `WATERLINE_PG_BIN`, and came without it.
    pub fn client_program(&self, name: &str) -> Option<Command> {
        let program = self.programs.join(name);
        if std::env::var_os(PROGRAMS).is_some() && !program.is_file() {
            eprintln!("left out, since there is no {}", program.display());
            return None;
        }
        let mut command = Command::new(program);
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "postgres"]);
        Some(command)
    }

    /// The configuration of a connection to this database.
    pub fn config(&self, database: &str) -> Config {
        let mut config = Config::new();
        config.host("127.0.0.1").port(self.port).user("postgres").dbname(database);
        config
    }

    /// Makes a database for one test.
    pub fn database(&self) -> Database {
        let name = format!("t{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let mut client = self.config("postgres").connect(NoTls).expect("the server runs");
        client.batch_execute(&format!("CREATE DATABASE {name}")).expect("the server makes databases");
        Database { config: self.config(&name), name }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(End::Immediate);
        drop(self.watcher.stdin.take());
        _ = self.watcher.wait();
    }
}

pub struct Database {
    pub name: String,
    pub config: Config,
}

impl Database {
    /// A client for the test itself.
    pub fn client(&self) -> Client {
        self.config.connect(NoTls).expect("the server runs")
    }

    /// A store in this database, with its tables.
    pub fn store(&self, options: PgOptions) -> PgStore {
        let store = |options| PgStore::connect(self.config.clone(), NoTls, options).expect("the server runs");
        // On a loaded machine, making the tables takes longer than a call may with a short lease.
        let patient = store(options.clone().ttl(PATIENCE));
        patient.migrate().expect("the database is the test's own");
        store(options)
    }
}

impl Said {
    fn begin(&self) -> u32 {
        let mut log = self.log.lock();
        log.starts += 1;
        log.starts
    }

    fn hear(&self, start: u32, lines: impl BufRead) {
        for line in lines.lines().map_while(Result::ok) {
            let mut log = self.log.lock();
            log.text.push_str(&line);
            log.text.push('\n');
            if line.contains("database system is ready to accept") {
                log.ready = log.ready.max(start);
            }
            self.changed.notify_all();
        }
        let mut log = self.log.lock();
        log.ended = log.ended.max(start);
        self.changed.notify_all();
    }

    /// Waits until the server of this start is ready; false if it ended before.
    fn wait(&self, start: u32) -> bool {
        let mut log = self.log.lock();
        let waits = |log: &mut Log| log.ready < start && log.ended < start;
        let timeout = self.changed.wait_while_for(&mut log, waits, PATIENCE);
        assert!(!timeout.timed_out(), "the server is not ready: {}", log.text);
        log.ready >= start
    }
}

pub fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(sent.expect("there is a program kill").success(), "process {process} gets no {name}");
}

/// A command that runs as this user, if there is one.
fn run_as(owner: Option<(u32, u32)>, program: &Path) -> Command {
    let mut command = Command::new(program);
    if let Some((user, group)) = owner {
        command.uid(user).gid(group);
    }
    command
}

/// The user and the group for the server, if these tests run as root.
fn owner() -> Option<(u32, u32)> {
    let number = |of: &str, name: &str| {
        let output = Command::new("id").args([of, name]).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse::<u32>().ok()
    };
    let own = Command::new("id").arg("-u").output().expect("there is a program id");
    if own.stdout.trim_ascii() != b"0" {
        return None;
    }
    let found = ["postgres", "nobody"].iter().find_map(|name| Some((number("-u", name)?, number("-g", name)?)));
    Some(found.expect("root needs another user for the server: postgres, or nobody"))
}

/// The directory of the server's programs: that of `WATERLINE_PG_BIN`, the newest of a
/// distribution, or that on the PATH.
fn programs() -> PathBuf {
    let named = std::env::var_os(PROGRAMS).map(PathBuf::from);
    let is_named = named.is_some();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let mut versions: Vec<_> = versions.map(|entry| entry.path()).collect();
    versions.sort_by_key(|path| version(path));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = versions.into_iter().rev().map(|path| path.join("bin")).chain(std::env::split_paths(&path));
    let found = found.filter(|_| !is_named);
    let mut found = named.into_iter().chain(found).filter(|bin| bin.join("initdb").is_file());
    // A link leads to the directory that has both programs.
    let real = |bin: PathBuf| Some(bin.join("initdb").canonicalize().ok()?.parent()?.to_owned());
    found.find_map(real).filter(|bin| bin.join("postgres").is_file()).expect(MISSING)
}
