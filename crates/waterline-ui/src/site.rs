//! What the routes of a page share: its state, and threads that may block.

use crate::failure::Failure;
use crate::guard::Guard;
use crate::shared::Shared;
use axum::http::StatusCode;
use std::sync::Arc;

/// The state that the routes share.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) shared: Arc<Shared>,
    pub(crate) guard: Arc<Guard>,
}

/// Runs this on a thread that may block on a store.
pub(crate) async fn aside<R: Send + 'static>(run: impl FnOnce() -> R + Send + 'static) -> Result<R, Failure> {
    let ended = tokio::task::spawn_blocking(run).await;
    ended.map_err(|_| Failure {
        status: StatusCode::INTERNAL_SERVER_ERROR,
        text: "the page has a bug, which the log shows".to_owned(),
    })
}
