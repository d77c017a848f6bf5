//! The trait that a product implements to have a part in each batch, and the states of all
//! participants within one batch.

use crate::base::error::StoreError;
use crate::base::index::BoxError;
use crate::base::sync::Arc;
use crate::commit::overlay::Overlay;
use crate::kv::Kv;
use std::any::Any;
use std::collections::BTreeMap;

/// Work that a write leaves behind, mostly with the disk. It runs after everybody was told of the
/// write, on a thread that nobody waits for. It reports its own failure, and nothing may be lost
/// when it fails or never runs.
pub type Cleanup = Box<dyn FnOnce(&dyn Kv) + Send>;

/// A product, or a part of one, that turns operations into records at the moment when a batch is
/// made.
///
/// The operations of one batch are applied one after the other. Each sees the changes of those
/// before it: in the participant's tail, and in the database overlaid by the batch so far. A
/// participant reads and writes only families that no other code writes. It must not read or write
/// rows of tables: other threads put those at the same time, and the draft remembers counters among
/// them.
pub trait Participant: Send + Sync + 'static {
    /// The participant's state within one batch. If an intent fails, the draft goes back to a clone
    /// of it, so it should be small.
    type Staged: Clone + Send + 'static;

    /// Returns its state at the beginning of a batch.
    fn staged(&self) -> Self::Staged;

    /// Adds the records of one operation to the batch.
    ///
    /// # Errors
    /// A [`Refusal`](crate::commit::refusal::Refusal) fails the job that asks for this operation,
    /// if there is one, and no other job. Any other error fails the intent of this operation. The
    /// tail and the batch then go back to their state before that job, or before that intent.
    fn apply(&self, staged: &mut Self::Staged, op: &[u8], batch: &mut Overlay<'_>) -> Result<(), BoxError>;

    /// Adds the records that say its state after everything in the batch. The writer calls it once
    /// for each batch, when nothing else comes into the batch.
    ///
    /// # Errors
    /// Any error fails the whole batch.
    fn close(&self, _tail: &mut Self::Staged, _batch: &mut Overlay<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    /// Makes the new state visible to everybody. The writer calls it when the batch is written, and
    /// before anybody is told so.
    fn publish(self: Arc<Self>, staged: Self::Staged) -> Option<Cleanup>;
}

/// A participant of any type.
pub(crate) trait AnyParticipant: Send + Sync {
    /// Begins its part in a batch.
    fn join(self: Arc<Self>) -> Box<dyn AnyJoined>;
}

impl<P: Participant> AnyParticipant for P {
    fn join(self: Arc<Self>) -> Box<dyn AnyJoined> {
        let staged = self.staged();
        Box::new(Joined { participant: self, staged })
    }
}

/// A participant and its tail.
struct Joined<P: Participant> {
    participant: Arc<P>,
    staged: P::Staged,
}

/// The part of a participant of any type in a batch.
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

/// The number of participants up to which a search looks at each of them. Above it a map is used.
const FEW: usize = 16;

/// The participants of one batch.
///
/// A mark costs nothing. The first operation on a participant after a mark copies its tail into the
/// journal, so going back costs as much as was touched.
#[derive(Default)]
pub(super) struct Tails {
    /// The participants of the batch, in the order of their first operations.
    parts: Vec<Part>,
    /// The places in `parts` by the address of the participant, once there are many.
    places: BTreeMap<usize, usize>,
    /// The copies of what is staged, each with its place in `parts`. A copy is made at the first
    /// change after a mark. The copies are in the order of these changes.
    journal: Vec<(usize, Box<dyn AnyJoined>)>,
    /// The number of marks so far.
    marks: u64,
}

struct Part {
    /// The address of the participant, which the tail keeps.
    address: usize,
    joined: Box<dyn AnyJoined>,
    /// The value of `marks` when the part was new, or when the journal last got a copy.
    noted: u64,
}

/// A state of [`Tails`] to go back to: the numbers of parts and of copies in the journal.
pub(super) struct TailsMark {
    parts: usize,
    journal: usize,
}

impl Tails {
    /// True if no participant is in the batch. (It may change its state alone, which becomes a
    /// record at the end.)
    #[cfg(feature = "seam")]
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(super) fn mark(&mut self) -> TailsMark {
        self.marks += 1;
        TailsMark { parts: self.parts.len(), journal: self.journal.len() }
    }

    pub(super) fn go_back(&mut self, mark: TailsMark) {
        // Each copy is newer than the ones before it, so the oldest is put back last.
        for (place, joined) in self.journal.drain(mark.journal..).rev() {
            let part = &mut self.parts[place];
            part.joined = joined;
            // The draft may still go back to an earlier mark, so the next change makes a new copy.
            part.noted = 0;
        }
        for part in self.parts.drain(mark.parts..) {
            self.places.remove(&part.address);
        }
    }

    /// Returns a participant's part in the batch, which the caller may change.
    pub(super) fn any(&mut self, participant: &Arc<dyn AnyParticipant>) -> &mut dyn AnyJoined {
        self.touch(Arc::as_ptr(participant).addr(), || participant.clone().join())
    }

    /// Returns what a participant has staged, which the caller may change.
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

    /// Adds a participant. It needs no copy: going back to an earlier mark removes it.
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
