//! The threads of a host: how many are present, the name they keep, and the garbage of the end.

use std::any::Any;

type AnyGuard = Box<dyn Any + Send>;

/// What changes of the threads together with the work, under the lock of the work.
pub struct ThreadRegistry {
    /// The number of members: the threads, the owner, and any thread that does something for the
    /// host, such as writing lines.
    present: usize,
    /// The number of started threads whose thread-locals are not all destroyed.
    pub(super) alive: usize,
    /// False once the owner has stopped, joined or dropped the consumer.
    pub(super) owned: bool,
    /// True once there is no more work to come.
    over: bool,
    name: Option<AnyGuard>,
    /// The user's values that are left at the end. A thread of the host drops them, since a
    /// destructor may do anything, even stop this consumer, and must hold up no other thread.
    garbage: Option<Box<dyn Any + Send>>,
}

/// What a member that has left has to do once the lock is free.
pub(super) struct Left {
    /// True once there is no more work to come.
    pub(super) over: bool,
    /// True if only the owner is left.
    pub(super) gone: bool,
    /// True if no member is left.
    pub(super) last: bool,
    /// The name, if nothing uses it any more.
    pub(super) name: Option<AnyGuard>,
}

/// The registry with only the owner.
impl Default for ThreadRegistry {
    fn default() -> Self {
        Self { present: 1, alive: 0, owned: true, over: false, name: None, garbage: None }
    }
}

impl ThreadRegistry {
    /// Keeps the name in use until all members have left.
    pub fn keep_name(&mut self, name: AnyGuard) {
        self.name = Some(name);
    }

    /// Counts a member in before it comes.
    #[inline]
    pub(crate) fn count_in(&mut self) {
        self.present += 1;
    }

    /// Notes that there is no more work to come. A thread of the host drops the garbage.
    pub fn end(&mut self, garbage: Box<dyn Any + Send>) {
        self.over = true;
        self.garbage = Some(garbage);
    }

    /// True if any member is present beside the owner.
    pub(crate) fn has_others(&self) -> bool {
        self.present > 1
    }

    /// True if the work is over and only the owner and the calling thread are present.
    pub(crate) fn is_last_thread(&self) -> bool {
        self.over && self.present <= usize::from(self.owned) + 1
    }

    /// True if the owner need not wait any more.
    pub fn is_gone(&self) -> bool {
        self.over && self.alive == 0 && self.present <= usize::from(self.owned)
    }

    /// Gives the name away if no member is present and no token is out.
    pub(crate) fn release_name(&mut self, tokens: usize) -> Option<AnyGuard> {
        if self.present == 0 && tokens == 0 { self.name.take() } else { None }
    }

    pub(super) fn leave(&mut self, tokens: usize) -> Left {
        self.present -= 1;
        Left { over: self.over, gone: self.is_gone(), last: self.present == 0, name: self.release_name(tokens) }
    }

    /// Returns true if all are gone now.
    pub(super) fn thread_is_gone(&mut self) -> bool {
        self.alive -= 1;
        self.is_gone()
    }

    /// Takes the garbage: `None` before the end, and `Some(None)` once it is taken.
    pub(super) fn clear_up(&mut self) -> Option<Option<Box<dyn Any + Send>>> {
        self.over.then(|| self.garbage.take())
    }
}
