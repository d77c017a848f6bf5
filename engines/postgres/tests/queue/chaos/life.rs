//! The life of a worker in Rust that makes all of its calls, one after the other: those that write
//! first. A proxy stops it after one of them.

use super::stopping::PART;
use postgres::types::Type;
use postgres::{Client, Config, IsolationLevel, NoTls, Transaction};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};
use waterline::{BoxError, Failure, Retry};
use waterline_postgres::{LeaseExt, PgOptions, PgStore, QueueExt, RunnerExt};
use waterline_queue::{
    Accept, DrainLimits, Every, JobState, Lease, Limit, NewJob, OnDead, Outcome, Queue, QueueOptions, Retention,
    Runner, Running, Unique,
};

/// The variables that make a process such a worker: the database, and the number of its life.
const URL: &str = "WATERLINE_STOPPED_URL";
const NUMBER: &str = "WATERLINE_STOPPED_NUMBER";
/// So long that nothing expires within the test's patience after a worker fell silent. (A
/// transaction with the user's rows is bounded by three quarters of it.)
const LEASE: Duration = Duration::from_secs(30);
/// More than the buffers between a server and its client hold.
const LARGE: usize = 130_000;

fn plain_options() -> QueueOptions {
    QueueOptions::default()
        .lease(LEASE)
        .retry(Retry::fixed(Duration::ZERO))
        .unlimited_crashes()
        .retention(Retention::Keep)
}

/// The queue with locks for all claims, pushes and edges.
fn limited_options() -> QueueOptions {
    plain_options().limit(Limit::each_key().at_once(1)).limit(Limit::kind("narrow").at_once(2)).max_waiting(100_000)
}

/// The store of a process with these two queues.
pub fn open(config: Config, holder: &str) -> (PgStore, [Queue; 2]) {
    let store = PgStore::connect(config, NoTls, PgOptions::new().holder(holder)).unwrap();
    // A process that is frozen in it for a second loses its turn.
    common::eventually("the tables", || store.migrate().is_ok());
    let queues = [store.queue("q", limited_options()).unwrap(), store.queue("p", plain_options()).unwrap()];
    (store, queues)
}

pub fn command(port: u16, database: &str, number: usize) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "chaos::life::life", "--nocapture"]);
    command.env(URL, format!("postgresql://postgres@127.0.0.1:{port}/{database}")).env(NUMBER, number.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Does nothing as a test. As a process of its own it makes all calls, and ends.
#[test]
fn life() {
    let Ok(url) = std::env::var(URL) else { return };
    let number = std::env::var(NUMBER).unwrap();
    let config: Config = url.parse().unwrap();
    let marks = config.connect(NoTls).unwrap();
    let mut life = Life { marks, config: config.clone(), number };
    life.begin("the start");
    let (store, [limited, plain]) = open(config, &format!("life {}", life.number));
    life.pushes(&store, &limited, &plain);
    life.writes(&limited);
    life.leases(&limited);
    life.claims_many(&limited, &plain);
    life.steers(&store, &limited);
    life.stops(&limited);
    life.looks(&limited);
}

struct Life {
    /// A client that tells the proxy of the parts of this life.
    marks: Client,
    config: Config,
    number: String,
}

impl Life {
    fn begin(&mut self, part: &str) {
        self.marks.batch_execute(&format!("{PART}{part}")).unwrap();
    }

    /// A kind, a key or an id that no other life has.
    fn own(&self, name: &str) -> String {
        format!("{name}-{}", self.number)
    }

    fn job(&self, kind: &str, id: &str) -> NewJob {
        NewJob::new(self.own(kind), &1).unwrap().id(self.own(id))
    }

    fn accept(&self, queue: &Queue, kind: &str) -> Lease {
        let accept = Accept::new().kinds([self.own(kind)]).timeout(Duration::from_secs(30));
        queue.accept(accept).unwrap().expect("a job of its own is ready")
    }

    fn pushes(&mut self, store: &PgStore, limited: &Queue, plain: &Queue) {
        self.begin("pushes");
        push(plain, [NewJob::new("plain", &1).unwrap()]);
        push(limited, [self.job("own", "first").key(self.own("key"))]);
        let unique = |job: NewJob| job.unique(Unique::until_done()).skip_if_executed();
        push(limited, [unique(self.job("own", "unique"))]);
        push(limited, [self.job("own", "within").unique(Unique::within(Duration::from_secs(60)))]);
        // An old job that is to wait for others changes edges under a lock.
        push(limited, [self.job("own", "old").delay(Duration::from_secs(3600))]);
        push(limited, [self.job("own", "old").after([self.own("first")]).on_dead(OnDead::Run)]);
        self.begin("pushes of many");
        push(limited, (0..20).map(|at| self.job("writes", &format!("writes {at}"))));
        push(plain, (0..641).map(|at| NewJob::new("plain", &at).unwrap()));
        self.begin("a push into two queues");
        let kinds = [self.own("own"), self.own("plain")];
        let group =
            store.queue_group().queue("q", [&kinds[0]], limited_options()).queue("p", [&kinds[1]], plain_options());
        let group = group.open().unwrap();
        group.push_all([self.job("own", "both"), self.job("plain", "both")]).unwrap();
        self.begin("a push in a transaction");
        let mut client = self.config.connect(NoTls).unwrap();
        let mut transaction = own_transaction(&mut client);
        plain.push_in(&mut transaction, self.job("plain", "in")).unwrap();
        transaction.commit().unwrap();
    }

    /// Rows and ends in one transaction. One of the jobs has a fingerprint that others have, too.
    fn writes(&mut self, limited: &Queue) {
        self.begin("rows with ends");
        let mut client = self.config.connect(NoTls).unwrap();
        let push = "CALL waterline.push_and_commit('q', ARRAY[$1], '{1}', ARRAY['{\"skip\": \"shared\"}'], false)";
        client.query_typed(push, &[(&self.own("writes"), Type::TEXT)]).unwrap();
        let runner =
            Runner::builder(limited).max_processing(8).on_writing(self.own("writes"), |_, _: u64| Ok(()), write);
        runner.drain(DrainLimits::default()).unwrap();
    }

    fn leases(&mut self, limited: &Queue) {
        self.begin("a claim with limits");
        let kind = "own";
        let mut first = self.accept(limited, kind);
        first.progress(0.5, "half").unwrap();
        first.update("data").unwrap();
        first.set_meta("a", Some(1.into())).unwrap();
        first.resubmit(None).unwrap();
        self.begin("ends");
        first.finish(None).unwrap();
        self.accept(limited, kind).snooze(SystemTime::now()).unwrap();
        self.accept(limited, kind).retry("not yet").unwrap();
        let mut dies = self.accept(limited, kind);
        push(limited, [self.job("own", "behind").after([dies.id()]).on_dead(OnDead::Run)]);
        dies.bury("it dies, and one waits for it").unwrap();
        let mut lease = self.accept(limited, kind);
        let mut client = self.config.connect(NoTls).unwrap();
        self.begin("an end in a transaction");
        let mut transaction = own_transaction(&mut client);
        lease.finish_in(&mut transaction, None).unwrap();
        transaction.commit().unwrap();
        drop(lease);
        self.begin("other ends");
        let runner = Runner::builder(limited).max_processing(4).on(self.own("own"), |_, _: u64| Ok(Outcome::Done));
        runner.drain(DrainLimits::default()).unwrap();
    }

    /// Claims with answers larger than any buffer.
    fn claims_many(&mut self, limited: &Queue, plain: &Queue) {
        for queue in [plain, limited] {
            self.begin(&format!("large claims of {}", queue.name()));
            let payload = "x".repeat(LARGE);
            push(queue, (0..80).map(|_| NewJob::new(self.own("large"), &payload).unwrap()));
            let runner =
                Runner::builder(queue).max_processing(80).on(self.own("large"), |_, _: String| Ok(Outcome::Done));
            runner.drain(DrainLimits::default()).unwrap();
        }
    }

    fn steers(&mut self, store: &PgStore, limited: &Queue) {
        self.begin("changes by hand");
        push(limited, [self.job("own", "dead")]);
        push(limited, [self.job("own", "dead too").after([self.own("dead")])]);
        self.accept(limited, "own").bury("by hand").unwrap();
        let mut behind = limited.subscribe(self.own("dead too")).unwrap();
        assert!(behind.wait_ended(Duration::from_secs(30)).unwrap().is_some());
        limited.requeue(self.own("dead")).unwrap();
        limited.requeue(self.own("dead too")).unwrap();
        limited.remove(self.own("dead too")).unwrap();
        push(limited, [self.job("own", "later").delay(Duration::from_secs(3600))]);
        limited.run_now(self.own("later")).unwrap();
        let notes = limited.notes("n").unwrap();
        notes.add("shared", 1).unwrap();
        notes.set(self.own("note"), "a").unwrap();
        notes.keep_for(self.own("note"), Duration::from_secs(60)).unwrap();
        notes.remove(self.own("note")).unwrap();
        limited
            .periodic(self.own("ticks"), Every::hours(1), NewJob::new(self.own("own"), &1).unwrap())
            .start()
            .unwrap();
        limited.remove_periodic(self.own("ticks")).unwrap();
        // Calls for whole queues are made on a queue of its own.
        let name = self.own("other");
        let other = store.queue(&name, QueueOptions::default().lease(Duration::from_millis(1))).unwrap();
        other.push(self.job("own", "other")).unwrap();
        other.pause(None).unwrap();
        other.resume().unwrap();
        other.purge().unwrap();
        drop(other);
        common::eventually("a queue without workers", || store.remove_queue(&name).is_ok());
    }

    /// A runner that is stopped while jobs run, so it gives them up.
    fn stops(&mut self, limited: &Queue) {
        self.begin("a stop");
        push(limited, [self.job("slow", "slow")]);
        let (began, begun) = crossbeam_channel::bounded(1);
        let (end, ends) = crossbeam_channel::bounded::<()>(0);
        let runner = Runner::builder(limited).on(self.own("slow"), move |_, _: u64| {
            _ = began.send(());
            // Until its sender is gone.
            _ = ends.recv();
            Err(Failure::permanent("it was too slow").into())
        });
        let runner = runner.start().unwrap();
        begun.recv().unwrap();
        assert!(runner.stop_within(Duration::ZERO).is_err(), "the job still runs");
        drop(end);
    }

    fn looks(&mut self, limited: &Queue) {
        self.begin("looks");
        _ = limited.counts();
        limited.status().unwrap();
        limited.limits().unwrap();
        limited.get(self.own("first")).unwrap();
        limited.list(JobState::Finished, None, 10).unwrap();
        limited.periodics().unwrap();
    }
}

/// Pushes jobs, and pushes again if the connection was closed. A pooler may give this life a
/// connection of an earlier one that was killed, and learns only then that the server has ended it.
/// The library does not push again, since the jobs may be there although the answer was lost. Here
/// twins do no harm: their ids are the same, or they are not counted.
fn push(queue: &Queue, jobs: impl IntoIterator<Item = NewJob>) {
    let jobs: Vec<_> = jobs.into_iter().collect();
    let pushed = queue.push_all(jobs.clone());
    let again = pushed.as_ref().is_err_and(|error| was_closed(error));
    if again { queue.push_all(jobs) } else { pushed }.unwrap();
}

/// Whether the connection was closed during a call.
fn was_closed(error: &(dyn std::error::Error + 'static)) -> bool {
    let is_it = error.downcast_ref::<postgres::Error>().is_some_and(postgres::Error::is_closed);
    is_it || error.source().is_some_and(was_closed)
}

/// A transaction as a user would make it, whatever its default level is.
fn own_transaction(client: &mut Client) -> Transaction<'_> {
    client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().unwrap()
}

/// Writes a row for each job, with its end.
pub fn write(transaction: &mut Transaction<'_>, jobs: &[(Running, ())]) -> Result<(), BoxError> {
    for (job, ()) in jobs {
        transaction.execute("INSERT INTO effects VALUES ($1)", &[&job.id()])?;
    }
    Ok(())
}
