//! A cluster of three nodes without replicas.

use super::{FUNCTIONS, Server};
use std::time::{Duration, Instant};
use waterline_redis::{RedisOptions, RedisStore, redis};

pub struct Cluster {
    pub nodes: Vec<Server>,
}

impl Cluster {
    /// Starts it, with the test's functions and ours, and a store on it.
    pub fn with_store(options: RedisOptions) -> (Self, RedisStore) {
        let cluster = Self::start();
        let store = RedisStore::cluster(cluster.urls(), options).unwrap();
        cluster.nodes.iter().for_each(|node| _ = node.ask(&["FUNCTION", "LOAD", FUNCTIONS]));
        store.migrate().unwrap();
        (cluster, store)
    }

    pub fn start() -> Self {
        let cluster = Self { nodes: (0..3).map(|_| Self::node()).collect() };
        for (node, slots) in cluster.nodes.iter().zip([("0", "5460"), ("5461", "10922"), ("10923", "16383")]) {
            node.ask(&["CLUSTER", "ADDSLOTSRANGE", slots.0, slots.1]);
        }
        cluster.wait();
        cluster
    }

    /// A node that belongs to no cluster yet.
    pub fn node() -> Server {
        Server::start(&[("cluster-enabled", "yes"), ("cluster-node-timeout", "15000")])
    }

    /// Lets another node join, without slots.
    pub fn join(&mut self) {
        self.nodes.push(Self::node());
        self.wait();
    }

    /// Lets all nodes meet the first one, and waits until they know all others. (On a slow machine
    /// a meeting may come to nothing, so they meet again.)
    fn wait(&self) {
        let first = self.nodes[0].port().to_string();
        let mut met = None;
        common::eventually("the nodes know each other", || {
            if met.is_none_or(|met: Instant| met.elapsed() > Duration::from_secs(3)) {
                met = Some(Instant::now());
                self.nodes[1..].iter().for_each(|node| _ = node.ask(&["CLUSTER", "MEET", "127.0.0.1", &first]));
            }
            self.nodes.iter().all(|node| {
                let info = node.text(&["CLUSTER", "INFO"]);
                let knows = |line: &str| info.lines().any(|other| other.trim_end() == line);
                knows("cluster_state:ok") && knows(&format!("cluster_known_nodes:{}", self.nodes.len()))
            })
        });
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    /// The node at this address: `host:port`.
    pub fn at(&self, address: &str) -> &Server {
        self.nodes.iter().find(|node| address == format!("127.0.0.1:{}", node.port())).expect("it is a node")
    }

    /// Moves a slot, key by key, with something to do in the middle.
    pub fn move_slot(&self, slot: u16, from: &Server, to: &Server, half: impl FnOnce()) {
        let id = |node: &Server| node.text(&["CLUSTER", "MYID"]);
        let slot = slot.to_string();
        to.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
        let keys: Vec<String> =
            redis::from_redis_value(from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"])).expect("keys");
        let (port, half_of_them) = (to.port().to_string(), keys.len() / 2);
        let mut half = Some(half);
        for (at, key) in keys.iter().enumerate() {
            if at == half_of_them {
                half.take().into_iter().for_each(|half| half());
            }
            from.ask(&["MIGRATE", "127.0.0.1", &port, key, "0", "10000"]);
        }
        for node in [to, from].into_iter().chain(&self.nodes) {
            node.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)]);
        }
    }
}
