//! Servers that follow another one, and take its place.

use super::{Server, run_as};
use postgres::{Client, NoTls};
use std::path::Path;

/// The settings of a server with a replica, which is soon back after a crash and can catch up.
pub const FOLLOWED: [(&str, &str); 2] = [("wal_retrieve_retry_interval", "100ms"), ("wal_keep_size", "64MB")];

impl Server {
    pub fn replica(&self) -> Self {
        let replica = Self::prepare(&FOLLOWED);
        replica.copy_from(self);
        replica.on_a_free_port()
    }

    /// Makes a stopped server a replica of that one.
    pub fn follow(&self, primary: &Self) {
        std::fs::remove_dir_all(self.data()).expect("the directory is ours");
        self.copy_from(primary);
        self.start_again();
    }

    fn copy_from(&self, primary: &Self) {
        let program = self.programs.join("pg_basebackup");
        if !program.is_file() {
            return self.copy_by_hand(primary);
        }
        let mut copy = run_as(self.owner, &program);
        let copy = copy.arg("-D").arg(self.data()).args(["-R", "-X", "stream", "--checkpoint=fast", "--no-sync", "-d"]);
        let copied = copy.arg(followed(primary)).current_dir(&self.directory).output().expect("it is there");
        assert!(copied.status.success(), "pg_basebackup failed: {}", String::from_utf8_lossy(&copied.stderr));
    }

    /// Does what `pg_basebackup` does, for a server whose distribution lacks it.
    fn copy_by_hand(&self, primary: &Self) {
        let mut operator = primary.operator();
        let version: i32 = operator.query_one("SELECT current_setting('server_version_num')::int", &[]).unwrap().get(0);
        let (begin, end) = if version < 150_000 {
            ("SELECT pg_start_backup('copy', true, false)", "SELECT labelfile FROM pg_stop_backup(false, false)")
        } else {
            ("SELECT pg_backup_start('copy', true)", "SELECT labelfile FROM pg_backup_stop(false)")
        };
        operator.query_one(begin, &[]).unwrap();
        // Files may come and go meanwhile. The log that the server sends has all of them.
        let copied = run_as(self.owner, Path::new("cp")).arg("-a").args([primary.data(), self.data()]).output();
        copied.expect("there is a program cp");
        let label: String = operator.query_one(end, &[]).unwrap().get(0);
        let log = self.data().join("pg_wal");
        for entry in std::fs::read_dir(log).expect("it was copied").flatten() {
            _ = std::fs::remove_file(entry.path());
        }
        std::fs::remove_file(self.data().join("postmaster.pid")).expect("the server runs");
        self.write_file("backup_label", &label);
        self.write_file("standby.signal", "");
        let settings = std::fs::read_to_string(primary.data().join("postgresql.auto.conf")).expect("it is there");
        self.write_file("postgresql.auto.conf", &format!("{settings}primary_conninfo = '{}'\n", followed(primary)));
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

    /// Makes a replica receive nothing more.
    pub fn unplug(&self) {
        let mut operator = self.operator();
        set(&mut operator, "primary_conninfo = ''");
        let receives = "SELECT count(*) = 0 FROM pg_stat_wal_receiver";
        common::eventually("the end of its connection", || operator.query_one(receives, &[]).unwrap().get(0));
    }

    /// Makes a replica a server of its own, whose commits wait for no replica.
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

/// The address to which a replica of this server connects.
fn followed(primary: &Server) -> String {
    format!("host=127.0.0.1 port={} user=postgres", primary.port)
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
