//! The handle by which an engine with leases steers its consumer.

use crate::base::sync::{Arc, Mutex};
use crate::base::{BoxError, Index, guard::drop_guarded, structure::shows};
use std::sync::Weak;

/// Steers the consumer of a progress whose name is held for a time, by a lease or a lock.
///
/// A consumer passes it to [`Progress::subscribe`](crate::Progress::subscribe) before it takes the
/// name. All clones steer that one consumer. No call blocks, and calls may come from any thread.
/// After the end of the consumer, a call has no effect. The handle keeps nothing alive.
///
/// ```
/// use std::sync::{Arc, Mutex, PoisonError};
/// use waterline::{Blocked, BoxError, Checkpoint, Error, MemoryProgress, Progress, Tenure};
/// use waterline::{Consumer, MemoryJobs};
///
/// /// A progress whose name is renewed by another part of the program, which gets the tenure.
/// struct Renewed(MemoryProgress, Arc<Mutex<Option<Tenure>>>);
///
/// impl Progress for Renewed {
///     fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
///         self.0.acquire()
///     }
///     fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
///         self.0.save(checkpoint)
///     }
///     fn subscribe(&mut self, tenure: Tenure) {
///         *self.1.lock().unwrap_or_else(PoisonError::into_inner) = Some(tenure);
///     }
/// }
///
/// let (jobs, renews) = (MemoryJobs::new(), Arc::default());
/// let progress = Renewed(MemoryProgress::new(), Arc::clone(&renews));
/// let consumer = Consumer::builder(jobs.clone(), progress).start(|_| Ok(()))?;
/// let tenure = renews.lock().unwrap().clone().expect("`subscribe` was called before `acquire`");
///
/// tenure.hold("the lease server does not answer");
/// assert!(matches!(consumer.handle().status().blocked, Blocked::Held { .. }));
/// tenure.go_on();
/// jobs.push("a job");
/// assert!(consumer.handle().wait_for(0, std::time::Duration::from_secs(20)));
///
/// tenure.lost("the lease ran out, and node b has it".into());
/// let ended = consumer.join();
/// assert!(matches!(ended, Err(Error::Fenced { holder, .. }) if holder.contains("node b")));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct Tenure {
    state: Arc<Mutex<TenureState>>,
}

#[derive(Default)]
struct TenureState {
    /// Why no job may start, while the consumer is held.
    held: Option<String>,
    /// The loss that the consumer has not been told of yet.
    lost: Option<BoxError>,
    /// True if the name may be free, and the consumer has not been told yet.
    try_now: bool,
    /// The requests about parked jobs that the consumer has not taken yet.
    wishes: Vec<Wish>,
    tenant: TenantIs,
}

#[derive(Default)]
enum TenantIs {
    /// The consumer is being started, and will ask for earlier calls.
    #[default]
    ToCome,
    Here(Weak<dyn Tenant>),
    Gone,
}

/// An operator's request about a parked job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Redrive(Index),
    Discard(Index),
}

/// The consumer that a tenure steers. The tenure calls it with no lock held.
pub(crate) trait Tenant: Send + Sync {
    /// Notifies the consumer that the tenure has changed, so that it asks for the news.
    fn tenure_changed(&self);
}

impl Tenure {
    pub(crate) fn new() -> Self {
        Self { state: Arc::default() }
    }

    /// Holds the consumer: it starts no job and no retry until [`go_on`](Self::go_on).
    ///
    /// Running jobs finish, and saves and callbacks go on, as while a consumer is
    /// [paused](crate::Handle::pause). The status shows [`Blocked::Held`](crate::Blocked::Held)
    /// with this reason, so say in it what happened and what to do. Another call replaces it.
    pub fn hold(&self, why: impl Into<String>) {
        let why = why.into();
        self.change(|state| state.held = Some(why));
    }

    /// Ends a [`hold`](Self::hold): the consumer starts jobs again.
    pub fn go_on(&self) {
        self.change(|state| state.held = None);
    }

    /// Tells the consumer that the name is lost: it halts at once with
    /// [`Error::Fenced`](crate::Error::Fenced).
    ///
    /// The error's `holder` is the text of this error. The consumer begins no more saves, lets a
    /// save in progress end, and waits for the running jobs.
    ///
    /// A call while the consumer starts is the error of the start. It halts a
    /// [standby](crate::Builder::standby) that waits for the name.
    pub fn lost(&self, error: BoxError) {
        let mut error = Some(error);
        self.change(|state| {
            if state.lost.is_none() {
                state.lost = error.take();
            }
        });
    }

    /// Makes a [standby](crate::Builder::standby) try to take its name at once, not at its pace:
    /// for an engine that is notified when a name is released. Any other consumer ignores it.
    pub fn try_now(&self) {
        self.change(|state| state.try_now = true);
    }

    /// Makes the consumer run a parked job again, like [`Handle::redrive`](crate::Handle::redrive).
    ///
    /// It is for an engine that relays an operator's request from another process. A consumer that
    /// is about to start does it once it has started. The call has no effect if the job is not
    /// parked, or the consumer waits for its name or stops. So an engine also marks the record that
    /// it keeps: [`Record::redriven`](crate::Record::redriven).
    pub fn redrive(&self, index: Index) {
        self.change(|state| state.wishes.push(Wish::Redrive(index)));
    }

    /// Makes the consumer give up a parked job, as [`Store::discard`](crate::Store::discard) does.
    /// The engine removes the record that it keeps.
    pub fn discard(&self, index: Index) {
        self.change(|state| state.wishes.push(Wish::Discard(index)));
    }

    /// Changes the state, and notifies the consumer if it is alive.
    fn change(&self, change: impl FnOnce(&mut TenureState)) {
        let mut state = self.state.lock();
        let tenant = match &state.tenant {
            TenantIs::Gone => return,
            TenantIs::ToCome => None,
            TenantIs::Here(tenant) => Some(tenant.clone()),
        };
        change(&mut state);
        drop(state);
        // No lock is held here: this may drop the last reference to the consumer.
        let Some(tenant) = tenant else { return };
        match tenant.upgrade() {
            Some(tenant) => {
                tenant.tenure_changed();
                drop_guarded(tenant);
            }
            None => self.end(),
        }
    }

    /// Notifies this consumer of later changes. The caller itself asks for earlier ones.
    pub(crate) fn attach(&self, tenant: Weak<dyn Tenant>) {
        self.state.lock().tenant = TenantIs::Here(tenant);
    }

    /// Stops notifications: the consumer has ended, or its start failed.
    pub(crate) fn end(&self) {
        let ended = TenureState { tenant: TenantIs::Gone, ..TenureState::default() };
        let before = std::mem::replace(&mut *self.state.lock(), ended);
        drop_guarded(before.lost);
    }

    /// Returns why no job may start, while the consumer is held.
    pub(crate) fn held(&self) -> Option<String> {
        self.state.lock().held.clone()
    }

    /// Takes the loss that was reported since the last call.
    pub(crate) fn take_lost(&self) -> Option<BoxError> {
        self.state.lock().lost.take()
    }

    /// True if the name may have become free since the last call.
    pub(crate) fn take_try(&self) -> bool {
        std::mem::take(&mut self.state.lock().try_now)
    }

    /// Takes the requests since the last call.
    pub(crate) fn take_wishes(&self) -> Vec<Wish> {
        std::mem::take(&mut self.state.lock().wishes)
    }
}

shows!(Tenure, of: held = of.held());
