//! Pushes outside of jobs: each push is an intent.

use super::{codec::Codec, state::LogState};
use crate::base::sync::{Arc, Mutex};
use crate::base::{BoxError, Error, Index, guard::guarded};
use crate::commit::draft::Draft;
use crate::commit::intent::{Intent, Ticket, failed};
use std::ops::Range;
use std::time::Duration;

pub(super) struct Values {
    bytes: Vec<u8>,
    /// The end of each item.
    ends: Vec<usize>,
}

impl Values {
    pub(super) fn of<T, C: Codec<T>>(log: &str, codec: &C, items: &[T]) -> Result<Self, Error> {
        let encoded = guarded(|| match items {
            [item] => Self::of_one(codec, item),
            _ => Self::of_many(codec, items),
        });
        encoded.map_err(|source| Error::Item { log: log.to_owned(), source })
    }

    fn of_one<T, C: Codec<T>>(codec: &C, item: &T) -> Result<Self, BoxError> {
        let mut bytes = Vec::new();
        codec.encode(item, &mut bytes)?;
        Ok(Self { ends: vec![bytes.len()], bytes })
    }

    fn of_many<T, C: Codec<T>>(codec: &C, items: &[T]) -> Result<Self, BoxError> {
        let mut values = Self { bytes: Vec::new(), ends: Vec::with_capacity(items.len()) };
        // Each item gets an empty buffer, so that no codec can damage other items.
        let mut value = Vec::new();
        for item in items {
            value.clear();
            codec.encode(item, &mut value)?;
            values.bytes.extend_from_slice(&value);
            values.ends.push(values.bytes.len());
        }
        Ok(values)
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }
}

/// Items to be appended, until they are written or have failed.
pub(super) struct PushIntent {
    state: Arc<LogState>,
    synced: bool,
    values: Values,
    /// The indices of the items in the batch.
    range: Mutex<Range<Index>>,
    told: Arc<Ticket<Range<Index>>>,
}

impl PushIntent {
    /// Returns the intent, and the ticket for the indices of the items.
    pub(super) fn new(state: &Arc<LogState>, values: Values, synced: bool) -> (Self, Arc<Ticket<Range<Index>>>) {
        let told = Ticket::new();
        (Self { state: state.clone(), synced, values, range: Mutex::new(0..0), told: told.clone() }, told)
    }
}

impl Intent for PushIntent {
    fn resolve(&self, draft: &mut Draft<'_>) -> Result<bool, BoxError> {
        let mut range = self.range.lock();
        let (staged, batch) = draft.part(&self.state)?;
        range.start = staged.end;
        self.values.iter().try_for_each(|value| staged.push(&self.state, value, batch))?;
        range.end = staged.end;
        Ok(true)
    }

    fn synced(&self) -> bool {
        self.synced
    }

    fn written(&self) {
        self.told.tell(Ok(self.range.lock().clone()));
    }

    fn failed(&self, error: BoxError) -> Option<Duration> {
        self.told.tell(Err(failed("push to a log", error).into()));
        None
    }
}
