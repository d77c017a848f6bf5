//! State that hardly any consumer needs.

use std::ops::{Deref, DerefMut};

/// State that is allocated when it is first changed, so that an idle consumer is small.
pub(in crate::driver) struct LazyBox<T>(Option<Box<T>>);

/// A type with an empty value.
pub(in crate::driver) trait Empty: Sized + 'static {
    const EMPTY: &'static Self;
    const NEW: Self;
}

impl<T> LazyBox<T> {
    pub(super) const fn new() -> Self {
        Self(None)
    }

    pub(super) fn set(&mut self, value: T) {
        self.0 = Some(Box::new(value));
    }
}

impl<T: Empty> Deref for LazyBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::EMPTY)
    }
}

impl<T: Empty> DerefMut for LazyBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_with(|| Box::new(T::NEW))
    }
}
