//! Pushes and ends as statements of a user's transaction.

use super::Queues;
use super::answers::each_of;
use super::calls::values;
use super::faults::Failed;
use super::server::push_values;
use crate::error::Error;
use postgres::Transaction;
use waterline_queue::engine_api::{
    Held, data_json, engine_of, foreign_error, halt_error, lease_parts, note_end_in_transaction, prepare_all,
};
use waterline_queue::remote::{Answer, At, PushCall, each_ended, pushed, queue_error};
use waterline_queue::{JobData, Lease, NewJob, Pushed, Queue, QueueError};

/// Pushes in a transaction of yours, for a queue in the same database.
///
/// ```no_run
/// use waterline_queue::{NewJob, QueueOptions};
/// use waterline_postgres::postgres::{Config, NoTls};
/// use waterline_postgres::{PgOptions, PgStore, QueueExt};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config: Config = "host=localhost user=app dbname=shop".parse()?;
/// let store = PgStore::connect(config.clone(), NoTls, PgOptions::new())?;
/// let queue = store.queue("mail", QueueOptions::default())?;
///
/// let mut client = config.connect(NoTls)?;
/// let mut transaction = client.transaction()?;
/// transaction.execute("INSERT INTO users (name) VALUES ($1)", &[&"ann"])?;
/// queue.push_in(&mut transaction, NewJob::new("welcome", "ann")?)?;
/// transaction.commit()?;                      // the user and the job, or neither
/// # Ok(())
/// # }
/// ```
///
/// The write of [`start_writing`](waterline::Builder::start_writing) has such a transaction too. So
/// a stream pushes exactly once:
///
/// ```no_run
/// use waterline_queue::{NewJob, QueueOptions};
/// use waterline::{BoxError, Consumer, MemoryJobs};
/// use waterline_postgres::postgres::{NoTls, Transaction};
/// use waterline_postgres::{PgOptions, PgStore, QueueExt};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = PgStore::connect("host=localhost".parse()?, NoTls, PgOptions::new())?;
/// let queue = store.queue("mail", QueueOptions::default())?;
/// let orders: MemoryJobs<u64> = (0..100).collect();
/// Consumer::builder(orders, store.progress("orders")).start_writing(
///     |order| Ok(order.payload),
///     move |transaction: &mut Transaction<'_>, orders| {
///         let jobs: Result<Vec<_>, _> = orders.iter().map(|(_, order)| NewJob::new("confirm", order)).collect();
///         queue.push_all_in(transaction, jobs?)?;
///         Ok(())
///     },
/// )?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "outbox")]
pub trait QueueExt {
    /// Pushes a job in this transaction.
    ///
    /// It follows the rules of [`Queue::push`](waterline_queue::Queue::push), and is visible once
    /// the transaction is committed. The transaction's user is a member of the role
    /// `waterline_push`, and may be another one than that of the store. Its isolation level is READ
    /// COMMITTED. Until it ends, a push of the same id, or of a twin, waits for it. After a push of
    /// an id whose job runs, the end of that run waits for it too, and so do the ends that go with
    /// it: commit well within the lease. If the queue has
    /// [`max_waiting`](waterline_queue::QueueOptions::max_waiting), each other push waits for it.
    ///
    /// # Errors
    /// Those of that call. An error of the database leaves the transaction failed, as any failed
    /// statement does: make a savepoint before it if you want to go on.
    fn push_in(&self, transaction: &mut Transaction<'_>, job: NewJob) -> Result<Pushed, QueueError>;

    /// Pushes jobs in this transaction: all or none. See [`push_in`](Self::push_in).
    ///
    /// # Errors
    /// Those of [`push_in`](Self::push_in).
    fn push_all_in(
        &self,
        transaction: &mut Transaction<'_>,
        jobs: impl IntoIterator<Item = NewJob>,
    ) -> Result<Vec<Pushed>, QueueError>;
}

impl QueueExt for Queue {
    fn push_in(&self, transaction: &mut Transaction<'_>, job: NewJob) -> Result<Pushed, QueueError> {
        Ok(self.push_all_in(transaction, [job])?.remove(0))
    }

    fn push_all_in(
        &self,
        transaction: &mut Transaction<'_>,
        jobs: impl IntoIterator<Item = NewJob>,
    ) -> Result<Vec<Pushed>, QueueError> {
        let (queues, number) = queues_of(self)?;
        let jobs: Vec<_> = jobs.into_iter().collect();
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let pushing = PushCall::new(&prepare_all(self, jobs)?);
        let at = At { queue: self.name(), clock: queues.clock(number) };
        let made = push(transaction, at, &pushing, &queues.server().push_sql());
        let answers = made.map_err(|error| queue_error(self.name(), "push jobs", Failed::from(error)))?;
        Ok(pushed(&answers).collect())
    }
}

/// Ends a job in a transaction of yours, for a queue in the same database.
///
/// ```no_run
/// use waterline_queue::{Accept, QueueOptions};
/// use waterline_postgres::postgres::{Config, NoTls};
/// use waterline_postgres::{LeaseExt, PgOptions, PgStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config: Config = "host=localhost user=app dbname=shop".parse()?;
/// # let store = PgStore::connect(config.clone(), NoTls, PgOptions::new())?;
/// let queue = store.queue("mail", QueueOptions::default())?;
/// let mut client = config.connect(NoTls)?;
/// while let Some(mut lease) = queue.accept(Accept::new())? {
///     let mut transaction = client.transaction()?;
///     transaction.execute("UPDATE users SET welcomed = now() WHERE name = $1", &[&lease.payload::<String>()?])?;
///     lease.finish_in(&mut transaction, None)?;   // an error if the job is no longer ours
///     transaction.commit()?;                      // the row and the end, or neither
/// }
/// # Ok(())
/// # }
/// ```
pub trait LeaseExt {
    /// Ends the job with success in this transaction, and leaves this data.
    ///
    /// With `None`, it keeps what it has. The rows of the transaction and the end are committed
    /// together, or not at all.
    ///
    /// A lease that has ended makes the transaction fail: nothing of it can be committed, whatever
    /// the caller does. (In a savepoint: nothing behind the savepoint.) Commit soon after this
    /// call, since the job is locked until then, and drop the lease after the commit: its drop asks
    /// the server whether the end was committed. If not, the attempt has failed.
    ///
    /// [`RunnerExt::on_writing`](crate::RunnerExt::on_writing) does all of this for a runner.
    ///
    /// # Errors
    /// [`QueueError::Halt`] if the lease has ended, [`QueueError::Payload`] for data that is no
    /// JSON, [`QueueError::Store`] if the database fails.
    fn finish_in(&mut self, transaction: &mut Transaction<'_>, data: impl Into<JobData>) -> Result<(), QueueError>;
}

impl LeaseExt for Lease {
    fn finish_in(&mut self, transaction: &mut Transaction<'_>, data: impl Into<JobData>) -> Result<(), QueueError> {
        let (queue, held) = lease_parts(self);
        let queues = queues_of(queue)?.0;
        let data = data_json(data.into(), &held.id, &queues.shared(held.queue))?;
        let data = data.map(|data| String::from_utf8_lossy(&data).into_owned());
        let ended = end_in(queues, transaction, std::slice::from_ref(&held), &[data], true);
        let halt = halt_error(queue.name().to_owned(), held.id);
        match ended {
            Ok(_) => {
                note_end_in_transaction(self);
                Ok(())
            }
            Err(error) if is_halt(&error) => Err(halt),
            Err(error) => Err(queue_error(queue.name(), "end a job in a transaction", Failed::from(error))),
        }
    }
}

fn is_halt(error: &Error) -> bool {
    let Error::Database(error) = error else { return false };
    error.code().is_some_and(|code| code.code() == "WQ007")
}

/// Returns the queues of this one's database, and its number.
pub(super) fn queues_of(queue: &Queue) -> Result<(&Queues, u32), QueueError> {
    let (engine, number) = engine_of(queue);
    let queues = engine.as_any().downcast_ref().ok_or_else(|| foreign_error(queue))?;
    Ok((queues, number))
}

/// Ends jobs of one queue with success in this transaction, and returns an answer for each.
/// `is_strict`: a lease that has ended is an error, which leaves the transaction failed.
pub(super) fn end_in(
    queues: &Queues,
    transaction: &mut Transaction<'_>,
    jobs: &[Held],
    datas: &[Option<String>],
    is_strict: bool,
) -> Result<Vec<Answer>, Error> {
    let runs = queues.runs(jobs);
    set_clock(transaction, jobs.first().and_then(|job| queues.clock(job.queue)))?;
    let values = values![INT8_ARRAY runs.numbers, INT8_ARRAY runs.tokens, TEXT_ARRAY datas, BOOL is_strict];
    let rows = transaction.query_typed(&queues.server().sql_of("end_in", 4), &values)?;
    let ended = jobs.iter().zip(datas).enumerate();
    let ended = ended.map(|(at, (job, data))| (runs.numbers[at], runs.tokens[at], &*job.id, data.clone()));
    Ok(each_ended(each_of(&rows)?, &ended.collect::<Vec<_>>()))
}

/// Only a test moves a clock: its database reads this setting.
fn set_clock(transaction: &mut Transaction<'_>, clock: Option<u64>) -> Result<(), postgres::Error> {
    let Some(wall) = clock else { return Ok(()) };
    transaction.batch_execute(&format!("SELECT set_config('waterline.now', '{wall}', true)"))
}

fn push(transaction: &mut Transaction<'_>, at: At<'_>, jobs: &PushCall, sql: &str) -> Result<Vec<Answer>, Error> {
    set_clock(transaction, at.clock)?;
    Ok(each_of(&transaction.query_typed(sql, &push_values(&at, jobs))?)?)
}
