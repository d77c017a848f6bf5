//! Calls of user code. A panic there becomes an error, even one in a destructor.

use crate::base::BoxError;
use std::any::Any;
use std::fmt;

/// The error that a caught panic of user code becomes.
#[derive(Debug)]
pub(crate) struct Panic(String);

impl Panic {
    pub(crate) fn caught(payload: Box<dyn Any + Send>) -> BoxError {
        let text = payload
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a value that is no text".to_owned());
        drop_guarded(payload);
        Box::new(Self(text))
    }
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "panicked: {}", self.0)
    }
}

impl std::error::Error for Panic {}

/// Calls user code, and turns a panic in it into an error.
pub fn guarded<R>(call: impl FnOnce() -> Result<R, BoxError>) -> Result<R, BoxError> {
    // The closure touches only the user's values, and the user decides what a panic leaves behind.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_or_else(|payload| Err(Panic::caught(payload)))
}

/// Drops a user's value. A panic in its destructor must not end a thread that others need.
pub fn drop_guarded<U>(users: U) {
    if let Err(payload) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(users))) {
        // The destructor of the payload may panic too, so it never runs.
        let _ = std::mem::ManuallyDrop::new(payload);
        tracing::error!("a destructor panicked");
    }
}

/// A user's value whose destructor may panic. A list of these still drops all its values.
pub(crate) struct Guarded<T>(Option<T>);

impl<T> Guarded<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }

    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_mut()
    }

    pub(crate) fn take(mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        drop_guarded(self.0.take());
    }
}
