//! The threads of a consumer, and the rules for them.

pub(crate) mod stopping;
