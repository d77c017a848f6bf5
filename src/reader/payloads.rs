//! The values of jobs that were read. Only the source and the code that runs the jobs know their
//! type. The code between knows only their number, so it is compiled once for all types.

use crate::base::guard::drop_guarded;
use std::any::Any;
use std::collections::VecDeque;

pub(crate) trait Payloads: Any + Send {
    fn len(&self) -> usize;

    /// Takes the first `count` values as a list of their own.
    fn split_first(&mut self, count: usize) -> Box<dyn Payloads>;

    /// Moves the first `count` values of a list of the same type to the end of this one.
    fn append(&mut self, from: &mut dyn Payloads, count: usize);

    /// Moves the first `count` values to the end of this list.
    fn pass(&mut self, count: usize);
}

impl dyn Payloads {
    pub(crate) fn new<T: Send + 'static>(values: impl Into<VecDeque<T>>) -> Box<Self> {
        Box::new(UserValues(values.into()))
    }

    /// Takes the first value; `None` also if it has another type.
    #[inline]
    pub(crate) fn pop_first<T: Send + 'static>(&mut self) -> Option<T> {
        let all: &mut dyn Any = self;
        all.downcast_mut::<UserValues<T>>()?.0.pop_front()
    }
}

/// A list of values, whose destructors are user code.
struct UserValues<T>(VecDeque<T>);

impl<T: Send + 'static> Payloads for UserValues<T> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn split_first(&mut self, count: usize) -> Box<dyn Payloads> {
        let is_all = count == self.0.len();
        <dyn Payloads>::new(if is_all { std::mem::take(&mut self.0) } else { self.0.drain(..count).collect() })
    }

    fn append(&mut self, from: &mut dyn Payloads, count: usize) {
        let from: &mut dyn Any = from;
        let Some(Self(from)) = from.downcast_mut() else {
            return debug_assert!(false, "the jobs of one source have one type");
        };
        if count == from.len() {
            self.0.append(from);
        } else {
            self.0.extend(from.drain(..count));
        }
    }

    fn pass(&mut self, count: usize) {
        self.0.rotate_left(count);
    }
}

impl<T> Drop for UserValues<T> {
    fn drop(&mut self) {
        if std::mem::needs_drop::<T>() {
            self.0.drain(..).for_each(drop_guarded);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut list: Box<dyn Payloads>) -> Vec<u8> {
        std::iter::from_fn(|| list.pop_first()).collect()
    }

    #[test]
    fn moved_jobs_keep_order_and_passed_ones_stay() {
        let (mut kept, mut read) =
            (<dyn Payloads>::new(vec![0_u8, 1]), <dyn Payloads>::new((2..10_u8).collect::<Vec<_>>()));
        kept.append(&mut *read, 2);
        read.pass(3);
        assert_eq!(all(read.split_first(1)), [7]);
        kept.append(&mut *read, 2);
        assert_eq!((kept.len(), read.len()), (6, 3));
        assert_eq!((all(kept), all(read)), (vec![0, 1, 2, 3, 8, 9], vec![4, 5, 6]));
    }

    #[test]
    fn a_list_of_another_type_has_no_such_job() {
        let mut list = <dyn Payloads>::new(vec!["a job"]);
        assert_eq!((list.pop_first::<String>(), list.pop_first()), (None, Some("a job")));
    }
}
