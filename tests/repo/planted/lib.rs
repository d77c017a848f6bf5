//! The planted bugs of `tests/mutants.txt`, and the places in the code where they go.

pub mod list;
pub mod places;
