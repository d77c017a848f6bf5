//! Groups of queues that are refused.

/// A [`Group`](crate::queue::Group) of queues, or a call of one, that cannot be. Nothing was
/// changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// A group without a queue to claim from.
    #[error(
        "the group has no queue to claim from: add one with `queue`, and leave one in with `only_when_asked`, `only` and \
         `except`"
    )]
    Empty,
    /// A queue that is twice in a group.
    #[error("the queue {queue:?} is twice in the group: name it once, with all of its kinds")]
    QueueTwice {
        /// The name of the queue.
        queue: String,
    },
    /// A kind of jobs that two queues of a group take.
    #[error("{}", twice(kind, first, second))]
    KindTwice {
        /// The kind.
        kind: String,
        /// The name of the queue that has it.
        first: String,
        /// The name of the other queue, which may be the same one.
        second: String,
    },
    /// A queue that a group does not have.
    #[error("the group has no queue {queue:?}: add it with `queue`, or mend the name")]
    Unknown {
        /// The name.
        queue: String,
    },
    /// A kind of jobs that no queue of a group takes.
    #[error("no queue of the group takes the kind {kind:?}: add it to one of them, or set a `default_queue`")]
    Kind {
        /// The kind.
        kind: String,
    },
    /// Queues of a group with clocks of their own.
    #[error("the queue {queue:?} has another clock than the first queue of the group: give all of them the same one")]
    Clock {
        /// The name of the queue.
        queue: String,
    },
    /// A weight that is below zero, or no finite number.
    #[error("the weight of the queue {queue:?} is {weight}: use 0 or more")]
    Weight {
        /// The name of the queue.
        queue: String,
        /// The weight.
        weight: f64,
    },
}

fn twice(kind: &str, first: &str, second: &str) -> String {
    if first == second {
        format!("the queue {first:?} of the group takes the kind {kind:?} twice: name it once")
    } else {
        format!("the queues {first:?} and {second:?} of the group both take the kind {kind:?}: give it to one of them")
    }
}
