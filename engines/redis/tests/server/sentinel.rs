//! A master with a replica, which three Sentinels watch.

use super::{FUNCTIONS, Server};
use waterline_redis::redis;

pub const NAME: &str = "our-master";

pub struct Watched {
    pub servers: [Server; 2],
    pub sentinels: Vec<Server>,
}

impl Watched {
    /// Starts all. The first server is the master. Its functions come to the replica by themselves.
    pub fn start() -> Self {
        let servers = [(); 2].map(|()| Server::start(&[]));
        let port = servers[0].port().to_string();
        servers[0].ask(&["FUNCTION", "LOAD", FUNCTIONS]);
        follow(&servers[1], &servers[0]);
        let sentinel = |_| {
            let sentinel = Server::start_as(&["--sentinel"], &[]);
            sentinel.ask(&["SENTINEL", "MONITOR", NAME, "127.0.0.1", &port, "2"]);
            // It asks each second. A shorter time would take a slow answer for a death.
            sentinel.ask(&["SENTINEL", "SET", NAME, "down-after-milliseconds", "2000"]);
            sentinel
        };
        let watched = Self { servers, sentinels: (0..3).map(sentinel).collect() };
        common::eventually("the Sentinels know each other and the replica", || {
            watched.sentinels.iter().all(|sentinel| {
                let seen: redis::RedisResult<std::collections::HashMap<String, String>> = sentinel
                    .try_ask(&["SENTINEL", "MASTER", NAME])
                    .and_then(|answer| Ok(redis::from_redis_value(answer)?));
                seen.is_ok_and(|seen| seen["num-slaves"] == "1" && seen["num-other-sentinels"] == "2")
            })
        });
        watched
    }

    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }
}

/// Makes one server the replica of another, and waits until it is.
pub fn follow(replica: &Server, master: &Server) {
    follow_at(replica, master, master.port());
}

/// The same, through this port.
pub fn follow_at(replica: &Server, master: &Server, port: u16) {
    replica.ask(&["REPLICAOF", "127.0.0.1", &port.to_string()]);
    common::eventually("the replica follows", || replica.says("replication", "link_status:up"));
    common::eventually("it is seen", || master.says("replication", "state=online"));
}
