//! The queue in the embedded store.

mod chunks;
pub(crate) mod codec;
pub(crate) mod ctx;
pub(crate) mod engine;
pub(crate) mod intent;
pub(crate) mod keys;
pub(crate) mod kind_lines;
pub(crate) mod look;
pub(crate) mod opening;
pub(crate) mod periodics;
pub(crate) mod staged;
pub(crate) mod state;
pub(crate) mod step;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod stored;
pub(crate) mod turn;
pub(crate) mod txn;
pub(crate) mod wall;
