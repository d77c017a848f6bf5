//! The two `Debug` forms of an error: `{:?}` is a sentence, `{:#?}` the derived structure. And the
//! form of a type that shows only a part of what it has.
//!
//! A `main` that returns an error prints it with `{:?}`, for the person who runs the program.

/// Shows the structure of an enum. The compiler refuses a list that misses a variant or a field.
#[doc(hidden)]
#[cfg_attr(feature = "seam", macro_export)]
macro_rules! structure {
    ($error:expr, $f:expr, [$($tuple:ident),*], [$($variant:ident { $($field:ident),* }),* $(,)?]) => {
        match $error {
            $(Self::$tuple(inner) => $f.debug_tuple(stringify!($tuple)).field(inner).finish(),)*
            $(Self::$variant { $($field),* } => {
                $f.debug_struct(stringify!($variant))$(.field(stringify!($field), $field))*.finish()
            })*
        }
    };
}

/// Implements `Debug` for a type that shows only this of what it has.
macro_rules! shows {
    ($type:ident, $of:ident: $($name:ident = $value:expr),+) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $of = self;
                f.debug_struct(stringify!($type))$(.field(stringify!($name), &$value))+.finish_non_exhaustive()
            }
        }
    };
}

pub(crate) use {shows, structure};
