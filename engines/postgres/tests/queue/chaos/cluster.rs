//! A server and its replica, the workers on them with a proxy each, and what happens to both.

use super::pushing::Pusher;
use super::settings::{Event, LEASE, options};
use super::workers;
use crate::languages::{self, Language, Worker};
use crate::proxy::Proxy;
use crate::server::replica::FOLLOWED;
use crate::server::{End, PATIENCE, Server};
use postgres::config::TargetSessionAttrs;
use postgres::{Client, Config, NoTls};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use waterline_postgres::{PgOptions, PgStore};

/// The users of the workers in the database.
pub const USERS: [&str; 4] = ["rust", "writer", "python", "node"];

/// The size in bytes beyond which no table grows on a full disk, and beyond which no file of the
/// log, which has 1 MiB, can be written.
const FULL: u64 = 1 << 20;
const FULL_LOG: u64 = 1 << 19;
/// Enough rows of ended jobs that the next one is beyond that.
const OLD: &str = "INSERT INTO waterline.ended (number, queue, kind, payload, pushed, since, place, priority, died)
    SELECT -n, 0, '', repeat('x', 1800), 0, 0, 0, 0, false FROM generate_series(1, 800) n";

/// A configuration for a client that finds the writable one of these servers.
pub fn both(servers: [&Server; 2], database: &str) -> Config {
    let mut config = Config::new();
    for server in servers {
        config.host("127.0.0.1").port(server.port());
    }
    config.user("postgres").dbname(database).target_session_attrs(TargetSessionAttrs::ReadWrite);
    config
}

pub struct Cluster {
    /// The second one is the replica of the first, or it was.
    servers: [Server; 2],
    primary: usize,
    database: String,
    /// The proxies of each worker, one for each server. The driver of Node knows one address: that
    /// of a proxy that points to the current server.
    proxies: Vec<[Option<Proxy>; 2]>,
    ports: Vec<[u16; 2]>,
    directory: tempfile::TempDir,
}

impl Cluster {
    /// Starts a server with a queue, and a replica that each commit waits for.
    pub fn start(seed: u64) -> Self {
        let server = Server::start(&FOLLOWED);
        let database = server.database();
        let store = PgStore::connect(database.config.clone(), NoTls, PgOptions::new()).unwrap();
        store.migrate().unwrap();
        drop(store.queue("q", options()).unwrap());
        let mut client = database.client();
        for sql in [
            languages::USERS,
            languages::RUNS,
            OLD,
            "CREATE ROLE rust LOGIN SUPERUSER; CREATE ROLE writer LOGIN SUPERUSER",
            "CREATE TABLE started (language name PRIMARY KEY, at timestamptz)",
        ] {
            client.batch_execute(sql).unwrap();
        }
        let replica = server.replica();
        server.wait_for_replica();
        let proxies = USERS.map(|user| {
            let second = (user != "node").then(|| Proxy::start(replica.port(), 0, seed));
            [Some(Proxy::start(server.port(), 0, seed)), second]
        });
        let ports = proxies.iter().map(|two| two.each_ref().map(|one| one.as_ref().map_or(0, Proxy::port)));
        let (ports, proxies) = (ports.collect(), proxies.into());
        let directory = tempfile::tempdir().unwrap();
        Self { servers: [server, replica], primary: 0, database: database.name, proxies, ports, directory }
    }

    /// A configuration for a client that finds the writable server.
    pub fn config(&self) -> Config {
        both(self.servers.each_ref(), &self.database)
    }

    pub fn server(&self) -> &Server {
        &self.servers[self.primary]
    }

    pub fn client(&self) -> Client {
        self.server().config(&self.database).connect(NoTls).unwrap()
    }

    pub fn logs(&self) -> String {
        self.servers.each_ref().map(Server::log).concat()
    }

    /// The ids of the jobs that runners were told have finished.
    pub fn told(&self) -> Vec<String> {
        let told = ["rust", "writer"].map(|user| std::fs::read_to_string(self.file(user, "told")).unwrap_or_default());
        told.concat().lines().map(str::to_owned).collect()
    }

    fn file(&self, user: &str, ending: &str) -> PathBuf {
        self.directory.path().join(format!("{user}.{ending}"))
    }

    pub fn worker(&self, at: usize) -> Worker {
        let note = "INSERT INTO started VALUES ($1, clock_timestamp())
            ON CONFLICT (language) DO UPDATE SET at = excluded.at";
        let (user, database, [first, second]) = (USERS[at], &self.database, self.ports[at]);
        self.client().execute(note, &[&user]).unwrap();
        let said = self.file(user, "log");
        let both = format!(
            "postgresql://{user}@127.0.0.1:{first},127.0.0.1:{second}/{database}?target_session_attrs=read-write"
        );
        let lease = LEASE.as_secs_f64();
        match user {
            "python" => Worker::of(Language::Python, &both, said, workers::SLOTS, lease, 0.5),
            "node" => {
                let url = format!("postgresql://{user}@127.0.0.1:{first}/{database}");
                Worker::of(Language::Node, &url, said, workers::SLOTS, lease, 0.5)
            }
            _ => Worker::start(workers::command(&both, user, &self.file(user, "told")), said),
        }
    }

    /// Makes an event happen. `again`: there will be another failover.
    pub fn bring_about(&mut self, event: Event, of: usize, workers: &mut [Worker], pusher: &Pusher, again: bool) {
        let more = || pusher.push(1);
        match event {
            Event::Kill => {
                workers[of].kill();
                workers[of] = self.worker(of);
            }
            Event::Stop => {
                workers[of].signal("STOP");
                std::thread::park_timeout(LEASE + Duration::from_millis(300));
                workers[of].signal("CONT");
            }
            Event::Disconnect => {
                let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1";
                self.client().execute(cut, &[&USERS[of]]).unwrap();
            }
            Event::CutEnd(answer) => {
                // That of the writable server.
                let at = if self.proxies[of][1].is_some() { self.primary } else { 0 };
                let proxy = self.proxies[of][at].as_ref().expect("its server runs");
                proxy.cut_end(answer);
                self.until("an end that is cut", more, |_| proxy.has_cut_end());
            }
            Event::Crash => {
                self.server().stop(End::Immediate);
                self.server().start_again();
            }
            Event::FullDisk => {
                let said = self.server().log().matches(NO_ROOM).count();
                self.server().bound_files_now(Some(FULL));
                self.until("a table that cannot grow", more, |server| server.log().matches(NO_ROOM).count() > said);
                std::thread::park_timeout(Duration::from_millis(200));
                self.server().bound_files_now(None);
            }
            Event::FullLog => {
                let said = self.server().log().matches("PANIC:").count();
                self.server().bound_files_now(Some(FULL_LOG));
                self.until("the end of the server", more, |server| server.log().matches("PANIC:").count() > said);
                self.server().stop(End::Immediate);
                self.server().start_again();
            }
            Event::Failover => self.fail_over(again),
        }
    }

    fn fail_over(&mut self, again: bool) {
        let (old, new) = (self.primary, 1 - self.primary);
        self.server().stop(End::Immediate);
        // The old server is down.
        self.proxies.iter_mut().filter(|two| two[1].is_some()).for_each(|two| two[old] = None);
        self.servers[new].promote();
        self.primary = new;
        let port = self.server().port();
        self.proxies.iter().filter(|two| two[1].is_none()).flat_map(|two| &two[0]).for_each(|one| one.point_to(port));
        if again {
            self.servers[old].follow(&self.servers[new]);
            self.servers[new].wait_for_replica();
            let server = self.servers[old].port();
            for (two, ports) in self.proxies.iter_mut().zip(&self.ports).filter(|(two, _)| two[new].is_some()) {
                if two[old].is_none() && ports[old] != 0 {
                    two[old] = Some(Proxy::start_at(ports[old], server, 0, 0));
                }
            }
        }
    }

    /// Waits for something that the workers bring about.
    fn until(&self, what: &str, more: impl Fn(), is_true: impl Fn(&Server) -> bool) {
        let begun = Instant::now();
        while !is_true(self.server()) {
            assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}: {}", self.server().log());
            more();
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }
}

/// The line of the server's log if a table cannot grow.
const NO_ROOM: &str = "could not extend file";

/// Waits until a worker has asked for jobs since its start.
pub fn wait_for_work(client: &mut Client, user: &str) {
    // The server may not have seen yet that the previous one was killed.
    let claims = "SELECT EXISTS (SELECT FROM pg_stat_activity JOIN started ON language = usename AND backend_start > at
        WHERE usename = $1 AND query ~ 'waterline.work|turn')";
    common::eventually("a worker that is at work", || client.query_one(claims, &[&user]).unwrap().get(0));
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for user in USERS {
                let said = std::fs::read(self.file(user, "log")).unwrap_or_default();
                let said = String::from_utf8_lossy(&said).into_owned();
                let last: Vec<_> = said.lines().rev().take(30).collect();
                println!("{user} said:\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n"));
            }
        }
    }
}
