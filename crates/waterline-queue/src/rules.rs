//! The rules of a queue. They are pure (no store, clock or thread), so that all engines share them.

pub(crate) mod bucket;
pub(crate) mod causes;
pub(crate) mod due;
pub(crate) mod ends;
pub(crate) mod fair;
pub(crate) mod fingerprint;
pub(crate) mod fleet;
pub(crate) mod gate;
pub(crate) mod lanes;
pub(crate) mod notes;
pub(crate) mod pushing;
pub(crate) mod set_back;
pub(crate) mod still;
