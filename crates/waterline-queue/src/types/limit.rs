//! Limits: how many jobs run at once, and how many start in a period.

use crate::types::config::ConfigError;
use crate::types::job::{check_key, check_kind};
use crate::types::row::Row;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;
use waterline::seam::check_zero;

/// A rate at which jobs start, for [`Limit::rate`]: a token bucket.
///
/// Each attempt takes one token, or as many as [`NewJob::cost`](crate::NewJob::cost) says. The
/// count of tokens is refilled evenly over each period.
///
/// ```
/// use std::time::Duration;
/// use waterline_queue::{Limit, Rate};
///
/// // 100 a minute in the long run; after a pause 10 at once, then one each 600 ms.
/// let limit = Limit::queue().rate(Rate::new(100, Duration::from_secs(60)).burst(10));
/// # let _ = limit;
/// ```
#[doc(alias("rate limit", "throttle"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Rate {
    pub(crate) count: u32,
    pub(crate) per: Duration,
    pub(crate) burst: u32,
}

impl Rate {
    /// Lets `count` jobs start in each period `per`. 0 is refused for both. The burst is `count`.
    pub fn new(count: u32, per: Duration) -> Self {
        Self { count, per, burst: count }
    }

    /// Sets how many tokens a full bucket has: this many jobs start at once after a pause. 0 is
    /// refused. Default: the count, so the jobs of one period may come together.
    pub fn burst(mut self, tokens: u32) -> Self {
        self.burst = tokens;
        self
    }
}

/// Which jobs a limit applies to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LimitOf {
    /// All jobs of the queue.
    Queue,
    /// The jobs of this kind.
    Kind(String),
    /// The jobs with this key.
    Key(String),
    /// The jobs of each key, separately.
    EachKey,
}

impl fmt::Display for LimitOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue => f.write_str("the queue"),
            Self::Kind(kind) => write!(f, "the kind {kind:?}"),
            Self::Key(key) => write!(f, "the key {key:?}"),
            Self::EachKey => f.write_str("each key"),
        }
    }
}

/// A limit of a queue, for [`QueueOptions::limit`](crate::QueueOptions::limit): how many jobs run
/// at once, how many start in a period, or both.
///
/// A job that meets a full limit is *held*: it stays ready, costs no worker, counts no attempt, and
/// runs when it is its turn. Jobs behind it that are not under this limit go on. The held jobs of a
/// limit run in the order in which they met it, whatever their priorities.
///
/// A job may be under several limits, and runs once all of them have room. A job with a key first
/// waits in the line of its key, and the keys take turns at the limit of a kind: so a key with many
/// jobs does not displace the others.
///
/// ```
/// use std::time::Duration;
/// use waterline::Store;
/// use waterline_queue::{Accept, Limit, NewJob, Queue, QueueOptions, Rate};
///
/// let options = QueueOptions::default()
///     .limit(Limit::each_key().at_once(1))
///     .limit(Limit::kind("mail").rate(Rate::new(10, Duration::from_secs(1)).burst(20)));
/// let queue = Queue::open(&Store::in_memory(), "q", options)?;
/// for (id, tenant) in [("a", "tenant:7"), ("b", "tenant:7"), ("c", "tenant:8")] {
///     queue.push(NewJob::new("mail", &())?.id(id).key(tenant))?;
/// }
/// let mut first = queue.accept(Accept::new())?.expect("a job is ready");
/// let second = queue.accept(Accept::new())?.expect("a job of another key is ready");
/// assert_eq!((first.id(), second.id()), ("a", "c"));
/// assert!(queue.accept(Accept::new())?.is_none());        // tenant 7 has one running
/// first.finish(None)?;
/// assert_eq!(queue.accept(Accept::new())?.map(|lease| lease.id().to_owned()), Some("b".into()));
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
#[doc(alias("rate limit", "throttle"))]
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Limit {
    pub(crate) of: LimitOf,
    pub(crate) bounds: Bounds,
}

impl Limit {
    fn new(of: LimitOf) -> Self {
        Self { of, bounds: Bounds::default() }
    }

    /// Makes a limit for all jobs of the queue together.
    pub fn queue() -> Self {
        Self::new(LimitOf::Queue)
    }

    /// Makes a limit for the jobs of this kind.
    pub fn kind(kind: impl Into<String>) -> Self {
        Self::new(LimitOf::Kind(kind.into()))
    }

    /// Makes a limit for each [key](crate::NewJob::key) separately. Idle keys cost nothing.
    #[doc(alias = "partition")]
    pub fn each_key() -> Self {
        Self::new(LimitOf::EachKey)
    }

    /// Makes a limit for the jobs with this key, in place of that of [`each_key`](Self::each_key).
    pub fn key(key: impl Into<String>) -> Self {
        Self::new(LimitOf::Key(key.into()))
    }

    /// Lets this many jobs run at once. 0 is refused. A job whose process has died, or whose lease
    /// is over, does not count.
    pub fn at_once(mut self, jobs: u32) -> Self {
        self.bounds.at_once = Some(jobs);
        self
    }

    /// Lets attempts start at this rate. The tokens survive a restart, and follow the wall clock:
    /// set forward, it brings at most one burst early; set back, tokens are refilled from then on.
    ///
    /// The bucket is full when it is made and after a pause. So with the default burst up to twice
    /// the count may start in the first period: those of the burst, and those whose tokens come
    /// meanwhile. With a [`burst`](Rate::burst) of 1 they start one by one.
    pub fn rate(mut self, rate: Rate) -> Self {
        self.bounds.rate = Some(rate);
        self
    }
}

/// The bounds of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// How many jobs run at once at most.
    pub at_once: Option<u32>,
    /// The rate at which they start.
    pub rate: Option<Rate>,
}

pub(crate) fn check(limits: &[Limit]) -> Result<(), ConfigError> {
    for (number, Limit { of, bounds }) in limits.iter().enumerate() {
        match of {
            LimitOf::Kind(kind) => check_kind(kind)?,
            LimitOf::Key(key) => check_key(key)?,
            LimitOf::Queue | LimitOf::EachKey => {}
        }
        let limit = of.to_string();
        if bounds.at_once.is_none() && bounds.rate.is_none() {
            let why = "has neither a number of jobs at once nor a rate: set one of them, or leave it out";
            return Err(ConfigError::Limit { fault: "empty", why: format!("the limit of {limit} {why}"), limit });
        }
        let why = format!(
            "the limit of {limit} lets 0 jobs run at once, so none would ever run: use 1 at least, or pause the queue"
        );
        check_zero("at_once", bounds.at_once == Some(0), &why)?;
        let is_zero = |rate: Rate| rate.count == 0 || rate.per.is_zero() || rate.burst == 0;
        let why = format!("the rate of {limit} has a count, a period or a burst of 0: each must be above 0");
        check_zero("rate", bounds.rate.is_some_and(is_zero), &why)?;
        if limits[..number].iter().any(|other| other.of == *of) {
            let why = format!("the limit of {limit} is set twice: set both numbers in one limit");
            return Err(ConfigError::Limit { fault: "twice", limit, why });
        }
    }
    Ok(())
}

/// The name of the record of the queue's own limit.
pub(crate) const QUEUE: &str = "q";

/// The name of the limit of each key, which has no record: each of its keys has one.
const EACH_KEY: &str = "e";

/// Returns the name of a limit's record, by which it is stored.
pub(crate) fn name_of(of: &LimitOf) -> String {
    match of {
        LimitOf::Queue => QUEUE.to_owned(),
        LimitOf::EachKey => EACH_KEY.to_owned(),
        LimitOf::Kind(kind) => format!("t{kind}"),
        LimitOf::Key(key) => format!("k{key}"),
    }
}

/// Returns the limit of a record with this name.
pub(crate) fn of_name(name: &str) -> LimitOf {
    match name.split_at_checked(1) {
        _ if name == EACH_KEY => LimitOf::EachKey,
        Some(("t", kind)) => LimitOf::Kind(kind.to_owned()),
        Some(("k", key)) => LimitOf::Key(key.to_owned()),
        _ => LimitOf::Queue,
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct LimitSet {
    pub(crate) queue: Bounds,
    each_key: Option<Bounds>,
    /// The bounds of kinds and keys, by their names.
    named: HashMap<String, Bounds>,
    /// True if there is any besides the number of jobs of the queue that run at once.
    has_records: bool,
    pub(crate) has_rates: bool,
}

/// The names of the limits that may hold a job, in the order in which it waits for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) key: Option<String>,
    pub(crate) kind: Option<String>,
}

impl Names {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &String> {
        self.key.iter().chain(&self.kind)
    }
}

impl LimitSet {
    pub(crate) fn new(limits: &[Limit]) -> Self {
        let mut table = Self::default();
        for Limit { of, bounds } in limits {
            match of {
                LimitOf::Queue => table.queue = *bounds,
                LimitOf::EachKey => table.each_key = Some(*bounds),
                LimitOf::Kind(_) | LimitOf::Key(_) => drop(table.named.insert(name_of(of), *bounds)),
            }
            table.has_rates |= bounds.rate.is_some();
            table.has_records |= bounds.rate.is_some() || *of != LimitOf::Queue;
        }
        table
    }

    /// True if a job may need the record of a limit.
    pub(crate) fn has_records(&self) -> bool {
        self.has_records
    }

    /// Returns the bounds of the limit with this name. One that is no longer set has none.
    pub(crate) fn bounds(&self, name: &str) -> Bounds {
        match self.named.get(name) {
            Some(bounds) => *bounds,
            None if name == QUEUE => self.queue,
            None if name.starts_with('k') => self.each_key.unwrap_or_default(),
            None => Bounds::default(),
        }
    }

    /// True if the limit of a key may hold a job.
    pub(crate) fn has_keys(&self) -> bool {
        self.each_key.is_some() || self.named.keys().any(|name| name.starts_with('k'))
    }

    /// Returns the bounds of the limit of each key, if it is set.
    pub(crate) fn each_key(&self) -> Option<Bounds> {
        self.each_key
    }

    /// Returns the names of the limits of kinds and of single keys that are set.
    pub(crate) fn named(&self) -> impl Iterator<Item = &str> {
        self.named.keys().map(String::as_str)
    }

    /// Returns the limits that may hold this job.
    pub(crate) fn names(&self, row: &Row) -> Names {
        let key = row.extras().key.as_ref().map(|key| format!("k{key}"));
        let key = key.filter(|name| self.each_key.is_some() || self.named.contains_key(name));
        let kind = if self.named.is_empty() { None } else { Some(format!("t{}", row.kind)) };
        Names { key, kind: kind.filter(|name| self.named.contains_key(name)) }
    }
}
