//! A process that consumes jobs and writes their rows, which a test stops, kills and resumes.

use crate::bank;
use crate::server::{self, Database, Server};
use common::{LONG, Time, eventually, numbers};
use postgres::{Config, NoTls, Transaction};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use waterline::{Clock, Consumer, Error};
use waterline_postgres::{PgOptions, PgStore};

const PORT: &str = "WATERLINE_MEMBER_PORT";
const DATABASE: &str = "WATERLINE_MEMBER_DATABASE";
const HOLDER: &str = "WATERLINE_MEMBER_HOLDER";
const TTL: &str = "WATERLINE_MEMBER_TTL";
const POOLER: &str = "WATERLINE_MEMBER_POOLER";
const TIMELESS: &str = "WATERLINE_MEMBER_TIMELESS";

/// More jobs than there is time for.
const JOBS: u64 = 100_000;

/// The last word of a fenced member.
const FENCED: &str = "fenced";
const FINISHED: &str = "finished";

/// A process that is killed on drop.
pub struct Member {
    child: Child,
    pub holder: String,
}

impl Member {
    /// Starts a member of this name, which waits while another one has the name of the progress.
    pub fn start(server: &Server, database: &Database, holder: &str, ttl: Duration) -> Self {
        Self::start_as(server, database, holder, ttl, &[])
    }

    /// Starts one for which no time passes, so that it never tries to take the name at its pace.
    pub fn start_timeless(server: &Server, database: &Database, holder: &str, ttl: Duration) -> Self {
        Self::start_as(server, database, holder, ttl, &[(TIMELESS, "1")])
    }

    /// Starts one whose store connects to the pooler at this port.
    pub fn start_behind(port: u16, server: &Server, database: &Database, holder: &str, ttl: Duration) -> Self {
        Self::start_as(server, database, holder, ttl, &[(POOLER, &port.to_string())])
    }

    fn start_as(server: &Server, database: &Database, holder: &str, ttl: Duration, more: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program has a path"));
        child.args(["--exact", "member::member_process", "--nocapture", "--include-ignored"]);
        child.env(PORT, server.port().to_string()).env(DATABASE, &database.name).env(HOLDER, holder);
        child.env(TTL, ttl.as_millis().to_string()).envs(more.iter().copied());
        let child = child.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        Self { child: child.spawn().expect("this program runs"), holder: holder.to_owned() }
    }

    pub fn signal(&self, name: &str) {
        server::signal(self.child.id(), name);
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("it is a child");
        self.child.wait().expect("it is a child");
    }

    /// Waits for its end. Returns its last word.
    pub fn end(mut self) -> (ExitStatus, String) {
        let mut said = String::new();
        let mut out = self.child.stdout.take().expect("it is piped");
        std::io::Read::read_to_string(&mut out, &mut said).expect("it says text");
        (self.child.wait().expect("it is a child"), said)
    }

    #[track_caller]
    pub fn ends_fenced(self) {
        let (status, said) = self.end();
        assert!(status.success() && said.contains(FENCED), "{said}");
    }

    /// Asks it to stop, and waits for its end.
    #[track_caller]
    pub fn stop(self, database: &Database) {
        let name = format!("stop {}", self.holder);
        database.client().batch_execute(&format!("CREATE TABLE \"{name}\" ()")).expect("the server runs");
        self.has_finished();
    }

    /// Asks all members to stop; this one has the name.
    #[track_caller]
    pub fn finish(self, database: &Database) {
        database.client().batch_execute("CREATE TABLE finish ()").expect("the server runs");
        self.has_finished();
    }

    #[track_caller]
    fn has_finished(self) {
        let (status, said) = self.end();
        assert!(status.success() && said.contains(FINISHED), "{said}");
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It may be frozen.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

#[test]
#[ignore = "a child of other tests"]
fn member_process() {
    let Ok(port) = std::env::var(PORT) else { return };
    let number = |name: &str| std::env::var(name).expect("it is set").parse::<u64>().expect("it is a number");
    let mut config = Config::new();
    let port = port.parse().expect("it is a port");
    config.host("127.0.0.1").port(port).user("postgres");
    config.dbname(&std::env::var(DATABASE).expect("it is set"));
    let options = PgOptions::new().ttl(Duration::from_millis(number(TTL)));
    let holder = std::env::var(HOLDER).expect("it is set");
    let options = options.holder(&*holder);
    let mut of_store = Config::new();
    let pooler = std::env::var(POOLER).map_or(port, |port| port.parse().expect("it is a port"));
    of_store.host("127.0.0.1").port(pooler).user("postgres").dbname(&std::env::var(DATABASE).expect("it is set"));
    let store = PgStore::connect(of_store, NoTls, options).expect("the server runs");
    let consumer = Consumer::builder(numbers(JOBS), store.progress("p")).max_processing(4).standby();
    let clock = if std::env::var_os(TIMELESS).is_some() { Time::new().clock() } else { Clock::default() };
    let consumer = consumer.clock(clock);
    // Small transactions, so that there are many moments to stop, and always something left.
    let consumer = consumer
        .max_unwritten(8)
        .start_writing(|job| Ok(job.fence), |tx: &mut Transaction<'_>, results| bank::write(tx, results));
    let consumer = consumer.expect("the database is there");
    let mut client = config.connect(NoTls).expect("the server runs");
    while consumer.handle().wait_end(Duration::from_millis(20)).is_none() {
        let asked = "SELECT 1 FROM pg_tables WHERE tablename IN ('finish', $1)";
        let asked = client.query_opt(asked, &[&format!("stop {holder}")]);
        if asked.expect("the server runs").is_some() {
            consumer.handle().request_stop();
        }
    }
    match consumer.join() {
        Ok(()) => println!("{FINISHED}"),
        Err(Error::Fenced { holder, .. }) => println!("{FENCED}: {holder}"),
        Err(error) => panic!("{error:?}"),
    }
}

/// Waits until this member has the name and has written something.
pub fn writes(database: &Database, holder: &str) {
    let mut client = database.client();
    let before = bank::count(database);
    eventually("rows of the member", || {
        let has = "SELECT 1 FROM waterline.progress WHERE holder = $1 AND expires > clock_timestamp()";
        client.query_opt(has, &[&holder]).expect("the server runs").is_some() && bank::count(database) > before
    });
}

/// Measures how long it takes until this member has the name.
pub fn takes_over(database: &Database, holder: &str) -> Duration {
    let (begun, mut client) = (Instant::now(), database.client());
    eventually("the takeover", || {
        let has = "SELECT 1 FROM waterline.progress WHERE holder = $1 AND expires > clock_timestamp()";
        client.query_opt(has, &[&holder]).expect("the server runs").is_some()
    });
    assert!(begun.elapsed() < LONG);
    begun.elapsed()
}
