//! Queues that are used as one: a push goes to the queue of its kind, a claim takes from any.

use crate::accept::Accept;
use crate::group::members::Members;
use crate::handle::Queue;
use crate::lease::Lease;
use crate::notify::bell::Takes;
use crate::rules::fair::Rule;
use crate::types::config::ConfigError;
use crate::types::error::{QueueError, group_error, unknown_queue};
use crate::types::job::{Counts, JobState, Pushed};
use crate::types::new_job::NewJob;
use crate::types::typed::TypedJob;
#[cfg(doc)]
use crate::{Fair, GroupBuilder};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use waterline::Error;

pub(crate) mod builder;
pub(crate) mod members;
pub(crate) mod status;

/// Queues of one store that are used as one. A clone is the same group, for any thread.
///
/// A push goes to the queue that takes its kind of jobs. [`accept`](Self::accept) and the
/// [`runner`](Self::runner) claim from the queues that have a job, as [`Fair`] chooses. Everything
/// else is a call on one [`queue`](Self::queue).
///
/// ```
/// use std::time::Duration;
/// use waterline::Store;
/// use waterline_queue::{DrainLimits, Fair, Group, NewJob, Outcome, QueueOptions};
///
/// let store = Store::in_memory();
/// let group = Group::new(&store)
///     .queue("mail", ["welcome", "digest"], QueueOptions::default())
///     .queue("thumbs", ["png"], QueueOptions::default().lease(Duration::from_secs(600)))
///     .fair(Fair::weighted([("mail", 3.0)]))      // three mails for each thumbnail, if there are both
///     .open()?;
/// group.push_all([NewJob::new("png", "cat")?, NewJob::new("welcome", "ann")?])?;      // one atomic write
///
/// let summary = group
///     .runner()
///     .on("welcome", |_job, _to: String| Ok(Outcome::Done))
///     .on("png", |_job, _name: String| Ok(Outcome::Done))
///     .max_processing(8)                          // for all queues together
///     .drain(DrainLimits::default())?;
/// assert_eq!(summary.finished, 2);
/// assert_eq!(group.queue("thumbs").expect("it is there").counts().finished, 1);
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
#[derive(Clone)]
pub struct Group {
    inner: Arc<Inner>,
    /// The queues to claim from.
    members: Arc<Members>,
}

struct Inner {
    queues: Vec<Queue>,
    /// The indexes of the queues, by the kinds that they take.
    routes: HashMap<String, usize>,
    /// The index of the queue for all other kinds.
    default: Option<usize>,
    rule: Rule,
    /// How many claiming handles were made. Each starts with another turn, so that a caller that
    /// makes a new one for each claim starves no queue either.
    handles: AtomicU64,
}

fn no_queue() -> ConfigError {
    let instead = "add one with `queue`, and leave one in with `only_when_asked`, `only` and `except`";
    group_error("empty", [], format!("the group has no queue to claim from: {instead}"))
}

impl Group {
    /// Makes a group that claims from those of its queues for which `claims` is true.
    fn of(inner: Arc<Inner>, claims: impl Fn(&str) -> bool) -> Result<Self, QueueError> {
        let all = &inner.queues;
        let places: Vec<_> = (0..all.len()).filter(|place| claims(all[*place].name())).collect();
        if places.is_empty() {
            return Err(no_queue().into());
        }
        let queues = places.iter().map(|place| all[*place].clone()).collect();
        let turn = inner.handles.fetch_add(1, Ordering::Relaxed);
        let members = Arc::new(Members::new(queues, inner.rule.of(&places), turn));
        Ok(Self { inner, members })
    }

    /// Returns the queue with this name; `None` if it is not in the group.
    #[must_use]
    pub fn queue(&self, name: &str) -> Option<&Queue> {
        self.inner.queues.iter().find(|queue| queue.name() == name)
    }

    /// Returns all queues, in the order in which they were added.
    #[must_use]
    pub fn queues(&self) -> &[Queue] {
        &self.inner.queues
    }

    /// Returns the queue that takes jobs of this kind; `None` if there is none.
    #[must_use]
    pub fn queue_of(&self, kind: &str) -> Option<&Queue> {
        self.place_of(kind).map(|place| &self.inner.queues[place])
    }

    fn place_of(&self, kind: &str) -> Option<usize> {
        self.inner.routes.get(kind).copied().or(self.inner.default)
    }

    fn route(&self, job: &NewJob) -> Result<usize, ConfigError> {
        let instead = "add it to one of them, or set a `default_queue`";
        let why = |kind| format!("no queue of the group takes the kind {kind:?}: {instead}");
        self.place_of(&job.kind).ok_or_else(|| group_error("kind unknown", [&job.kind], why(&job.kind)))
    }

    /// Returns the queue that takes this job.
    pub(super) fn routed(&self, job: &NewJob) -> Result<&Queue, ConfigError> {
        self.route(job).map(|place| &self.inner.queues[place])
    }

    pub(super) fn members(&self) -> &Arc<Members> {
        &self.members
    }

    // Pushes.

    /// Pushes a job into the queue that takes its kind, as [`Queue::push`] does.
    ///
    /// # Errors
    /// [`QueueError::Config`] with [`ConfigError::Group`] for a kind that no queue has; otherwise
    /// the same as [`Queue::push`].
    pub fn push(&self, job: NewJob) -> Result<Pushed, QueueError> {
        self.routed(&job)?.push(job)
    }

    /// Pushes a job whose kind is a type, as [`push`](Self::push) does. See [`TypedJob`].
    ///
    /// # Errors
    /// The same as [`NewJob::of`] and [`push`](Self::push).
    pub fn push_job(&self, job: &impl TypedJob) -> Result<Pushed, QueueError> {
        self.push(NewJob::of(job)?)
    }

    /// Pushes jobs into the queues of their kinds in one atomic write: all of them or none. They
    /// keep their order within a queue, and the results are in the order of the jobs.
    ///
    /// # Errors
    /// The same as [`push`](Self::push).
    pub fn push_all(&self, jobs: impl IntoIterator<Item = NewJob>) -> Result<Vec<Pushed>, QueueError> {
        let jobs: Vec<_> = jobs.into_iter().collect();
        jobs.iter().try_for_each(|job| self.routed(job)?.ask_before_push(job))?;
        self.push_asked(jobs)
    }

    /// Pushes jobs that the hooks of their queues have allowed.
    pub(super) fn push_asked(&self, jobs: Vec<NewJob>) -> Result<Vec<Pushed>, QueueError> {
        // One entry for each queue: an engine on a server makes one call per entry.
        let mut queues: BTreeMap<_, (Vec<_>, Vec<_>)> = BTreeMap::new();
        for (place, job) in jobs.into_iter().enumerate() {
            let queue = self.routed(&job)?;
            let (places, pushes) = queues.entry(queue.number).or_default();
            places.push(place);
            pushes.push(queue.prepare(job)?);
        }
        let Some(first) = self.inner.queues.first().filter(|_| !queues.is_empty()) else { return Ok(Vec::new()) };
        let (places, pushes): (Vec<_>, _) =
            queues.into_iter().map(|(queue, (places, pushes))| (places, (queue, pushes))).unzip();
        let mut pushed: Vec<_> = places.into_iter().flatten().zip(first.engine.push(pushes)?).collect();
        pushed.sort_by_key(|(place, _)| *place);
        Ok(pushed.into_iter().map(|(_, pushed)| pushed).collect())
    }

    // Claims.

    /// Makes a group that claims from these queues alone. Pushes go to all queues as before.
    ///
    /// It also claims from those that run [only when asked](GroupBuilder::only_when_asked).
    ///
    /// ```
    /// # use waterline::Store;
    /// # use waterline_queue::{Accept, Group, NewJob, QueueOptions};
    /// let group = Group::new(&Store::in_memory())
    ///     .queue("mail", ["welcome"], QueueOptions::default())
    ///     .queue("uploads", ["assemble"], QueueOptions::default())
    ///     .only_when_asked("uploads")         // large: they run on a machine of their own
    ///     .open()?;
    /// group.push(NewJob::new("assemble", "a video")?)?;
    /// assert!(group.accept(Accept::new())?.is_none());
    /// assert!(group.only(["uploads"])?.accept(Accept::new())?.is_some());
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Config`] with [`ConfigError::Group`] for an unknown queue, and for none.
    pub fn only<N: AsRef<str>>(&self, queues: impl IntoIterator<Item = N>) -> Result<Self, QueueError> {
        let names = self.known(queues)?;
        Self::of(self.inner.clone(), |name| names.contains(&name))
    }

    /// Makes a group that claims from all queues of this one but these. Pushes go to all as before.
    ///
    /// # Errors
    /// The same as [`only`](Self::only).
    pub fn except<N: AsRef<str>>(&self, queues: impl IntoIterator<Item = N>) -> Result<Self, QueueError> {
        let names = self.known(queues)?;
        let claims: Vec<_> = self.members.queues().map(Queue::name).filter(|name| !names.contains(name)).collect();
        Self::of(self.inner.clone(), |name| claims.contains(&name))
    }

    /// Returns the names of these queues, as the group has them.
    fn known<N: AsRef<str>>(&self, queues: impl IntoIterator<Item = N>) -> Result<Vec<&str>, ConfigError> {
        let known = |name: N| match self.queue(name.as_ref()) {
            Some(queue) => Ok(queue.name()),
            None => Err(unknown_queue(name.as_ref())),
        };
        queues.into_iter().map(known).collect()
    }

    /// Claims the next job of one of the queues for the caller: see [`Queue::accept`].
    ///
    /// [`Fair`] chooses among the queues that have a job and are not paused. With a timeout it
    /// sleeps until there is one. A queue with an unreadable record waits while another one has a
    /// job.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{Accept, Fair, Group, NewJob, QueueOptions};
    ///
    /// let group = Group::new(&Store::in_memory())
    ///     .queue("mail", ["welcome"], QueueOptions::default())
    ///     .queue("thumbs", ["png"], QueueOptions::default())
    ///     .fair(Fair::strict(std::time::Duration::from_secs(60)))
    ///     .open()?;
    /// group.push_all([NewJob::new("png", "cat")?, NewJob::new("welcome", "ann")?])?;
    /// let mut kinds = Vec::new();
    /// while let Some(mut lease) = group.accept(Accept::new())? {
    ///     kinds.push(lease.kind().to_owned());
    ///     lease.finish(None)?;
    /// }
    /// assert_eq!(kinds, ["welcome", "png"]);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`Queue::accept`].
    pub fn accept(&self, accept: Accept) -> Result<Option<Lease>, QueueError> {
        let (members, bell) = (&self.members, self.members.bell());
        let wanted = accept.wanted()?;
        let first = members.queue(0);
        let deadline = accept.timeout.and_then(|timeout| first.moment().now.checked_add(timeout));
        loop {
            let news = bell.news();
            let (mut tried, mut tried_early, mut damaged) = (Vec::new(), Vec::new(), None);
            let next = |tried: &[usize], early: &[usize]| {
                members.choose(tried, wanted.kinds.as_deref()).or_else(|| members.choose_early(early, wanted.due_by))
            };
            while let Some(choice) = next(&tried, &tried_early) {
                match members.claim(choice, &wanted) {
                    Ok(Some(claimed)) => return Ok(Some(Lease::new(members.queue(choice.place).clone(), claimed))),
                    Ok(None) => {}
                    // It does not hold up other queues.
                    Err(error @ QueueError::Store(Error::Corrupt { .. })) => damaged = damaged.or(Some(error)),
                    Err(error) => return Err(error),
                }
                tried.push(choice.place);
                // A queue whose ready jobs are all of other kinds may have one of these for later.
                if choice.is_early || wanted.kinds.is_none() {
                    tried_early.push(choice.place);
                }
            }
            if let Some(damaged) = damaged {
                return Err(damaged);
            }
            let is_over = deadline.is_some_and(|deadline| deadline <= first.moment().now);
            if accept.timeout.is_none() || is_over {
                return Ok(None);
            }
            members.sleep(news, deadline, (Takes::of(&wanted), wanted.kinds.as_deref()), &tried, &[]);
        }
    }

    // Looks.

    /// Returns the number of jobs in each state, over all queues: see [`Queue::counts`]. The age is
    /// that of the oldest numbers.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let (mut all, mut damaged, mut age) = ([0; JobState::ALL.len()], 0, Duration::ZERO);
        for queue in &self.inner.queues {
            let counts = queue.counts();
            all.iter_mut().zip(JobState::ALL).for_each(|(sum, state)| *sum += counts.of_state(state));
            damaged += counts.damaged;
            age = age.max(counts.age);
        }
        Counts { age, ..Counts::of(all, damaged) }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let claims: Vec<_> = self.members.queues().map(Queue::name).collect();
        f.debug_struct("Group")
            .field("queues", &self.inner.queues)
            .field("claims_from", &claims)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
