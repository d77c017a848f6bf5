//! A kind of sealed record, and its fields as they are read and written. Numbers are big-endian.

/// The length of the checksum at the end of each record.
pub const SUM: usize = 4;

/// A kind of record: the parameters of its seal.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The first bytes under the checksum. New kinds have a unique label, the oldest have none.
    pub label: &'static str,
    /// The versions that this program reads. It writes the last one. Empty without a version byte.
    pub versions: &'static [u8],
}

impl Kind {
    /// Appends the checksum to a record.
    pub(crate) fn close(&self, name: &str, place: &[u8], record: &mut Vec<u8>) {
        let sum = self.checksum(name, place, record);
        record.extend_from_slice(&sum);
    }

    pub fn checksum(&self, name: &str, place: &[u8], sealed: &[u8]) -> [u8; SUM] {
        let mut hasher = crc32fast::Hasher::new();
        [self.label.as_bytes(), name.as_bytes(), place, sealed].iter().for_each(|bytes| hasher.update(bytes));
        hasher.finalize().to_be_bytes()
    }
}

/// The unread fields of a record or an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields<'a> {
    /// The version of the record; 0 if it has none.
    pub version: u8,
    pub rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Returns the fields of an operation.
    pub fn of(rest: &'a [u8]) -> Self {
        Self { version: 0, rest }
    }

    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*field)
    }

    pub fn byte(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    /// Reads one of these, by its position.
    #[cfg(feature = "seam")]
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        all.get(usize::from(self.byte()?)).copied()
    }

    /// Reads a number of 4 bytes.
    pub fn count(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    /// Reads a number of 8 bytes.
    pub fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    pub fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes)
    }

    pub fn text_of(&mut self, length: usize) -> Option<String> {
        std::str::from_utf8(self.bytes(length)?).ok().map(str::to_owned)
    }

    /// Reads a text after its length in 2 bytes.
    #[cfg(feature = "seam")]
    pub fn text(&mut self) -> Option<String> {
        let length = self.take().map(u16::from_be_bytes)?;
        self.text_of(length.into())
    }

    /// Reads a text after its length in one byte.
    pub fn short_text(&mut self) -> Option<String> {
        let length = self.byte()?;
        self.text_of(length.into())
    }

    #[cfg(feature = "seam")]
    pub fn last_bytes(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub fn last_text(&mut self) -> Option<String> {
        self.text_of(self.rest.len())
    }

    #[cfg(feature = "seam")]
    pub fn optional<T>(&mut self, is_there: bool, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if is_there { read(self).map(Some) } else { Some(None) }
    }

    /// Reads all fields of a record. The error names `what` was expected.
    #[cfg(feature = "seam")]
    pub fn all<T>(mut self, what: &str, read: impl FnOnce(&mut Self) -> Option<T>) -> Result<T, String> {
        read(&mut self).filter(|_| self.rest.is_empty()).ok_or_else(|| format!("its fields are no {what}"))
    }
}

/// A record, or an operation, that is being written.
#[must_use]
pub struct Writer {
    kind: Kind,
    pub bytes: Vec<u8>,
}

impl Writer {
    /// Begins an operation, which is not sealed.
    #[inline]
    #[cfg(feature = "seam")]
    pub fn operation(room: usize) -> Self {
        Self { kind: Kind { label: "", versions: &[] }, bytes: Vec::with_capacity(room) }
    }

    /// Begins a record, with capacity for a body of `room` bytes.
    #[inline]
    pub(super) fn new(kind: Kind, version: Option<u8>, room: usize) -> Self {
        let mut bytes = Vec::with_capacity(1 + room + SUM);
        bytes.extend(version);
        Self { kind, bytes }
    }

    #[inline]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    #[inline]
    pub fn byte(self, byte: u8) -> Self {
        self.bytes(&[byte])
    }

    /// Writes the sum of the flags that are set.
    #[inline]
    pub fn flags(self, flags: &[(bool, u8)]) -> Self {
        self.byte(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum())
    }

    /// Writes a number of 4 bytes.
    #[inline]
    pub fn count(self, number: u32) -> Self {
        self.bytes(&number.to_be_bytes())
    }

    /// Writes a number of 8 bytes.
    #[inline]
    pub fn number(self, number: u64) -> Self {
        self.bytes(&number.to_be_bytes())
    }

    #[inline]
    pub fn numbers(mut self, numbers: impl IntoIterator<Item = u64>) -> Self {
        numbers.into_iter().for_each(|number| self.bytes.extend_from_slice(&number.to_be_bytes()));
        self
    }

    /// Writes a text after its length in 2 bytes.
    #[inline]
    #[cfg(feature = "seam")]
    pub fn text(self, text: &str) -> Self {
        self.bytes(&(text.len() as u16).to_be_bytes()).bytes(text.as_bytes())
    }

    /// Writes a text after its length in one byte.
    #[inline]
    pub fn short_text(self, text: &str) -> Self {
        self.byte(text.len() as u8).bytes(text.as_bytes())
    }

    #[inline]
    #[cfg(feature = "seam")]
    pub fn optional<T>(self, value: Option<T>, write: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            Some(value) => write(self, value),
            None => self,
        }
    }

    /// Appends the checksum and returns the record.
    #[inline]
    pub fn seal(mut self, name: &str, place: impl AsRef<[u8]>) -> Vec<u8> {
        self.kind.close(name, place.as_ref(), &mut self.bytes);
        self.bytes
    }
}
