//! Reads the answers of the functions and procedures.

use postgres::Row;
use postgres::types::{FromSql, Kind, Type};
use waterline_queue::remote::Answer;

/// How many texts a procedure has for one answer.
const TEXTS: usize = 9;

/// The elements of an array of any dimensions, in their order.
struct Flat<T>(Vec<Option<T>>);

impl<'a, T: FromSql<'a>> FromSql<'a> for Flat<T> {
    fn from_sql(of: &Type, mut raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        let Kind::Array(member) = of.kind() else { return Err("it is no array".into()) };
        let number = |raw: &mut &'a [u8]| {
            let (number, rest) = raw.split_first_chunk().ok_or("an array ends too early")?;
            *raw = rest;
            Ok::<_, &str>(i32::from_be_bytes(*number))
        };
        // A flag for nulls, and the type; then the length and first index of each dimension.
        let dimensions = number(&mut raw)?;
        let (_, _) = (number(&mut raw)?, number(&mut raw)?);
        let mut length = usize::from(dimensions > 0);
        for _ in 0..dimensions {
            length *= usize::try_from(number(&mut raw)?)?;
            number(&mut raw)?;
        }
        let mut all = Vec::with_capacity(length.min(raw.len()));
        for _ in 0..length {
            let element = match usize::try_from(number(&mut raw)?) {
                Ok(bytes) => {
                    let (element, rest) = raw.split_at_checked(bytes).ok_or("an array ends too early")?;
                    raw = rest;
                    Some(T::from_sql(member, element)?)
                }
                Err(_) => None,
            };
            all.push(element);
        }
        Ok(Self(all))
    }

    fn accepts(of: &Type) -> bool {
        matches!(of.kind(), Kind::Array(member) if T::accepts(member))
    }
}

/// Reads the answers of a function, one a row.
pub(super) fn each_of(rows: &[Row]) -> Result<Vec<Answer>, postgres::Error> {
    rows.iter().map(answer_of).collect()
}

fn answer_of(row: &Row) -> Result<Answer, postgres::Error> {
    let mut next = 0..;
    macro_rules! read {
        ($($field:ident)+) => { Answer { $($field: row.try_get(next.next().unwrap_or(usize::MAX))?),+ } };
    }
    Ok(
        read!(what number id outcome state token kind payload data error failures crashes pushed due since priority more),
    )
}

/// Reads the answers of a procedure, whose one row has the numbers and the texts of all.
pub(super) fn all_of(rows: &[Row]) -> Result<Vec<Answer>, postgres::Error> {
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let (numbers, texts): (Option<Flat<i64>>, Option<Flat<String>>) = (row.try_get(0)?, row.try_get(1)?);
    let mut numbers = numbers.map_or(Vec::new(), |flat| flat.0).into_iter();
    let (texts, mut answers) = (texts.map_or(Vec::new(), |flat| flat.0), Vec::new());
    answers.reserve_exact(texts.len() / TEXTS);
    let mut texts = texts.into_iter();
    while let Some(what) = texts.next() {
        let mut text = || texts.next().flatten();
        let mut number = || numbers.next().flatten();
        let small = |number: Option<i64>| number.and_then(|number| i32::try_from(number).ok());
        // In the order in which the procedures have them.
        answers.push(Answer {
            what: what.unwrap_or_default(),
            id: text(),
            outcome: text(),
            state: text(),
            kind: text(),
            payload: text(),
            data: text(),
            error: text(),
            more: text(),
            number: number(),
            token: number(),
            failures: small(number()),
            crashes: small(number()),
            pushed: number(),
            due: number(),
            since: number(),
            priority: small(number()),
        });
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_read_in_order_and_refused_if_cut() {
        let number = |number: i32| number.to_be_bytes().to_vec();
        // Two rows of two: 1, null, 3, 4.
        let mut raw: Vec<u8> = [2, 1, 20, 2, 1, 2, 1].into_iter().flat_map(number).collect();
        for element in [Some(1_i64), None, Some(3), Some(4)] {
            raw.extend(number(if element.is_some() { 8 } else { -1 }));
            raw.extend(element.into_iter().flat_map(i64::to_be_bytes));
        }
        let flat = Flat::<i64>::from_sql(&Type::INT8_ARRAY, &raw).unwrap();
        assert_eq!(flat.0, [Some(1), None, Some(3), Some(4)]);
        let empty: Vec<u8> = [0, 0, 20].into_iter().flat_map(number).collect();
        assert!(Flat::<i64>::from_sql(&Type::INT8_ARRAY, &empty).unwrap().0.is_empty());
        for length in 0..raw.len() {
            assert!(Flat::<i64>::from_sql(&Type::INT8_ARRAY, &raw[..length]).is_err(), "{length}");
        }
    }
}
