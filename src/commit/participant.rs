//! How a product takes part in each batch, and the states of all participants in one.

use crate::base::{BoxError, error::StoreError, sync::Arc};
use crate::commit::overlay::Overlay;
use crate::kv::Kv;
use std::any::Any;
use std::collections::BTreeMap;

/// Work that a write leaves behind, mostly on disks. It runs on a thread that no caller waits for,
/// after the write has been reported. It reports its failures. Nothing may depend on it.
pub type Cleanup = Box<dyn FnOnce(&dyn Kv) + Send>;

/// A product, or part of one, that turns operations into records when a batch is made.
///
/// The operations of a batch are applied in order. Each sees the changes of earlier ones, in the
/// staged state and in the database overlaid by the batch. A participant reads and writes only
/// families that no other code writes, and never rows of tables: other threads change those at the
/// same time, and the draft caches counters among them.
pub trait Participant: Send + Sync + 'static {
    /// The participant's state within one batch. It should be small: it is cloned to undo intents.
    type Staged: Clone + Send + 'static;

    /// Returns its state at the start of a batch.
    fn staged(&self) -> Self::Staged;

    /// Adds the records of an operation to the batch.
    ///
    /// # Errors
    /// A [`Refusal`](crate::commit::refusal::Refusal) fails only the job that asks for this
    /// operation, if there is one. Any other error fails the intent. The changes of that job or
    /// intent are undone.
    fn apply(&self, staged: &mut Self::Staged, op: &[u8], batch: &mut Overlay<'_>) -> Result<(), BoxError>;

    /// Adds the records of its final state. Called once per batch, after all other changes.
    ///
    /// # Errors
    /// Any error fails the whole batch.
    fn close(&self, _tail: &mut Self::Staged, _batch: &mut Overlay<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    /// Makes the new state visible. Called after the batch is written, before that is reported.
    fn publish(self: Arc<Self>, staged: Self::Staged) -> Option<Cleanup>;
}

/// A type-erased [`Participant`].
pub(crate) trait AnyParticipant: Send + Sync {
    fn join(self: Arc<Self>) -> Box<dyn AnyJoined>;
}

impl<P: Participant> AnyParticipant for P {
    fn join(self: Arc<Self>) -> Box<dyn AnyJoined> {
        let staged = self.staged();
        Box::new(Joined { participant: self, staged })
    }
}

struct Joined<P: Participant> {
    participant: Arc<P>,
    staged: P::Staged,
}

/// A type-erased participant in a batch.
pub(crate) trait AnyJoined: Any + Send {
    fn fork(&self) -> Box<dyn AnyJoined>;
    fn apply(&mut self, op: &[u8], batch: &mut Overlay<'_>) -> Result<(), BoxError>;
    fn close(&mut self, batch: &mut Overlay<'_>) -> Result<(), StoreError>;
    fn publish(self: Box<Self>) -> Option<Cleanup>;
}

impl<P: Participant> AnyJoined for Joined<P> {
    fn fork(&self) -> Box<dyn AnyJoined> {
        Box::new(Self { participant: self.participant.clone(), staged: self.staged.clone() })
    }

    fn apply(&mut self, op: &[u8], batch: &mut Overlay<'_>) -> Result<(), BoxError> {
        self.participant.apply(&mut self.staged, op, batch)
    }

    fn close(&mut self, batch: &mut Overlay<'_>) -> Result<(), StoreError> {
        self.participant.close(&mut self.staged, batch)
    }

    fn publish(self: Box<Self>) -> Option<Cleanup> {
        self.participant.publish(self.staged)
    }
}

/// Up to how many participants a search is linear. Beyond, a map is used.
const FEW: usize = 16;

/// The participants of one batch.
///
/// A mark costs nothing. The first operation on a participant after a mark copies its state into
/// the journal, so undoing costs as much as was touched.
#[derive(Default)]
pub(super) struct Tails {
    /// The participants, in the order of their first operations.
    parts: Vec<Part>,
    /// The positions in `parts` by participant address, once there are many.
    places: BTreeMap<usize, usize>,
    /// Copies of staged states, each with its position in `parts`, from the first change after each
    /// mark, in the order of these changes.
    journal: Vec<(usize, Box<dyn AnyJoined>)>,
    marks: u64,
}

struct Part {
    /// The participant's address, which stays in use while `joined` holds it.
    address: usize,
    joined: Box<dyn AnyJoined>,
    /// The value of `marks` when the part was added or last copied to the journal.
    noted: u64,
}

/// A state of [`Tails`] to restore: the numbers of parts and of journal entries.
pub(super) struct TailsMark {
    parts: usize,
    journal: usize,
}

impl Tails {
    /// True if no participant is in the batch. (One may have changed only its staged state.)
    #[cfg(feature = "seam")]
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(super) fn mark(&mut self) -> TailsMark {
        self.marks += 1;
        TailsMark { parts: self.parts.len(), journal: self.journal.len() }
    }

    pub(super) fn go_back(&mut self, mark: TailsMark) {
        // The oldest copy is restored last.
        for (place, joined) in self.journal.drain(mark.journal..).rev() {
            let part = &mut self.parts[place];
            part.joined = joined;
            // The draft may still return to an earlier mark, so the next change makes a new copy.
            part.noted = 0;
        }
        for part in self.parts.drain(mark.parts..) {
            self.places.remove(&part.address);
        }
    }

    /// Returns a participant's part in the batch, for changes.
    pub(super) fn any(&mut self, participant: &Arc<dyn AnyParticipant>) -> &mut dyn AnyJoined {
        self.touch(Arc::as_ptr(participant).addr(), || participant.clone().join())
    }

    /// Returns a participant's staged state, for changes.
    pub(super) fn staged<P: Participant>(&mut self, participant: &Arc<P>) -> Result<&mut P::Staged, BoxError> {
        let joined: &mut dyn Any = self.touch(Arc::as_ptr(participant).addr(), || participant.clone().join());
        let joined = joined.downcast_mut::<Joined<P>>().ok_or("a participant's tail has another type")?;
        Ok(&mut joined.staged)
    }

    fn touch(&mut self, address: usize, join: impl FnOnce() -> Box<dyn AnyJoined>) -> &mut dyn AnyJoined {
        let place = self.find(address).unwrap_or_else(|| self.add(address, join()));
        let part = &mut self.parts[place];
        if part.noted < self.marks {
            self.journal.push((place, part.joined.fork()));
            part.noted = self.marks;
        }
        &mut *part.joined
    }

    fn find(&self, address: usize) -> Option<usize> {
        if self.parts.len() > FEW {
            return self.places.get(&address).copied();
        }
        self.parts.iter().position(|part| part.address == address)
    }

    /// Adds a participant. It needs no copy: returning to an earlier mark removes it.
    fn add(&mut self, address: usize, joined: Box<dyn AnyJoined>) -> usize {
        let place = self.parts.len();
        self.parts.push(Part { address, joined, noted: self.marks });
        if place == FEW {
            self.places = self.parts.iter().enumerate().map(|(place, part)| (part.address, place)).collect();
        } else if place > FEW {
            self.places.insert(address, place);
        }
        place
    }

    /// Lets each participant add the records of its new state.
    pub(super) fn close(&mut self, batch: &mut Overlay<'_>) -> Result<(), StoreError> {
        self.parts.iter_mut().try_for_each(|part| part.joined.close(batch))
    }

    /// Lets each participant publish its new state, and returns the chores that they leave.
    pub(super) fn publish(self) -> Vec<Cleanup> {
        self.parts.into_iter().filter_map(|part| part.joined.publish()).collect()
    }
}

#[cfg(test)]
mod tests;
