//! Values as `serde` writes them, for an answer over HTTP or a file.
//!
//! They are written by hand: `derive` brings a procedural macro, which takes longer to compile
//! than all of this. A duration is in whole milliseconds.

use std::time::Duration;

/// Writes an object with these fields by this serializer.
macro_rules! object {
    ($serializer:ident, $name:expr; $($field:ident = $value:expr),+ $(,)?) => {{
        let count = [$(stringify!($field)),+].len();
        let mut fields = serde::ser::Serializer::serialize_struct($serializer, $name, count)?;
        $(serde::ser::SerializeStruct::serialize_field(&mut fields, stringify!($field), &$value)?;)+
        serde::ser::SerializeStruct::end(fields)
    }};
}

pub(crate) use object;

/// Returns a duration as a number.
pub(crate) fn long(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
