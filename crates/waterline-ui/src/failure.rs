//! Why a request cannot be answered.

use axum::http::StatusCode;
use serde_json::{Value, json};
use waterline::Error;
use waterline_queue::QueueError;

/// A request that cannot be answered, in words for a person.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, text: text.into() }
    }

    pub(crate) fn not_found(text: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, text: text.into() }
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "error": self.text })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::NotParked { .. } | Error::NotFound { .. } => StatusCode::NOT_FOUND,
            Error::InUse { .. }
            | Error::Stopped
            | Error::AlreadyDone { .. }
            | Error::NothingSaved { .. }
            | Error::NotReplaced { .. }
            | Error::Needed { .. } => StatusCode::CONFLICT,
            Error::Config(_) => StatusCode::BAD_REQUEST,
            Error::ReadOnly => StatusCode::FORBIDDEN,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self { status, text: error.report() }
    }
}

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Store(error) => error.into(),
            error => {
                let status = match &error {
                    QueueError::NotFound { .. } => StatusCode::NOT_FOUND,
                    QueueError::Config(_) => StatusCode::BAD_REQUEST,
                    _ => StatusCode::CONFLICT,
                };
                Self { status, text: error.report() }
            }
        }
    }
}
