//! The two sizes of a test. `make test` runs it small, in seconds. `make soak` runs it whole, and
//! with new seeds each time.

use std::ops::Range;

/// Returns the first value in `make test`, and the second one in `make soak`.
pub fn size<T>(small: T, whole: T) -> T {
    if std::env::var_os("WATERLINE_SOAK").is_some() { whole } else { small }
}

/// Returns the cases of a random test, of which a soak runs many more.
pub fn cases(small: u32) -> u32 {
    small * size(1, 20)
}

/// Returns the seed of this round: the one of a soak, so that it can be replayed by `SEED=`.
pub fn seed() -> u64 {
    std::env::var("SEED").map_or(0, |seed| seed.parse().expect("SEED is a number"))
}

/// Returns so many seeds of random lives, from that of the round on.
pub fn seeds(small: u64, whole: u64) -> Range<u64> {
    seed()..seed() + size(small, whole)
}
