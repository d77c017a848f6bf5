//! A queue by its functions, as a worker in another language calls them.

use crate::server::Server;
use waterline_redis::redis::{self, Value};
use waterline_redis::{RedisOptions, RedisStore};

/// The payload of a job: 100 bytes.
pub const PAYLOAD: &str =
    "\"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456\"";

pub const CLIENTS: usize = 8;

/// A claimed job: its number, and its token.
pub type Held = (i64, i64);

pub struct Queue<'s> {
    server: &'s Server,
    store: RedisStore,
    name: String,
}

impl<'s> Queue<'s> {
    /// Makes a queue on a server without others. `options` are JSON.
    pub fn new(server: &'s Server, options: &str) -> Self {
        server.ask(&["FLUSHALL"]);
        let store = RedisStore::connect(server.url(), RedisOptions::new()).expect("the server runs");
        store.migrate().expect("it takes the functions");
        let queue = Self { server, store, name: "q".to_owned() };
        queue.call("wl_open", &["q", &format!("={options}"), ""]);
        queue
    }

    /// Makes another queue on the same server.
    pub fn beside(&self, name: &str, options: &str) -> Self {
        let queue = Self { name: name.to_owned(), ..self.again() };
        queue.call("wl_open", &[name, &format!("={options}"), ""]);
        queue
    }

    /// The same queue on a connection of its own.
    pub fn again(&self) -> Self {
        let store = RedisStore::connect(self.server.url(), RedisOptions::new()).expect("the server runs");
        Self { server: self.server, store, name: self.name.clone() }
    }

    pub fn call(&self, function: &str, args: &[&str]) -> Value {
        let args: Vec<_> = [""].iter().chain(args).map(|arg| arg.as_bytes()).collect();
        self.store.fcall(&self.name, function, &args, false).unwrap_or_else(|error| panic!("{function}: {error}"))
    }

    pub fn push(&self, jobs: usize) {
        self.push_of("k", jobs);
    }

    pub fn push_of(&self, kind: &str, jobs: usize) {
        let count = jobs.to_string();
        let args: Vec<_> = std::iter::once(&*count).chain((0..jobs).flat_map(|_| [kind, PAYLOAD])).collect();
        self.call("wl_push_plain", &args);
    }

    /// Pushes jobs with these keys.
    pub fn push_keyed(&self, keys: impl IntoIterator<Item = usize>) {
        let settings: Vec<_> = keys.into_iter().map(|key| format!("{{\"key\":\"key {key}\"}}")).collect();
        let count = settings.len().to_string();
        let head = ["0", &count].into_iter();
        let args: Vec<_> = head.chain(settings.iter().flat_map(|own| ["k", PAYLOAD, own])).collect();
        self.call("wl_push", &args);
    }

    /// Ends jobs, and claims up to `most`, of these kinds (none: of all).
    pub fn turn(&self, ends: &[Held], most: usize, kinds: &[&str]) -> Vec<Held> {
        let (most, count, of) = (most.to_string(), ends.len().to_string(), kinds.len().to_string());
        let numbers: Vec<_> = ends.iter().map(|(number, token)| (number.to_string(), token.to_string())).collect();
        let of = if kinds.is_empty() { "" } else { &*of };
        let mut args = vec!["1", &most, "", "", "=w", "0", "", "", "", of];
        args.extend(kinds);
        args.push(&count);
        args.extend(numbers.iter().flat_map(|(number, token)| [&**number, &**token, "finished", "", "", ""]));
        let Value::Array(rows) = self.call("wl_turn", &args) else { panic!("a turn has rows") };
        rows.iter().filter_map(claimed).collect()
    }
}

/// Runs this in several threads, each with its share of the calls.
pub fn in_clients(calls: usize, run: impl Fn(usize, usize) + Sync) {
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let run = &run;
            scope.spawn(move || run(client, calls / CLIENTS));
        }
    });
}

fn claimed(row: &Value) -> Option<Held> {
    let Value::Array(columns) = row else { return None };
    let is_it = matches!(columns.first(), Some(Value::BulkString(what)) if what == b"claimed");
    match (is_it, columns.get(1), columns.get(5)) {
        (true, Some(Value::Int(number)), Some(Value::Int(token))) => Some((*number, *token)),
        _ => None,
    }
}

/// The CPU time that the server has used, in microseconds.
pub fn cpu(server: &Server) -> f64 {
    info(server, "cpu", "used_cpu_user_main_thread") * 1e6 + info(server, "cpu", "used_cpu_sys_main_thread") * 1e6
}

pub fn info(server: &Server, section: &str, name: &str) -> f64 {
    let said: String = redis::from_redis_value(server.ask(&["INFO", section])).expect("it is a text");
    let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("INFO {section} has {name}"))
}

/// The longest call since the last look, in milliseconds: 0.2 if none was longer.
pub fn longest(server: &Server) -> f64 {
    let log: Vec<(i64, i64, f64, Value)> = match server.ask(&["SLOWLOG", "GET", "1000"]) {
        Value::Array(all) => all.into_iter().filter_map(slow).collect(),
        _ => Vec::new(),
    };
    server.ask(&["SLOWLOG", "RESET"]);
    log.iter().map(|entry| entry.2 / 1_000.0).fold(0.2, f64::max)
}

fn slow(entry: Value) -> Option<(i64, i64, f64, Value)> {
    let Value::Array(mut fields) = entry else { return None };
    let (Some(Value::Int(id)), Some(Value::Int(at)), Some(Value::Int(micros))) =
        (fields.first(), fields.get(1), fields.get(2))
    else {
        return None;
    };
    let (id, at, micros) = (*id, *at, *micros);
    Some((id, at, f64::from(i32::try_from(micros).unwrap_or(i32::MAX)), fields.remove(3)))
}
