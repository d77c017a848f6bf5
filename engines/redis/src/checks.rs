//! What a server says of itself, and whether it can keep queues. Pure: it is given the text of
//! INFO.

use crate::error::Error;
use redis::Value;
use std::collections::BTreeMap;

/// How often a server writes its data to a disk, the best first.
///
/// The page `operating` says what each loses when the server is killed, or its machine loses power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Persistence {
    /// Before each answer (`appendfsync always`): what was acknowledged is on the disk.
    Always,
    /// Each second (`appendfsync everysec`): a killed server loses what it answered while it
    /// flushed, and a machine without power the last two seconds.
    EachSecond,
    /// It writes an append-only file, and does not say how often it waits for the disk: as
    /// [`EachSecond`](Self::EachSecond) or worse.
    Log,
    /// From time to time all of it: what came since then is lost.
    Snapshots,
    /// Never.
    None,
}

/// The sections of INFO that are read. (Several in one call are new in Redis 7.0. An older server
/// answers with an error, or with the first one.)
pub(crate) const SECTIONS: [&str; 5] = ["server", "memory", "persistence", "replication", "cluster"];

/// What a server says of itself.
#[derive(Debug)]
pub(crate) struct Facts(BTreeMap<String, String>);

/// What a server is connected for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) cluster: bool,
    pub(crate) allow_loss: bool,
}

impl Facts {
    pub(crate) fn read(info: &str) -> Self {
        let lines = info.lines().filter_map(|line| line.trim_end().split_once(':'));
        Self(lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", |value| value)
    }

    /// Changes with each start of the server.
    pub(crate) fn run_id(&self) -> &str {
        self.get("run_id")
    }

    /// True if it may evict keys with a time to live. No key of a queue has one.
    pub(crate) fn evicts_some(&self) -> bool {
        self.get("maxmemory_policy").starts_with("volatile-")
    }

    /// Refuses a server that cannot keep queues, with what to do.
    pub(crate) fn check(&self, server: &str, wanted: Wanted) -> Result<(), Error> {
        let refuse = |what: String, advice: &str| Err(Error::server(server, what, advice));
        let version = self.get("redis_version");
        let is_valkey = self.0.contains_key("valkey_version");
        // Valkey begins with 7.2, and says that it is Redis 7.2.4.
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        match major {
            None => return Err(Error::odd(server, "INFO has no version")),
            Some(..7) if !is_valkey => {
                return refuse(format!("is Redis {version}"), "upgrade it to Redis 7.0 or Valkey 7.2, or a later one");
            }
            Some(_) => {}
        }
        let clustered = self.get("cluster_enabled") == "1";
        if clustered && !wanted.cluster {
            return refuse(
                "is a node of a cluster".to_owned(),
                "connect with `RedisStore::cluster`, the tool with `--cluster`",
            );
        }
        if !clustered && wanted.cluster {
            return refuse(
                "is no node of a cluster".to_owned(),
                "connect with `RedisStore::connect`, the tool without `--cluster`",
            );
        }
        if self.get("role") != "master" {
            return refuse(
                format!("is a replica of {}:{}", self.get("master_host"), self.get("master_port")),
                "connect to the master, give the addresses of all servers, or connect with `RedisStore::sentinel`, the \
                 tool with `--sentinel`",
            );
        }
        let policy = self.get("maxmemory_policy");
        if policy.starts_with("allkeys-") {
            return refuse(
                format!("evicts any key when it is full (`maxmemory-policy {policy}`), jobs among them"),
                "CONFIG SET maxmemory-policy noeviction, also in its file, and give a cache a server of its own",
            );
        }
        // A server that hides this section says nothing at all.
        if self.get("aof_enabled") != "1" && !wanted.allow_loss {
            return refuse(
                "has no append-only file, so it loses jobs when it dies".to_owned(),
                "CONFIG SET appendonly yes, also in its file; or take the loss with `RedisOptions::allow_loss`",
            );
        }
        Ok(())
    }

    /// `appendfsync` and `save` are those of CONFIG GET, if the server tells them.
    pub(crate) fn persistence(&self, appendfsync: Option<&str>, save: Option<&str>) -> Persistence {
        match (self.get("aof_enabled"), appendfsync) {
            ("1", Some("always")) => Persistence::Always,
            ("1", Some("everysec")) => Persistence::EachSecond,
            ("1", _) => Persistence::Log,
            // Without CONFIG, one that was made shows that they are made.
            _ if save.map_or(self.get("rdb_saves").starts_with(|first| first > '0'), |save| !save.is_empty()) => {
                Persistence::Snapshots
            }
            _ => Persistence::None,
        }
    }
}

/// The version of functions, and the oldest version of a program that they serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) found: i64,
    pub(crate) serves: i64,
}

/// The version of the functions that this program brings: as `wl_version` says.
pub(crate) const NEWEST: i64 = 1;

impl Version {
    /// Reads the answer of `wl_version`.
    pub(crate) fn of(answer: &Value) -> Option<Self> {
        let Value::Array(parts) = answer else { return None };
        let [Value::Int(found), Value::Int(serves)] = parts[..] else { return None };
        Some(Self { found, serves })
    }

    /// Refuses functions of a newer version that do not serve this program.
    pub(crate) fn check(self, server: &str) -> Result<(), Error> {
        if self.found > NEWEST && self.serves > NEWEST {
            return Err(Error::NewerFunctions { server: server.to_owned(), found: self.found, known: NEWEST });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\nmaxmemory_policy:noeviction\r\n\
        aof_enabled:1\r\nrdb_saves:0\r\nrole:master\r\nmaster_host:here\r\nmaster_port:2\r\ncluster_enabled:0\r\n";

    #[test]
    fn each_unfit_server_is_refused_with_what_to_do() {
        let check = |(from, to): (&str, &str), cluster, allow_loss| {
            let facts = Facts::read(&GOOD.replace(from, to));
            facts.check("h:1", Wanted { cluster, allow_loss }).map_err(|error| error.to_string())
        };
        let same = ("", "");
        for (change, cluster, allow_loss) in [
            (same, false, false),
            (("7.0.15", "8.2.0"), false, false),
            (("7.0.15", "10.0.0"), false, false),
            (("7.0.15", "7.2.4\r\nvalkey_version:7.2.5"), false, false),
            (("noeviction", "volatile-lru"), false, false),
            (("aof_enabled:1", "aof_enabled:0"), false, true),
            (("cluster_enabled:0", "cluster_enabled:1"), true, false),
        ] {
            assert_eq!(check(change, cluster, allow_loss), Ok(()), "{change:?}");
        }
        for (change, cluster, says) in [
            (("7.0.15", "6.2.14"), false, "is Redis 6.2.14: upgrade it to Redis 7.0"),
            (("redis_version:7.0.15\r\n", ""), false, "INFO has no version"),
            (("noeviction", "allkeys-lru"), false, "CONFIG SET maxmemory-policy noeviction"),
            (("noeviction", "allkeys-random"), false, "jobs among them"),
            (("aof_enabled:1", "aof_enabled:0"), false, "`RedisOptions::allow_loss`"),
            (("aof_enabled:1\r\n", ""), false, "CONFIG SET appendonly yes"),
            (("role:master", "role:slave"), false, "is a replica of here:2: connect to the master"),
            (("cluster_enabled:0", "cluster_enabled:1"), false, "`RedisStore::cluster`"),
            (same, true, "`RedisStore::connect`"),
        ] {
            let text = check(change, cluster, false).unwrap_err();
            assert!(text.contains(says) && text.contains("h:1"), "{change:?}: {text}");
        }
    }

    #[test]
    fn what_a_server_keeps_is_known_as_far_as_it_says() {
        let (with, without) = (GOOD.to_owned(), GOOD.replace("aof_enabled:1", "aof_enabled:0"));
        for (info, appendfsync, save, kept) in [
            (&with, Some("always"), Some(""), Persistence::Always),
            (&with, Some("everysec"), Some(""), Persistence::EachSecond),
            (&with, Some("no"), Some("60 1"), Persistence::Log),
            (&with, None, None, Persistence::Log),
            (&without, Some("always"), Some("60 1"), Persistence::Snapshots),
            (&without, Some("always"), Some(""), Persistence::None),
            (&without, None, None, Persistence::None),
            (&without.replace("rdb_saves:0", "rdb_saves:12"), None, None, Persistence::Snapshots),
        ] {
            assert_eq!(Facts::read(info).persistence(appendfsync, save), kept, "{appendfsync:?} {save:?}");
        }
        assert!(Persistence::Always < Persistence::None);
        assert_eq!((Facts::read(GOOD).run_id(), Facts::read(GOOD).evicts_some()), ("abc", false));
    }

    #[test]
    fn functions_that_no_longer_serve_this_program_are_refused() {
        let version = |found, serves| Version { found, serves };
        assert_eq!(Version::of(&Value::Array(vec![Value::Int(2), Value::Int(1)])), Some(version(2, 1)));
        assert_eq!([Version::of(&Value::Int(2)), Version::of(&Value::Array(vec![]))], [None, None]);
        let refused = [version(NEWEST + 1, NEWEST + 1), version(NEWEST + 9, NEWEST + 2)];
        let taken = [version(NEWEST - 1, 0), version(NEWEST, NEWEST), version(NEWEST + 9, NEWEST)];
        assert!(refused.iter().all(|version| version.check("h").is_err()));
        assert!(taken.iter().all(|version| version.check("h").is_ok()));
    }
}
