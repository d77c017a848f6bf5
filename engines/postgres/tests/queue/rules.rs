//! The rules of ends in SQL are those of the library: both get the same questions, for all inputs
//! of a grid, and at the ends of each range.

use crate::calls::client;
use postgres::Client;
use serde_json::{Value, json};
use std::time::Duration;
use waterline::Retry;
use waterline_queue::engine_api::{End, Growth, Next, Over, Past, When, end_of_lease, next_of, retry_parts};

/// The end of the calendar of the library. Times of the server go on.
const LATEST: u64 = 253_402_300_799_999;
const NOW: u64 = 1_700_000_000_000;
const MOST: u32 = i32::MAX as u32 - 1;

/// A retry as the server has it.
fn json_of(retry: &Retry) -> Value {
    let (first, growth, cap, attempts, jitter) = retry_parts(retry);
    let (growth, factor) = match growth {
        Growth::None => ("fixed", None),
        Growth::Doubling => ("doubling", None),
        Growth::Factor(factor) => ("factor", Some(factor)),
        Growth::Quadratic => ("quadratic", None),
    };
    let millis = |time: Duration| time.as_secs_f64() * 1_000.0;
    let (first_ms, cap_ms) = (millis(first), millis(cap));
    json!({ "first_ms": first_ms, "cap_ms": cap_ms, "growth": growth, "factor": factor, "attempts": attempts, "jitter": jitter })
}

fn retries() -> Vec<Retry> {
    let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
    let odd = Duration::from_micros(1_234_567);
    let kinds = [
        Retry::none(),
        Retry::fixed(Duration::ZERO),
        Retry::fixed(odd),
        Retry::fixed(Duration::from_millis(u64::MAX >> 12)),
        Retry::exponential(second, hour),
        Retry::exponential(odd, Duration::from_millis(90_001)),
        Retry::exponential(Duration::ZERO, hour),
        Retry::exponential(hour, second),
        Retry::exponential(second, Duration::MAX),
        Retry::exponential(second, hour).factor(1.0),
        Retry::exponential(second, hour).factor(2.5),
        Retry::exponential(odd, Duration::MAX).factor(1e300),
        Retry::quadratic(Duration::from_secs(2), hour),
        Retry::quadratic(odd, Duration::MAX),
    ];
    let attempts = [None, Some(1), Some(2), Some(10), Some(MOST)];
    let mut all = Vec::new();
    for kind in kinds {
        for attempts in attempts {
            let kind = attempts.map_or(kind, |most| kind.max_attempts(most));
            all.extend([0.0, 0.2, 1.0].map(|share| kind.jitter(share)));
        }
    }
    all
}

/// What both are asked: the job and its queue, the end, and how long the attempt lasted.
struct Asked {
    past: Past,
    own_retry: bool,
    heal_after: Option<i64>,
    lasted: i64,
    end: End,
}

impl Asked {
    fn new(past: Past, end: &End) -> Self {
        Self { past, own_retry: false, heal_after: None, lasted: 0, end: end.clone() }
    }

    /// The name of the end, its time and its error, as the server takes them.
    fn told(&self) -> (&'static str, Option<i64>, Option<String>) {
        let signed = |at: u64| i64::try_from(at).unwrap();
        match &self.end {
            End::Finished => ("finished", None, None),
            End::Failed { error, at } => ("failed", at.map(signed), Some(error.clone())),
            End::Snoozed { at: When::At(at) } => ("snoozed", Some(signed(*at)), None),
            End::Snoozed { at: When::After(pause) } => {
                ("snoozed", Some(-i64::try_from(pause.as_millis()).unwrap()), None)
            }
            End::Buried { reason } => ("buried", None, Some(reason.clone())),
            End::PutBack { .. } => ("put_back", None, None),
            End::Crashed => ("crashed", None, None),
        }
    }
}

/// The answer: next, due, named, error, failures, crashes.
type Answer = (String, u64, bool, Option<String>, u32, u32);

fn of_library(asked: &Asked, chance: f64) -> Answer {
    let is_healed = asked.heal_after.is_some_and(|after| asked.lasted >= after);
    let past = Past { is_healed, ..asked.past };
    match next_of(&past, asked.end.clone(), NOW, chance) {
        Next::Finish => {
            let failures = if is_healed { 0 } else { past.failures };
            ("finish".to_owned(), 0, false, None, failures, past.crashes)
        }
        Next::Wait { due, named, failures, crashes, error } => {
            ("wait".to_owned(), due, named, error, failures, crashes)
        }
        Next::Die { failures, crashes, error } => ("die".to_owned(), 0, false, Some(error), failures, crashes),
        Next::Anew { .. } => unreachable!("no push came meanwhile"),
    }
}

fn of_server(client: &mut Client, asked: &[Asked], chance: f64) -> Vec<Answer> {
    client.batch_execute(&format!("SET waterline.chance = '{chance}'")).unwrap();
    let text = |of: &dyn Fn(&Asked) -> Value| asked.iter().map(|asked| of(asked).to_string()).collect::<Vec<_>>();
    let queues = text(&|asked| {
        let retry =
            if asked.own_retry { json_of(&Retry::fixed(Duration::from_secs(7))) } else { json_of(&asked.past.retry) };
        json!({ "retry": retry, "max_crashes": asked.past.max_crashes, "heal_after": asked.heal_after })
    });
    let jobs = text(&|asked| {
        let retry = asked.own_retry.then(|| json_of(&asked.past.retry));
        json!({ "failures": asked.past.failures, "crashes": asked.past.crashes, "retry": retry })
    });
    let mut ends = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for asked in asked {
        let (end, at, error) = asked.told();
        ends.0.push(end);
        ends.1.push(at);
        ends.2.push(error);
        ends.3.push(asked.lasted);
    }
    let ask = "SELECT n.* FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::bigint[])
            WITH ORDINALITY u(queue, job, end_, at, error, lasted, place),
        LATERAL next_of(jsonb_populate_record(NULL::queue, u.queue::jsonb), jsonb_populate_record(NULL::job, u.job::jsonb),
            u.end_, u.at, u.error, u.lasted, $7) n ORDER BY u.place";
    let rows = client.query(ask, &[&queues, &jobs, &ends.0, &ends.1, &ends.2, &ends.3, &NOW.cast_signed()]).unwrap();
    let number = |count: i32| u32::try_from(count).unwrap();
    let answer = |row: &postgres::Row| {
        let (next, due): (String, Option<i64>) = (row.get(0), row.get(1));
        let waits = next == "wait";
        let due = if waits { due.unwrap().cast_unsigned().min(LATEST) } else { 0 };
        (next, due, waits && row.get::<_, bool>(2), row.get(3), number(row.get(4)), number(row.get(5)))
    };
    rows.iter().map(answer).collect()
}

fn ends() -> Vec<End> {
    let error = || "it failed".to_owned();
    vec![
        End::Finished,
        End::Failed { error: error(), at: None },
        End::Failed { error: error(), at: Some(1) },
        End::Failed { error: error(), at: Some(LATEST) },
        End::Snoozed { at: When::At(NOW - 1) },
        End::Snoozed { at: When::At(LATEST) },
        End::Snoozed { at: When::After(Duration::ZERO) },
        End::Snoozed { at: When::After(Duration::from_millis(1_001)) },
        End::Buried { reason: "no way".to_owned() },
        End::PutBack { error: String::new() },
        End::Crashed,
    ]
}

#[test]
fn ended_attempts_have_the_same_outcome_in_sql_and_rust() {
    let (_, mut client) = client("{}");
    client
        .batch_execute(
            "SET search_path = waterline, pg_temp;
            CREATE OR REPLACE FUNCTION waterline.chance() RETURNS float8 LANGUAGE sql AS
            $$ SELECT current_setting('waterline.chance')::float8 $$",
        )
        .unwrap();
    let counts = [0, 1, 2, 3, 8, 9, 10, 31, 64, 200, 1_100, 100_000, MOST - 1];
    let mut asked = Vec::new();
    // Pauses depend on the retry and the failures alone.
    for retry in retries() {
        for failures in counts {
            let past = Past { failures, crashes: 0, retry, max_crashes: Some(5), resubmit: None, is_healed: false };
            asked.push(Asked::new(past, &End::Failed { error: "no".to_owned(), at: None }));
        }
    }
    // All else is the same for each retry.
    let counts = [0, 1, 2, 8, 9, 200, MOST - 1];
    let retry = Retry::exponential(Duration::from_secs(1), Duration::from_secs(3600)).max_attempts(10).jitter(0.2);
    for end in ends() {
        for (failures, crashes) in counts.iter().flat_map(|failures| counts.map(|crashes| (*failures, crashes))) {
            for max_crashes in [None, Some(1), Some(2), Some(5), Some(MOST)] {
                let past = Past { failures, crashes, retry, max_crashes, resubmit: None, is_healed: false };
                let heals = [(None, 0), (Some(1_000), 999), (Some(1_000), 1_000), (Some(1), i64::MAX >> 9)];
                for (heal_after, lasted) in heals {
                    asked.push(Asked { heal_after, lasted, own_retry: crashes % 2 == 1, ..Asked::new(past, &end) });
                }
            }
        }
    }
    for chance in [0.0, 0.3, 1.0] {
        let answers = of_server(&mut client, &asked, chance);
        assert_eq!(answers.len(), asked.len());
        for (asked, answer) in asked.iter().zip(answers) {
            let expected = of_library(asked, chance);
            // One truncates a part of a pause to the millisecond, the other one to the nanosecond.
            let near = expected.1.abs_diff(answer.1) <= 1;
            let answer = if near { (answer.0, expected.1, answer.2, answer.3, answer.4, answer.5) } else { answer };
            assert_eq!(answer, expected, "{:?}, {:?} after {}, chance {chance}", asked.past, asked.end, asked.lasted);
        }
    }
}

#[test]
fn ended_leases_have_the_same_outcome_in_sql_and_rust() {
    let (_, mut client) = client("{}");
    for (over, silent) in [(Over::Died, false), (Over::Silent(Duration::from_secs(60)), true)] {
        for stopping in [false, true] {
            let expected = match end_of_lease(over, stopping) {
                End::PutBack { .. } => "put_back",
                End::Failed { .. } => "failed",
                _ => "crashed",
            };
            let found = client.query_one("SELECT waterline.end_of_lease($1, $2)", &[&silent, &stopping]).unwrap();
            assert_eq!(found.get::<_, &str>(0), expected);
            assert_eq!(expected == "put_back", stopping);
        }
    }
}
