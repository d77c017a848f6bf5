//! The settings of a group.

use crate::group::{Group, Inner, no_queue};
use crate::handle::Queue;
use crate::rules::fair::Fair;
use crate::types::config::ConfigError;
use crate::types::error::{QueueError, group_error, unknown_queue};
use crate::types::job::check_kind;
use crate::types::options::QueueOptions;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use waterline::Store;

type Opens = dyn Fn(&str, QueueOptions) -> Result<Queue, QueueError> + Send + Sync;

/// The settings of a [`Group`], from [`Group::new`].
#[must_use]
pub struct GroupBuilder {
    opens: Box<Opens>,
    queues: Vec<Part>,
    default: Option<String>,
    when_asked: Vec<String>,
    fair: Fair,
}

struct Part {
    name: String,
    kinds: Vec<String>,
    options: QueueOptions,
}

impl Group {
    /// Begins a group of queues in this store. It needs at least one.
    #[expect(clippy::new_ret_no_self, reason = "the builder makes the group, once it has its queues")]
    pub fn new(store: &Store) -> GroupBuilder {
        let store = store.clone();
        GroupBuilder::over(move |name, options| Queue::open(&store, name, options))
    }
}

impl GroupBuilder {
    /// Begins a group of queues that this closure opens, all in one database that is no [`Store`].
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{GroupBuilder, Queue, QueueOptions};
    ///
    /// let store = Store::in_memory();
    /// let group = GroupBuilder::over(move |name, options| Queue::open(&store, name, options))
    ///     .queue("mail", ["welcome"], QueueOptions::default())
    ///     .open()?;
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    pub fn over(opens: impl Fn(&str, QueueOptions) -> Result<Queue, QueueError> + Send + Sync + 'static) -> Self {
        let opens = Box::new(opens);
        Self { opens, queues: Vec::new(), default: None, when_asked: Vec::new(), fair: Fair::default() }
    }

    /// Adds a queue: its name, the kinds of jobs that it takes, and its options.
    ///
    /// Without kinds it takes only direct pushes, unless it is the
    /// [`default_queue`](Self::default_queue).
    pub fn queue<K: Into<String>>(
        mut self,
        name: impl Into<String>,
        kinds: impl IntoIterator<Item = K>,
        options: QueueOptions,
    ) -> Self {
        let kinds = kinds.into_iter().map(Into::into).collect();
        self.queues.push(Part { name: name.into(), kinds, options });
        self
    }

    /// Sets the queue for all other kinds. Default: none. The push of such a job is then refused,
    /// since its kind is usually misspelt.
    pub fn default_queue(mut self, name: impl Into<String>) -> Self {
        self.default = Some(name.into());
        self
    }

    /// Claims from this queue only if [`Group::only`] names it. Default: from all.
    pub fn only_when_asked(mut self, name: impl Into<String>) -> Self {
        self.when_asked.push(name.into());
        self
    }

    /// Sets how to choose among the queues that have a job. Default: [`Fair::Shuffle`].
    pub fn fair(mut self, fair: Fair) -> Self {
        self.fair = fair;
        self
    }

    /// Opens the queues, and the group.
    ///
    /// # Errors
    /// [`QueueError::Config`] for an invalid group: without a queue, with a queue twice, with a
    /// kind in two queues, with a setting for an unknown queue, with two different clocks, or with
    /// a weight that is negative or not finite. Otherwise the same as [`Queue::open`].
    pub fn open(self) -> Result<Group, QueueError> {
        let routes = self.routes()?;
        let place = |name: &String| self.queues.iter().position(|part| part.name == *name);
        let known = |name: &String| place(name).ok_or_else(|| unknown_queue(name));
        let default = self.default.as_ref().map(known).transpose()?;
        for name in &self.when_asked {
            known(name)?;
        }
        let names: Vec<_> = self.queues.iter().map(|part| part.name.as_str()).collect();
        let rule = self.fair.rule(&names)?;
        let open = |part: &Part| (self.opens)(&part.name, part.options.clone());
        let queues = self.queues.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let Self { when_asked, .. } = self;
        let inner = Arc::new(Inner { queues, routes, default, rule, handles: AtomicU64::new(0) });
        Group::of(inner, |name| !when_asked.iter().any(|asked| asked == name))
    }

    /// Returns the index of the queue that takes each kind.
    fn routes(&self) -> Result<HashMap<String, usize>, ConfigError> {
        let Some(first) = self.queues.first() else { return Err(no_queue()) };
        let mut routes: HashMap<String, usize> = HashMap::new();
        for (place, Part { name, kinds, options }) in self.queues.iter().enumerate() {
            if self.queues[..place].iter().any(|other| other.name == *name) {
                let why = format!("the queue {name:?} is twice in the group: name it once, with all of its kinds");
                return Err(group_error("queue twice", [name], why));
            }
            if options.clock != first.options.clock {
                let why = "has another clock than the first queue of the group: give all of them the same one";
                return Err(group_error("clock", [name], format!("the queue {name:?} {why}")));
            }
            for kind in kinds {
                check_kind(kind)?;
                if let Some(other) = routes.insert(kind.clone(), place) {
                    let first = &self.queues[other].name;
                    let why = if first == name {
                        format!("the queue {name:?} of the group takes the kind {kind:?} twice: name it once")
                    } else {
                        let both = format!("the queues {first:?} and {name:?} of the group");
                        format!("{both} both take the kind {kind:?}: give it to one of them")
                    };
                    return Err(group_error("kind twice", [kind, first, name], why));
                }
            }
        }
        Ok(routes)
    }
}

impl fmt::Debug for GroupBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.queues.iter().map(|part| &part.name).collect();
        f.debug_struct("GroupBuilder").field("queues", &names).field("fair", &self.fair).finish_non_exhaustive()
    }
}
