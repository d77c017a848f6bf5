//! What an error of a statement means for its transaction. Pure: no I/O.

use postgres::error::{DbError, Severity, SqlState};
use std::error::Error as StdError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Two transactions conflicted. A retry may succeed.
    Again,
    /// The statement is wrong, or its rows are.
    OfUser,
    /// An earlier statement of the transaction failed.
    Aborted,
    /// A table, a column or a function is missing.
    OfTables,
    /// The server or the connection failed, which may pass.
    OfServer,
}

/// Classifies an error of the user's code by the database error among its causes.
pub(crate) fn fault_of(error: &(dyn StdError + 'static)) -> Fault {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<postgres::Error>() {
            return match of_statement(error) {
                // The user's own tables.
                Fault::OfTables | Fault::Aborted => Fault::OfUser,
                fault => fault,
            };
        }
        next = error.source();
    }
    Fault::OfUser
}

pub(crate) fn of_statement(error: &postgres::Error) -> Fault {
    let Some(answer) = error.as_db_error() else {
        // A row that is not there, or a value that cannot be converted, breaks no connection.
        let is_broken = error.is_closed() || error.source().is_some_and(|cause| cause.is::<std::io::Error>());
        return if is_broken { Fault::OfServer } else { Fault::OfUser };
    };
    of_answer(answer)
}

/// Returns whether no later call on the connection can succeed: the server said so, or said
/// nothing. A session that takes no writes may have begun read-only, and stays so after its default
/// has changed.
pub(crate) fn ends_connection(error: &postgres::Error) -> bool {
    error.as_db_error().is_none_or(is_fatal) || is_read_only(error)
}

pub(crate) fn is_read_only(error: &postgres::Error) -> bool {
    error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
}

fn is_fatal(error: &DbError) -> bool {
    matches!(error.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
}

fn of_answer(error: &DbError) -> Fault {
    if is_fatal(error) {
        return Fault::OfServer;
    }
    // A migration has added a column while the statement ran.
    let has_grown = *error.code() == SqlState::INTERNAL_ERROR && error.message().starts_with("attribute number");
    if has_grown { Fault::Again } else { of_code(error.code()) }
}

fn of_code(code: &SqlState) -> Fault {
    if [SqlState::T_R_DEADLOCK_DETECTED, SqlState::T_R_SERIALIZATION_FAILURE, SqlState::LOCK_NOT_AVAILABLE]
        .contains(code)
    {
        return Fault::Again;
    }
    let is_gone = [
        SqlState::UNDEFINED_TABLE,
        SqlState::UNDEFINED_COLUMN,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::INVALID_SCHEMA_NAME,
    ];
    if is_gone.contains(code) {
        return Fault::OfTables;
    }
    if *code == SqlState::IN_FAILED_SQL_TRANSACTION {
        return Fault::Aborted;
    }
    // Behind a pooler a statement can be prepared on another connection, or by another process.
    if [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT].contains(code) {
        return Fault::OfServer;
    }
    // A statement that took longer than allowed.
    if *code == SqlState::QUERY_CANCELED {
        return Fault::OfUser;
    }
    // Errors of the connection, of resources (a full disk), of an operator, of the system, and
    // internal ones, by which the server reports a disk that is full for one file. A server that
    // accepts no writes for now is being replaced.
    let of_server = ["08", "53", "57", "58", "XX"].iter().any(|class| code.code().starts_with(class));
    let is_replica = *code == SqlState::READ_ONLY_SQL_TRANSACTION;
    if of_server || is_replica || *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT {
        return Fault::OfServer;
    }
    Fault::OfUser
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_codes_decide_who_is_at_fault() {
        let of = |code: &str| of_code(&SqlState::from_code(code));
        assert_eq!([of("40P01"), of("40001"), of("55P03")], [Fault::Again; 3]);
        assert_eq!(
            [of("53100"), of("57P01"), of("58030"), of("XX000"), of("08006"), of("25P03"), of("25006")],
            [Fault::OfServer; 7]
        );
        assert_eq!([of("26000"), of("42P05")], [Fault::OfServer; 2], "a statement that a pooler mixed up");
        assert_eq!([of("23505"), of("22012"), of("57014"), of("42601")], [Fault::OfUser; 4]);
        assert_eq!([of("42P01"), of("42703"), of("42883")], [Fault::OfTables; 3]);
        assert_eq!(of("25P02"), Fault::Aborted);
    }
}
