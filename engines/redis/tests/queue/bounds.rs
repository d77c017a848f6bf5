//! What one call costs the server: all others wait for it.

use crate::bench::{bench, call, keeping};
use crate::server::Server;
use waterline_queue::NewJob;
use waterline_redis::RedisStore;

/// Metadata of about this many bytes, of shapes that take long to read again and again.
fn shapes(length: usize) -> [String; 5] {
    let many = (0..length / 12).map(|number| format!("\"{number:06}\":1")).collect::<Vec<_>>().join(",");
    [
        format!("{{\"a\":\"{}\"}}", "\\\"".repeat(length / 2)),
        format!("{{\"a\":\"{}\"}}", "\\\\".repeat(length / 2)),
        format!("{{\"a\":[{}1]}}", " ".repeat(length)),
        format!("{{\"a\":1{}}}", " ".repeat(length)),
        format!("{{{many}}}"),
    ]
}

fn info(server: &Server, section: &str, name: &str) -> f64 {
    let said = server.text(&["INFO", section]);
    let value = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    value.trim().parse().unwrap()
}

fn cpu(server: &Server) -> f64 {
    info(server, "cpu", "used_cpu_user_main_thread")
}

#[test]
fn a_large_call_leaves_nothing_in_the_memory_of_the_functions() {
    let (server, store) = Server::with_store(bench().1);
    for name in ["q", "other"] {
        store.queue(name, keeping()).unwrap();
    }
    let push = |queue: &str, payload: &[u8]| call(&store, queue, "wl_push_plain", &[b"1", b"k", payload]).unwrap();
    let used = || info(&server, "memory", "used_memory_vm_functions");
    let before = used();
    push("q", &vec![b'x'; 16 << 20]);
    // That queue has no other call. (Those of any queue collect what is no longer used.)
    common::eventually("the payload is collected", || {
        push("other", b"");
        used() < before + f64::from(8 << 20)
    });
}

/// By the CPU of a server of its own, so other tests do not count.
#[test]
fn metadata_of_any_shape_costs_what_it_is_long() {
    let (_, options) = bench();
    let server = Server::start(&[("appendonly", "no")]);
    let store = RedisStore::connect(server.url(), options).unwrap();
    store.migrate().unwrap();
    let queue = store.queue("q", keeping()).unwrap();
    let cost = |length: usize, at: usize| {
        queue.push(NewJob::new("k", "").unwrap().id("job")).unwrap();
        let meta = &shapes(length)[at];
        let before = cpu(&server);
        for _ in 0..20 {
            // The whole object is read for each member that is set.
            let key = store.place_of("q").0.replace("head", "meta");
            server.ask(&["HSET", &key, &number(&server, &store), meta]);
            let edit = ["job", "", "", "meta", "=b", "=1", "", ""].map(str::as_bytes);
            call(&store, "q", "wl_edit", &edit).unwrap();
        }
        queue.remove("job").unwrap();
        cpu(&server) - before
    };
    for at in 0..shapes(1).len() {
        let (short, long) = (cost(6_000, at), cost(60_000, at));
        println!("shape {at}: {short:.4} s, {long:.4} s");
        // In proportion it is ten times as much, and a hundred if it is read again for each part.
        assert!(long < 40.0 * short.max(0.002), "shape {at}: {short} s of 6 kB, {long} s of 60 kB");
    }
}

/// The number of the job.
fn number(server: &Server, store: &RedisStore) -> String {
    server.text(&["HGET", &store.place_of("q").0.replace("head", "index"), "njob"])
}
