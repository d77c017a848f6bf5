//! Calls of functions: their keys and arguments, what they are told of errors, and the names of
//! queues.

use crate::server::sentinel::follow;
use crate::server::{FUNCTIONS, Server, functions};
use std::time::Duration;
use waterline_redis::redis::{Value, from_redis_value};
use waterline_redis::{Error, RedisOptions, RedisStore};

#[test]
fn arguments_come_back_byte_for_byte() {
    let (_server, store) = Server::with_store(RedisOptions::new());
    let large = vec![0xff; 1 << 20];
    let args = [&b""[..], b"=", b"\0\r\n\xff{}", "é".as_bytes(), &large];
    let back: Vec<Vec<u8>> = from_redis_value(store.fcall("q", "t_echo", &args, true).unwrap()).unwrap();
    assert!(back == args);
}

#[test]
fn queues_of_any_name_have_26_keys_and_are_listed() {
    let names = ["mail", "a:b", "{", "}{", "%7B", "a\nb\0", &"n".repeat(255), "é"];
    let (server, plain) = Server::with_store(RedisOptions::new());
    let store = |options| RedisStore::connect(server.url(), options).unwrap();
    let stores = [plain, store(RedisOptions::new().tag("shop")), store(RedisOptions::new().prefix("w*"))];
    for store in &stores {
        let opened = names.map(|name| store.fcall(name, "t_add", &[], false).unwrap());
        assert_eq!(opened, names.map(|_| Value::Int(1)), "each is a queue of its own");
    }
    server.ask(&["SET", "wl:{x}:job", "no queue"]);
    let mut sorted = names.map(str::to_owned);
    sorted.sort();
    for store in &stores {
        assert_eq!(store.queue_names().unwrap(), sorted);
    }
    server.ask(&["FLUSHALL"]);
    assert_eq!(stores[0].fcall("mail", "t_keys", &[], false).unwrap(), Value::Int(1), "the others follow from it");
    stores[0].keys_of("mail").iter().for_each(|key| _ = server.ask(&["SET", key, "1"]));
    assert_eq!(server.ask(&["DBSIZE"]), Value::Int(26), "all keys differ");
}

#[test]
fn each_word_of_a_server_is_told_with_its_queue_and_cure() {
    let (_server, store) = Server::with_store(RedisOptions::new());
    let say = |text: &str| store.fcall("mail", "t_say", &[text.as_bytes()], false).unwrap_err();
    for (word, passes, cure) in [
        ("MISCONF", true, "cannot write to its disk"),
        ("READONLY", true, "a replica now"),
        ("LOADING", true, "reads its data"),
        ("BUSY", true, "FUNCTION KILL"),
        ("OOM", true, "`maxmemory`"),
        ("NOAUTH", false, "redis://user:password@host"),
        ("NOPERM", false, "ACL SETUSER"),
        ("CLUSTERDOWN", true, "--cluster check"),
        ("MASTERDOWN", true, "bring back the master"),
        ("NOREPLICAS", true, "min-replicas-to-write"),
        ("CROSSSLOT", false, "`RedisOptions::tag`"),
        ("WRONGTYPE", false, "`RedisOptions::prefix`"),
        ("ERR", false, "the log of the server"),
    ] {
        let (error, text) = (say(&format!("{word} of a test")), say(&format!("{word} of a test")).to_string());
        assert!(matches!(&error, Error::Refused { code, .. } if code == word), "{error:?}");
        assert!(text.contains("(queue \"mail\")") && text.contains("of a test") && text.contains(cure), "{text}");
        assert_eq!((error.may_pass(), error.is_unsure()), (passes, false), "{word}");
    }
    let error = say("WQ002 mail j%201 - waterline: no");
    let Error::Function { code, queue, detail, hint, message, .. } = &error else { panic!("{error:?}") };
    let words = [code, queue, detail, hint, message].map(|word| &**word);
    assert_eq!(words, ["WQ002", "mail", "j 1", "", "waterline: no"]);
}

#[test]
fn full_busy_and_lonely_servers_refuse_until_they_are_mended() {
    let (server, store) = Server::with_store(RedisOptions::new());
    let add = || store.fcall("q", "t_add", &[], false);
    let refused = |word: &str| {
        let error = add().unwrap_err();
        assert!(matches!(&error, Error::Refused { code, .. } if code == word), "{error:?}");
    };
    add().unwrap();
    for (setting, bad, good, word) in
        [("maxmemory", "1", "0", "OOM"), ("min-replicas-to-write", "1", "0", "NOREPLICAS")]
    {
        server.ask(&["CONFIG", "SET", setting, bad]);
        refused(word);
        server.ask(&["CONFIG", "SET", setting, good]);
        add().unwrap();
    }
    server.ask(&["CONFIG", "SET", "busy-reply-threshold", "1"]);
    std::thread::scope(|scope| {
        let spins = scope.spawn(|| server.try_ask(&["FCALL", "t_spin", "0"]));
        common::eventually("the server is busy", || server.try_ask(&["PING"]).is_err());
        refused("BUSY");
        server.ask(&["FUNCTION", "KILL"]);
        assert!(spins.join().unwrap().is_err());
    });
    add().unwrap();
}

#[test]
fn calls_that_replicas_do_not_confirm_in_time_are_unsure() {
    let (master, replica) = (Server::start(&[]), Server::start(&[]));
    master.ask(&["FUNCTION", "LOAD", FUNCTIONS]);
    let options = |replicas| RedisOptions::new().replicas(replicas, Duration::from_millis(200));
    let store = |replicas| RedisStore::connect(master.url(), options(replicas)).unwrap();
    let (one, two) = (store(1), store(2));
    one.migrate().unwrap();
    let unsure = |store: &RedisStore, says: &str| {
        let error = store.fcall("q", "t_add", &[], false).unwrap_err();
        assert!(error.is_unsure() && error.to_string().contains(says), "{error}");
    };
    unsure(&one, "0 of 1 replicas");
    follow(&replica, &master);
    assert_eq!(one.fcall("q", "t_add", &[], false).unwrap(), Value::Int(2));
    unsure(&two, "1 of 2 replicas");
    replica.signal("STOP");
    unsure(&one, "0 of 1 replicas");
    assert_eq!(one.fcall("q", "t_count", &[], true).unwrap(), Value::Int(4), "reads wait for nobody");
    replica.signal("CONT");
    common::eventually("the replica comes back", || one.fcall("q", "t_add", &[], false).is_ok());
}

#[test]
fn each_connection_greets_each_queue_once_with_the_start_of_its_server() {
    let server = Server::start(&[]);
    server.ask(&["FUNCTION", "LOAD", FUNCTIONS]);
    server.ask(&["FUNCTION", "LOAD", &functions(1, 1)]);
    let store = RedisStore::connect(server.url(), RedisOptions::new()).unwrap();
    let greeted = |queue: &str| {
        let head = store.place_of(queue).0;
        let key = head.replace(":head", ":seen");
        let run: Vec<String> = from_redis_value(server.ask(&["LRANGE", &key, "0", "-1"])).unwrap();
        run
    };
    let run_id = || {
        let info = server.text(&["INFO", "server"]);
        info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap().trim_end().to_owned()
    };
    let first = run_id();
    for queue in ["a", "b", "a", "b"] {
        store.fcall(queue, "t_add", &[], false).unwrap();
    }
    assert_eq!((greeted("a"), greeted("b")), (vec![first.clone()], vec![first.clone()]));
    server.kill();
    server.start_again();
    common::eventually("the store reconnects", || store.fcall("a", "t_count", &[], true).is_ok());
    assert_ne!(first, run_id());
    assert_eq!(greeted("a"), [first, run_id()]);
}
