//! A real PgBouncer, as a child of the test's process, between the test and its server. It runs as
//! the same user as the server, in the server's directory, and ends with this value or the test.

use super::{PATIENCE, Server, run_as};
use postgres::Config;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

const MISSING: &str =
    "there is no PgBouncer on this machine: run `bash .ci/setup engines`, or `apt-get install pgbouncer`";

/// A pooler in transaction mode: each transaction gets any connection of the pool.
pub struct Pooler {
    port: u16,
    child: Child,
}

impl Pooler {
    /// Starts one that has this many connections to each database of this server.
    pub fn start(server: &Server, connections: u32) -> Self {
        for number in 0..20 {
            let free = TcpListener::bind(("127.0.0.1", 0)).expect("the loopback has a free port");
            let port = free.local_addr().expect("it is bound").port();
            drop(free);
            let name = format!("pooler-{port}-{number}.ini");
            let settings = format!(
                "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
                 listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
                 server_round_robin = 1\ndefault_pool_size = {connections}\nmax_client_conn = 1000\n",
                server.port()
            );
            server.write_file(&name, &settings);
            // It ends with its input, which ends with this process at the latest.
            let mut child = run_as(server.owner(), Path::new("sh"));
            let watch = "\"$0\" -q \"$1\" & read -r _; kill \"$!\"; wait";
            child.args(["-c", watch]).arg(program()).arg(server.data().join(&name)).process_group(0);
            let child = child.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            let mut pooler = Self { port, child: child.expect("there is a shell") };
            if pooler.is_ready() {
                return pooler;
            }
        }
        panic!("the pooler does not start");
    }

    fn is_ready(&mut self) -> bool {
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if begun.elapsed() > PATIENCE / 6 {
                return false;
            }
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
        true
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The configuration of a connection to this database through the pooler.
    pub fn config(&self, database: &str) -> Config {
        let mut config = Config::new();
        config.host("127.0.0.1").port(self.port).user("postgres").dbname(database);
        config
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        _ = self.child.wait();
    }
}

/// The program: a distribution keeps it where only root finds it.
fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = std::env::split_paths(&path).chain(["/usr/sbin".into()]).map(|bin| bin.join("pgbouncer"));
    all.find(|program| program.is_file()).expect(MISSING)
}
