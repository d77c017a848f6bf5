//! The functions, and their versions.

use crate::server::proxy::{Fate, Proxy};
use crate::server::{FUNCTIONS, Server, ask_at, functions};
use waterline_redis::redis::Value;
use waterline_redis::{Error, RedisOptions, RedisStore};

fn version(server: &Server) -> String {
    format!("{:?}", server.ask(&["FCALL", "wl_version", "0", ""]))
}

#[test]
fn older_functions_are_replaced_and_newer_ones_stay() {
    for (found, stays) in [(None, false), (Some(0), false), (Some(1), true), (Some(9), true)] {
        let server = Server::start(&[]);
        if let Some(found) = found {
            server.ask(&["FUNCTION", "LOAD", &functions(found, found.min(1))]);
        }
        let store = RedisStore::connect(server.url(), RedisOptions::new()).unwrap();
        let before = found.map(|_| version(&server));
        store.migrate().unwrap();
        store.migrate().unwrap();
        assert_eq!(before.as_deref() == Some(&version(&server)), stays, "{found:?}");
    }
    let server = Server::start(&[]);
    let store = RedisStore::connect(server.url(), RedisOptions::new()).unwrap();
    server.ask(&["FUNCTION", "LOAD", &functions(9, 2)]);
    assert!(matches!(store.migrate(), Err(Error::NewerFunctions { .. })));
    assert!(version(&server).contains("int(9)"));
    let refused = RedisStore::connect(server.url(), RedisOptions::new()).map(drop).unwrap_err();
    assert!(refused.to_string().contains("have version 9"), "{refused}");
}

#[test]
fn an_older_program_replaces_no_newer_functions_that_come_between_its_steps() {
    for word in ["MULTI", "EXEC"] {
        let server = Server::start(&[]);
        server.ask(&["FUNCTION", "LOAD", &functions(0, 0)]);
        let proxy = Proxy::start(server.port());
        let store = RedisStore::connect(proxy.url(), RedisOptions::new()).unwrap();
        let url = server.url();
        let newer = move || {
            ask_at(&url, &["FUNCTION", "LOAD", "REPLACE", &functions(9, 1)]).unwrap();
            ask_at(&url, &["INCR", "wl:{functions0}"]).unwrap();
        };
        proxy.next(word, Fate::After(Box::new(newer)));
        store.migrate().unwrap();
        assert!(proxy.is_done() && version(&server).contains("int(9)"), "{word}: {}", version(&server));
    }
}

#[test]
fn many_processes_migrate_at_once() {
    let server = Server::start(&[]);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| RedisStore::connect(server.url(), RedisOptions::new()).unwrap().migrate().unwrap());
        }
    });
    server.ask(&["FCALL", "wl_version", "0", ""]);
}

#[test]
fn calls_without_functions_name_the_queue_and_the_cure_and_go_on_afterwards() {
    let server = Server::start(&[]);
    server.ask(&["FUNCTION", "LOAD", FUNCTIONS]);
    let store = RedisStore::connect(server.url(), RedisOptions::new()).unwrap();
    let add = || store.fcall("mail", "t_add", &[], false);
    let is_told = || {
        let error = add().unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Functions { .. }) && error.may_pass(), "{error:?}");
        assert!(text.contains("(queue \"mail\")") && text.contains("call `RedisStore::migrate`"), "{text}");
    };
    is_told();
    server.ask(&["FUNCTION", "LOAD", &functions(0, 0)]);
    is_told();
    // Another process does it: this one needs no new connection.
    let other = RedisStore::connect(server.url(), RedisOptions::new()).unwrap();
    other.migrate().unwrap();
    add().unwrap();
    server.ask(&["FUNCTION", "FLUSH"]);
    is_told();
    is_told();
    server.ask(&["FUNCTION", "LOAD", FUNCTIONS]);
    other.migrate().unwrap();
    server.ask(&["SCRIPT", "FLUSH"]);
    assert_eq!(add().unwrap(), Value::Int(2));
}

#[test]
fn a_full_server_and_a_user_without_the_right_migrate_nothing() {
    let server = Server::start(&[("user", "app on >pw ~wl:* &wl:* +@all -function|load")]);
    let store = RedisStore::connect(server.url(), RedisOptions::new().login("app", "pw")).unwrap();
    let refused = |store: &RedisStore, word: &str| {
        let error = store.migrate().unwrap_err();
        assert!(matches!(&error, Error::Refused { code, .. } if code == word), "{error:?}");
    };
    refused(&store, "NOPERM");
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    refused(&RedisStore::connect(server.url(), RedisOptions::new()).unwrap(), "OOM");
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    RedisStore::connect(server.url(), RedisOptions::new()).unwrap().migrate().unwrap();
}
