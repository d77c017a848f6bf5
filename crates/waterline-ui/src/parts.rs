//! The parts of a page.

use waterline::{Handle, PipelineHandle};
use waterline_queue::{Group, Queue, RunnerHandle};

/// A thing that a page [watches](crate::Page::watch).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Watched {
    /// A consumer.
    Consumer(Handle),
    /// The stages of a pipeline.
    Pipeline(PipelineHandle),
    /// A queue.
    Queue(Queue),
    /// All queues of a group.
    Group(Group),
}

impl From<&Queue> for Watched {
    fn from(queue: &Queue) -> Self {
        Self::Queue(queue.clone())
    }
}

impl From<&Group> for Watched {
    fn from(group: &Group) -> Self {
        Self::Group(group.clone())
    }
}

impl From<Handle> for Watched {
    fn from(handle: Handle) -> Self {
        Self::Consumer(handle)
    }
}

impl From<PipelineHandle> for Watched {
    fn from(handle: PipelineHandle) -> Self {
        Self::Pipeline(handle)
    }
}

#[derive(Clone)]
pub(crate) enum Part {
    Watched(Watched),
    Runner(RunnerHandle),
}
