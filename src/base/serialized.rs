//! Values as `serde` writes them, for an answer over HTTP or a file.
//!
//! They are written by hand: `derive` brings a procedural macro, which takes longer to compile
//! than all of this. A duration is in whole milliseconds.

use crate::base::time::millis;
use std::time::{Duration, SystemTime};

/// Writes a struct with these fields, or an object with these by this serializer.
#[doc(hidden)]
#[cfg_attr(feature = "seam", macro_export)]
macro_rules! fields {
    ($type:ident, $of:ident: $($name:ident = $value:expr,)+) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let $of = self;
                fields!(serializer, stringify!($type); $($name = $value,)+)
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

/// Returns a time as a number: milliseconds since 1970.
pub(crate) fn at(time: SystemTime) -> u64 {
    millis(time).unwrap_or_default()
}

/// Returns a duration as a number.
pub(crate) fn long(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
