//! The writes of a user's that are made together with the end of a job. Pure: no I/O.

use crate::error::{Error, WriteFault};
use std::fmt;
use std::time::Duration;
use waterline_queue::engine_api::prepare_all;
use waterline_queue::remote::PushCall;
use waterline_queue::{NewJob, Queue, QueueError};

/// The most writes of an end, and the most pushes.
const MOST: usize = 1000;
/// The most bytes of all of them.
const MOST_BYTES: usize = 64 << 20;
/// The longest time until a key expires, in milliseconds. (More than the server adds to its clock
/// without loss.)
const LONGEST: u128 = 1 << 53;

/// Writes that are made together with the end of a job: all of them and the end, or nothing.
///
/// They go to keys of yours on the server of the queue. The functions of the server check each of
/// them before the first one is made: the lease, the rights of the user, the types and numbers of
/// the keys (also as earlier writes of the same list leave them), and their size. So it is not left
/// to a retry to find out what was made and what was not. They are made in the order of their
/// calls, after the pushes and the end.
///
/// An end has up to 1,000 writes, as many pushes, and 64 MiB in all. A key keeps its type within
/// the list, unless [`set`](Self::set) or [`del`](Self::del) change it. Keys that begin as those of
/// the queues do (`wl:{`) are refused. A server without memory refuses the call, as it refuses
/// pushes.
///
/// In a *cluster* all keys are in the slot of the queue. The part of a key in braces decides about
/// it: for the queue `mail`, or for queues with the [tag](crate::RedisOptions::tag) `mail`, the key
/// `{mail}:sent` is in its slot.
///
/// ```no_run
/// use std::time::Duration;
/// use waterline_queue::{Accept, NewJob, QueueOptions};
/// use waterline_redis::{LeaseExt, RedisOptions, RedisStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = RedisStore::connect("redis://localhost/0", RedisOptions::new())?;
/// let (mail, log) = (store.queue("mail", QueueOptions::default())?, store.queue("log", QueueOptions::default())?);
/// while let Some(mut lease) = mail.accept(Accept::new())? {
///     let address: String = lease.payload()?;
///     lease.finish_with_redis(|w| {
///         w.hset("{mail}:welcomed", &address, "1").incr("{mail}:sent", 1);
///         w.set("{mail}:last", &address).expire("{mail}:last", Duration::from_secs(3600));
///         w.push(&log, NewJob::new("sent", &address)?)?;
///         Ok(())
///     })?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Writes {
    pub(super) all: Vec<Write>,
    pub(super) pushes: Vec<(Queue, PushCall)>,
    bytes: usize,
    fault: Option<(Write, usize, WriteFault, String)>,
}

/// A command of Redis on one key.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) name: &'static str,
    /// The key, or the channel of a message.
    pub(super) key: String,
    pub(super) args: Vec<Vec<u8>>,
}

impl Write {
    pub(super) fn has_key(&self) -> bool {
        self.name != "PUBLISH"
    }

    /// The error of this write, which has this place.
    pub(super) fn refused(&self, queue: &str, place: usize, fault: WriteFault, why: &str) -> Error {
        let (name, key) = (self.name, self.key.clone());
        let what = format!("write {place}, {name} {key:?}, is refused: {why}");
        Error::Write { at: format!("queue {queue:?}"), key, name, fault, what }
    }
}

impl Writes {
    /// Sets a key to this value, whatever it had, without an expiry (`SET`).
    pub fn set(&mut self, key: impl Into<String>, value: impl AsRef<[u8]>) -> &mut Self {
        self.add("SET", key, [value.as_ref()])
    }

    /// Adds to the number of a key, which is 0 if there is no such key (`INCRBY`).
    ///
    /// The end is refused with [`WriteFault::Number`] if the key has no whole number of 64 bits, or
    /// the sum would be none.
    pub fn incr(&mut self, key: impl Into<String>, by: i64) -> &mut Self {
        self.add("INCRBY", key, [by.to_string().as_bytes()])
    }

    /// Removes a key, if it is there (`UNLINK`, which takes no longer for a large value).
    pub fn del(&mut self, key: impl Into<String>) -> &mut Self {
        self.add("UNLINK", key, [])
    }

    /// Lets a key expire after this time, if it is there by then (`PEXPIRE`).
    ///
    /// The time is 1 millisecond or longer, in whole milliseconds; less is refused with
    /// [`WriteFault::Number`].
    pub fn expire(&mut self, key: impl Into<String>, after: Duration) -> &mut Self {
        let (key, millis) = (key.into(), after.as_millis());
        if !(1..=LONGEST).contains(&millis) {
            return self.refuse("PEXPIRE", key, WriteFault::Number, "a key expires after 1 to 2^53 milliseconds");
        }
        self.add("PEXPIRE", key, [millis.to_string().as_bytes()])
    }

    /// Sets a field of a hash (`HSET`).
    pub fn hset(&mut self, key: impl Into<String>, field: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut Self {
        self.add("HSET", key, [field.as_ref(), value.as_ref()])
    }

    /// Removes a field of a hash, if it is there (`HDEL`).
    pub fn hdel(&mut self, key: impl Into<String>, field: impl AsRef<[u8]>) -> &mut Self {
        self.add("HDEL", key, [field.as_ref()])
    }

    /// Adds an element at the end of a list (`RPUSH`).
    pub fn rpush(&mut self, key: impl Into<String>, element: impl AsRef<[u8]>) -> &mut Self {
        self.add("RPUSH", key, [element.as_ref()])
    }

    /// Adds an element at the beginning of a list (`LPUSH`).
    pub fn lpush(&mut self, key: impl Into<String>, element: impl AsRef<[u8]>) -> &mut Self {
        self.add("LPUSH", key, [element.as_ref()])
    }

    /// Adds a member to a set (`SADD`).
    pub fn sadd(&mut self, key: impl Into<String>, member: impl AsRef<[u8]>) -> &mut Self {
        self.add("SADD", key, [member.as_ref()])
    }

    /// Removes a member of a set, if it is there (`SREM`).
    pub fn srem(&mut self, key: impl Into<String>, member: impl AsRef<[u8]>) -> &mut Self {
        self.add("SREM", key, [member.as_ref()])
    }

    /// Adds a member to a sorted set, or changes its score (`ZADD`).
    ///
    /// A score that is no number (NaN) is refused with [`WriteFault::Number`].
    pub fn zadd(&mut self, key: impl Into<String>, score: f64, member: impl AsRef<[u8]>) -> &mut Self {
        let key = key.into();
        if score.is_nan() {
            return self.refuse("ZADD", key, WriteFault::Number, "a score is a number, and not NaN");
        }
        self.add("ZADD", key, [format!("{score:e}").as_bytes(), member.as_ref()])
    }

    /// Removes a member of a sorted set, if it is there (`ZREM`).
    pub fn zrem(&mut self, key: impl Into<String>, member: impl AsRef<[u8]>) -> &mut Self {
        self.add("ZREM", key, [member.as_ref()])
    }

    /// Sends a message to those who listen to a channel now (`PUBLISH`).
    ///
    /// It is sent with the end or not at all. Who does not listen at that moment never gets it.
    pub fn publish(&mut self, channel: impl Into<String>, message: impl AsRef<[u8]>) -> &mut Self {
        self.add("PUBLISH", channel, [message.as_ref()])
    }

    /// Pushes a job into a queue of the same [`RedisStore`](crate::RedisStore): into that of the
    /// ended job or another one, which is in the same slot in a cluster.
    ///
    /// It follows the rules of [`Queue::push`]. If it is refused there, the end and all writes are
    /// refused with its error: see
    /// [`LeaseExt::finish_with_redis`](crate::LeaseExt::finish_with_redis).
    ///
    /// # Errors
    /// [`QueueError::Config`] for a job that cannot be pushed as it is, and that of the hook of the
    /// queue.
    pub fn push(&mut self, queue: &Queue, job: NewJob) -> Result<&mut Self, QueueError> {
        let pushing = PushCall::new(&prepare_all(queue, vec![job])?);
        self.bytes = self.bytes.saturating_add(pushing.payloads.iter().map(|payload| payload.len()).sum());
        if self.pushes.len() < MOST {
            self.pushes.push((queue.clone(), pushing));
            return Ok(self);
        }
        Ok(self.refuse("push", queue.name().to_owned(), WriteFault::Bounds, "an end pushes 1,000 jobs at most"))
    }

    fn add<const N: usize>(&mut self, name: &'static str, key: impl Into<String>, args: [&[u8]; N]) -> &mut Self {
        let key = key.into();
        let length = key.len() + args.iter().map(|arg| arg.len()).sum::<usize>();
        self.bytes = self.bytes.saturating_add(length);
        if self.all.len() == MOST {
            return self.refuse(name, key, WriteFault::Bounds, "an end has 1,000 writes at most");
        }
        if self.bytes > MOST_BYTES {
            return self.refuse(name, key, WriteFault::Bounds, "all writes and pushes of an end have 64 MiB at most");
        }
        self.all.push(Write { name, key, args: args.map(<[u8]>::to_vec).into() });
        self
    }

    /// Notes the first fault, which the call of the end returns.
    fn refuse(&mut self, name: &'static str, key: String, fault: WriteFault, why: &str) -> &mut Self {
        let place = self.all.len() + 1;
        self.fault.get_or_insert_with(|| (Write { name, key, args: Vec::new() }, place, fault, why.to_owned()));
        self
    }

    /// The first fault of its writes, beside an end in this queue.
    pub(super) fn fault(&self, queue: &str) -> Option<Error> {
        let (write, place, fault, why) = self.fault.as_ref()?;
        Some(write.refused(queue, *place, *fault, why))
    }
}

impl fmt::Debug for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.all.iter().map(|write| (write.name, &write.key)).collect();
        f.debug_struct("Writes").field("writes", &names).field("pushes", &self.pushes.len()).finish_non_exhaustive()
    }
}
