//! The items of a log as bytes.

use crate::base::{BoxError, Error, config::MAX_CODEC};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;

/// The name in use since the first log whose items are not JSON.
pub(super) const CODEC: &str = "codec";

/// The name of [`Json`]. The record of a log omits it, as before there were others.
const JSON: &str = "json";

/// The initial capacity for an item in JSON.
const USUAL: usize = 128;

/// Turns the items of a [`JobLog`](crate::JobLog) into bytes and back, for
/// [`Store::log_with`](crate::Store::log_with).
///
/// | codec | items | take it for |
/// |---|---|---|
/// | [`Json`] | everything that `serde` can turn into JSON | most items: it is the codec of [`Store::log`](crate::Store::log) |
/// | [`Bytes`] | `Vec<u8>` | blocks, messages and files that are bytes already |
/// | one of yours | one type, or many | a compact or a foreign encoding: fixed fields, Protobuf, compression |
///
/// The log keeps the codec's name for good, and refuses any other. So a new encoding needs a new
/// name and a new log, or a `decode` that also reads the old bytes, under the old name. A log whose
/// codec is named `json` is a log of [`Json`].
///
/// Threads encode and decode concurrently, with no lock held. An error or a panic in `encode`
/// pushes nothing ([`Error::Item`](crate::Error::Item)). One in `decode` stops the consumer at this
/// item ([`Error::Corrupt`](crate::Error::Corrupt)).
///
/// ```
/// use waterline::{BoxError, Codec, Jobs, Store};
///
/// #[derive(Debug, PartialEq)]
/// struct Trade {
///     account: u64,
///     cents: i64,
/// }
///
/// /// Both fields with 8 bytes each, big-endian.
/// struct Fixed;
///
/// impl Codec<Trade> for Fixed {
///     const NAME: &'static str = "trade-1";
///
///     fn encode(&self, trade: &Trade, into: &mut Vec<u8>) -> Result<(), BoxError> {
///         into.extend_from_slice(&trade.account.to_be_bytes());
///         into.extend_from_slice(&trade.cents.to_be_bytes());
///         Ok(())
///     }
///
///     fn decode(&self, bytes: &[u8]) -> Result<Trade, BoxError> {
///         let (account, cents) = bytes.split_first_chunk().ok_or("the account is cut off")?;
///         let (account, cents) = (u64::from_be_bytes(*account), i64::from_be_bytes(cents.try_into()?));
///         Ok(Trade { account, cents })
///     }
/// }
///
/// let log = Store::in_memory().log_with::<Trade, _>("trades", Fixed)?;
/// assert_eq!(log.push(&Trade { account: 7, cents: -250 })?, 1);
/// assert_eq!(log.at_index(1)?, Some(Trade { account: 7, cents: -250 }));
/// # Ok::<(), BoxError>(())
/// ```
pub trait Codec<T>: Send + Sync + 'static {
    /// The name that is stored with the log: 1 to 32 bytes.
    const NAME: &'static str;

    /// Appends the bytes of an item, possibly none, to an empty buffer.
    ///
    /// # Errors
    /// If the item cannot be encoded. Nothing is pushed, and the error is the source of an
    /// [`Error::Item`](crate::Error::Item).
    fn encode(&self, item: &T, into: &mut Vec<u8>) -> Result<(), BoxError>;

    /// Decodes what [`encode`](Self::encode) made, maybe in another version of your program.
    ///
    /// # Errors
    /// If the bytes are no item. The error's text is in an
    /// [`Error::Corrupt`](crate::Error::Corrupt) with the index of the item.
    fn decode(&self, bytes: &[u8]) -> Result<T, BoxError>;
}

/// Items as JSON, the codec of [`Store::log`](crate::Store::log). Its name is `json`.
///
/// Every tool can read it, and new fields can be added to an item with `#[serde(default)]`. Some
/// values have no JSON: NaN, for example, is pushed and then cannot be read. Bytes are expensive,
/// since each becomes 2 characters (as hex) to 4 characters (as a number in a list): see [`Bytes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json;

impl<T: Serialize + DeserializeOwned> Codec<T> for Json {
    const NAME: &'static str = "json";

    fn encode(&self, item: &T, into: &mut Vec<u8>) -> Result<(), BoxError> {
        into.reserve(USUAL);
        Ok(serde_json::to_writer(into, item)?)
    }

    fn decode(&self, bytes: &[u8]) -> Result<T, BoxError> {
        Ok(serde_json::from_slice(bytes)?)
    }
}

/// The same codec, shared by several logs, for a codec with state.
impl<T, C: Codec<T>> Codec<T> for std::sync::Arc<C> {
    const NAME: &'static str = C::NAME;

    fn encode(&self, item: &T, into: &mut Vec<u8>) -> Result<(), BoxError> {
        (**self).encode(item, into)
    }

    fn decode(&self, bytes: &[u8]) -> Result<T, BoxError> {
        (**self).decode(bytes)
    }
}

/// Items that are bytes already (`Vec<u8>`), stored unchanged. Its name is `bytes`.
///
/// Use it for data with its own encoding. Each item is copied once per push, and once per read.
///
/// ```
/// use waterline::{Bytes, Jobs, Store};
///
/// let blocks = Store::in_memory().log_with::<Vec<u8>, _>("blocks", Bytes)?;
/// blocks.push(&vec![0xff, 0x00])?;
/// assert_eq!(blocks.at_index(1)?, Some(vec![0xff, 0x00]));
/// # Ok::<(), waterline::BoxError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes;

impl Codec<Vec<u8>> for Bytes {
    const NAME: &'static str = "bytes";

    fn encode(&self, item: &Vec<u8>, into: &mut Vec<u8>) -> Result<(), BoxError> {
        into.extend_from_slice(item);
        Ok(())
    }

    fn decode(&self, bytes: &[u8]) -> Result<Vec<u8>, BoxError> {
        Ok(bytes.to_vec())
    }
}

/// Refuses a codec other than the stored one.
pub(super) fn check_stored(log: &str, stored: &str, asked: &str) -> Result<(), Error> {
    if stored == asked {
        return Ok(());
    }
    Err(Error::Codec { log: log.to_owned(), stored: stored.to_owned(), asked: asked.to_owned() })
}

/// The name of a codec, stored inline, so that the bounds of a log are `Copy`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct CodecName {
    bytes: [u8; MAX_CODEC],
    length: usize,
}

impl CodecName {
    pub(crate) fn json() -> Self {
        Self::new(JSON).unwrap_or_else(|| unreachable!("it has 4 bytes"))
    }

    /// Returns this name, or `None` if it is empty or too long.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let mut bytes = [0; MAX_CODEC];
        bytes.get_mut(..name.len()).filter(|_| !name.is_empty())?.copy_from_slice(name.as_bytes());
        Some(Self { bytes, length: name.len() })
    }

    pub(crate) fn as_str(&self) -> &str {
        // It was made from a `str`.
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }

    pub(crate) fn is_json(&self) -> bool {
        self.as_str() == JSON
    }
}

impl fmt::Debug for CodecName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
