//! The participant that runs SQL statements. It has no state: the transaction has it.

use crate::base::{BoxError, sync::Arc};
use crate::commit::overlay::Overlay;
use crate::commit::participant::{AnyParticipant, Cleanup, Participant};
use std::sync::LazyLock;

/// The participant of all stores. Each of its operations is a statement.
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
