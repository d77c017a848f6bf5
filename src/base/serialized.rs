//! Values as `serde` writes them, for an answer over HTTP or a file.
//!
//! Written by hand: `derive` needs a procedural macro, which takes longer to compile than all of
//! this. Durations are in whole milliseconds.

use crate::base::time::millis;
use std::time::{Duration, SystemTime};

/// Implements `Serialize` for a struct with these fields, or writes an object with them. A name
/// alone stands for the field of that name.
#[doc(hidden)]
#[cfg_attr(feature = "seam", macro_export)]
macro_rules! fields {
    (@ $of:ident $name:ident) => { $of.$name };
    (@ $of:ident $name:ident $value:expr) => { $value };
    ($type:ident, $of:ident: $($name:ident $(= $value:expr)?),+ $(,)?) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let $of = self;
                fields!(serializer, stringify!($type); $($name = fields!(@ $of $name $($value)?)),+)
            }
        }
    };
    ($serializer:ident, $name:expr; $($field:ident = $value:expr),+ $(,)?) => {{
        let count = [$(stringify!($field)),+].len();
        let mut fields = serde::ser::Serializer::serialize_struct($serializer, $name, count)?;
        $(serde::ser::SerializeStruct::serialize_field(&mut fields, stringify!($field), &$value)?;)+
        serde::ser::SerializeStruct::end(fields)
    }};
}

pub(crate) use fields;

/// Converts a time to milliseconds since 1970.
pub(crate) fn at(time: SystemTime) -> u64 {
    millis(time).unwrap_or_default()
}

/// Converts a duration to milliseconds.
pub(crate) fn long(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
