//! Dead rows, which a transaction that stays open keeps in the indexes.

use crate::bench::server;
use crate::complaints::{finish, opened, opened_in, pages, push, set_clock};
use postgres::{IsolationLevel, NoTls};

#[test]
fn claims_stay_cheap_beside_an_open_transaction() {
    for (keyed, most) in [(false, 3), (true, 10)] {
        let limits = if keyed { r#"{"limits": [{"of": "each_key", "at_once": 1}]}"# } else { "{}" };
        let (config, mut client) = opened(limits);
        let mut other = config.connect(NoTls).unwrap();
        let mut open = other.build_transaction().isolation_level(IsolationLevel::RepeatableRead).start().unwrap();
        open.query("SELECT 1", &[]).unwrap();
        let mut claims = Vec::new();
        for round in 0..10 {
            set_clock(&mut client, 1_000_000 + 1_000 * round);
            let settings = if keyed { "jsonb_build_object('key', n::text)" } else { "NULL::jsonb" };
            let many = format!(
                "SELECT count(*) FROM waterline.push_many('q', array_fill('k'::text, ARRAY[316]), \
                 array_fill('1'::text, ARRAY[316]), ARRAY(SELECT {settings} FROM generate_series(1, 316) n))"
            );
            client.query(&many, &[]).unwrap();
            loop {
                let claimed = client.query("SELECT FROM waterline.claim('q', 32)", &[]).unwrap().len();
                finish(&mut client);
                if claimed < 32 {
                    break;
                }
            }
            push(&mut client, 16);
            claims.push(pages(&mut client, "claim('q', 16)"));
            finish(&mut client);
        }
        println!("with keys: {keyed}; a claim of 16 in each round touches {claims:?} pages");
        let (first, last) = (claims[1], claims[claims.len() - 1]);
        assert!(2 * last <= most * first + 64, "with keys: {keyed}: {claims:?}");
        open.rollback().unwrap();
    }
}

/// Claims all jobs in one call.
const ALL: &str = "SELECT FROM waterline.turn('{}', '{}', '{}', '{}', '{}', '{}', 'q', 6000, NULL, NULL, NULL, 'w', false, \
    NULL, NULL, p_room => 8388608)";
const NONE: &str = "turn('{}', '{}', '{}', '{}', '{}', '{}', 'q', 16, NULL, NULL, NULL, 'w', false, NULL, NULL)";

#[test]
fn a_late_commit_behind_a_burst_is_found_at_once() {
    // A transaction that is open in another database keeps dead rows here for a while, too.
    let (_server, database) = server();
    let mut client = opened_in(&database.config, r#"{"retention_ms": 0}"#);
    push(&mut client, 6_000);
    client.query(ALL, &[]).unwrap();
    finish(&mut client);
    (0..3).for_each(|_| _ = pages(&mut client, NONE));
    let mut late = database.client();
    set_clock(&mut late, 1_000_000);
    let mut late = late.transaction().unwrap();
    late.query("SELECT FROM waterline.push('q', 'late', '1')", &[]).unwrap();
    set_clock(&mut client, 1_002_000);
    pages(&mut client, NONE);
    late.commit().unwrap();
    assert_eq!(client.query("SELECT FROM waterline.claim('q', 1)", &[]).unwrap().len(), 1);
}

#[test]
fn empty_claims_beside_dead_rows_are_cheap_and_miss_no_commit() {
    let (config, mut client) = opened(r#"{"retention_ms": 0}"#);
    let [mut other, mut late] = [0, 1].map(|_| config.connect(NoTls).unwrap());
    let mut open = other.build_transaction().isolation_level(IsolationLevel::RepeatableRead).start().unwrap();
    open.query("SELECT 1", &[]).unwrap();
    set_clock(&mut late, 1_000_000);
    let mut late = late.transaction().unwrap();
    late.query("SELECT FROM waterline.push('q', 'late', '1')", &[]).unwrap();
    push(&mut client, 6000);
    client.query(ALL, &[]).unwrap();
    finish(&mut client);
    set_clock(&mut client, 1_007_000);
    // Two claims read everything, and the next ones leave that out for a while, since it was
    // expensive.
    let costs = [0, 1, 2, 3].map(|_| pages(&mut client, NONE));
    assert!(costs[0] > 400 && costs[2].max(costs[3]) < 200, "{costs:?}");
    late.commit().unwrap();
    let mut found_by = |now| {
        set_clock(&mut client, now);
        client.query("SELECT FROM waterline.claim('q', 1)", &[]).unwrap().len()
    };
    assert_eq!((found_by(1_007_500), found_by(1_012_000)), (0, 1), "a tick has found it");
}

#[test]
fn pushes_and_peeks_are_cheap_beside_expired_dead_rows() {
    let (config, mut client) = opened(r#"{"retention_ms": 0, "max_waiting": 10000}"#);
    let mut other = config.connect(NoTls).unwrap();
    let mut open = other.build_transaction().isolation_level(IsolationLevel::RepeatableRead).start().unwrap();
    open.query("SELECT 1", &[]).unwrap();
    let fill = "SELECT count(*) FROM waterline.push_many('q', array_fill('k'::text, ARRAY[6000]),
        array_fill('1'::text, ARRAY[6000]), array_fill('{\"expires_ms\": 1000}'::jsonb, ARRAY[6000]))";
    client.query(fill, &[]).unwrap();
    client.query(ALL, &[]).unwrap();
    finish(&mut client);
    // The ticks of two seconds read everything.
    let peeks = [1_006_000, 1_007_000, 1_007_000].map(|now| {
        set_clock(&mut client, now);
        pages(&mut client, NONE)
    });
    let push = pages(&mut client, "push('q', 'k', '1')");
    assert!(peeks[0] > 1_000 && peeks[2] < 150 && push < 100, "{peeks:?}, and {push} of a push");
}
