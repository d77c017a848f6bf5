//! A lagging replica takes the place of its server. Pushes that it had not received are gone, and
//! jobs whose end it had not received run again. No old token counts there, and the rows of each
//! job agree with its end.

use super::cluster::both;
use crate::bench::wait_for_all_ends;
use crate::server::replica::FOLLOWED;
use crate::server::{End, Server};
use postgres::{Client, NoTls, Transaction};
use std::time::Duration;
use waterline::{BoxError, Retry};
use waterline_postgres::{PgOptions, PgStore, RunnerExt};
use waterline_queue::{Limit, QueueOptions, Retention, Runner, Running};

fn options() -> QueueOptions {
    QueueOptions::default()
        .lease(Duration::from_secs(2))
        .retry(Retry::fixed(Duration::ZERO))
        .unlimited_crashes()
        .retention(Retention::Keep)
        .limit(Limit::each_key().at_once(1))
}

/// The number and the token of a claimed job.
type Claimed = ([i64; 1], [i64; 1]);

fn push(client: &mut Client, id: &str, kind: &str, more: &str) {
    let settings = format!(r#"{{"id": "{id}"{more}}}"#);
    client.query_one("SELECT FROM waterline.push('q', $1, '1', $2::text::jsonb)", &[&kind, &settings]).unwrap();
}

/// Claims all jobs of this kind; there are `most`.
fn claim_all(client: &mut Client, kind: &str, most: usize) -> Vec<Claimed> {
    let claim = "SELECT job, token FROM waterline.claim('q', 32, p_kinds => ARRAY[$1])";
    let mut claimed = Vec::new();
    while claimed.len() < most {
        let rows = client.query(claim, &[&kind]).unwrap();
        assert!(!rows.is_empty(), "there are only {} jobs of the kind {kind}", claimed.len());
        claimed.extend(rows.iter().map(|row| ([row.get(0)], [row.get(1)])));
    }
    claimed
}

/// Claims the next job of this kind, which has this id, for longer than the test takes.
fn claim(client: &mut Client, id: &str, kind: &str) -> Claimed {
    let claim = "SELECT job, token, id FROM waterline.claim('q', 1, 'w', ARRAY[$1], 600000, p_async => true)";
    // A claim that meets the first tick of another one finds nothing.
    let mut row = None;
    common::eventually("a claim", || {
        row = client.query_opt(claim, &[&kind]).unwrap();
        row.is_some()
    });
    let row = row.unwrap();
    assert_eq!(row.get::<_, &str>(2), id);
    ([row.get(0)], [row.get(1)])
}

/// Ends a job with its effect. Returns whether that counts.
fn finish(client: &mut Client, (job, token): Claimed) -> bool {
    let mut transaction = client.transaction().unwrap();
    let ended = transaction.query_one("SELECT waterline.finish($1, $2)", &[&&job[..], &&token[..]]).unwrap();
    let counts = ended.get::<_, Vec<i64>>(0) == job;
    if counts {
        transaction.execute("INSERT INTO effects VALUES ($1)", &[&job[0]]).unwrap();
    }
    transaction.commit().unwrap();
    counts
}

/// A runner whose effects are in the transactions of the ends.
fn runner(store: &PgStore, name: &'static str, kinds: &[&str]) -> Runner {
    // After a failover, a connection to the old server may be left.
    let mut opened = None;
    common::eventually("the queue", || {
        opened = store.queue(name, options()).ok();
        opened.is_some()
    });
    let queue = opened.unwrap();
    let mut builder = Runner::builder(&queue).max_processing(4);
    for kind in kinds {
        let write = move |transaction: &mut Transaction<'_>, results: &[(Running, i64)]| -> Result<(), BoxError> {
            for (job, _) in results {
                let effect = "INSERT INTO effects SELECT j.number FROM waterline.job j JOIN waterline.queue q \
                    ON q.id = j.queue AND q.name = $2 WHERE coalesce(j.name, '~' || j.number) = $1";
                transaction.execute(effect, &[&job.id(), &name])?;
            }
            Ok(())
        };
        builder = builder.on_writing(*kind, |_, payload: i64| Ok(payload), write);
    }
    builder.start().unwrap()
}

#[test]
fn jobs_a_lagging_replica_lacks_are_gone_or_run_again() {
    let server = Server::start(&FOLLOWED);
    let database = server.database();
    let replica = server.replica();
    let config = both([&server, &replica], &database.name);
    let store = PgStore::connect(config, NoTls, PgOptions::new().ttl(Duration::from_secs(2))).unwrap();
    store.migrate().unwrap();
    let mut client = database.client();
    client.batch_execute("CREATE TABLE effects (job bigint NOT NULL)").unwrap();
    let always = runner(&store, "always", &["k"]); // It works all the time, on both.
    drop(store.queue("q", options()).unwrap());
    // Each of these kinds has one job, which is at another point when the replica is cut off.
    for kind in ["waits", "runs", "ended", "ends", "claimed"] {
        push(&mut client, kind, kind, "");
    }
    push(&mut client, "key 1", "key", r#", "key": "a""#);
    push(&mut client, "key 2", "key", r#", "key": "a""#);
    push(&mut client, "after", "after", r#", "after": ["ends"]"#);
    let ended = claim(&mut client, "ended", "ended");
    assert!(finish(&mut client, ended));
    let runs = claim(&mut client, "runs", "runs");
    // The next commit that waits for the log brings it there.
    push(&mut client, "last", "waits", "");
    let at: String = client.query_one("SELECT pg_current_wal_flush_lsn()::text", &[]).unwrap().get(0);
    let mut other = replica.config(&database.name).connect(NoTls).unwrap();
    let has_it = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn";
    common::eventually("the replica to have it all", || other.query_one(has_it, &[&at]).unwrap().get(0));
    drop(other);
    replica.unplug();

    // All of this is lost.
    assert!(finish(&mut client, runs));
    let ends = claim(&mut client, "ends", "ends");
    assert!(finish(&mut client, ends));
    let claimed = claim(&mut client, "claimed", "claimed");
    let key = claim(&mut client, "key 1", "key");
    push(&mut client, "never", "never", "");
    let never = claim(&mut client, "never", "never");
    // More numbers than a sequence reserves at a time, so that some are given out again.
    let many = "SELECT substr(id, 2)::bigint FROM waterline.push_many('q', array_fill($1::text, ARRAY[100]),
        array_fill('1'::text, ARRAY[100]))";
    let lost: Vec<i64> = client.query(many, &[&"lost"]).unwrap().iter().map(|row| row.get(0)).collect();
    let lost_claims = claim_all(&mut client, "lost", 100);
    assert_eq!(lost_claims.len(), 100);
    server.stop(End::Immediate);
    replica.promote();

    let mut client = replica.config(&database.name).connect(NoTls).unwrap();
    let got = "SELECT count(*) FROM waterline.jobs WHERE id = 'never' OR kind = 'lost'";
    assert_eq!(client.query_one(got, &[]).unwrap().get::<_, i64>(0), 0, "what was pushed is gone");
    let again: Vec<i64> = client.query(many, &[&"again"]).unwrap().iter().map(|row| row.get(0)).collect();
    assert!(again.iter().any(|number| lost.contains(number)), "some numbers are those of other jobs by now");
    for old in [claimed, ends, key, never].into_iter().chain(lost_claims.iter().copied()) {
        assert!(!finish(&mut client, old), "a claim that was lost gives no right to end a job");
    }
    let others = claim_all(&mut client, "again", 100);
    let counts = lost_claims.iter().any(|old| finish(&mut client, *old));
    assert!(!counts, "nor one that others have claimed");
    for other in others {
        assert!(finish(&mut client, other), "it is theirs");
    }
    // The claim was replicated, and its end was not: the rows are not there either.
    assert!(finish(&mut client, runs));
    assert!(!finish(&mut client, ended), "it has ended");

    // The rest goes on by itself.
    let others = runner(&store, "q", &["waits", "claimed", "ends", "key", "after"]);
    client.query("SELECT FROM waterline.push('always', 'k', '1', '{\"id\": \"new\"}')", &[]).unwrap();
    wait_for_all_ends(&mut client);
    [others, always].into_iter().for_each(|runner| runner.stop().unwrap());
    let agree = "SELECT count(*), count(DISTINCT e.job), (SELECT count(*) FROM waterline.ended WHERE NOT died), \
        (SELECT count(*) FROM waterline.ended WHERE died) FROM effects e JOIN waterline.ended ON number = e.job";
    let row = client.query_one(agree, &[]).unwrap();
    let all: i64 = client.query_one("SELECT count(*) FROM effects", &[]).unwrap().get(0);
    assert_eq!([0, 1, 2, 3].map(|at| row.get::<_, i64>(at)), [all, all, all, 0]);
    assert_eq!(all, 110, "nine of before, the new one, and those that took the numbers of others");
}
