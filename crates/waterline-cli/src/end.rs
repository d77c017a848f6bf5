//! Why a command ended early.

use crate::error::Fault;
use std::io;

pub(crate) enum End {
    Fault(Fault),
    /// The output cannot be written; true if something was found that an operator has to mend.
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
