//! How a progress that holds its name for a time steers the consumer that has it.

use crate::base::guard::drop_guarded;
use crate::base::index::BoxError;
use crate::base::sync::{Arc, Mutex};
use std::fmt;
use std::sync::Weak;

/// The way from a progress to its consumer, for those who hold a name for a time: a lease that has
/// to be renewed, a lock that may break.
///
/// A consumer hands it to [`Progress::subscribe`](crate::Progress::subscribe), before it takes the
/// name. All clones steer that one consumer. No call blocks, each may come from any thread, and
/// after the consumer's end none has an effect. It keeps nothing alive.
///
/// ```
/// use std::sync::{Arc, Mutex, PoisonError};
/// use waterline::{Blocked, BoxError, Checkpoint, Error, MemoryProgress, Progress, Tenure};
/// use waterline::{Consumer, MemoryJobs};
///
/// /// A progress whose name is renewed by somebody else, who is given the tenure.
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
/// let tenure = renews.lock().unwrap().clone().expect("it was given before the name was taken");
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
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The reason why nothing is to start.
    held: Option<String>,
    /// The loss that the consumer has not heard of yet.
    lost: Option<BoxError>,
    tenant: TenantIs,
}

#[derive(Default)]
enum TenantIs {
    /// The consumer is being started, and finds here what was said before.
    #[default]
    ToCome,
    Here(Weak<dyn Tenant>),
    Gone,
}

/// The consumer that a tenure steers. It is called with no lock held.
pub(crate) trait Tenant: Send + Sync {
    /// Something was said: ask the tenure for it.
    fn tenure_changed(&self);
}

impl Tenure {
    pub(crate) fn new() -> Self {
        Self { state: Arc::default() }
    }

    /// Starts no job and no retry from now on, until [`go_on`](Self::go_on). Jobs that run finish,
    /// and saves and callbacks go on, as while a consumer is [paused](crate::Handle::pause).
    ///
    /// The status shows it as [`Blocked::Held`](crate::Blocked::Held), with this reason: say what
    /// happened, and what to do. It does not nest: a second call only replaces the reason.
    pub fn hold(&self, why: impl Into<String>) {
        let why = why.into();
        self.change(|state| state.held = Some(why));
    }

    /// Ends what [`hold`](Self::hold) began.
    pub fn go_on(&self) {
        self.change(|state| state.held = None);
    }

    /// Halts the consumer at once with [`Error::Fenced`](crate::Error::Fenced), whose `holder` is
    /// the text of this error: the name is lost. No save is begun from now on; one that is being
    /// made ends as it does. Jobs that run are awaited.
    ///
    /// Before the consumer has started, its start returns that error.
    pub fn lost(&self, error: BoxError) {
        let mut error = Some(error);
        self.change(|state| {
            if state.lost.is_none() {
                state.lost = error.take();
            }
        });
    }

    /// Changes what is said, and tells the consumer, if there is one still.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        let tenant = match &state.tenant {
            TenantIs::Gone => return,
            TenantIs::ToCome => None,
            TenantIs::Here(tenant) => Some(tenant.clone()),
        };
        change(&mut state);
        drop(state);
        // Without the lock: this may be the last one to have the consumer.
        let Some(tenant) = tenant else { return };
        match tenant.upgrade() {
            Some(tenant) => {
                tenant.tenure_changed();
                drop_guarded(tenant);
            }
            None => self.end(),
        }
    }

    /// Tells this consumer from now on, which asks at once for what was said before.
    pub(crate) fn attach(&self, tenant: Weak<dyn Tenant>) {
        self.state.lock().tenant = TenantIs::Here(tenant);
    }

    /// Tells nobody from now on: the consumer has ended, or was not started.
    pub(crate) fn end(&self) {
        let ended = State { tenant: TenantIs::Gone, ..State::default() };
        let before = std::mem::replace(&mut *self.state.lock(), ended);
        drop_guarded(before.lost);
    }

    /// The reason why nothing is to start.
    pub(crate) fn held(&self) -> Option<String> {
        self.state.lock().held.clone()
    }

    /// Takes the loss that was reported since the last time.
    pub(crate) fn take_lost(&self) -> Option<BoxError> {
        self.state.lock().lost.take()
    }
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenure").field("held", &self.held()).finish_non_exhaustive()
    }
}
