//! The keys of jobs, if jobs of one key run in order.

use std::hash::{BuildHasher, Hash, RandomState};
use std::num::NonZero;

/// The hash of a key. The state of its hasher is random, so a producer cannot choose keys that
/// collide.
pub(crate) type Key = NonZero<u64>;

/// Makes the key of a job; `None` if the job has none.
pub(crate) type KeyOf<T> = Box<dyn Fn(&T) -> Option<Key> + Send + Sync>;

/// Hashes what this closure returns.
pub(crate) fn hashed<T, K: Hash>(key: impl Fn(&T) -> Option<K> + Send + Sync + 'static) -> KeyOf<T> {
    let state = RandomState::new();
    Box::new(move |job| key(job).map(|key| NonZero::new(state.hash_one(key)).unwrap_or(NonZero::<u64>::MIN)))
}
