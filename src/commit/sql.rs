//! The participant that runs statements of SQL. It has no state, since the transaction has all.

use crate::base::index::BoxError;
use crate::base::sync::Arc;
use crate::commit::overlay::Overlay;
use crate::commit::participant::{AnyParticipant, Cleanup, Participant};
use std::sync::LazyLock;

/// The one participant of all stores. Each operation of it is a statement.
static STATEMENTS: LazyLock<Arc<Statements>> = LazyLock::new(|| Arc::new(Statements));

pub(crate) struct Statements;

impl Statements {
    pub(crate) fn participant() -> Arc<dyn AnyParticipant> {
        STATEMENTS.clone()
    }
}

impl Participant for Statements {
    type Staged = ();

    fn staged(&self) {}

    fn apply(&self, _tail: &mut (), statement: &[u8], batch: &mut Overlay<'_>) -> Result<(), BoxError> {
        batch.execute(statement)
    }

    fn publish(self: Arc<Self>, _tail: ()) -> Option<Cleanup> {
        None
    }
}
