//! A progress that takes the name of another one, with all that belongs to it.

use super::Effects;
use crate::base::{Error, config::check_name};
use crate::commit::changes::Changes;
use crate::progress::{Owned, Replacement, readers};
use crate::store::Store;

/// Two names of tables or logs: the second one goes to what has the first.
type Names = (String, String);

impl Store {
    /// Gives consumers the names of others: each first progress takes the name of the second, with
    /// all that belongs to it, and what had these names is deleted.
    ///
    /// The watermark, the jobs done above it, the parked jobs, the history, and the tables and logs
    /// that [belong](crate::Builder::owns) to it move in one atomic write, as durable as the disk
    /// allows. The n-th part takes the name of the n-th one of the other. Nothing is copied, so it
    /// takes a few milliseconds however many rows there are. Afterwards nothing has the first
    /// names, and a consumer that starts with one of them begins anew.
    ///
    /// Use it after a change of the code: fill `balances-2` beside `balances`, from the first job
    /// on or after a [seek](crate::StoreProgress::seek), compare the two, stop both consumers, and
    /// replace. Readers need no change: an open [`Table`](crate::Table) shows the new rows from its
    /// next call on, a [read-only](crate::StoreOptions::read_only) store from its next
    /// [`refresh`](Self::refresh), and [`Rows`](crate::Rows) end as they began. A change that was
    /// requested before and is written after it goes to the table that has the name by then.
    ///
    /// The old rows are deleted on a separate thread, a piece at a time. If the store is closed
    /// before, that goes on when it is opened again. Once a table was replaced, earlier versions of
    /// this library refuse the store.
    ///
    /// ```
    /// use waterline::{Consumer, Error, MemoryJobs, Store};
    ///
    /// let store = Store::in_memory();
    /// let run = |name: &str, fee: i64| {
    ///     let table = store.table(name)?;
    ///     let jobs: MemoryJobs<i64> = [100, 200].into_iter().collect();
    ///     let consumer = Consumer::builder(jobs, store.progress(name)).owns(&table).stop_at(1);
    ///     consumer.start_transactional(move |job, effects| Ok(effects.add(&table, "ann", job.payload - fee)?))?.join()
    /// };
    /// run("balances", 0)?;
    /// let balances = store.table("balances")?;
    /// assert_eq!(balances.counter("ann")?, 300);
    ///
    /// run("balances-2", 5)?;                                 // the same jobs, with other code
    /// store.replace(&[("balances-2", "balances")])?;
    /// assert_eq!(balances.counter("ann")?, 290);
    /// assert_eq!(store.progress("balances").last_processed()?, Some(1));
    /// assert_eq!(store.tables()?, ["balances"]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Nothing is changed then:
    /// * [`Error::InUse`] while a consumer has one of the names.
    /// * [`Error::NotReplaced`] if nothing is saved under a first name; if a name occurs twice; if
    ///   the second progress has another number of parts, or others; if a part belongs to another
    ///   progress, too; if one of the logs is open, or is read by a consumer that is not replaced
    ///   with it and would lose its place.
    /// * [`Error::ReadOnly`], [`Error::Config`] for a bad name, [`Error::Corrupt`] for a damaged
    ///   record, [`Error::Store`] if the database fails. (After a failure the next life of the
    ///   process may find all of it, or nothing.)
    pub fn replace(&self, names: &[(&str, &str)]) -> Result<(), Error> {
        self.writable()?;
        check_names(names)?;
        if names.is_empty() {
            return Ok(());
        }
        let begin = |&(from, to): &(&str, &str)| {
            let nothing = || refused([from, to], format!("nothing is saved under {from:?}: check the name"));
            Replacement::begin(self, [from, to])?.ok_or_else(nothing)
        };
        // They hold the names until all is written.
        let all = names.iter().map(begin).collect::<Result<Vec<_>, _>>()?;
        let (mut tables, mut logs) = (Vec::new(), Vec::new());
        for replacement in &all {
            pair_parts(replacement, &mut tables, &mut logs)?;
        }
        self.check_owners(&all)?;
        self.check_readers(&all, &logs)?;
        let mut changes = Changes::default();
        let log = |name: String| logs.iter().find(|(from, _)| *from == name).map_or(name, |(_, to)| to.clone());
        all.iter().try_for_each(|replacement| replacement.write(log, &mut changes))?;
        match self.write_moves(&tables, |write| self.replace_logs(&logs, &mut changes, write))? {
            None => Ok(()),
            Some(open) => {
                let why = format!("the log {open:?} is open: stop its consumers, and drop all its handles first");
                Err(refused(all[0].names(), why))
            }
        }
    }

    /// Returns an error if something belongs to two progresses.
    fn check_owners(&self, all: &[Replacement]) -> Result<(), Error> {
        let owners = self.owners()?;
        for replacement in all {
            for (progress, owned) in replacement.names().into_iter().zip(&replacement.owned) {
                for Owned { what, name, .. } in owned {
                    let is_it = |one: &Owned| one.what == *what && one.name == *name;
                    let other = owners.iter().find(|(other, owned)| other != progress && owned.iter().any(is_it));
                    if let Some((other, _)) = other {
                        let why = format!(
                            "the {what} {name:?} belongs to {progress:?} and to {other:?}: let one of them own it, and start \
                             that one again"
                        );
                        return Err(refused(replacement.names(), why));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns an error if a consumer reads one of these logs and is not replaced with it.
    fn check_readers(&self, all: &[Replacement], logs: &[Names]) -> Result<(), Error> {
        let is_one = |name: &str, place: usize| all.iter().any(|replacement| replacement.names()[place] == name);
        for (reader, log) in readers(self)? {
            let goes_along = logs
                .iter()
                .all(|(from, to)| (*from != log || is_one(&reader, 0)) && (*to != log || is_one(&reader, 1)));
            if !goes_along {
                let why = format!(
                    "the consumer {reader:?} reads the log {log:?}, and would lose its place in it: replace it in the same \
                     call, or remove its progress"
                );
                return Err(refused(all[0].names(), why));
            }
        }
        Ok(())
    }
}

fn refused([from, to]: [&str; 2], why: String) -> Error {
    Error::NotReplaced { from: from.to_owned(), to: to.to_owned(), why }
}

/// Returns an error for a name that occurs twice.
fn check_names(names: &[(&str, &str)]) -> Result<(), Error> {
    let mut seen = std::collections::HashSet::new();
    for &(from, to) in names {
        for name in [from, to] {
            check_name("progress", name)?;
            if !seen.insert(name) {
                let why = format!("the name {name:?} occurs twice in one call: name each progress once");
                return Err(refused([from, to], why));
            }
        }
    }
    Ok(())
}

/// Adds the names of what belongs to these, in order.
fn pair_parts(replacement: &Replacement, tables: &mut Vec<Names>, logs: &mut Vec<Names>) -> Result<(), Error> {
    let [own, others] = &replacement.owned;
    let [from, to] = replacement.names();
    let fits = own.len() == others.len() && own.iter().zip(others).all(|(one, other)| one.what == other.what);
    if !fits {
        let listed = |parts: &[Owned]| match parts {
            [] => "nothing".to_owned(),
            _ => parts.iter().map(|part| format!("the {} {:?}", part.what, part.name)).collect::<Vec<_>>().join(", "),
        };
        let why = format!(
            "{} cannot take the names of {}: start each of them once with as many `Builder::owns`, in one order",
            listed(own),
            listed(others)
        );
        return Err(refused([from, to], why));
    }
    for (one, other) in own.iter().zip(others) {
        let of_kind = if one.is_log() { &mut *logs } else { &mut *tables };
        of_kind.push((one.name.clone(), other.name.clone()));
    }
    Ok(())
}

impl Effects {
    /// Removes everything in a table or a log of this store that belongs to a progress.
    pub(super) fn clear_owned(&mut self, store: &Store, part: &Owned) -> Result<(), Error> {
        if !part.is_log() {
            return match store.table(&part.name) {
                Err(Error::NotFound { .. }) => Ok(()),
                table => self.clear(&table?),
            };
        }
        let Some(log) = store.log_state(&part.name)? else { return Ok(()) };
        self.changes.op(log.clone(), log.clear_op()?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::memory::MemoryKv;
    use crate::{Consumer, MemoryJobs, MemoryProgress};
    use std::sync::Arc;

    #[test]
    fn a_trim_that_comes_late_writes_nothing_under_the_new_name() -> Result<(), Error> {
        let kv = Arc::new(MemoryKv::default());
        let open = || Store::on(kv.clone(), &Store::options(), &"memory");
        for name in ["old", "new"] {
            let (store, jobs) = (open()?, (0..1).collect::<MemoryJobs<u64>>());
            let log = store.log::<u64>(name)?;
            log.push_all(&[1, 2, 3])?;
            Consumer::builder(jobs, store.progress(name)).owns(&log).stop_at(0).start(|_| Ok(()))?.join()?;
        }
        let (store, (until, wait)) = (open()?, crossbeam_channel::bounded(0));
        store.writer().start_without_a_core(wait);
        for name in ["old", "new"] {
            let log = store.log::<u64>(name)?;
            let follower = Consumer::builder(log.clone(), MemoryProgress::new()).stop_at(2).start(|_| Ok(()))?;
            log.retain([&follower.handle()]);
            follower.join()?;
        }
        // The trims wait for the writer's thread, and no handle is left.
        store.replace(&[("new", "old")])?;
        drop(until);
        store.write(|effects| effects.put(&store.table("t")?, "", ""))?;
        let logs: Vec<_> = store.logs()?.into_iter().map(|log| (log.name, log.first, log.head)).collect();
        assert_eq!(logs, [("old".to_owned(), 1, Some(3))]);
        Ok(())
    }
}
