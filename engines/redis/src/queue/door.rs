//! How a call goes from this process to the functions of a queue.

use super::args::Args;
use super::rows::{self, Odd};
use crate::calls::{Calls, Effect};
use crate::error::Error;
use crate::keys::Keys;
use crate::options::RedisOptions;
use parking_lot::RwLock;
use redis::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use waterline_queue::engine_api::QueueNo;
use waterline_queue::remote::{Renewal, Runs, said};

type Result<T> = std::result::Result<T, Error>;

/// What a call needs. It keeps no store open.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) calls: Arc<Calls>,
    prefix: Arc<str>,
    tag: Option<Arc<str>>,
    names: Arc<RwLock<Names>>,
}

/// The queues that this process has opened, by their numbers.
#[derive(Default)]
struct Names {
    all: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, QueueNo>,
}

impl Door {
    pub(super) fn new(calls: Arc<Calls>, options: &RedisOptions) -> Self {
        let tag = options.tag.as_deref().map(Into::into);
        Self { calls, prefix: options.prefix.as_str().into(), tag, names: Arc::default() }
    }

    pub(super) fn call<T>(
        &self,
        queue: &str,
        function: &str,
        args: &Args<'_>,
        effect: Effect,
        read: impl FnOnce(Value) -> std::result::Result<T, Odd>,
    ) -> Result<T> {
        let keys = self.keys(queue);
        let answer = self.calls.fcall(&[&keys], function, &args.all(), effect)?;
        read(answer).map_err(|odd| Error::odd(function, odd).about(&[&keys]))
    }

    pub(super) fn keys(&self, queue: &str) -> Keys {
        Keys::new(&self.prefix, self.tag.as_deref(), queue)
    }

    pub(super) fn number_of(&self, name: &str) -> QueueNo {
        let mut names = self.names.write();
        if let Some(number) = names.numbers.get(name) {
            return *number;
        }
        let (number, name): (_, Arc<str>) = (QueueNo::try_from(names.all.len()).unwrap_or(QueueNo::MAX), name.into());
        names.all.push(Arc::clone(&name));
        names.numbers.insert(name, number);
        number
    }

    fn name_of(&self, queue: QueueNo) -> Arc<str> {
        let names = self.names.read();
        names.all.get(queue as usize).cloned().unwrap_or_else(|| "".into())
    }

    /// Makes a call for the runs of each queue, with what the caller reports of itself there.
    pub(super) fn each_queue(
        &self,
        runs: &Runs,
        about: &[serde_json::Value],
        mut call: impl FnMut(&str, &[usize], Option<String>) -> Result<()>,
    ) -> Result<()> {
        let mut queues: BTreeMap<Arc<str>, (Vec<usize>, Vec<serde_json::Value>)> = BTreeMap::new();
        for (at, queue) in runs.queues.iter().enumerate() {
            queues.entry(self.name_of(*queue)).or_default().0.push(at);
        }
        for one in about {
            let queue = one["queue"].as_str().unwrap_or_default();
            queues.entry(queue.into()).or_default().1.push(one.clone());
        }
        queues.into_iter().try_for_each(|(queue, (places, about))| call(&queue, &places, said(about)))
    }

    pub(super) fn renew(
        &self,
        clock: Option<u64>,
        runs: &Runs,
        renewal: Option<Renewal>,
        about: &[serde_json::Value],
    ) -> Result<Vec<bool>> {
        let mut renewed = vec![false; runs.numbers.len()];
        self.each_queue(runs, about, |queue, places, about| {
            let args = Args::clocked(clock)
                .number(renewal.and_then(|renewal| renewal.lease))
                .flag(renewal.map(|renewal| renewal.is_silent))
                .flag(renewal.filter(|renewal| renewal.is_stopping).map(|_| true))
                .text(about.as_deref())
                .runs(runs, places);
            let held: HashSet<i64> = self.call(queue, "wl_renew", &args, Effect::Repeats, |answer| {
                rows::list(answer)?.into_iter().map(|value| Ok(rows::number(value)?.unwrap_or(0))).collect()
            })?;
            places.iter().for_each(|at| renewed[*at] = held.contains(&runs.numbers[*at]));
            Ok(())
        })?;
        Ok(renewed)
    }
}
