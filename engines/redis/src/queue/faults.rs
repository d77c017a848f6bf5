//! What an error of the server means for a call on a queue.

use crate::error::Error;
use std::sync::Arc;
use waterline_queue::remote::{CallError, Refused};

impl CallError for Error {
    fn refused(&self) -> Option<Refused<'_>> {
        let Self::Function { code, detail, hint, message, .. } = self else { return None };
        Some(Refused { code, detail, hint, message })
    }

    fn queue(&self) -> Option<&str> {
        let Self::Function { queue, .. } = self else { return None };
        Some(queue).map(|queue| &**queue).filter(|queue| !queue.is_empty())
    }

    fn is_undone(&self) -> bool {
        !Self::is_unsure(self) && !self.is_misread()
    }

    fn is_unsure(&self) -> bool {
        Self::is_unsure(self)
    }

    fn is_misread(&self) -> bool {
        matches!(self, Self::Odd { .. })
    }

    fn look_at(&self) -> &'static str {
        match self {
            Self::Functions { .. } | Self::NewerFunctions { .. } => "its functions, which `RedisStore::migrate` loads",
            Self::Server { .. } => "the settings of its server",
            Self::Write { .. } => "the key that it names",
            Self::Shared { source, .. } => source.look_at(),
            _ => "its server, the connection and what the server answers",
        }
    }

    fn shared(self) -> impl Fn() -> Self {
        let error = Arc::new(self);
        move || Self::shared(Arc::clone(&error))
    }

    fn of_panic() -> Self {
        Self::config("the thread that made the call has panicked", "look at its message")
    }
}
