//! The bells of limits: which ends ring, and which claims answer.

use crate::bounds::{TICK, bury, count, finish, push_many, run};
use crate::calls::{claim, client};
use postgres::{Client, NoTls};

#[test]
fn ends_ring_once_at_each_limit_of_their_job() {
    let limits = r#"{"limits": [{"of": "kind", "name": "k", "at_once": 99}, {"of": "key", "name": "a", "at_once": 50},
        {"of": "key", "name": "fast", "rate": {"count": 1000, "per_ns": 1}}]}"#;
    type End = fn(&mut Client, (Vec<i64>, Vec<i64>));
    let ends: [(&str, End); 5] = [
        ("they finish", finish),
        ("they fail", bury),
        ("they are purged", |client, _| run(client, "SELECT waterline.steer('q', 'purge', 'running')")),
        ("their leases end", |client, _| {
            run(client, &format!("SET waterline.now = '1060001'; {TICK}; SET waterline.now = '1000000'"));
        }),
        ("one is removed", |client, (jobs, _)| {
            let remove = "SELECT waterline.steer('q', 'remove', '~' || $1::bigint::text)";
            jobs.iter().for_each(|job| _ = client.query(remove, &[job]).unwrap());
        }),
    ];
    for (how, end) in ends {
        for (settings, rings) in [
            ("{}", &["tk"][..]),
            (r#"{"key": "b"}"#, &["tk"]),
            (r#"{"key": "a"}"#, &["ka", "tk"]),
            (r#"{"key": "fast"}"#, &["tk"]),
        ] {
            let (_, mut client) = client(limits);
            let many = if how == "one is removed" { 1 } else { 40 };
            push_many(&mut client, many, settings);
            let claimed = claim(&mut client, many);
            assert_eq!(claimed.0.len(), usize::try_from(many).unwrap());
            run(&mut client, "DELETE FROM waterline.freed");
            end(&mut client, claimed);
            let rung = client.query("SELECT name FROM waterline.freed ORDER BY name", &[]).unwrap();
            let rung: Vec<String> = rung.iter().map(|row| row.get(0)).collect();
            assert_eq!(rung, rings, "{how}: {settings}");
        }
    }
    // If the limit of each key does not bound the jobs at once, no key rings.
    let (_, mut client) = client(r#"{"limits": [{"of": "each_key", "rate": {"count": 1000, "per_ns": 1}}]}"#);
    push_many(&mut client, 9, r#"{"key": "a"}"#);
    let claimed = claim(&mut client, 9);
    run(&mut client, "DELETE FROM waterline.freed");
    finish(&mut client, claimed);
    assert_eq!(count(&mut client, "freed"), 0);
}

#[test]
fn limits_get_turns_in_a_flood_and_equal_bells_are_merged() {
    let (_, mut client) = client(r#"{"retention_ms": 0, "limits": [{"of": "kind", "name": "rare", "at_once": 1}]}"#);
    let mut made = 0;
    let mut flood = |client: &mut Client, many: i32| {
        made += many;
        let push = "SELECT count(*) FROM waterline.push_many('q', array_fill('k'::text, ARRAY[$1::int]), array_fill('1'::text, ARRAY[$1::int]),
            ARRAY(SELECT jsonb_build_object('key', 'u' || $2::int + n) FROM generate_series(1, $1::int) n))";
        client.query_one(push, &[&many, &made]).unwrap();
    };
    let rare = "SELECT count(*) FROM waterline.push_many('q', array_fill('rare'::text, ARRAY[50]), array_fill('1'::text, ARRAY[50]))";
    client.query_one(rare, &[]).unwrap();
    flood(&mut client, 300);
    let mut ran = 0;
    for _ in 0..20 {
        let rows = client.query("SELECT job, token, kind FROM waterline.claim('q', 32)", &[]).unwrap();
        ran += rows.iter().filter(|row| row.get::<_, &str>(2) == "rare").count();
        finish(&mut client, rows.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1))).unzip());
        flood(&mut client, 31);
    }
    assert_eq!((ran, count(&mut client, "freed")), (20, 1), "one in each claim");
    // Of many equal bells, one claim takes all, and answers those after them.
    run(
        &mut client,
        "INSERT INTO waterline.freed (queue, at, name) SELECT id, 1, 'ku' || n % 3 FROM waterline.queue, generate_series(1, 900) n",
    );
    claim(&mut client, 1);
    assert_eq!(count(&mut client, "freed WHERE at = 1"), 0);
}

#[test]
fn a_limit_added_during_an_end_hears_that_end() {
    let (config, mut client) = client(r#"{"limits": [{"of": "kind", "name": "other", "at_once": 1}]}"#);
    push_many(&mut client, 2, r#"{"key": "a"}"#);
    let first = claim(&mut client, 1);
    let mut other = config.connect(NoTls).unwrap();
    let mut open = other.transaction().unwrap();
    open.query("SELECT waterline.finish($1, $2)", &[&first.0, &first.1]).unwrap();
    let limits =
        r#"{"limits": [{"of": "kind", "name": "other", "at_once": 1}, {"of": "key", "name": "a", "at_once": 1}]}"#;
    run(&mut client, &format!("SELECT waterline.set_options('q', '{limits}')"));
    assert_eq!(claim(&mut client, 1).0.len(), 0, "the first one runs, as far as anybody sees");
    open.commit().unwrap();
    run(&mut client, "SET waterline.now = '1001000'");
    assert_eq!(claim(&mut client, 1).0.len(), 1);
}
