//! Atomic writes outside of jobs, through the writer of the store.

use super::Effects;
use crate::base::{BoxError, Error, config::DEFAULT_EFFECTS, sync::Arc};
use crate::commit::intent::{Intent, Ticket, failed};
use crate::commit::{changes::Changes, draft::Draft};
use crate::progress::StoreProgress;
use crate::store::Store;
use std::time::Duration;

impl Store {
    /// Writes all changes of the closure, rows, counters and log items, in one atomic write.
    ///
    /// It returns once that is written, as durably as the store writes. Concurrent writes share a
    /// batch with each other and with the saves of consumers, so many writing threads cost little
    /// more than one. The closure runs on the calling thread, before anything else happens. If it
    /// returns an error or panics, or was refused a change, nothing is written. A closure that
    /// requests nothing costs nothing.
    ///
    /// ```
    /// let store = waterline::Store::in_memory();
    /// let (accounts, transfers) = (store.table("accounts")?, store.log::<(String, String, i64)>("transfers")?);
    /// let transfer = |from: &str, to: &str, amount: i64| {
    ///     store.write(|effects| {
    ///         effects.add(&accounts, from, -amount)?;
    ///         effects.add(&accounts, to, amount)?;
    ///         effects.push(&transfers, &(from.to_owned(), to.to_owned(), amount))
    ///     })
    /// };
    /// transfer("ann", "bob", 5)?;
    /// assert_eq!((accounts.counter("ann")?, accounts.counter("bob")?), (-5, 5));
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// The closure's error, or that of a refused change, even if the closure returned `Ok`.
    /// [`Error::EffectsTooLarge`] for more than 64 MiB, [`Error::Counter`] for an impossible
    /// [`add`](Effects::add), [`Error::Refused`] for a push that its queue refuses, for example
    /// when full, [`Error::ReadOnly`] if the store is read-only, [`Error::Spawn`] if the writer
    /// thread cannot be started, [`Error::Store`] if the database fails. Nothing is written then.
    /// (After a failure of the database the changes may be there in the next life of the process:
    /// all of them, or none.)
    pub fn write<F>(&self, changes: F) -> Result<(), Error>
    where
        F: FnOnce(&mut Effects) -> Result<(), Error>,
    {
        let changes = self.asked(changes)?;
        self.write_changes(changes)
    }

    fn asked<F>(&self, changes: F) -> Result<Changes, Error>
    where
        F: FnOnce(&mut Effects) -> Result<(), Error>,
    {
        self.writable()?;
        let mut effects = Effects::new(Changes::default(), self.home(), DEFAULT_EFFECTS);
        let answer = changes(&mut effects);
        let (changes, refused) = effects.finish();
        answer.and(refused)?;
        Ok(changes)
    }

    fn write_changes(&self, changes: Changes) -> Result<(), Error> {
        if changes.is_empty() {
            return Ok(());
        }
        self.writer().start().map_err(|source| Error::Spawn { source })?;
        let told = Ticket::new();
        let intent = WriteIntent { changes, synced: self.is_synced(), told: told.clone() };
        self.writer().write_now(Box::new(intent));
        told.wait()
    }
}

impl StoreProgress {
    /// Forgets the progress as [`remove`](Self::remove) does, with these changes in the same atomic
    /// write.
    ///
    /// What [belongs](crate::Builder::owns) to the progress is cleared first, in the same write. A
    /// crash at any moment leaves all or nothing of it. A transactional consumer that starts over
    /// makes the effects of all jobs again, so clear what the jobs have counted or pushed together
    /// with its progress.
    ///
    /// ```
    /// use waterline::{Consumer, Error, MemoryJobs, Store};
    ///
    /// let store = Store::in_memory();
    /// let sums = store.table("sums")?;
    /// let count = || {
    ///     let (jobs, sums) = ((0..10).collect::<MemoryJobs<u64>>(), sums.clone());
    ///     Consumer::builder(jobs, store.progress("count"))
    ///         .stop_at(9)
    ///         .start_transactional(move |_, effects| Ok(effects.add(&sums, "jobs", 1)?))?
    ///         .join()
    /// };
    /// count()?;
    /// store.progress("count").remove_with(|effects| effects.clear(&sums))?;
    /// assert_eq!(sums.counter("jobs")?, 0);
    /// count()?;
    /// assert_eq!(sums.counter("jobs")?, 10);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InUse`] while a consumer has the name: the closure is not called then. Otherwise
    /// those of [`Store::write`].
    pub fn remove_with<F>(self, changes: F) -> Result<(), Error>
    where
        F: FnOnce(&mut Effects) -> Result<(), Error>,
    {
        // The removal holds the name until all is written.
        let removal = self.removal()?;
        let store = self.store();
        // What is unreadable goes with the progress, and clears nothing.
        let owned = match store.owned_by(self.name()) {
            Err(Error::Corrupt { .. }) => Vec::new(),
            owned => owned?,
        };
        let mut changes = store.asked(|effects| {
            owned.iter().try_for_each(|part| effects.clear_owned(store, part))?;
            changes(effects)
        })?;
        changes.extend(&removal.changes);
        self.store().write_changes(changes)
    }
}

/// A pending write. It is never retried: the caller waits, and decides itself.
struct WriteIntent {
    changes: Changes,
    synced: bool,
    told: Arc<Ticket<()>>,
}

impl Intent for WriteIntent {
    fn resolve(&self, draft: &mut Draft<'_>) -> Result<bool, BoxError> {
        match draft.append(std::slice::from_ref(&self.changes))?.pop() {
            None => Ok(true),
            Some(refused) => Err(refused.error.into()),
        }
    }

    fn synced(&self) -> bool {
        self.synced
    }

    fn written(&self) {
        self.told.tell(Ok(()));
    }

    fn failed(&self, error: BoxError) -> Option<Duration> {
        let error = error.downcast().map_or_else(|error| failed("write", error).into(), |error| *error);
        self.told.tell(Err(error));
        None
    }
}
