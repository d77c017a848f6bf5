//! The synchronisation that the crate is written in, named once, so that a model checker can be put in its place.

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicU8, Ordering};
