//! Servers with the functions of the queue, on which each test has keys of its own.

use crate::server::Server;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use waterline_queue::{NewJob, QueueOptions, Retention};
use waterline_redis::redis::{Value, from_redis_value};
use waterline_redis::{Error, RedisOptions, RedisStore};

/// The options of a test that has a server for itself.
pub fn options() -> RedisOptions {
    // A machine that is loaded is slow.
    RedisOptions::new().answer_timeout(Duration::from_secs(30))
}

/// A prefix of one test on the server of the rules, which keeps nothing on a disk.
pub fn bench() -> (&'static Server, RedisOptions) {
    static SERVER: OnceLock<Server> = OnceLock::new();
    static MADE: AtomicU32 = AtomicU32::new(0);
    let server = SERVER.get_or_init(|| {
        // (On a loaded machine a call of the rules may take seconds.)
        let slow = ("busy-reply-threshold", "60000");
        let server = Server::start(&[("appendonly", "no"), ("maxclients", "9000"), slow]);
        RedisStore::connect(server.url(), options().allow_loss()).unwrap().migrate().unwrap();
        server
    });
    let prefix = format!("b{}", MADE.fetch_add(1, Ordering::Relaxed));
    (server, options().allow_loss().prefix(prefix))
}

/// The options of a queue that forgets no job.
pub fn keeping() -> QueueOptions {
    QueueOptions::default().retention(Retention::Keep)
}

/// A job with this id, whose payload is that, too.
pub fn job(id: impl AsRef<str>) -> NewJob {
    let id = id.as_ref();
    NewJob::new("k", id).unwrap().id(id)
}

/// Calls a function as another language does. The argument for a clock is there already.
pub fn call(store: &RedisStore, queue: &str, function: &str, args: &[&[u8]]) -> Result<Value, Error> {
    store.fcall(queue, function, &[&[&b""[..]], args].concat(), false)
}

/// The registers of a queue: the last number is the first one, and the time of the bell the fifth.
pub fn registers(server: &Server, store: &RedisStore, queue: &str) -> Vec<f64> {
    let raw: Vec<u8> = from_redis_value(server.ask(&["HGET", &store.place_of(queue).0, "registers"])).unwrap();
    raw.chunks(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// A job that a worker has: its number, and the token of its lease.
pub type Run = (i64, i64);

/// Does what is due, and claims up to this many jobs, with leases of this length in milliseconds.
pub fn claim_for(store: &RedisStore, queue: &str, most: usize, lease: &str) -> Vec<Run> {
    let most = most.to_string();
    let args = ["1", &most, "", lease, "=w", "1", "", "", "", "", "0"].map(str::as_bytes);
    let rows: Vec<Vec<Value>> = from_redis_value(call(store, queue, "wl_turn", &args).unwrap()).unwrap();
    let claimed = rows.iter().filter(|row| row[0] == Value::BulkString(b"claimed".to_vec()));
    let number = |value: &Value| from_redis_value(value.clone()).unwrap();
    claimed.map(|row| (number(&row[1]), number(&row[5]))).collect()
}

pub fn claim(store: &RedisStore, queue: &str, most: usize) -> Vec<Run> {
    claim_for(store, queue, most, "")
}

/// Renews a lease for a minute. True: it holds.
pub fn renew(store: &RedisStore, queue: &str, (number, token): Run) -> bool {
    let args = ["60000", "", "", "", "1", &number.to_string(), &token.to_string()];
    let held = call(store, queue, "wl_renew", &args.map(str::as_bytes)).unwrap();
    held == Value::Array(vec![Value::Int(number)])
}

/// Finishes a job. True: it counts.
pub fn finish(store: &RedisStore, queue: &str, (number, token): Run) -> bool {
    let (number, token) = (number.to_string(), token.to_string());
    let args = ["0", "0", "", "", "=w", "", "", "", "", "", "1", &number, &token, "finished", "", "", ""];
    let answer = call(store, queue, "wl_turn", &args.map(str::as_bytes)).unwrap();
    let rows: Vec<Vec<Value>> = from_redis_value(answer).unwrap();
    rows[0][0] == Value::BulkString(b"finished".to_vec())
}
