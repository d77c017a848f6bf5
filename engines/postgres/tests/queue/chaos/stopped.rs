//! A worker is stopped (SIGSTOP) after each statement that it sends, one after the other, like a
//! process in a debugger, a paused container or a sleeping laptop. Meanwhile two others go on with
//! everything: pushes, claims, ticks, ends, and jobs that wait for others.

use super::life::{command, open, write};
use super::stopping::{Stopping, Which};
use crate::server::pooler::Pooler;
use crate::server::{Database, PATIENCE, Server};
use crate::size;
use postgres::{Client, Config};
use std::collections::BTreeSet;
use std::process::Child;
use std::time::{Duration, Instant};
use waterline::Failure;
use waterline_postgres::RunnerExt;
use waterline_queue::{Outcome, Runner, Running};

/// The time within which the others do everything. Beside other tests it is longer, and still
/// shorter than a lease, since at its end they would go on in any case.
fn goes_on_within() -> Duration {
    Duration::from_secs(size(10, 2))
}

/// A server with two queues, and the two workers that go on.
struct Scene {
    database: Database,
    port: u16,
    _pooler: Option<Pooler>,
    others: Vec<Runner>,
    client: Client,
    rounds: u64,
}

/// A process that ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn start_other(config: Config, holder: &str) -> Vec<Runner> {
    let (_, [limited, plain]) = open(config, holder);
    let done = |_: &Running, _: u64| Ok(Outcome::Done);
    let dies = |_: &Running, _: u64| Err(Failure::permanent("as it was told").into());
    let limited = Runner::builder(&limited).max_processing(4).on("narrow", done).on("dies", dies);
    let limited = limited.on_writing("probe", |_, _: u64| Ok(()), write);
    let plain = Runner::builder(&plain).max_processing(4).on("plain", done);
    [limited, plain].into_iter().map(|builder| builder.start().unwrap()).collect()
}

impl Scene {
    fn new(behind_a_pooler: bool) -> Self {
        let server = Server::shared();
        let database = server.database();
        let pooler = behind_a_pooler.then(|| Pooler::start(server, 10));
        let port = pooler.as_ref().map_or(server.port(), Pooler::port);
        drop(open(database.config.clone(), "first"));
        let mut client = database.client();
        client.batch_execute("CREATE TABLE effects (job text NOT NULL)").unwrap();
        if behind_a_pooler {
            // So each call of the worker says its level, in a transaction of three statements.
            let set = format!("ALTER DATABASE {} SET default_transaction_isolation = 'serializable'", database.name);
            client.batch_execute(&set).unwrap();
        }
        let others = ["a", "b"].map(|holder| start_other(database.config.clone(), holder));
        Self { database, port, _pooler: pooler, others: others.into_iter().flatten().collect(), client, rounds: 0 }
    }

    /// Makes the others do one of each thing. Returns how long it took them.
    fn goes_on(&mut self, at: &str) -> Duration {
        self.rounds += 1;
        let (n, begun) = (self.rounds, Instant::now());
        self.client.batch_execute("SET statement_timeout = '10s'").unwrap();
        let pushes = format!(
            r#"SELECT waterline.push('q', 'probe', '1', '{{"id": "key {n}", "key": "key {n}"}}');
            SELECT waterline.push('q', 'narrow', '1', '{{"id": "narrow {n}"}}');
            SELECT waterline.push('q', 'probe', '1', '{{"id": "unique {n}", "unique": {{"fingerprint": "u{n}", "until": "done"}}}}');
            SELECT waterline.push('q', 'probe', '1', '{{"id": "skip {n}", "skip": "shared"}}');
            SELECT count(*) FROM waterline.push_many('q', '{{dies,probe}}', '{{1,1}}', ARRAY['{{"id": "dies {n}"}}',
                '{{"id": "behind {n}", "after": ["dies {n}"], "on_dead": "run"}}']::jsonb[]);
            SELECT waterline.push('q', 'probe', '1', '{{"id": "old {n}", "delay_ms": 3600000}}');
            SELECT waterline.push('q', 'probe', '1', '{{"id": "old {n}", "after": ["behind {n}"]}}');
            SELECT waterline.push('q', 'nobody', '1', '{{"id": "expires {n}", "expires_ms": 1}}');
            SELECT waterline.push('p', 'plain', '1', '{{"id": "plain {n}"}}');
            SELECT waterline.push('p', 'plain', '1');"#
        );
        self.client.batch_execute(&pushes).unwrap_or_else(|error| panic!("{at}: {error:?}"));
        // A process that starts.
        drop(open(self.database.config.clone(), "starts"));
        let tick = "SELECT FROM waterline.turn('{}', '{}', '{}', '{}', '{}', '{}', 'q', 0, NULL, NULL, NULL, NULL, true, NULL, NULL)";
        let left = format!(
            "SELECT array_agg(name || ' is ' || state) FROM waterline.job WHERE name LIKE '% {n}' \
            AND split_part(name, ' ', 1) = ANY ('{{key,narrow,unique,skip,dies,behind,old,expires,plain}}')"
        );
        loop {
            self.client.batch_execute(tick).unwrap_or_else(|error| panic!("{at}: {error:?}"));
            let left: Option<Vec<String>> = self.client.query_one(&left, &[]).unwrap().get(0);
            let Some(left) = left else { return begun.elapsed() };
            if begun.elapsed() > PATIENCE / 4 {
                let locks = "SELECT array_agg(concat(pid, ' waits for ', pg_blocking_pids(pid), ': ', wait_event, ', ', state, ', ', left(query, 200)))
                    FROM pg_stat_activity WHERE datname = current_database()";
                let locks: Vec<String> = self.client.query_one(locks, &[]).unwrap().get(0);
                panic!("a worker that stands still behind \"{at}\" stops the others: {left:?}\n{locks:#?}");
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }

    /// Runs a life stopped after these statements. Returns where, and where the others were slow.
    fn live(&mut self, number: usize, which: Which, ends: bool, until: Option<Instant>) -> Lived {
        let proxy = Stopping::start(self.port, which);
        let mut worker = Killed(command(proxy.port(), &self.database.name, number).spawn().unwrap());
        proxy.watch(worker.0.id());
        let (mut lived, mut slow) = (Lived::default(), Vec::new());
        while let Some(at) = proxy.wait(&mut worker.0) {
            let took = self.goes_on(&at);
            if took > goes_on_within() {
                slow.push((at.clone(), took));
            }
            lived.stopped.push(at);
            if !ends || until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            proxy.go_on();
        }
        lived.sent = proxy.sent();
        drop(worker);
        if !slow.is_empty() {
            // On a loaded machine everything takes longer, whatever is stopped.
            let calm = self.goes_on("nothing");
            println!("{slow:?}, and {calm:?} beside nobody");
            lived
                .slow
                .extend(slow.into_iter().filter(|(_, took)| *took > goes_on_within() + calm * 2).map(|(at, _)| at));
        }
        lived
    }

    /// Ends all that is left, and checks that nothing was done twice.
    fn end(mut self) {
        self.others.drain(..).for_each(|runner| runner.stop().unwrap());
        self.client.batch_execute("DELETE FROM waterline.job WHERE state = 'waiting' AND on_dead = 'hold'").unwrap();
        // The jobs that a worker had when it was killed come back.
        self.client.batch_execute("UPDATE waterline.job SET at = waterline.clock() WHERE state = 'running'").unwrap();
        let finish = "WITH c AS (SELECT * FROM unnest('{q,p}'::text[]) n, waterline.claim(n, 32)), e AS (
                INSERT INTO effects SELECT id FROM c WHERE kind LIKE 'probe%' OR kind LIKE 'writes%')
            SELECT coalesce(array_agg(job), '{}') AS jobs, coalesce(array_agg(token), '{}') AS tokens FROM c";
        common::eventually("the ends of all jobs", || {
            let row = self.client.query_one(finish, &[]).unwrap();
            let (jobs, tokens): (Vec<i64>, Vec<i64>) = (row.get(0), row.get(1));
            self.client.execute("SELECT waterline.finish($1, $2)", &[&jobs, &tokens]).unwrap();
            let due = "SELECT count(*) FROM waterline.job WHERE at < waterline.clock() + 60000
                AND queue IN (SELECT id FROM waterline.queue WHERE name IN ('q', 'p'))";
            self.client.query_one(due, &[]).unwrap().get::<_, i64>(0) == 0
        });
        let wrong = "SELECT coalesce(array_agg(id || ': ' || coalesce(n, 0)), '{}') FROM (SELECT coalesce(name, '~' || number) AS id
                FROM waterline.ended WHERE (kind LIKE 'probe%' OR kind LIKE 'writes%') AND NOT died AND skipped IS NULL) e
            LEFT JOIN (SELECT job, count(*) AS n FROM effects GROUP BY job) f ON f.job = e.id WHERE n IS DISTINCT FROM 1";
        let wrong: Vec<String> = self.client.query_one(wrong, &[]).unwrap().get(0);
        assert!(wrong.is_empty(), "jobs that ended, and the number of their effects: {wrong:?}");
        let dead = "SELECT coalesce(array_agg(concat(name, ': ', error)), '{}') FROM waterline.ended WHERE died
            AND kind NOT IN ('dies', 'nobody') AND error NOT LIKE ALL ('{%by hand%,%one waits for it%,%was to run after it%,%it was too slow%}')";
        let dead: Vec<String> = self.client.query_one(dead, &[]).unwrap().get(0);
        assert!(dead.is_empty(), "{dead:?}");
    }
}

#[derive(Default)]
struct Lived {
    stopped: Vec<String>,
    slow: Vec<String>,
    /// All statements that it has sent.
    sent: Vec<String>,
}

/// What each life has at least, each at its end.
const SORTS: &[&str] = &[
    "push_plain",
    "push_plain_and_commit",
    "push_jobs",
    "push_and_commit",
    "push_across_and_commit",
    "turn",
    "turn_and_commit",
    "end_in",
    "edit",
    "note_stop",
    "renew",
    "steer",
    "change_note_and_commit",
    "register_periodic",
    "create_queue",
    "remove_queue",
    "load",
    "INSERT INTO effects",
    "COMMIT",
];

/// The statements of a life that write the most, and what a worker behind a pooler keeps locked
/// until it sends the end of a transaction.
const FIRST: &[&str] = &[
    "pushes: push_jobs",
    "pushes of many: push_and_commit",
    "a push into two queues: push_across_and_commit",
    "rows with ends: turn",
    "rows with ends: end_in",
    "rows with ends: COMMIT",
    "a claim with limits: turn",
    "ends: turn",
    "large claims of p: turn_and_commit",
    "large claims of q: turn_and_commit",
    "changes by hand: steer",
    "a stop: renew",
];
const BEHIND_A_POOLER: &[&str] = &["pushes: push_jobs", "rows with ends: turn"];

/// Stops a worker after these statements, for this long, and once more where the others were slow.
fn sample(mut scene: Scene, names: &[&str], ends: bool, time: Duration) {
    let begun = Instant::now();
    let named = |names: &[String]| Which::Named(names.to_vec());
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let (mut stopped, mut number) = (Vec::new(), 0);
    // A worker that was frozen for too long in a transaction behind a pooler cannot go on.
    let lives: Vec<_> = if ends { vec![names] } else { names.into_iter().map(|name| vec![name]).collect() };
    for names in lives {
        number += 1;
        let lived = scene.live(number, named(&names), ends, Some(begun + time));
        if !lived.slow.is_empty() {
            // A loaded machine is slow at another place.
            number += 1;
            let again = scene.live(number, named(&lived.slow), ends, None);
            assert!(
                again.slow.is_empty(),
                "others did not go on within {:?} twice: {:?}",
                goes_on_within(),
                again.slow
            );
        }
        let is_late = begun.elapsed() >= time;
        assert!(
            is_late || names.iter().all(|name| lived.stopped.contains(name) || is_left_out(name, &lived.sent)),
            "{names:?}: {:?}, of {:#?}",
            lived.stopped,
            lived.sent
        );
        stopped.extend(lived.stopped);
    }
    println!("stopped in {:?}: {stopped:#?}", begun.elapsed());
    assert!(!stopped.is_empty());
    scene.end();
}

/// Whether a runner on a busy machine may leave out this statement: it then claims fewer jobs, and
/// such an answer needs no transaction.
fn is_left_out(name: &String, sent: &[String]) -> bool {
    name.starts_with("large claims") && !sent.contains(name)
}

/// Stops a worker after each of its statements, in a life for each.
fn whole(mut scene: Scene, goes_on: bool) {
    let (mut number, mut sorts) = (0, BTreeSet::new());
    let mut live = |which: &dyn Fn() -> Which, ends: bool| {
        let mut live = || {
            number += 1;
            scene.live(number, which(), ends, None)
        };
        let lived = live();
        if lived.slow.is_empty() {
            return lived;
        }
        let again = live();
        assert!(again.slow.is_empty(), "others did not go on within {:?} twice: {:?}", goes_on_within(), again.slow);
        again
    };
    let sort_of = |at: &str| at.split_once(": ").map(|(_, sort)| sort.to_owned());
    let mut last = Vec::new();
    for nth in 1.. {
        // Most of them die there.
        let mut lived = live(&|| Which::Nth(nth), goes_on && nth % 8 == 1);
        let Some(at) = lived.stopped.pop() else {
            last = lived.sent;
            break;
        };
        println!("{nth}: {at}");
        sorts.extend(sort_of(&at));
    }
    // Lives differ in a few statements, so a number may have missed one.
    for at in last {
        if sort_of(&at).is_some_and(|sort| !sorts.contains(&sort)) {
            let lived = live(&|| Which::Named(vec![at.clone()]), false);
            sorts.extend(lived.stopped.iter().filter_map(|at| sort_of(at)));
        }
    }
    let missing: Vec<_> = SORTS.iter().filter(|sort| !sorts.contains(**sort)).collect();
    assert!(missing.is_empty(), "no life was stopped behind {missing:?}: {sorts:?}");
    scene.end();
}

#[test]
fn others_go_on_beside_a_worker_stopped_in_any_statement() {
    let scene = Scene::new(false);
    // The soak stops it after each of them.
    if size(0, 1) == 0 { sample(scene, FIRST, true, Duration::from_secs(12)) } else { whole(scene, true) }
}

#[test]
fn others_go_on_behind_a_pooler() {
    let scene = Scene::new(true);
    if size(0, 1) == 0 { sample(scene, BEHIND_A_POOLER, false, Duration::from_secs(2)) } else { whole(scene, false) }
}
