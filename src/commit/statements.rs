//! SQL statements in a batch, and the transaction in which they run.

use crate::base::{BoxError, Error, error::StoreError, sync::Arc};
use crate::commit::refusal::Refusal;
use crate::kv::statement::{NotCommitted, NotRun, Statement, Transaction};
use crate::kv::{Kv, batch::Batch};

/// How a batch with statements is written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// It must survive a loss of power, which SQLite needs to know before the first statement.
    pub(super) synced: bool,
    /// A deferred constraint was or may have been broken, so refusals are checked first.
    pub(super) careful: bool,
}

/// The statements of one batch. The first one begins their transaction.
pub(crate) struct InBatch<'a> {
    kv: &'a dyn Kv,
    pub(super) manner: Manner,
    begun: Option<Box<dyn Transaction + 'a>>,
    /// Why it did not begin. A begin may wait for the file lock, so it is tried once per batch.
    not_begun: Option<Arc<StoreError>>,
}

impl<'a> InBatch<'a> {
    pub(super) fn new(kv: &'a dyn Kv, manner: Manner) -> Self {
        Self { kv, manner, begun: None, not_begun: None }
    }

    pub(super) fn execute(&mut self, statement: &[u8]) -> Result<(), BoxError> {
        if let Some(error) = &self.not_begun {
            return Err(error.clone().into());
        }
        let transaction = match &mut self.begun {
            Some(begun) => begun,
            none => match self.kv.begin(self.manner.synced, self.manner.careful) {
                Ok(begun) => none.insert(begun),
                Err(error) => return Err(self.not_begun.insert(Arc::new(error)).clone().into()),
            },
        };
        transaction.execute(statement).map_err(|not_run| match not_run {
            NotRun::Store(error) => error.into(),
            NotRun::Refused(source) => {
                let sql = Statement::decode(statement).map(|statement| statement.sql.to_owned()).unwrap_or_default();
                Refusal(Error::Sql { sql, source }).into()
            }
        })
    }

    pub(super) fn mark(&mut self) -> usize {
        self.begun.as_mut().map_or(0, |begun| begun.mark())
    }

    pub(super) fn go_back(&mut self, mark: usize) {
        if let Some(begun) = &mut self.begun {
            begun.go_back(mark);
        }
    }

    /// Returns an error if a refusal cannot be trusted: the rows that the statement met may belong
    /// to a job that breaks a deferred constraint, and may never be written.
    pub(super) fn trust_refusal(&mut self) -> Result<(), BoxError> {
        let begun = self.begun.as_mut().filter(|_| !self.manner.careful);
        if begun.map_or(Ok(false), |begun| begun.has_late_rules())? { Err(BeginCarefully.into()) } else { Ok(()) }
    }

    /// True if all statements so far keep the deferred constraints. Only a careful batch checks.
    pub(super) fn keep_the_rules(&mut self) -> Result<bool, StoreError> {
        self.begun.as_mut().filter(|_| self.manner.careful).map_or(Ok(true), |begun| begun.keeps_the_rules())
    }

    pub(super) fn write(&mut self, batch: &Batch, synced: bool) -> Result<(), NotCommitted> {
        match self.begun.take() {
            Some(begun) => begun.commit(batch),
            None => self.kv.write(batch, synced).map_err(NotCommitted::Store),
        }
    }
}

/// A statement was refused for rows that may never be written: the batch restarts carefully.
#[derive(Debug, thiserror::Error)]
#[error("the batch begins anew, in the careful manner")]
pub(super) struct BeginCarefully;

impl From<NotCommitted> for StoreError {
    fn from(not_committed: NotCommitted) -> Self {
        match not_committed {
            NotCommitted::Refused(error) | NotCommitted::Store(error) => error,
        }
    }
}

#[cfg(test)]
mod tests;
