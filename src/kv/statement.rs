//! SQL statements, as bytes until they run, and the transaction in which they run.

use super::batch::Batch;
use crate::base::{BoxError, error::StoreError};

/// A value in a statement of [`Effects::execute`](crate::Effects::execute). Rust's numbers, strings
/// and byte strings convert into it, and an `Option` of them: `None` is `NULL`.
///
/// ```
/// use waterline::SqlValue;
///
/// assert_eq!(SqlValue::from(7u32), SqlValue::Integer(7));
/// assert_eq!(SqlValue::from(None::<&str>), SqlValue::Null);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum SqlValue {
    /// No value.
    Null,
    /// A whole number. A `bool` is 0 or 1. A `u64` may exceed `i64`: store it as text or 8 bytes.
    Integer(i64),
    /// A number. SQLite stores NaN as `NULL`.
    Real(f64),
    /// A text.
    Text(String),
    /// Bytes.
    Blob(Vec<u8>),
}

macro_rules! from {
    ($($kind:ident: $($from:ty),*;)*) => {
        $($(impl From<$from> for SqlValue {
            fn from(value: $from) -> Self {
                Self::$kind(value.into())
            }
        })*)*
    };
}

from! {
    Integer: bool, i8, i16, i32, i64, u8, u16, u32;
    Real: f32, f64;
    Text: &str, String;
    Blob: &[u8], Vec<u8>;
}

impl<const N: usize> From<[u8; N]> for SqlValue {
    fn from(value: [u8; N]) -> Self {
        Self::Blob(value.into())
    }
}

impl<T: Into<SqlValue>> From<Option<T>> for SqlValue {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// The values of a statement, in the order of its parameters: `()`, a tuple of up to 12 values, an
/// array of values of one type, or a `Vec` of [`SqlValue`]s.
pub trait SqlParams {
    /// Returns the values.
    fn into_values(self) -> Vec<SqlValue>;
}

impl SqlParams for () {
    fn into_values(self) -> Vec<SqlValue> {
        Vec::new()
    }
}

impl SqlParams for Vec<SqlValue> {
    fn into_values(self) -> Vec<SqlValue> {
        self
    }
}

impl<T: Into<SqlValue>, const N: usize> SqlParams for [T; N] {
    fn into_values(self) -> Vec<SqlValue> {
        self.map(Into::into).into()
    }
}

macro_rules! tuples {
    ($(($($name:ident)*))*) => {
        $(impl<$($name: Into<SqlValue>),*> SqlParams for ($($name,)*) {
            fn into_values(self) -> Vec<SqlValue> {
                #[allow(non_snake_case, reason = "each value has the name of its type")]
                let ($($name,)*) = self;
                vec![$($name.into()),*]
            }
        })*
    };
}

tuples! {
    (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H) (A B C D E F G H I)
    (A B C D E F G H I J) (A B C D E F G H I J K) (A B C D E F G H I J K L)
}

/// A value, read from bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Null,
    Integer(i64),
    Real(f64),
    Text(&'a str),
    Blob(&'a [u8]),
}

/// A statement, read from bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Statement<'a> {
    pub(crate) sql: &'a str,
    pub(crate) values: Vec<Value<'a>>,
    /// The number of rows that it must change, if one is required.
    pub(crate) rows: Option<u64>,
}

impl<'a> Statement<'a> {
    /// Encodes a statement: a flag and the required number of rows, the text, and each value after
    /// a byte for its kind. Texts and blobs follow their length.
    pub(crate) fn encode(sql: &str, values: &[SqlValue], rows: Option<u64>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(32 + sql.len() + 16 * values.len());
        bytes.push(u8::from(rows.is_some()));
        bytes.extend(rows.unwrap_or_default().to_be_bytes());
        append(&mut bytes, None, sql.as_bytes());
        for value in values {
            match value {
                SqlValue::Null => bytes.push(0),
                SqlValue::Integer(number) => bytes.extend([1].into_iter().chain(number.to_be_bytes())),
                SqlValue::Real(number) => bytes.extend([2].into_iter().chain(number.to_be_bytes())),
                SqlValue::Text(text) => append(&mut bytes, Some(3), text.as_bytes()),
                SqlValue::Blob(blob) => append(&mut bytes, Some(4), blob),
            }
        }
        bytes
    }

    /// Decodes a statement; `None` if these bytes are none.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = bytes;
        let rows = (take(&mut rest, 1)? == [1]).then_some(number(&mut rest)?);
        let rows = rows.map(u64::from_be_bytes);
        let sql = std::str::from_utf8(long(&mut rest)?).ok()?;
        let mut values = Vec::new();
        while !rest.is_empty() {
            values.push(match take(&mut rest, 1)?[0] {
                0 => Value::Null,
                1 => Value::Integer(i64::from_be_bytes(number(&mut rest)?)),
                2 => Value::Real(f64::from_be_bytes(number(&mut rest)?)),
                3 => Value::Text(std::str::from_utf8(long(&mut rest)?).ok()?),
                4 => Value::Blob(long(&mut rest)?),
                _ => return None,
            });
        }
        Some(Self { sql, values, rows })
    }
}

fn append(bytes: &mut Vec<u8>, kind: Option<u8>, long: &[u8]) {
    bytes.extend(kind);
    bytes.extend((long.len() as u64).to_be_bytes());
    bytes.extend(long);
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

fn number(rest: &mut &[u8]) -> Option<[u8; 8]> {
    take(rest, 8)?.try_into().ok()
}

fn long<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(u64::from_be_bytes(number(rest)?)).ok()?;
    take(rest, length)
}

/// Why a statement did not run.
#[derive(Debug)]
#[cfg_attr(not(feature = "sqlite-system"), allow(dead_code, reason = "no other engine runs statements"))]
pub enum NotRun {
    /// The statement is at fault, or the rows that it meets. It has left no trace.
    Refused(BoxError),
    Store(StoreError),
}

/// Why a commit failed. Nothing is written.
#[derive(Debug)]
#[cfg_attr(not(feature = "sqlite-system"), allow(dead_code, reason = "no other engine runs statements"))]
pub enum NotCommitted {
    /// The rows break a constraint that is checked at the commit: a statement is at fault.
    Refused(StoreError),
    Store(StoreError),
}

/// A transaction of statements, which run one after the other, and a batch. Dropping it rolls back.
pub trait Transaction {
    fn execute(&mut self, statement: &[u8]) -> Result<(), NotRun>;

    /// Returns the number of statements that have run, to return to with
    /// [`go_back`](Self::go_back).
    fn mark(&mut self) -> usize;

    /// Undoes all statements after a mark. If that fails, the commit does.
    fn go_back(&mut self, mark: usize);

    /// True if the database has a constraint that is checked only at the commit.
    fn has_late_rules(&mut self) -> Result<bool, StoreError>;

    /// True if no statement has broken a constraint that is checked only at the commit. It looks at
    /// all rows that have such a constraint.
    fn keeps_the_rules(&mut self) -> Result<bool, StoreError>;

    /// Writes the batch, and makes all of it durable.
    fn commit(self: Box<Self>, batch: &Batch) -> Result<(), NotCommitted>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value() -> impl Strategy<Value = SqlValue> {
        prop_oneof![
            Just(SqlValue::Null),
            any::<i64>().prop_map(SqlValue::Integer),
            any::<f64>().prop_map(SqlValue::Real),
            any::<String>().prop_map(SqlValue::Text),
            any::<Vec<u8>>().prop_map(SqlValue::Blob),
        ]
    }

    proptest! {
        #[test]
        fn a_statement_is_decoded_as_encoded(
            sql in any::<String>(),
            values in proptest::collection::vec(value(), 0..5),
            rows in any::<Option<u64>>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let bytes = Statement::encode(&sql, &values, rows);
            let read = Statement::decode(&bytes).unwrap();
            let owned = read.values.iter().map(|value| match *value {
                Value::Null => SqlValue::Null,
                Value::Integer(number) => SqlValue::Integer(number),
                Value::Real(number) => SqlValue::Real(number),
                Value::Text(text) => SqlValue::Text(text.to_owned()),
                Value::Blob(blob) => SqlValue::Blob(blob.to_vec()),
            });
            prop_assert_eq!((read.sql, owned.collect::<Vec<_>>(), read.rows), (&*sql, values.clone(), rows));
            // Truncated bytes are no statement, or one with fewer values.
            let cut = Statement::decode(&bytes[..cut.index(bytes.len())]);
            prop_assert!(cut.is_none_or(|cut| cut.values.len() < values.len()));
        }
    }

    #[test]
    fn rust_values_convert_to_sql() {
        let values = (true, 7u32, 1.5, "text", vec![1u8], None::<i64>, Some("there"), [2u8; 2]).into_values();
        let text = |text: &str| SqlValue::Text(text.to_owned());
        let all = [
            SqlValue::Integer(1),
            SqlValue::Integer(7),
            SqlValue::Real(1.5),
            text("text"),
            SqlValue::Blob(vec![1]),
            SqlValue::Null,
            text("there"),
            SqlValue::Blob(vec![2, 2]),
        ];
        assert_eq!(values, all);
        assert_eq!((["a", "b"].into_values(), ().into_values()), (vec![text("a"), text("b")], Vec::new()));
    }
}
