//! Workers in Rust, Python and Node on one queue. The latter two are those of the page: the files
//! in `examples`, with the handlers of `handlers`.

use crate::bench;
use crate::server::signal;
use postgres::{Client, Config, NoTls};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Once, OnceLock};
use std::time::Duration;

mod protocol;

const NO_PYTHON: &str = "there is no Python with psycopg 3.1 on this machine: run `bash .ci/setup engines`, or \
    `apt-get install python3-psycopg`";
const NO_NODE: &str = "there is no Node with pg 8 on this machine: run `bash .ci/setup engines`, or \
    `apt-get install nodejs node-pg` (with a Node of another source: `npm install --global pg@8`)";

/// Where `pg` is: the folders of a distribution, and of the package managers of Node.
const NODE_PATH: &str = "/usr/share/nodejs:/usr/lib/node_modules:/usr/local/lib/node_modules";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Python,
    Node,
}

impl Language {
    pub const ALL: [Self; 2] = [Self::Python, Self::Node];

    /// The name of its database user, too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
        }
    }

    fn command(self) -> Command {
        let mut command = match self {
            Self::Python => Command::new(python()),
            Self::Node => node(),
        };
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    fn file(self, directory: &str, name: &str) -> PathBuf {
        let ending = if self == Self::Python { "py" } else { "js" };
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory).join(format!("{name}.{ending}"));
        assert!(file.is_file(), "{}", file.display());
        file
    }
}

/// A Python that has psycopg: the packages of a distribution belong to its own Python.
fn python() -> &'static str {
    static FOUND: OnceLock<&str> = OnceLock::new();
    FOUND.get_or_init(|| {
        let has_it = |python: &&str| {
            let version = "import psycopg; assert tuple(map(int, psycopg.__version__.split('.')[:2])) >= (3, 1)";
            let output = Command::new(python).args(["-c", version]).output();
            output.is_ok_and(|output| output.status.success())
        };
        ["/usr/bin/python3", "python3"].into_iter().find(has_it).expect(NO_PYTHON)
    })
}

fn node() -> Command {
    static FOUND: OnceLock<()> = OnceLock::new();
    let command = || {
        let mut command = Command::new("node");
        let given = std::env::var("NODE_PATH").map(|given| format!("{given}:")).unwrap_or_default();
        command.env("NODE_PATH", format!("{given}{NODE_PATH}"));
        command
    };
    FOUND.get_or_init(|| {
        let output = command().args(["-e", "require('pg')"]).output();
        assert!(output.is_ok_and(|output| output.status.success()), "{NO_NODE}");
    });
    command()
}

/// A process that works on a queue. It is killed on drop.
pub struct Worker {
    child: Child,
    said: PathBuf,
}

impl Worker {
    /// Starts a worker. It ends with its input, and so with the process of the test. It writes to a
    /// file of this name.
    pub fn start(mut command: Command, said: PathBuf) -> Self {
        let file = File::options().create(true).append(true).open(&said).unwrap();
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(file).spawn().unwrap();
        Self { child, said }
    }

    /// Starts one in another language, as a user who only has the role of a worker.
    pub fn of(language: Language, url: &str, said: PathBuf, slots: u32, lease: f64, poll: f64) -> Self {
        let mut command = language.command();
        let examples = language.file("examples", "worker").parent().unwrap().to_owned();
        command.arg(language.file("tests/queue/handlers", "handlers")).arg(examples);
        command.arg(url).arg("q").args([slots.to_string(), lease.to_string(), poll.to_string()]);
        Self::start(command, said)
    }

    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// All its output, and that of earlier workers with the same file.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.said).unwrap_or_default()).into_owned()
    }

    fn has_said(&self, what: &str) -> bool {
        self.said().contains(what)
    }

    /// Waits until it has ended by itself.
    pub fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        common::eventually("the end of a worker", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Makes the table for what handlers do, and gives the users of the languages their rights.
pub const RUNS: &str = "
    CREATE TABLE runs (job text NOT NULL, language text, begun timestamptz, ended timestamptz);
    GRANT INSERT ON runs TO python, node;";

pub const USERS: &str = "
    CREATE ROLE python LOGIN IN ROLE waterline_work; CREATE ROLE node LOGIN IN ROLE waterline_work";

/// A database with a queue `q`, users of each language, and a table for what they do.
struct Bench {
    config: Config,
    directory: tempfile::TempDir,
}

impl Bench {
    fn new(options: &str) -> Self {
        let config = bench::bench().config;
        let mut client = config.connect(NoTls).unwrap();
        // Users belong to the whole server.
        static USERS_ARE_THERE: Once = Once::new();
        USERS_ARE_THERE.call_once(|| client.batch_execute(USERS).unwrap());
        client.execute("SELECT waterline.create_queue('q', $1::text::jsonb)", &[&options]).unwrap();
        client.batch_execute(RUNS).unwrap();
        Self { config, directory: tempfile::tempdir().unwrap() }
    }

    fn url(&self, user: &str) -> String {
        let (port, database) = (self.config.get_ports()[0], self.config.get_dbname().unwrap());
        format!("postgresql://{user}@127.0.0.1:{port}/{database}")
    }

    fn worker(&self, language: Language, lease: f64, poll: f64) -> Worker {
        let said = self.directory.path().join(format!("{}.log", language.name()));
        Worker::of(language, &self.url(language.name()), said, 4, lease, poll)
    }

    fn client(&self) -> Client {
        self.config.connect(NoTls).unwrap()
    }
}

fn push(client: &mut Client, kind: &str, payload: &str) -> String {
    client.query_one("SELECT id FROM waterline.push('q', $1, $2)", &[&kind, &payload]).unwrap().get(0)
}

pub fn one<T: for<'a> postgres::types::FromSql<'a>>(client: &mut Client, sql: &str) -> T {
    client.query_one(&format!("SELECT {sql}"), &[]).unwrap().get(0)
}
