//! The two `Debug` forms of an error: `{:?}` is a sentence, `{:#?}` the derived structure.
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

pub(crate) use structure;
