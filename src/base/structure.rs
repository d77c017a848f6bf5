//! Two ways to show an error by `Debug`: `{:?}` is a sentence, and `{:#?}` the structure, as `derive(Debug)` shows it.
//!
//! A `main` that returns an error shows it by `{:?}`, and the sentence is for whoever runs that program.

/// Shows the structure of an enum. The compiler refuses a list in which a variant or a field is missing.
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
