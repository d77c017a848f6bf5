//! The end of a command before it has done its work.

use crate::error::Fault;
use std::io;

/// The reason why a command has ended early.
pub(crate) enum End {
    Fault(Fault),
    /// The output cannot be written. True if something was found that an operator has to mend.
    Output(io::Error, bool),
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Output(error, false)
    }
}
