//! The latencies that the driver measures.

use crate::asked::{engine, open};
use crate::latencies;
use crate::protocol::{Answer, Question};
use waterline::Durability;

const LATENCIES: u64 = 2_000;

pub(crate) fn pushed(question: &Question) -> Answer {
    let (column, in_memory) = (question.word("column"), question.word("store") == "memory");
    if in_memory {
        return if column == "waterline" { latencies::pushed_in_memory(LATENCIES, 1) } else { crate::asked::OTHER };
    }
    match open(question, engine(column), Durability::Buffered) {
        Some(store) if column.starts_with("queue") => latencies::pushed_to_queue(&store, LATENCIES),
        Some(store) => latencies::pushed_to_log(&store, LATENCIES),
        None => Answer::None("built without it"),
    }
}

pub(crate) fn seen(question: &Question) -> Answer {
    if question.word("column") != "waterline" {
        return crate::asked::OTHER;
    }
    match open(question, question.word("store"), Durability::Buffered) {
        Some(store) => latencies::seen(&store, LATENCIES),
        None => Answer::None("built without it"),
    }
}
