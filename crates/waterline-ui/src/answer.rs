//! The forms of an answer: JSON that no browser rounds, a page of HTML, and a refusal.

use crate::failure::Failure;
use crate::guard::Refusal;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// The longest body of a request, in bytes.
pub(crate) const LONGEST: usize = 64 * 1024;

/// The largest integer that a browser does not round.
const EXACT: u64 = (1 << 53) - 1;

pub(crate) fn refuse_long() -> Response {
    answer(StatusCode::PAYLOAD_TOO_LARGE, json!({"error": "the page takes no change of more than 64 KiB"}))
}

pub(crate) fn refuse(refusal: Refusal) -> Response {
    answer(refusal.status(), json!({"error": refusal.text()}))
}

pub(crate) fn answer(status: StatusCode, mut value: Value) -> Response {
    make_exact(&mut value);
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

pub(crate) fn html(status: StatusCode, text: String) -> Response {
    (status, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], text).into_response()
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        answer(self.status, self.json())
    }
}

/// Turns each integer that a browser would round into a string.
pub(crate) fn make_exact(value: &mut Value) {
    match value {
        Value::Number(number) if number.as_u64().is_some_and(|number| number > EXACT) => {
            *value = Value::String(number.to_string());
        }
        Value::Array(values) => values.iter_mut().for_each(make_exact),
        Value::Object(fields) => fields.values_mut().for_each(make_exact),
        _ => {}
    }
}
