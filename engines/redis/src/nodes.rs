//! Which server has which queue: one for all, or in a cluster one for each range of slots. Whoever
//! fails to reach it marks that as doubted, and the next call looks anew.

use crate::address::{self, Node};
use crate::connection::{Connection, Dial, command};
use crate::error::Error;
use crate::keys::SLOTS;
use crate::pool::Pool;
use parking_lot::{Condvar, Mutex};
use redis::{ConnectionInfo, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where the servers are looked for.
#[derive(Debug)]
pub(crate) enum How {
    /// Of these, one is the master.
    Servers,
    Sentinel {
        sentinels: Vec<ConnectionInfo>,
        name: String,
    },
    Cluster,
}

/// The servers, and the connections to them.
#[derive(Debug)]
pub(crate) struct Nodes {
    how: How,
    pub(crate) dial: Dial,
    pool: Pool<Connection>,
    map: Mutex<Map>,
    /// Changes of the map.
    news: Condvar,
    /// One call at a time looks. The error of the last one, for those that waited meanwhile.
    looking: Mutex<Option<(Instant, Arc<Error>)>>,
}

#[derive(Debug, Default)]
struct Map {
    /// The last slot of each range, and its server.
    ranges: BTreeMap<u16, Node>,
    /// Slots that have moved since then.
    moved: BTreeMap<u16, Node>,
    /// This server was not there.
    doubted: Option<Node>,
}

impl Map {
    fn node_of(&self, slot: u16) -> Option<&Node> {
        if self.doubted.is_some() {
            return None;
        }
        self.moved.get(&slot).or_else(|| self.ranges.range(slot..).next().map(|(_, node)| node))
    }
}

impl Nodes {
    pub(crate) fn new(how: How, dial: Dial, idle: Duration) -> Self {
        let (map, news, looking) = (Mutex::default(), Condvar::new(), Mutex::default());
        Self { how, dial, pool: Pool::new(idle), map, news, looking }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.how, How::Cluster)
    }

    /// Returns the server of this slot.
    pub(crate) fn node_of(&self, slot: u16) -> Result<Node, Arc<Error>> {
        let known = || self.map.lock().node_of(slot).map(Arc::clone);
        if let Some(node) = known() {
            return Ok(node);
        }
        let asked = Instant::now();
        let mut failed = self.looking.lock();
        if let Some(node) = known() {
            return Ok(node);
        }
        // Each look has a bound, and so has a call that waits for others.
        if let Some((_, error)) = failed.as_ref().filter(|(since, _)| *since >= asked) {
            return Err(Arc::clone(error));
        }
        match self.look() {
            Ok(ranges) => {
                *failed = None;
                *self.map.lock() = Map { ranges, ..Map::default() };
                self.news.notify_all();
            }
            Err(error) => {
                let error = Arc::new(error);
                *failed = Some((Instant::now(), Arc::clone(&error)));
                return Err(error);
            }
        }
        drop(failed);
        known().ok_or_else(|| {
            let text = format!("no node has the slot {slot}");
            Arc::new(crate::connection::of_answer("the cluster", "CLUSTERDOWN", &text))
        })
    }

    /// Looks for all masters anew. Returns each with one of its slots.
    pub(crate) fn masters(&self) -> Result<Vec<(Node, u16)>, Error> {
        let ranges = self.look()?;
        let mut masters: Vec<(Node, u16)> = Vec::new();
        for (last, node) in &ranges {
            if !masters.iter().any(|(known, _)| known == node) {
                masters.push((Arc::clone(node), *last));
            }
        }
        *self.map.lock() = Map { ranges, ..Map::default() };
        Ok(masters)
    }

    /// The next call looks again for the place of its queue, if there can be another one.
    pub(crate) fn doubt(&self, node: &Node) {
        self.pool.forget(Some(node));
        if self.is_cluster() || matches!(self.how, How::Sentinel { .. }) || self.dial.infos.len() > 1 {
            self.map.lock().doubted = Some(Arc::clone(node));
        }
    }

    /// Notes where a slot is now.
    pub(crate) fn moved(&self, slot: u16, node: Node) {
        self.map.lock().moved.insert(slot, node);
        self.news.notify_all();
    }

    /// Waits until a place has changed, for this time at most.
    pub(crate) fn wait(&self, time: Duration) {
        self.news.wait_for(&mut self.map.lock(), time);
    }

    /// Returns a connection to this server.
    pub(crate) fn connection(&self, node: &Node) -> Result<Connection, Error> {
        if let Some(mut connection) = self.pool.take(node) {
            if connection.is_alive() {
                return Ok(connection);
            }
            self.pool.forget(Some(node));
        }
        self.dial.open(node)
    }

    /// Gives one back that can be used again.
    pub(crate) fn give(&self, connection: Connection) {
        self.pool.give(Arc::clone(&connection.node), connection, Instant::now());
    }

    /// Closes all that are not in use.
    pub(crate) fn close_idle(&self) {
        self.pool.forget(None);
    }

    fn look(&self) -> Result<BTreeMap<u16, Node>, Error> {
        let doubted = self.map.lock().doubted.clone();
        let one = |connection: Connection| {
            let ranges = BTreeMap::from([(SLOTS - 1, Arc::clone(&connection.node))]);
            self.give(connection);
            ranges
        };
        let seeds = self.dial.infos.iter().map(|info| Arc::new(info.addr().clone()));
        match &self.how {
            How::Servers => first(seeds, |node| self.dial.open(&node).map(one)),
            How::Sentinel { sentinels, name } => {
                first(sentinels.iter().cloned(), |sentinel| self.dial.open(&self.master_of(sentinel, name)?).map(one))
            }
            How::Cluster => {
                let mut known: Vec<_> = self.map.lock().ranges.values().cloned().chain(seeds).collect();
                known.sort_by_key(|node| doubted.as_ref() == Some(node));
                first(known, |node| self.slots_of(&node))
            }
        }
    }

    /// Asks a Sentinel for the master.
    fn master_of(&self, sentinel: ConnectionInfo, name: &str) -> Result<Node, Error> {
        let addr = sentinel.addr().clone();
        let mut connection = self.dial.raw(sentinel)?;
        let ask = command("SENTINEL", &["GET-MASTER-ADDR-BY-NAME", name]);
        let answer: Option<(String, u16)> =
            ask.query(&mut connection).map_err(|error| crate::connection::opening(&addr.to_string(), error))?;
        answer.map(|(host, port)| address::like(&addr, &host, port)).ok_or_else(|| {
            let advice = "correct the name, as `sentinel monitor` in the file of the Sentinel gives it";
            Error::config(format!("the Sentinel {addr} knows no master {name:?}"), advice)
        })
    }

    /// Asks a node of the cluster for the ranges of all.
    fn slots_of(&self, node: &Node) -> Result<BTreeMap<u16, Node>, Error> {
        let mut connection = self.dial.raw(self.dial.info(node))?;
        let answer: Value =
            command("CLUSTER", &["SLOTS"]).query(&mut connection).map_err(|error| not_clustered(node, error))?;
        let read = |range: Value| {
            let Value::Array(parts) = range else { return None };
            let [_, Value::Int(last), Value::Array(master), ..] = parts.as_slice() else { return None };
            let [host, Value::Int(port), ..] = master.as_slice() else { return None };
            let host = match host {
                Value::BulkString(host) if !host.is_empty() && host != b"?" => std::str::from_utf8(host).ok()?,
                _ => address::host_of(node)?,
            };
            Some((u16::try_from(*last).ok()?, address::like(node, host, u16::try_from(*port).ok()?)))
        };
        match answer {
            Value::Array(ranges) if !ranges.is_empty() => {
                let read: Option<BTreeMap<_, _>> = ranges.into_iter().map(read).collect();
                read.ok_or_else(|| Error::odd(node, "CLUSTER SLOTS has an odd range"))
            }
            _ => Err(Error::server(node, "knows no slots", "let it join the cluster: `redis-cli --cluster create`")),
        }
    }
}

fn not_clustered(node: &Node, error: redis::RedisError) -> Error {
    if error.detail().is_some_and(|text| text.contains("cluster support disabled")) {
        return Error::server(
            node,
            "is no node of a cluster",
            "connect with `RedisStore::connect`, the tool without `--cluster`",
        );
    }
    crate::connection::opening(&node.to_string(), error)
}

/// Tries one after the other. If all fail, the error is that of the first one that can be reached.
fn first<T, R>(all: impl IntoIterator<Item = T>, mut attempt: impl FnMut(T) -> Result<R, Error>) -> Result<R, Error> {
    let mut failed = None;
    for one in all {
        match attempt(one) {
            Ok(found) => return Ok(found),
            Err(error) if failed.is_none() || matches!(failed, Some(Error::Lost { .. })) => failed = Some(error),
            Err(_) => {}
        }
    }
    Err(failed.unwrap_or_else(|| Error::config("there is no address", "give at least one: redis://localhost")))
}
