//! The clock of the server is set back. The rules are compared with those of the library, and what
//! the suite cannot do is tested here.

use crate::calls::{claim, client, push};
use postgres::Client;
use waterline_queue::Every;
use waterline_queue::engine_api::{SetBack, last_tick};

/// The time of the frozen clock of [`client`], and a time that is a year ahead.
const NOW: i64 = 1_000_000;
const AHEAD: i64 = NOW + 365 * 86_400_000;

fn set(client: &mut Client, now: i64) {
    client.batch_execute(&format!("SET waterline.now = '{now}'")).unwrap();
}

fn number(client: &mut Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).unwrap().get(0)
}

#[test]
fn set_back_clock_rules_match_the_library() {
    let (_, mut client) = client("{}");
    let times =
        [0, 1, 998_999, 999_000, 999_999, 1_000_000, 1_000_001, 1_001_000, 1_001_001, 1_500_000, 90_000_000, AHEAD];
    let mut rows: Vec<[i64; 4]> = Vec::new();
    for written in times {
        for lasts in [0, 1, 60_000, 86_400_000] {
            for now in [500_000, 1_000_000, 2_000_000] {
                rows.extend([1_001, 60_000, 400_000, AHEAD].map(|by| [written, written + lasts, now, by]));
            }
        }
    }
    let column = |at: usize| rows.iter().map(|row| row[at]).collect::<Vec<_>>();
    let moved = "SELECT written - waterline.shift_of(written, now, by), until - waterline.shift_of(written, now, by),
            waterline.last_tick(written, now)
        FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) WITH ORDINALITY r(written, until, now, by, at) ORDER BY at";
    let answers = client.query(moved, &[&column(0), &column(1), &column(2), &column(3)]).unwrap();
    assert_eq!(answers.len(), rows.len());
    let hourly = Every::hours(1).into();
    for (row, answer) in rows.iter().zip(answers) {
        let [written, until, now, by] = row.map(i64::cast_unsigned);
        let expected = SetBack { to: now, by }.moved(written, until).unwrap_or((written, until));
        // The library has no time below 0. Here, such a time has passed, just like 0.
        let found = [0, 1].map(|at| answer.get::<_, i64>(at).max(0).cast_unsigned());
        assert_eq!((found[0], found[1]), expected, "{row:?}");
        assert_eq!(answer.get::<_, i64>(2).cast_unsigned(), last_tick(&hourly, written, now), "{row:?}");
    }
}

#[test]
fn a_lease_renewed_while_the_clock_was_ahead_ends_in_a_minute() {
    for renews in [true, false] {
        let (_, mut client) = client(r#"{"max_crashes": 9}"#);
        push(&mut client, r#"{"id": "a"}"#);
        if !renews {
            set(&mut client, AHEAD);
        }
        let (numbers, tokens) = claim(&mut client, 1);
        set(&mut client, AHEAD);
        if renews {
            let held: Vec<i64> =
                client.query_one("SELECT waterline.renew($1, $2)", &[&numbers, &tokens]).unwrap().get(0);
            assert_eq!(held, numbers);
        }
        assert_eq!(claim(&mut client, 1).0.len(), 0, "it holds");
        for (now, crashes) in [(NOW + 5_000, 0), (NOW + 64_000, 0), (NOW + 66_000, 1)] {
            set(&mut client, now);
            claim(&mut client, 0);
            assert_eq!(number(&mut client, "SELECT crashes::bigint FROM waterline.job"), crashes, "{renews} {now}");
        }
    }
}

#[test]
fn delays_go_back_with_the_clock_and_named_times_stay() {
    let (_, mut client) = client(r#"{"max_crashes": 9}"#);
    set(&mut client, AHEAD);
    for id in ["fails", "snoozes"] {
        push(&mut client, &format!(r#"{{"id": "{id}"}}"#));
    }
    let (numbers, tokens) = claim(&mut client, 2);
    for (call, at) in [("fail", 0), ("snooze", 1)] {
        let sql = format!("SELECT waterline.{call}($1, $2, p_delays => '{{60000}}')");
        let ended: Vec<i64> = client.query_one(&sql, &[&&numbers[at..=at], &&tokens[at..=at]]).unwrap().get(0);
        assert_eq!(ended.len(), 1);
    }
    push(&mut client, r#"{"id": "delayed", "delay_ms": 60000}"#);
    push(&mut client, &format!(r#"{{"id": "named", "run_at": {}}}"#, AHEAD + 60_000));
    set(&mut client, NOW);
    claim(&mut client, 0);
    let due = |client: &mut Client, id: &str| {
        client.query_one("SELECT due FROM waterline.get('q', $1)", &[&id]).unwrap().get::<_, i64>(0)
    };
    for id in ["fails", "snoozes", "delayed"] {
        assert_eq!(due(&mut client, id), NOW + 60_000, "{id}");
    }
    assert_eq!(due(&mut client, "named"), AHEAD + 60_000);
    assert_eq!(number(&mut client, "SELECT set_back_by FROM waterline.queue"), AHEAD - NOW);
    set(&mut client, NOW + 60_000);
    assert_eq!(claim(&mut client, 9).0.len(), 3);
}

/// More jobs wait than one call moves, and one of them is locked.
#[test]
fn many_jobs_go_back_in_pieces_and_a_locked_one_later() {
    let (config, mut client) = client("{}");
    set(&mut client, AHEAD);
    let many = "SELECT count(*) FROM waterline.push_many('q', array_fill('k'::text, ARRAY[6000]),
        array_fill('1'::text, ARRAY[6000]), array_fill('{\"delay_ms\": 60000}'::jsonb, ARRAY[6000]))";
    assert_eq!(number(&mut client, many), 6_000);
    let mut other = config.connect(postgres::NoTls).unwrap();
    let mut open = other.transaction().unwrap();
    open.query_one("SELECT number FROM waterline.job ORDER BY number LIMIT 1 FOR UPDATE", &[]).unwrap();
    set(&mut client, NOW);
    let ahead = |client: &mut Client| {
        claim(client, 0);
        number(client, &format!("SELECT count(*) FROM waterline.job WHERE at > {}", NOW + 60_000))
    };
    assert_eq!(ahead(&mut client), 1_001, "a call moves 5,000, but for the one that is locked");
    assert_eq!(ahead(&mut client), 1);
    open.rollback().unwrap();
    assert_eq!(ahead(&mut client), 0);
    assert_eq!(number(&mut client, "SELECT pg_sequence_last_value(seen) FROM waterline.queue"), NOW);
}
