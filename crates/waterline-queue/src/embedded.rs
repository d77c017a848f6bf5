//! The queue in the embedded store.
//!
//! - `engine` answers the calls of a queue; the larger ones are in `turn`, `chunks`, `opening`.
//! - `intent` takes each call that changes something to the store's writer, as part of a batch.
//! - `step` makes the transitions of jobs in that batch, on the records that `txn` keeps
//!   consistent.
//! - `state` is a queue that is open, `staged` its state within a batch, `reader` reads what is
//!   stored.
//! - `keys` and `codec` are the stored form.

mod chunks;
pub(crate) mod codec;
pub(crate) mod ctx;
pub(crate) mod engine;
pub(crate) mod intent;
pub(crate) mod keys;
pub(crate) mod kind_lines;
pub(crate) mod opening;
pub(crate) mod periodics;
pub(crate) mod reader;
pub(crate) mod staged;
pub(crate) mod state;
pub(crate) mod step;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod stored;
pub(crate) mod turn;
pub(crate) mod txn;
pub(crate) mod wall;
