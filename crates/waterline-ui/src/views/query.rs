//! The parameters of a request.

use crate::failure::Failure;
use std::collections::HashMap;

pub(crate) type Query = HashMap<String, String>;

/// Returns a required parameter.
pub(super) fn wanted<'q>(query: &'q Query, name: &str) -> Result<&'q str, Failure> {
    query.get(name).map(String::as_str).ok_or_else(|| Failure::bad(format!("the parameter {name:?} is missing")))
}

/// Returns a parameter that is a number, or `without` if it is missing.
pub(super) fn number<T: std::str::FromStr>(query: &Query, name: &str, without: T) -> Result<T, Failure> {
    let wrong = |text: &String| Failure::bad(format!("the parameter {name:?} is a number, and not {text:?}"));
    query.get(name).map_or(Ok(without), |text| text.parse().map_err(|_| wrong(text)))
}

/// Returns the number of rows per page of a list.
pub(super) fn limit(query: &Query) -> Result<usize, Failure> {
    Ok(number(query, "limit", 50_usize)?.clamp(1, 500))
}
