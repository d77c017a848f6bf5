//! Queues in Redis or Valkey. There are no streams, and the user's rights decide what may be done.

use super::handles::{self, Handles};
use super::{Backend, Holders, Made, Wanted};
use crate::args::{Change, InRedis};
use crate::error::Fault;
use crate::format::At;
use crate::rows::{self, Consumer, Jobs, Log, Move, ParkedRow, Periodic, Whole, Worker, read};
use waterline_queue::QueueAdmin;
use waterline_redis::{RedisOptions, RedisStore};

/// The error for a URL with a password, which it does not repeat.
const IN_URL: &str =
    "the URL has a password, which everybody sees who lists the processes: set REDISCLI_AUTH, as for redis-cli";
const NO_STREAMS: &str = "there are no streams in Redis: it has queues alone";

pub(crate) struct Redis {
    store: RedisStore,
    /// The addresses, without a user.
    shown: String,
    handles: Handles<QueueAdmin>,
}

impl Redis {
    /// Connects. Loads no functions: the programs of the queues do so.
    pub(crate) fn connect(urls: &str, place: &InRedis) -> Result<Self, Fault> {
        let urls: Vec<_> = urls.split(',').map(|url| url.trim().to_owned()).collect();
        let login = |url: &str| Some(url.split_once("://")?.1.rsplit_once('@')?.0.to_owned());
        let user = login(&urls[0]).unwrap_or_default();
        if urls.iter().filter_map(|url| login(url)).any(|login| login.contains(':')) {
            return Err(Fault::new(IN_URL));
        }
        // A look loses nothing, and the programs have decided about the server.
        let mut options = RedisOptions::new().prefix(&place.redis_prefix).allow_loss();
        if let Some(tag) = &place.tag {
            options = options.tag(tag);
        }
        if let Some(password) = std::env::var("REDISCLI_AUTH").ok().filter(|password| !password.is_empty()) {
            options = options.login(user, password);
        }
        let hosts: Vec<_> =
            urls.iter().map(|url| url.rsplit(['@', '/']).find(|part| part.contains([':', '.']))).collect();
        let shown = hosts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let store = match &place.sentinel {
            Some(name) => RedisStore::sentinel(urls, name, options),
            None if place.cluster => RedisStore::cluster(urls, options),
            None => RedisStore::connect(urls, options),
        };
        Ok(Self { store: store?, shown, handles: Handles::default() })
    }

    fn handle(&self, name: &str) -> Result<QueueAdmin, Fault> {
        self.handles.of(name, || Ok(self.store.queue_admin(name)?))
    }
}

impl Backend for Redis {
    fn consumers(&self) -> Result<Vec<Consumer>, Fault> {
        Ok(Vec::new())
    }

    fn logs(&self) -> Result<Vec<Log>, Fault> {
        Ok(Vec::new())
    }

    fn parked(&self, _: &str) -> Result<Vec<ParkedRow>, Fault> {
        Err(Fault::new(NO_STREAMS))
    }

    fn history(&self, _: &str) -> Result<Vec<Move>, Fault> {
        Err(Fault::new(NO_STREAMS))
    }

    fn queue_names(&self) -> Result<Vec<String>, Fault> {
        Ok(self.store.queue_names()?)
    }

    fn queue(&self, name: &str) -> Result<rows::Queue, Fault> {
        handles::row(self.handle(name)?.look())
    }

    fn jobs(&self, queue: &str, wanted: Wanted<'_>) -> Result<Jobs, Fault> {
        handles::jobs(self.handle(queue)?.look(), wanted)
    }

    fn job(&self, queue: &str, id: &str) -> Result<Option<Whole>, Fault> {
        handles::job(self.handle(queue)?.look(), id)
    }

    fn periodics(&self, queue: &str) -> Result<Vec<Periodic>, Fault> {
        read(self.handle(queue)?.look().periodics()?)
    }

    fn workers(&self, queue: &str) -> Result<Vec<Worker>, Fault> {
        read(self.handle(queue)?.look().workers()?)
    }

    fn left_to_processes(&self) -> &'static str {
        "Gates are known to their processes alone."
    }

    fn unasked(&self) -> &'static str {
        ", whose hook is not asked"
    }

    fn freshness(&self) -> String {
        format!("read from Redis at {}, {}", self.shown, At::now().clock())
    }

    fn holders(&self) -> Holders {
        Holders::Unknown
    }

    fn is_database(&self) -> bool {
        true
    }

    fn hindrance(&self) -> Result<Option<String>, Fault> {
        Ok(None)
    }

    fn change(self: Box<Self>, change: &Change, seen: Option<&str>) -> Result<Made, Fault> {
        match change {
            Change::OfQueue(change) => handles::change(&self.handle(change.queue())?, change, seen),
            Change::RemoveQueue { queue, .. } => Ok(Made::of([("jobs", self.store.remove_queue(queue)?.into())])),
            _ => Err(Fault::new(NO_STREAMS)),
        }
    }
}
