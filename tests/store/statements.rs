//! SQL statements in the write of a job (`Effects::execute`), in a file with tables of the user.

use common::*;
use proptest::prelude::*;
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use waterline::{BoxError, ConfigError, Consumer, Effects, Error, Index, MemoryJobs, OnExhausted, Store};
use waterline_queue::{NewJob, Outcome, Queue, QueueOptions, Runner};

/// A file with tables of the user, and a store in it.
struct Mine {
    file: tempfile::TempDir,
    sql: Connection,
}

impl Mine {
    fn new(tables: &str) -> Self {
        watch();
        let file = tempfile::tempdir().unwrap();
        let sql = Connection::open(file.path().join("app.db")).unwrap();
        sql.pragma_update(None, "foreign_keys", true).unwrap();
        sql.execute_batch(tables).unwrap();
        Self { file, sql }
    }

    fn store(&self) -> Store {
        // Keeps the tests that wait for the lock short.
        let options = Store::options().on_connect(|connection| connection.busy_timeout(Duration::from_millis(20)));
        options.attach_sqlite(self.file.path().join("app.db")).unwrap()
    }

    fn rows(&self, query: &str) -> Vec<(String, i64)> {
        let mut query = self.sql.prepare(query).unwrap();
        let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.map(Result::unwrap).collect()
    }

    fn count(&self, table: &str) -> i64 {
        self.sql.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    }
}

/// Runs one job for each statement, and returns the parked indices with their errors.
fn parked(store: &Store, statements: Vec<String>) -> BTreeMap<Index, String> {
    let last = statements.len() as Index - 1;
    let jobs: MemoryJobs<String> = statements.into_iter().collect();
    Consumer::builder(jobs, store.progress("jobs"))
        .max_processing(8)
        .on_exhausted(OnExhausted::Park { budget: 100 })
        .stop_at(last)
        .start_transactional(|job, effects| Ok(effects.execute(&job.payload, ())?))
        .unwrap()
        .join()
        .unwrap();
    let parked = store.parked("jobs").unwrap();
    parked.into_iter().map(|parked| (parked.index, parked.error)).collect()
}

const ACCOUNTS: &str = "CREATE TABLE accounts (id TEXT PRIMARY KEY, cents INTEGER NOT NULL CHECK (cents >= 0)) STRICT;";

#[test]
fn promise_09_a_statement_and_its_progress_are_one_write() {
    let mine = Mine::new(ACCOUNTS);
    mine.sql.execute("INSERT INTO accounts VALUES ('ann', 0)", []).unwrap();
    for life in 1..=5i64 {
        let store = mine.store();
        Consumer::builder(numbers(1_000), store.progress("sum"))
            .max_processing(16)
            .stop_at(200 * life as u64 - 1)
            .start_transactional(|job, effects| {
                let (cents, id) = (job.payload as i64, "ann");
                Ok(effects.execute("UPDATE accounts SET cents = cents + ?1 WHERE id = ?2", (cents, id))?)
            })
            .unwrap()
            .join()
            .unwrap();
        let jobs = 200 * life;
        assert_eq!(mine.rows("SELECT id, cents FROM accounts"), [("ann".to_owned(), jobs * (jobs - 1) / 2)]);
    }
}

/// Refused statements, each with words of its error, or alternatives for them.
const BAD: &[(&str, &str)] = &[
    ("INSERT INTO accounts VALUES ('a', -1)", "CHECK constraint failed"),
    ("INSERT INTO accounts VALUES ('good 0', 1)", "UNIQUE constraint failed"),
    ("INSERT INTO accounts VALUES ('a', 'text')", "cannot store TEXT"),
    ("INSERT INTO acounts VALUES ('a', 1)", "no such table: acounts"),
    ("INSERT INTO accounts VALUES ('a', 1", "incomplete input"),
    ("INSERT INTO accounts VALUES (?1, 1)", "NOT NULL|Wrong number of parameters"),
    ("SELECT id FROM accounts", "Execute returned results"),
    ("DELETE FROM accounts WHERE id = 'none'; DELETE FROM accounts", "Multiple statements"),
    ("INSERT OR ROLLBACK INTO accounts VALUES ('good 0', 1)", "UNIQUE constraint failed"),
    ("INSERT OR FAIL INTO accounts VALUES ('half', 1), ('good 0', 1)", "UNIQUE constraint failed"),
    ("INSERT INTO rolls VALUES (7)", "seven"),
    ("BEGIN", "not authorized"),
    ("COMMIT", "not authorized"),
    ("ROLLBACK", "not authorized"),
    ("SAVEPOINT mine", "not authorized"),
    ("PRAGMA synchronous = OFF", "not authorized"),
    ("ATTACH 'other.db' AS other", "not authorized"),
    ("DELETE FROM waterline_system", "not authorized"),
    ("INSERT INTO accounts SELECT hex(k), 1 FROM Waterline_System", "access to|prohibited|not authorized"),
    ("CREATE TABLE waterline_mine (x)", "not authorized"),
    ("DROP TABLE waterline_system", "not authorized"),
    ("VACUUM", "transaction|not authorized"),
    ("CREATE TEMP TABLE waterline_system (k, v)", "not authorized"),
    ("CREATE TEMP VIEW waterline_system AS SELECT 1 AS k, 2 AS v", "not authorized"),
    ("CREATE TEMP TRIGGER never BEFORE INSERT ON main.waterline_system BEGIN SELECT raise(FAIL, ''); END", "not auth"),
    ("CREATE VIRTUAL TABLE waterline_words USING fts5(words)", "not authorized"),
    ("CREATE VIEW waterline_all AS SELECT 1", "not authorized"),
    ("CREATE INDEX waterline_cents ON accounts (cents)", "not authorized"),
    ("CREATE TRIGGER waterline_t AFTER INSERT ON rolls BEGIN SELECT 1; END", "not authorized"),
    ("ALTER TABLE rolls RENAME TO Waterline_Rolls", "names that begin with waterline_"),
    ("ALTER TABLE waterline_queue RENAME TO mine", "not authorized"),
    (
        "CREATE TRIGGER spy AFTER INSERT ON rolls BEGIN DELETE FROM [Waterline_System]; END",
        "names that begin with waterline_",
    ),
    ("CREATE TABLE spies (k BLOB REFERENCES \"WATERLINE_system\" (k))", "names that begin with waterline_"),
    ("ALTER TABLE accounts ADD COLUMN k BLOB REFERENCES waterline_logs (k)", "not authorized"),
    // A second time: a cached statement is not prepared again.
    ("ALTER TABLE rolls RENAME TO Waterline_Rolls", "names that begin with waterline_"),
    ("/* waterline */ COMMIT", "begins as those of the store"),
    ("", "no statement in the text"),
    ("-- nothing", "no statement in the text"),
    ("DELETE FROM accounts WHERE id = 'none'\0 OR true", "byte of zero"),
];

#[test]
fn a_refused_statement_fails_its_job_alone() {
    let mine = Mine::new(ACCOUNTS);
    mine.sql
        .execute_batch(
            "CREATE TABLE rolls (n INTEGER PRIMARY KEY);
             CREATE TRIGGER back BEFORE INSERT ON rolls WHEN new.n = 7 BEGIN SELECT raise(ROLLBACK, 'seven'); END;",
        )
        .unwrap();
    mine.sql.execute("INSERT INTO accounts VALUES ('good 0', 0)", []).unwrap();
    let mut statements = vec!["INSERT INTO rolls VALUES (1)".to_owned()];
    for (number, (statement, _)) in (1..).zip(BAD) {
        statements.extend([(*statement).to_owned(), format!("INSERT INTO accounts VALUES ('good {number}', 0)")]);
    }
    let refused = parked(&mine.store(), statements);
    for (number, (statement, words)) in (0..).zip(BAD) {
        let error = refused.get(&(2 * number + 1)).unwrap_or_else(|| panic!("{statement} was not refused"));
        assert!(error.contains(&format!("{statement:?}")), "{error}");
        assert!(words.split('|').any(|words| error.contains(words)), "{statement}: {error}");
    }
    assert_eq!(refused.len(), BAD.len(), "{refused:#?}");
    assert_eq!(mine.count("accounts"), BAD.len() as i64 + 1);
    assert_eq!(mine.count("rolls"), 1);
}

#[test]
fn only_triggers_that_touch_the_store_are_refused() {
    let mine = Mine::new("CREATE TABLE rolls (n INTEGER PRIMARY KEY)");
    let rows = |table: &str| format!("SELECT '{table}', count(*) FROM sqlite_master WHERE name = '{table}'");
    let own = ["CREATE TABLE notes (waterline_job TEXT)", "ALTER TABLE notes RENAME TO my_notes"];
    let own = own.into_iter().chain(["CREATE TRIGGER t AFTER INSERT ON my_notes BEGIN SELECT new.waterline_job; END"]);
    let store = mine.store();
    own.for_each(|statement| store.write(|effects| effects.execute(statement, ())).unwrap());
    assert_eq!((mine.rows(&rows("my_notes"))[0].1, mine.rows(&rows("t"))[0].1), (1, 1));
    let spy = "CREATE TRIGGER spy AFTER INSERT ON rolls BEGIN DELETE FROM waterline_system; END";
    mine.sql.execute_batch(spy).unwrap();
    let error = store.write(|effects| effects.execute("INSERT INTO rolls VALUES (2)", ())).unwrap_err();
    assert!(matches!(&error, Error::Sql { .. }) && error.report().contains("not authorized"), "{error:?}");
}

#[test]
fn jobs_refused_together_are_parked_after_one_run() {
    let mine = Mine::new(ACCOUNTS);
    let store = mine.store();
    let runs = Arc::new(AtomicU64::new(0));
    let counted = runs.clone();
    Consumer::builder(numbers(400), store.progress("jobs"))
        .max_processing(64)
        .on_exhausted(OnExhausted::Park { budget: 300 })
        .stop_at(399)
        .start_transactional(move |job, effects| {
            counted.fetch_add(1, Ordering::Relaxed);
            // Every second job finds the row of the job before it.
            Ok(effects.execute("INSERT INTO accounts VALUES (?1, 0)", [(job.payload / 2).to_string()])?)
        })
        .unwrap()
        .join()
        .unwrap();
    assert_eq!((mine.count("accounts"), store.parked("jobs").unwrap().len()), (200, 200));
    assert_eq!(runs.load(Ordering::Relaxed), 400);
}

#[test]
fn a_deferred_foreign_key_fails_the_job_that_breaks_it() {
    let mine = Mine::new(
        "CREATE TABLE parents (id INTEGER PRIMARY KEY);
         CREATE TABLE children (id INTEGER PRIMARY KEY,
             parent INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED);",
    );
    let child = |id: i64, parent: i64| format!("INSERT INTO children VALUES ({id}, {parent})");
    let parent = |id: i64| format!("INSERT INTO parents VALUES ({id})");
    let store = mine.store();
    // The lock holds the writer until each job has run, so all are in one save.
    let together = |statements: Vec<String>| -> Result<(), Error> {
        store.write(|effects| statements.iter().try_for_each(|statement| effects.execute(statement, ())))
    };
    together(vec![child(1, 1), parent(1)]).unwrap();
    let error = together(vec![child(2, 2), parent(3)]).unwrap_err();
    assert!(matches!(&error, Error::Sql { sql, .. } if *sql == parent(3)), "{error:?}");
    assert_eq!((mine.count("parents"), mine.count("children")), (1, 1));
    let refused = parked(&store, vec![child(10, 10), child(11, 99), parent(10), child(12, 1)]);
    let refused: Vec<_> = refused.into_keys().collect();
    // Job 0 is also refused if job 2 comes in a later save.
    assert!(refused == [1] || refused == [0, 1], "{refused:?}");
}

#[test]
fn a_broken_foreign_key_hides_no_refusal_elsewhere() {
    let mine = Mine::new(
        "CREATE TABLE names (name TEXT);
         CREATE TABLE wrong (name TEXT REFERENCES names (name) DEFERRABLE INITIALLY DEFERRED);
         CREATE TABLE shops (id INTEGER PRIMARY KEY);
         CREATE TABLE sales (shop INTEGER REFERENCES shops (id) DEFERRABLE INITIALLY DEFERRED);",
    );
    let refused =
        parked(&mine.store(), vec!["INSERT INTO sales VALUES (7)".into(), "INSERT INTO sales VALUES (NULL)".into()]);
    assert_eq!((refused.into_keys().collect::<Vec<_>>(), mine.count("sales")), (vec![0], 1));
}

#[test]
fn a_refused_statement_is_not_reordered_in_its_job() {
    let mine = Mine::new(ACCOUNTS);
    mine.sql.execute("INSERT INTO accounts VALUES ('ann', 1)", []).unwrap();
    let (store, insert) = (mine.store(), "INSERT INTO accounts VALUES ('ann', 2)");
    let moved = move |effects: &mut Effects| {
        effects.execute(insert, ())?;
        effects.execute("DELETE FROM accounts WHERE id = 'ann'", ())
    };
    assert!(matches!(store.write(moved), Err(Error::Sql { sql, .. }) if sql == insert));
    let jobs: MemoryJobs<u64> = (0..1).collect();
    let consumer = Consumer::builder(jobs, store.progress("moves"));
    let ended = consumer.start_transactional(move |_, effects| Ok(moved(effects)?)).unwrap().join();
    assert!(matches!(ended, Err(Error::Job { index: 0, .. })));
    assert_eq!(mine.rows("SELECT id, cents FROM accounts"), [("ann".to_owned(), 1)]);
}

#[test]
fn an_unwritten_row_refuses_no_other_job() {
    let tables = "CREATE TABLE parents (id INTEGER PRIMARY KEY);
                  CREATE TABLE children (id INTEGER PRIMARY KEY,
                      parent INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED);";
    for _ in 0..size(5, 60) {
        let mine = Mine::new(tables);
        // The row of job 0 is never written, so that of job 1 is no twin.
        let orphan_and_twin = ["INSERT INTO children VALUES (1, 99)", "INSERT INTO children VALUES (1, NULL)"];
        let refused = parked(&mine.store(), orphan_and_twin.map(str::to_owned).into());
        assert_eq!(refused.into_keys().collect::<Vec<_>>(), [0]);
        assert_eq!(mine.count("children"), 1);
    }
}

#[test]
fn execute_exactly_changes_its_rows_or_nothing() {
    let mine = Mine::new(ACCOUNTS);
    let store = mine.store();
    store.write(|effects| effects.execute("INSERT INTO accounts VALUES (?1, ?2)", ("ann", 5))).unwrap();
    let take = |cents: i64| {
        store.write(|effects| {
            effects.execute("INSERT INTO accounts VALUES (?1, 0)", [format!("try {cents}")])?;
            let take = "UPDATE accounts SET cents = cents - ?1 WHERE id = 'ann' AND cents >= ?1";
            effects.execute_exactly(1, take, [cents])
        })
    };
    take(3).unwrap();
    let error = take(4).unwrap_err().report();
    assert!(error.contains("UPDATE accounts") && error.contains("it changed 0 rows, and must change 1"), "{error}");
    let left = [("ann".to_owned(), 2), ("try 3".to_owned(), 0)];
    assert_eq!(mine.rows("SELECT id, cents FROM accounts ORDER BY id"), left);
    // A statement that changes no rows counts none, whatever the one before it changed.
    let behind_another = |rows: u64, statement: &str| {
        store.write(|effects| {
            effects.execute("UPDATE accounts SET cents = cents", ())?;
            effects.execute_exactly(rows, statement, ())
        })
    };
    behind_another(0, "CREATE TABLE notes (text TEXT)").unwrap();
    assert!(matches!(behind_another(2, "DROP TABLE notes"), Err(Error::Sql { .. })));
}

#[test]
fn statements_rows_and_queue_jobs_are_one_write() {
    let mine = Mine::new("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT UNIQUE NOT NULL) STRICT;");
    let store = mine.store();
    let (mails, totals) =
        (Queue::open(&store, "mails", QueueOptions::default()).unwrap(), store.table("totals").unwrap());
    let order = |item: &str| {
        store.write(|effects| {
            mails.push_with(effects, NewJob::new("confirm", &item)?.id(item))?;
            effects.add(&totals, "orders", 1)?;
            effects.execute("INSERT INTO orders (item) VALUES (?1)", [item])
        })
    };
    order("book").unwrap();
    assert!(matches!(order("book"), Err(Error::Refused { .. } | Error::Sql { .. })));
    order("lamp").unwrap();
    // A handler of the queue writes in one transaction with the end of its job.
    let runner = Runner::builder(&mails)
        .on_transactional("confirm", |_, item: String, effects| {
            effects.execute_exactly(1, "UPDATE orders SET item = item || ' (confirmed)' WHERE item = ?1", [item])?;
            Ok(Outcome::Done)
        })
        .start()
        .unwrap();
    eventually("all mails are sent", || mails.status().is_ok_and(|status| status.counts.ready == 0));
    runner.stop().unwrap();
    let items: Vec<_> =
        mine.rows("SELECT item, id FROM orders ORDER BY id").into_iter().map(|(item, _)| item).collect();
    assert_eq!(items, ["book (confirmed)", "lamp (confirmed)"]);
    assert_eq!(totals.counter("orders").unwrap(), 2);
}

#[test]
fn a_locked_file_is_a_store_error_and_retried() {
    let mine = Mine::new(ACCOUNTS);
    let store = mine.store();
    let jobs = numbers(10);
    let consumer = Consumer::builder(jobs, store.progress("jobs")).stop_at(9).start_transactional(|job, effects| {
        let id = job.index.to_string();
        Ok(effects.execute("INSERT INTO accounts VALUES (?1, 0)", [id])?)
    });
    let consumer = consumer.unwrap();
    // A caller with its own transaction open would wait for itself, and the error says so.
    mine.sql.execute_batch("BEGIN IMMEDIATE").unwrap();
    let table = store.table("rows").unwrap();
    let error = table.put("k", "v").unwrap_err().report();
    assert!(error.contains("busy_timeout"), "{error}");
    let error = store.write(|effects| effects.execute("DELETE FROM accounts", ())).unwrap_err();
    assert!(matches!(error, Error::Store(_)), "{error:?}");
    mine.sql.execute_batch("COMMIT").unwrap();
    table.put("k", "v").unwrap();
    consumer.join().unwrap();
    assert_eq!(mine.count("accounts"), 10);
}

#[test]
fn a_store_in_memory_refuses_a_statement_at_once() {
    let store = Store::in_memory();
    let refused = store.write(|effects| effects.execute("SELECT 1", ()));
    assert!(matches!(refused, Err(Error::Config(ConfigError::Unsupported { setting: "execute", .. }))), "{refused:?}");
    let consumer = Consumer::builder(numbers(1), store.progress("jobs"))
        .start_transactional(|_, effects| effects.execute("SELECT 1", ()).map_err(BoxError::from));
    let error = consumer.unwrap().join().unwrap_err().report();
    assert!(error.contains("takes no SQL"), "{error}");
}

/// A job: cents for some accounts. Accounts start at none, and must not go below.
type Transfer = Vec<(u8, i64)>;

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(32), ..ProptestConfig::default() })]

    /// The refused jobs and the sums of the others are those of a model. Each job is a write of its
    /// own here, so the model knows all saves.
    #[test]
    fn promise_09_each_write_is_whole_or_refused(
        writes in proptest::collection::vec(proptest::collection::vec((0..4u8, -9..20i64), 1..5), 1..60),
        threads in 1..4usize,
    ) {
        let mine = Mine::new(ACCOUNTS);
        let store = mine.store();
        let add = "INSERT INTO accounts VALUES (?1, ?2) ON CONFLICT DO UPDATE SET cents = cents + excluded.cents";
        let write = |transfer: &Transfer| {
            store.write(|effects| {
                transfer.iter().try_for_each(|(account, cents)| {
                    effects.add(&store.table("counts")?, account.to_string(), *cents)?;
                    effects.execute(add, (account.to_string(), *cents))
                })
            })
        };
        // Which writes share a batch differs from run to run, so answers are compared with rows.
        let parts: Vec<_> = writes.chunks(writes.len().div_ceil(threads)).collect();
        let made: Vec<Transfer> = std::thread::scope(|scope| {
            let made = |part: &[Transfer]| -> Vec<Transfer> {
                part.iter().filter(|transfer| match write(transfer) {
                    Ok(()) => true,
                    Err(Error::Sql { .. }) => false,
                    Err(error) => panic!("{error:?}"),
                }).cloned().collect()
            };
            let threads: Vec<_> = parts.iter().map(|part| scope.spawn(move || made(part))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let mut sums = BTreeMap::new();
        made.iter().flatten().for_each(|(account, cents)| *sums.entry(account.to_string()).or_default() += cents);
        prop_assert_eq!(mine.rows("SELECT id, cents FROM accounts ORDER BY id"), sums.clone().into_iter().collect::<Vec<_>>());
        for (account, sum) in sums {
            prop_assert_eq!(store.table("counts").unwrap().counter(&account).unwrap(), sum);
        }
    }
}

#[test]
fn statements_counters_and_puts_never_deadlock() {
    let mine = Mine::new("CREATE TABLE lines (text TEXT);");
    let store = mine.store();
    let table = store.table("rows").unwrap();
    let call = |make: &(dyn Fn() -> Result<(), Error> + Sync)| (0..50).for_each(|_| make().unwrap());
    // Many threads and a slow statement: it shares a batch with a counter behind it, while a put
    // begins to wait.
    let slow = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 2000)
        INSERT INTO lines SELECT 'a' FROM n WHERE x = 2000";
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| call(&|| store.write(|effects| effects.execute(slow, ()))));
            scope.spawn(|| call(&|| store.write(|effects| effects.add(&table, "added", 1))));
            scope.spawn(|| call(&|| table.put("put", "value")));
        }
    });
    assert_eq!((mine.count("lines"), table.counter("added").unwrap()), (300, 300));
}
