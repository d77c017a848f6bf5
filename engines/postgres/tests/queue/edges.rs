//! The doorbells of jobs that many wait for: what a call does, and what is left for the next.

use crate::bounds::{TICK, bury, count, finish, push_many, run};
use crate::calls::{claim, client, push};
use postgres::fallible_iterator::FallibleIterator;
use postgres::{Client, NoTls};

/// Each edge takes 10 ms, from the 17th of a call on.
const SLOW: &str = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE n int := coalesce(nullif(current_setting('test.edges', true), ''), '0')::int + 1;
    BEGIN
        PERFORM set_config('test.edges', n::text, true);
        IF n > 16 THEN PERFORM pg_sleep(0.01); END IF;
        RETURN OLD;
    END $$;
    CREATE TRIGGER slow BEFORE DELETE ON waterline.edge FOR EACH ROW EXECUTE FUNCTION slow()";

/// Answers all that has rung.
fn answer_all(client: &mut Client) {
    while count(client, "edge_bell") > 0 {
        run(client, TICK);
    }
}

#[test]
fn a_call_out_of_time_leaves_edges_to_the_next() {
    // Jobs that become ready are told in pieces of 64. Those that die are told one by one.
    for (end, most) in [(finish as fn(&mut Client, _), 16 + 64), (bury, 16 + 8)] {
        let (_, mut client) = client("{}");
        push(&mut client, r#"{"id": "first"}"#);
        push_many(&mut client, 300, r#"{"after": ["first"]}"#);
        let first = claim(&mut client, 1);
        run(&mut client, SLOW);
        end(&mut client, first);
        let before = count(&mut client, "edge");
        run(&mut client, TICK);
        let told = before - count(&mut client, "edge");
        assert!((1..=most).contains(&told), "one call has told {told} jobs, and {most} at most have time");
    }
}

#[test]
fn jobs_awaited_by_many_delay_others_by_one_call() {
    let (_, mut client) = client("{}");
    push(&mut client, r#"{"id": "many"}"#);
    push_many(&mut client, 5_000, r#"{"after": ["many"]}"#);
    push(&mut client, r#"{"id": "one"}"#);
    push(&mut client, r#"{"id": "behind", "after": ["one"]}"#);
    let both = claim(&mut client, 2);
    assert_eq!(both.0.len(), 2);
    finish(&mut client, both);
    (0..2).for_each(|_| run(&mut client, TICK));
    assert_eq!(count(&mut client, "job WHERE name = 'behind' AND state = 'ready'"), 1);
    assert_eq!(count(&mut client, "edge_bell"), 1, "that of the many");
}

/// An old job that is pushed again waits for another one by an edge of its old number.
#[test]
fn edges_behind_the_place_of_a_bell_are_answered() {
    let (_, mut client) = client("{}");
    push(&mut client, r#"{"id": "first"}"#);
    push_many(&mut client, 3_000, r#"{"after": ["first"]}"#);
    let first = claim(&mut client, 1);
    finish(&mut client, first);
    run(&mut client, TICK);
    assert_eq!(count(&mut client, "edge_bell WHERE behind > 0"), 1);
    let late = "WITH late AS (UPDATE waterline.job SET state = 'waiting', pending = 1
                WHERE number = (SELECT min(number) FROM waterline.job WHERE state = 'ready') RETURNING number),
            edges AS (INSERT INTO waterline.edge SELECT awaited, number FROM waterline.edge_bell, late)
        INSERT INTO waterline.edge_bell (queue, awaited) SELECT queue, awaited FROM waterline.edge_bell";
    run(&mut client, late);
    answer_all(&mut client);
    let left = ["job WHERE state = 'waiting'", "edge"].map(|of| count(&mut client, of));
    assert_eq!((left, count(&mut client, "job WHERE state = 'ready'")), ([0, 0], 3_000));
}

#[test]
fn a_bell_remembers_a_death_and_asks_for_another_call() {
    let (_, mut client) = client(r#"{"dead_for_ms": 0}"#);
    push(&mut client, r#"{"id": "first"}"#);
    push_many(&mut client, 2_500, r#"{"after": ["first"]}"#);
    let first = claim(&mut client, 1);
    bury(&mut client, first);
    let turn = "SELECT what, number FROM waterline.turn('{}', '{}', '{}', '{}', '{}', '{}', 'q', 1, '{none}', NULL, NULL, '', true, NULL, NULL)
        WHERE what IN ('again', 'peek') ORDER BY what";
    let told = client.query(turn, &[]).unwrap();
    let told: Vec<(String, Option<i64>)> = told.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(told, [("again".to_owned(), None), ("peek".to_owned(), Some(1_000_000))], "something is due now");
    // Nothing else remembers it.
    answer_all(&mut client);
    assert_eq!(count(&mut client, "job"), 0, "they die with it");
}

#[test]
fn listeners_hear_of_a_job_whose_wait_is_over() {
    let (config, mut client) = client("{}");
    push(&mut client, r#"{"id": "first"}"#);
    push(&mut client, r#"{"after": ["first"]}"#);
    let first = claim(&mut client, 1);
    let mut listener = config.connect(NoTls).unwrap();
    let channel: String = listener.query_one("SELECT waterline.listen_to('q')", &[]).unwrap().get(0);
    listener.batch_execute(&format!("SET waterline.now = '1000000'; LISTEN \"{channel}\"")).unwrap();
    let claim = "SELECT FROM waterline.claim('q', 1, p_listen => 600000)";
    assert_eq!(listener.query(claim, &[]).unwrap().len(), 0);
    finish(&mut client, first);
    answer_all(&mut client);
    // All that was sent before this has come with its answer.
    listener.batch_execute("SELECT 1").unwrap();
    assert_eq!(listener.notifications().iter().count().unwrap(), 1);
}

#[test]
fn many_bells_of_one_edge_each_take_many_calls() {
    let (_, mut client) = client("{}");
    push(&mut client, r#"{"id": "first"}"#);
    push_many(&mut client, 2_500, r#"{"after": ["first"]}"#);
    // Each of them has a doorbell of its own, for a job that is gone.
    let apart = "UPDATE waterline.edge SET awaited = -job; DELETE FROM waterline.edge_bell;
        INSERT INTO waterline.edge_bell (queue, awaited) SELECT id, awaited FROM waterline.queue, waterline.edge";
    run(&mut client, apart);
    run(&mut client, TICK);
    let told = 2_500 - count(&mut client, "edge");
    assert!((1..=1_024).contains(&told), "one call has told {told} jobs");
    answer_all(&mut client);
    assert_eq!(count(&mut client, "edge"), 0);
}

#[test]
fn a_locked_edge_blocks_no_call() {
    // A job that dies loses its edges to others, too.
    let ways = [(finish as fn(&mut Client, _), "first", "ready", "waiting"), (bury, "other", "dead", "dead")];
    for (end, locked, of_free, of_locked) in ways {
        let (config, mut client) = client("{}");
        push(&mut client, r#"{"id": "first", "priority": 0}"#);
        push(&mut client, r#"{"id": "other"}"#);
        push(&mut client, r#"{"id": "locked", "after": ["first", "other"]}"#);
        push(&mut client, r#"{"id": "free", "after": ["first"]}"#);
        let first = claim(&mut client, 1);
        let mut other = config.connect(NoTls).unwrap();
        let mut open = other.transaction().unwrap();
        let lock = "SELECT FROM waterline.edge e JOIN waterline.job j ON j.number = e.job JOIN waterline.job a ON a.number = e.awaited
            WHERE j.name = 'locked' AND a.name = $1 FOR UPDATE OF e";
        assert_eq!(open.execute(lock, &[&locked]).unwrap(), 1);
        run(&mut client, "SET statement_timeout = '20s'");
        end(&mut client, first);
        run(&mut client, TICK);
        let state = |client: &mut Client, id: &str| -> String {
            client.query_one("SELECT state FROM waterline.get('q', $1)", &[&id]).unwrap().get(0)
        };
        assert_eq!(["free", "locked"].map(|id| state(&mut client, id)), [of_free, "waiting"]);
        open.rollback().unwrap();
        answer_all(&mut client);
        assert_eq!(state(&mut client, "locked"), of_locked, "it waits for the other one, unless it dies");
        assert_eq!(count(&mut client, "edge"), i64::from(of_locked == "waiting"));
    }
}
