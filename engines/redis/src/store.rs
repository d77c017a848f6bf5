//! The servers that keep queues, and what can be asked of them.

use crate::address::{self, Node, Urls};
use crate::bells::{Bells, Listening};
use crate::calls::{Arg, Calls, Effect};
use crate::checks::{Persistence, Wanted};
use crate::connection::{Connection, Dial, command};
use crate::error::Error;
use crate::keys::{self, Keys, slot_of};
use crate::library;
use crate::nodes::{How, Nodes};
use crate::options::RedisOptions;
use parking_lot::Mutex;
use redis::{ConnectionInfo, RedisConnectionInfo, Value};
use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Weak};

/// How many keys one call looks at.
const SCANNED: &str = "1000";

/// A Redis or Valkey server that keeps queues, or several. All clones are one store.
///
/// ```no_run
/// use waterline_redis::{RedisOptions, RedisStore};
///
/// # fn main() -> Result<(), waterline_redis::Error> {
/// let store = RedisStore::connect("redis://localhost/0", RedisOptions::new())?;
/// store.migrate()?;
/// println!("{:?} {:?}", store.persistence()?, store.queue_names()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    shared: Arc<Shared>,
}

struct Shared {
    bells: Bells,
    calls: Arc<Calls>,
    options: RedisOptions,
    /// The engine of its queues, while one is open.
    queues: Mutex<Weak<dyn Any + Send + Sync>>,
}

impl RedisStore {
    /// Connects to a server. Of several addresses, the one that is the master is taken, also after
    /// a failover.
    ///
    /// Each new connection looks at its server, and refuses one that cannot keep queues: each error
    /// says what to do. A server with `maxmemory-policy volatile-*` is taken, with a line in the
    /// log.
    ///
    /// # Errors
    /// [`Error::Config`] for a bad address or setting; [`Error::Server`] for a server before Redis
    /// 7.0, one without an append-only file (unless [`allow_loss`](RedisOptions::allow_loss)), one
    /// that evicts keys (`allkeys-*`), a replica, and a node of a cluster;
    /// [`Error::NewerFunctions`] if its functions no longer serve this program; [`Error::Refused`]
    /// for a wrong password or missing rights; [`Error::Lost`] if it cannot be reached.
    pub fn connect(urls: impl Into<Urls>, options: RedisOptions) -> Result<Self, Error> {
        let infos = addresses(urls, &options)?;
        Self::open(How::Servers, infos, options)
    }

    /// Connects to the master of this name, for which the Sentinels at these addresses are asked:
    /// now, and again after each loss.
    ///
    /// The user and the password in the addresses are those for the Sentinels, and those for the
    /// servers are [`login`](RedisOptions::login). The number of the database is that of the first
    /// address. If the addresses are those of TLS, the servers are reached over TLS, too.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); [`Error::Config`] if the Sentinels know no such master.
    pub fn sentinel(urls: impl Into<Urls>, name: &str, options: RedisOptions) -> Result<Self, Error> {
        let infos = addresses(urls, &options)?;
        let database = infos[0].redis_settings().db();
        let servers = infos[0].clone().set_redis_settings(RedisConnectionInfo::default().set_db(database));
        let of_sentinel = |info: ConnectionInfo| {
            let settings = info.redis_settings().clone().set_db(0);
            info.set_redis_settings(settings)
        };
        let sentinels = infos.into_iter().map(of_sentinel).collect();
        Self::open(How::Sentinel { sentinels, name: name.to_owned() }, vec![servers], options)
    }

    /// Connects to a cluster. The addresses are those of some of its nodes, which tell those of
    /// all.
    ///
    /// Each queue is on one node, in the slot of its name or of the [`tag`](RedisOptions::tag). If
    /// that moves, its calls follow.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); [`Error::Config`] for another database than 0.
    pub fn cluster(urls: impl Into<Urls>, options: RedisOptions) -> Result<Self, Error> {
        let infos = addresses(urls, &options)?;
        if let Some(info) = infos.iter().find(|info| info.redis_settings().db() != 0) {
            let what = format!("the address names the database {}", info.redis_settings().db());
            return Err(Error::config(what, "take 0, since a cluster has no other: leave it out"));
        }
        Self::open(How::Cluster, infos, options)
    }

    fn open(how: How, infos: Vec<ConnectionInfo>, options: RedisOptions) -> Result<Self, Error> {
        options.check()?;
        let wanted = Wanted { cluster: matches!(how, How::Cluster), allow_loss: options.allow_loss };
        let nodes = Nodes::new(how, Dial::new(infos, wanted, &options), options.idle);
        let calls = Arc::new(Calls::new(nodes, options.replicas));
        let store = Self {
            shared: Arc::new(Shared {
                bells: Bells::new(&calls),
                calls,
                options,
                queues: Mutex::new(Weak::<()>::new()),
            }),
        };
        store.each_master(|_, _| Ok(()))?;
        Ok(store)
    }

    /// Loads the functions of this crate on each master, or replaces older ones.
    ///
    /// Many processes may call it at once. An older program never replaces the functions of a newer
    /// one. Programs of the version before go on, since new functions of the same first number
    /// serve them, too. So a rolling deployment calls it first, with its first new process.
    ///
    /// It is called again after `FUNCTION FLUSH`, and after a node without them has joined a
    /// cluster.
    ///
    /// # Errors
    /// [`Error::NewerFunctions`] if a newer program has loaded functions that no longer serve this
    /// one; [`Error::Refused`] without the right to `FUNCTION`, `WATCH`, `MULTI` and `INCR`, or if
    /// the server has no memory left; [`Error::Lost`] if a master cannot be reached.
    pub fn migrate(&self) -> Result<(), Error> {
        let prefix = &self.shared.options.prefix;
        let clustered = self.shared.calls.nodes.is_cluster();
        let loaded = self.each_master(|connection, slot| {
            // All who migrate a node of a cluster write the same key, which has to be one of its
            // own.
            let mut keys = (0..u32::MAX).map(|number| format!("{prefix}:{{functions{number}}}"));
            let key = keys.find(|key| !clustered || slot_of(key) == slot).unwrap_or_default();
            library::migrate(connection, &key)
        });
        // Those that have seen the functions before would ask again.
        self.shared.calls.nodes.close_idle();
        loaded
    }

    /// Returns how often the server writes its data to a disk. Of several masters, that of the
    /// worst.
    ///
    /// A server that keeps `CONFIG GET` to itself says only whether it has an append-only file.
    ///
    /// # Errors
    /// [`Error::Lost`] if a master cannot be reached.
    pub fn persistence(&self) -> Result<Persistence, Error> {
        let mut worst = Persistence::Always;
        self.each_master(|connection, _| {
            let facts = connection.facts()?;
            let mut setting = |name| match connection.order(&command("CONFIG", &["GET", name])) {
                Ok(answer) => Ok(redis::from_redis_value::<Vec<String>>(answer).ok().and_then(|mut both| both.pop())),
                Err(Error::Refused { .. }) => Ok(None),
                Err(error) => Err(error),
            };
            let kept = facts.persistence(setting("appendfsync")?.as_deref(), setting("save")?.as_deref());
            worst = worst.max(kept);
            Ok(())
        })?;
        Ok(worst)
    }

    /// Returns the names of all queues with the prefix and the tag of this store, in order.
    ///
    /// It looks at all keys of the servers, a thousand a call, so it is a call for an operator.
    ///
    /// # Errors
    /// [`Error::Lost`] if a master cannot be reached.
    pub fn queue_names(&self) -> Result<Vec<String>, Error> {
        let (prefix, tag) = (&self.shared.options.prefix, self.shared.options.tag.as_deref());
        let pattern = keys::heads(prefix, tag);
        let mut names = BTreeSet::new();
        self.each_master(|connection, _| {
            let mut cursor = "0".to_owned();
            loop {
                let scan = command("SCAN", &[&cursor, "MATCH", &pattern, "COUNT", SCANNED]);
                let answer = connection.order(&scan)?;
                let (next, found): (String, Vec<Vec<u8>>) = redis::from_redis_value(answer)
                    .map_err(|error| Error::odd(connection.server(), error.to_string()))?;
                let heads = found.iter().filter_map(|key| std::str::from_utf8(key).ok());
                names.extend(heads.filter_map(|head| keys::name_of(head, prefix, tag)));
                if next == "0" {
                    return Ok(());
                }
                cursor = next;
            }
        })?;
        Ok(names.into_iter().collect())
    }

    /// Does something with a connection to each master, which has this slot.
    fn each_master(&self, mut call: impl FnMut(&mut Connection, u16) -> Result<(), Error>) -> Result<(), Error> {
        let nodes = &self.shared.calls.nodes;
        for (node, slot) in nodes.masters()? {
            let done = nodes.connection(&node).and_then(|mut connection| {
                let done = call(&mut connection, slot);
                if done.is_ok() {
                    nodes.give(connection);
                }
                done
            });
            done.inspect_err(|_| nodes.doubt(&node))?;
        }
        Ok(())
    }
}

/// What the tests of this crate call. It is no part of the API.
#[doc(hidden)]
impl RedisStore {
    /// Calls a function for this queue.
    pub fn fcall(&self, queue: &str, function: &str, args: &[&[u8]], repeats: bool) -> Result<Value, Error> {
        let args: Vec<_> = args.iter().map(|arg| Arg::Bytes(arg)).collect();
        let effect = if repeats { Effect::Repeats } else { Effect::Confirmed };
        self.shared.calls.fcall(&[&self.keys(queue)], function, &args, effect)
    }

    /// Calls a function for several queues.
    pub fn fcall_across(&self, queues: &[&str], function: &str) -> Result<Value, Error> {
        let keys: Vec<_> = queues.iter().map(|queue| self.keys(queue)).collect();
        self.shared.calls.fcall(&keys.iter().collect::<Vec<_>>(), function, &[Arg::Text("")], Effect::Writes)
    }

    /// Hears the bell of this queue until the answer is dropped.
    pub fn listen(&self, queue: &str, ring: Arc<dyn Fn() + Send + Sync>) -> Result<impl Send + Sync + use<>, Error> {
        let keys = self.keys(queue);
        let listening: Listening = self.shared.bells.listen(&keys.bell, keys.slot, ring)?;
        Ok(listening)
    }

    /// The head and the slot of this queue.
    pub fn place_of(&self, queue: &str) -> (String, u16) {
        let keys = self.keys(queue);
        (keys.keys[0].clone(), keys.slot)
    }

    /// All keys of this queue.
    pub fn keys_of(&self, queue: &str) -> [String; 26] {
        self.keys(queue).keys
    }

    /// The server that has this queue now.
    pub fn node_of(&self, queue: &str) -> Result<String, Error> {
        let node: Result<Node, _> = self.shared.calls.nodes.node_of(self.keys(queue).slot);
        node.map(|node| node.to_string()).map_err(|source| Error::shared(source).about(&[&self.keys(queue)]))
    }
}

impl RedisStore {
    pub(crate) fn queues_or<T: Send + Sync + 'static>(&self, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        let mut queues = self.shared.queues.lock();
        let open = queues.upgrade().and_then(|queues| queues.downcast().ok());
        open.unwrap_or_else(|| {
            let new = make();
            let weak: Weak<T> = Arc::downgrade(&new);
            *queues = weak;
            new
        })
    }

    pub(crate) fn calls(&self) -> &Arc<Calls> {
        &self.shared.calls
    }

    pub(crate) fn options(&self) -> &RedisOptions {
        &self.shared.options
    }

    /// Hears of the changes of this queue until the answer is dropped.
    pub(crate) fn hear(&self, queue: &str, ring: Arc<dyn Fn() + Send + Sync>) -> Result<Listening, Error> {
        let keys = self.keys(queue);
        let channel = format!("{}told", keys.bell.trim_end_matches("bell"));
        self.shared.bells.listen(&channel, keys.slot, ring)
    }

    pub(crate) fn keys(&self, queue: &str) -> Keys {
        Keys::new(&self.shared.options.prefix, self.shared.options.tag.as_deref(), queue)
    }
}

/// Reads the addresses, with the certificates of the options.
#[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "there are none without TLS"))]
fn addresses(urls: impl Into<Urls>, options: &RedisOptions) -> Result<Vec<ConnectionInfo>, Error> {
    let infos = address::read(&urls.into())?;
    #[cfg(feature = "tls")]
    let infos = infos.into_iter().map(|info| options.tls.on(info)).collect::<Result<_, _>>()?;
    Ok(infos)
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("options", &self.shared.options).finish_non_exhaustive()
    }
}
