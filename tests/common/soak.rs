//! The two sizes of a test: `make test` runs it small, in seconds, and `make soak` whole, with new
//! seeds each time.

use std::ops::Range;

/// Returns the first value in `make test`, and the second in `make soak`.
pub fn size<T>(small: T, whole: T) -> T {
    if std::env::var_os("WATERLINE_SOAK").is_some() { whole } else { small }
}

/// Returns the number of cases of a random test, which is larger in a soak.
pub fn cases(small: u32) -> u32 {
    small * size(1, 20)
}

/// Returns the seed of a soak's round, so that `SEED=` replays it, or 0.
pub fn seed() -> u64 {
    std::env::var("SEED").map_or(0, |seed| seed.parse().expect("SEED is a number"))
}

/// Returns this many seeds, starting with that of the round.
pub fn seeds(small: u64, whole: u64) -> Range<u64> {
    seed()..seed() + size(small, whole)
}
