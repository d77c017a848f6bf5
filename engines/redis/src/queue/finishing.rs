//! Ends with writes of the user's: one call, whose lost answer is settled.

use super::Queues;
use super::args::Args;
use super::rows;
use super::writes::{Write, Writes};
use crate::calls::Effect;
use crate::error::{Error, WriteFault};
use crate::keys::slot_of;
use std::time::{Duration, Instant};
use waterline_queue::engine_api::{Held, data_json, engine_of, finish_by, foreign_error};
use waterline_queue::remote::{Answer, CallError, each_ended, ended, queue_error};
use waterline_queue::{JobData, JobState, Lease, Queue, QueueError};

const DOING: &str = "end a job with writes";

/// Ends a job together with writes of yours in Redis.
pub trait LeaseExt {
    /// Ends the job with success, together with the writes that the closure collects: all of it is
    /// made in one call, or nothing.
    ///
    /// The closure runs at once, and changes nothing. It returns the state of the job after the
    /// end, as [`Lease::finish`] does, and the data of the job stay as they are. A lease that has
    /// ended writes nothing, so the writes are made once for a job, however many workers have had
    /// it. If an answer is lost, the server is asked what became of the end. [`Writes`] says what
    /// may be written, and what is refused.
    ///
    /// ```no_run
    /// use waterline_queue::{Accept, QueueOptions};
    /// use waterline_redis::{LeaseExt, RedisOptions, RedisStore};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = RedisStore::connect("redis://localhost/0", RedisOptions::new())?;
    /// let queue = store.queue("orders", QueueOptions::default())?;
    /// while let Some(mut lease) = queue.accept(Accept::new())? {
    ///     let order: String = lease.payload()?;
    ///     lease.finish_with_redis(|w| {
    ///         w.incr("{orders}:count", 1).set(format!("{{orders}}:{order}"), "shipped");
    ///         Ok(())
    ///     })?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// That of the closure. [`QueueError::Halt`] if the lease has ended; those of [`Queue::push`]
    /// for a push; [`QueueError::Config`] for a queue that is not in Redis, or a push into one of
    /// another store. [`QueueError::Store`] for a write that is refused: among its sources is an
    /// [`Error::Write`](crate::Error::Write) with the key. If the rights of the user are too small
    /// for a key, or the server has no memory left, it is an
    /// [`Error::Refused`](crate::Error::Refused). After all of these nothing was changed, and the
    /// lease is as it was.
    ///
    /// [`QueueError::Unsure`] if the answer is lost and the server cannot be asked, either: the
    /// next call that ends the lease, or its drop, asks again.
    fn finish_with_redis(
        &mut self,
        writes: impl FnOnce(&mut Writes) -> Result<(), QueueError>,
    ) -> Result<Option<JobState>, QueueError>;
}

impl LeaseExt for Lease {
    fn finish_with_redis(
        &mut self,
        writes: impl FnOnce(&mut Writes) -> Result<(), QueueError>,
    ) -> Result<Option<JobState>, QueueError> {
        let mut all = Writes::default();
        writes(&mut all)?;
        finish_by(self, |queue, job| finish(queue, job, None.into(), &all, Duration::ZERO))
    }
}

/// The state of the job; `None`: the lease had ended.
type Ended = Option<Option<JobState>>;

/// Returns the queues of this one's store, and its number.
pub(super) fn queues_of(queue: &Queue) -> Result<(&Queues, u32), QueueError> {
    let (engine, number) = engine_of(queue);
    let queues = engine.as_any().downcast_ref().ok_or_else(|| foreign_error(queue))?;
    Ok((queues, number))
}

/// Ends a job with success, with this data and these writes. A server that is away is waited for up
/// to this time.
pub(super) fn finish(
    queue: &Queue,
    job: &Held,
    data: JobData,
    writes: &Writes,
    patience: Duration,
) -> Result<Ended, QueueError> {
    let call = Call::new(queue, job, data, writes)?;
    let (until, mut pause) = (Instant::now() + patience, Duration::from_millis(5));
    let mut doubt = None;
    loop {
        let (error, passes) = match call.settle_or_make() {
            Ok(ended) => {
                call.queues.forget(job);
                return Ok(ended);
            }
            Err(failed) => failed,
        };
        if doubt.is_none() && matches!(error, QueueError::Unsure { .. }) {
            // The server may have lost this one answer only.
            doubt = Some(error);
            continue;
        }
        if !passes {
            return Err(error);
        }
        if Instant::now() >= until {
            return Err(doubt.unwrap_or(error));
        }
        std::thread::park_timeout(pause);
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// An end with its writes, as it is sent, perhaps several times.
struct Call<'a> {
    queues: &'a Queues,
    job: &'a Held,
    /// Those of the pushes, behind that of the job.
    all: Vec<&'a Queue>,
    number: i64,
    token: i64,
    data: Option<String>,
    writes: &'a Writes,
}

impl<'a> Call<'a> {
    fn new(queue: &'a Queue, job: &'a Held, data: JobData, writes: &'a Writes) -> Result<Self, QueueError> {
        let queues = queues_of(queue)?.0;
        let data = data_json(data, &job.id, &queues.shared(job.queue))?;
        let mut all = vec![queue];
        for (of, _) in &writes.pushes {
            if !std::ptr::eq(queues_of(of)?.0, queues) {
                return Err(foreign_error(of));
            }
            if !all.iter().any(|known| known.name() == of.name()) {
                all.push(of);
            }
        }
        let fault = writes.fault(queue.name()).or_else(|| slot_fault(queues, queue.name(), &writes.all));
        if let Some(fault) = fault {
            return Err(queue_error(queue.name(), DOING, fault));
        }
        let runs = queues.runs([job]);
        let data = data.map(|data| String::from_utf8_lossy(&data).into_owned());
        Ok(Self { queues, job, all, number: runs.numbers[0], token: runs.tokens[0], data, writes })
    }

    /// Asks first what became of an end without an answer. An error comes with whether it may pass.
    fn settle_or_make(&self) -> Result<Ended, (QueueError, bool)> {
        let settled = || self.queues.settled_end(self.job).map_err(|error| (error, true));
        if let Some(ended) = settled()? {
            return Ok(ended);
        }
        let failed = match self.make() {
            Ok(answers) => return Ok(self.told(&answers)),
            Err(failed) => failed,
        };
        if failed.refused().is_some_and(|refused| refused.code == "WQ007") {
            // An earlier call may have come late, and ended it.
            return Ok(settled()?.flatten());
        }
        let (passes, is_unsure) = (failed.may_pass(), failed.is_unsure());
        if is_unsure {
            self.queues.doubt(self.job);
        }
        let name = failed.queue().unwrap_or(self.all[0].name()).to_owned();
        Err((queue_error(&name, DOING, failed), passes || is_unsure))
    }

    fn make(&self) -> Result<Vec<Answer>, Error> {
        let door = &self.queues.server().door;
        let keys: Vec<_> = self.all.iter().map(|queue| door.keys(queue.name())).collect();
        let keys: Vec<_> = keys.iter().collect();
        let own: Vec<_> = self.writes.all.iter().filter(|write| write.has_key()).map(|write| &*write.key).collect();
        let made = door.calls.fcall_with(&keys, &own, "wl_finish_with", &self.args().all(), Effect::Confirmed);
        let answer = made.map_err(|error| named(error, self.all[0].name(), &self.writes.all))?;
        let answers = rows::rows(answer, rows::answer);
        answers.map_err(|odd| Error::odd("wl_finish_with", odd).about(&keys))
    }

    fn args(&self) -> Args<'_> {
        let Writes { all: writes, pushes, .. } = self.writes;
        let args = Args::clocked(self.queues.clock(self.job.queue)).length(self.all.len());
        let args = args.number(self.number).number(self.token).text(self.data.as_deref()).length(pushes.len());
        let args = pushes.iter().fold(args, |args, (queue, job)| {
            let place = self.all.iter().take_while(|known| known.name() != queue.name()).count();
            let settings = job.settings[0].as_deref().unwrap_or_default();
            args.length(place + 1).plain(&job.kinds[0]).plain(&job.payloads[0]).plain(settings)
        });
        writes.iter().fold(args.length(writes.len()), |args, write| {
            let args = args.plain(write.name).plain(&write.key);
            write.args.iter().fold(args, |args, arg| args.bytes(arg))
        })
    }

    /// Tells waiters what has happened, and returns the end.
    fn told(&self, answers: &[Answer]) -> Ended {
        let mut end = None;
        for (at, (queue, answers)) in self.all.iter().zip(answers.split(|answer| answer.what == "next")).enumerate() {
            let mut answers = answers.to_vec();
            if at == 0 {
                answers = each_ended(answers, &[(self.number, self.token, &self.job.id, self.data.clone())]);
                let ended = ended(&answers);
                end = ended.get(&(self.number, self.token)).filter(|end| end.is_counted()).map(|end| end.state());
            }
            self.queues.tell_of(engine_of(queue).1, &answers);
        }
        end
    }
}

/// The first key in another slot than this queue.
fn slot_fault(queues: &Queues, queue: &str, writes: &[Write]) -> Option<Error> {
    let door = &queues.server().door;
    if !door.calls.nodes.is_cluster() {
        return None;
    }
    let keys = door.keys(queue);
    let elsewhere = |write: &Write| write.has_key() && slot_of(&write.key) != keys.slot;
    let at = writes.iter().position(elsewhere)?;
    let tag = keys.keys[0].split(['{', '}']).nth(1).unwrap_or_default();
    let why = format!("it is in another slot of the cluster than its queue: put {{{tag}}} into the key");
    Some(writes[at].refused(queue, at + 1, WriteFault::Slot, &why))
}

/// Names the write that a function has refused.
fn named(error: Error, queue: &str, writes: &[Write]) -> Error {
    let failed = error;
    let place = |detail: &str| detail.parse::<usize>().ok()?.checked_sub(1);
    let refused = failed.refused().filter(|refused| refused.code == "WQ013");
    let Some((refused, at)) = refused.and_then(|refused| Some((refused, place(refused.detail)?))) else {
        return failed;
    };
    let Some(write) = writes.get(at) else { return failed };
    let fault = match refused.hint {
        "type" => WriteFault::Type,
        "number" => WriteFault::Number,
        "right" => WriteFault::Right,
        "queue" => WriteFault::Queue,
        _ => WriteFault::Bounds,
    };
    let why = refused.message.split_once("is refused: ").map_or(refused.message, |(_, why)| why);
    write.refused(queue, at + 1, fault, why)
}
