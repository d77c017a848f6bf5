//! Servers that follow another one, and take its place.

use super::{Server, run_as};
use postgres::{Client, NoTls};

/// The settings of a server with a replica: the replica is back soon after a crash of the server,
/// and finds what it lacks.
pub const FOLLOWED: [(&str, &str); 2] = [("wal_retrieve_retry_interval", "100ms"), ("wal_keep_size", "64MB")];

impl Server {
    /// Starts a replica of this server.
    pub fn replica(&self) -> Self {
        let replica = Self::prepare(&FOLLOWED);
        replica.copy_from(self);
        replica.on_a_free_port()
    }

    /// Makes a server that was stopped a replica of that one.
    pub fn follow(&self, primary: &Self) {
        std::fs::remove_dir_all(self.data()).expect("the directory is ours");
        self.copy_from(primary);
        self.start_again();
    }

    fn copy_from(&self, primary: &Self) {
        let mut copy = run_as(self.owner, &self.programs.join("pg_basebackup"));
        let copy = copy.arg("-D").arg(self.data()).args(["-R", "-X", "stream", "--checkpoint=fast", "--no-sync", "-d"]);
        let from = format!("host=127.0.0.1 port={} user=postgres", primary.port);
        let copied = copy.arg(from).current_dir(&self.directory).output().expect("it is beside the server");
        assert!(copied.status.success(), "pg_basebackup failed: {}", String::from_utf8_lossy(&copied.stderr));
    }

    fn operator(&self) -> Client {
        self.config("postgres").connect(NoTls).expect("the server runs")
    }

    /// From now on each durable commit of this server waits until its replica has it.
    pub fn wait_for_replica(&self) {
        let mut operator = self.operator();
        set(&mut operator, "synchronous_standby_names = '*'");
        let is_there = "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'";
        common::eventually("a replica", || operator.query_one(is_there, &[]).unwrap().get(0));
    }

    /// Lets a replica receive nothing more.
    pub fn unplug(&self) {
        let mut operator = self.operator();
        set(&mut operator, "primary_conninfo = ''");
        let receives = "SELECT count(*) = 0 FROM pg_stat_wal_receiver";
        common::eventually("the end of its connection", || operator.query_one(receives, &[]).unwrap().get(0));
    }

    /// Makes a replica a server of its own, whose commits wait for nobody.
    pub fn promote(&self) {
        let mut operator = self.operator();
        // It has the settings of the server that it is a copy of.
        set(&mut operator, "synchronous_standby_names = ''");
        let promoted = operator.query_one("SELECT pg_promote(true, 600)", &[]).unwrap();
        assert!(promoted.get::<_, bool>(0), "{}", self.log());
        let own = operator.query_one("SELECT pg_is_in_recovery()", &[]).unwrap();
        assert!(!own.get::<_, bool>(0), "it accepts writes");
    }
}

fn set(operator: &mut Client, setting: &str) {
    operator.batch_execute(&format!("ALTER SYSTEM SET {setting}")).unwrap();
    operator.batch_execute("SELECT pg_reload_conf()").unwrap();
    let (name, value) = setting.split_once(" = ").expect("it has a value");
    let shown = format!("SHOW {name}");
    common::eventually("a setting", || {
        let row = operator.query_one(&shown, &[]).unwrap();
        format!("'{}'", row.get::<_, &str>(0)) == value
    });
}
