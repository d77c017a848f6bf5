//! The two `Debug` forms of an error: `{:?}` is a sentence, and `{:#?}` is the structure that
//! `derive(Debug)` shows.
//!
//! A `main` that returns an error shows it by `{:?}`. The sentence is for the person who runs that
//! program.

/// Shows the structure of an enum. The compiler refuses a list in which a variant or a field is
/// missing.
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

pub(crate) use structure;
