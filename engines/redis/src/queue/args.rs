//! The arguments of a function, one by one: how the library reads them is in `lua/base.lua`.

use crate::calls::Arg;
use std::borrow::Cow;
use waterline_queue::remote::{At, Runs};

/// The list of a call's arguments. Null is empty, and a text that may be null begins with `=`.
#[derive(Debug)]
pub(super) struct Args<'a>(Vec<Cow<'a, [u8]>>);

impl<'a> Args<'a> {
    /// Begins with the time of a clock that a test has set.
    pub(super) fn at(at: At<'_>) -> Self {
        Self::clocked(at.clock)
    }

    pub(super) fn clocked(clock: Option<u64>) -> Self {
        Self(vec![clock.map_or(Cow::Borrowed(&b""[..]), |clock| Cow::Owned(clock.to_string().into_bytes()))])
    }

    /// A text that is never null.
    pub(super) fn plain(self, text: &'a str) -> Self {
        self.bytes(text.as_bytes())
    }

    /// A text byte for byte.
    pub(super) fn bytes(mut self, bytes: &'a [u8]) -> Self {
        self.0.push(Cow::Borrowed(bytes));
        self
    }

    pub(super) fn text(mut self, text: Option<&str>) -> Self {
        self.0.push(text.map_or(Cow::Borrowed(&b""[..]), |text| Cow::Owned([b"=", text.as_bytes()].concat())));
        self
    }

    pub(super) fn number(mut self, number: impl Into<Option<i64>>) -> Self {
        let number: Option<i64> = number.into();
        self.0.push(number.map_or(Cow::Borrowed(&b""[..]), |number| Cow::Owned(number.to_string().into_bytes())));
        self
    }

    pub(super) fn flag(self, flag: impl Into<Option<bool>>) -> Self {
        match flag.into() {
            None => self.plain(""),
            Some(true) => self.plain("1"),
            Some(false) => self.plain("0"),
        }
    }

    pub(super) fn length(self, length: usize) -> Self {
        self.number(i64::try_from(length).unwrap_or(i64::MAX))
    }

    /// A list of texts; null: none is named.
    pub(super) fn list<T: AsRef<str>>(mut self, list: Option<&'a [T]>) -> Self {
        let Some(list) = list else { return self.plain("") };
        self = self.length(list.len());
        list.iter().fold(self, |args, text| args.plain(text.as_ref()))
    }

    /// The runs at these places: the number and the token of each.
    pub(super) fn runs(mut self, runs: &Runs, places: &[usize]) -> Self {
        self = self.length(places.len());
        places.iter().fold(self, |args, at| args.number(runs.numbers[*at]).number(runs.tokens[*at]))
    }

    pub(super) fn all(&self) -> Vec<Arg<'_>> {
        self.0.iter().map(|arg| Arg::Bytes(arg)).collect()
    }
}
