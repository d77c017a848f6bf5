//! The consumers of a store as they are saved, for a page that runs none of them.

use super::{Failure, Query, wanted};
use crate::advice::{Advice, Tone};
use crate::shared::Shared;
use serde_json::{Value, json};
use waterline::ConsumerInfo;

/// The parked jobs and the moves that a view shows.
const SHOWN: usize = 100;

/// Returns the consumers that the store has and that are not watched.
fn consumers(shared: &Shared) -> Result<Vec<ConsumerInfo>, Failure> {
    let is_watched = |name: &str| shared.streams.iter().any(|stream| stream.handle.name().as_deref() == Some(name));
    let all = shared.store.consumers()?;
    Ok(all.into_iter().filter(|consumer| !is_watched(&consumer.name)).collect())
}

/// Returns the rows of the overview; `None` if the page shows only what its program runs.
pub(super) fn rows(shared: &Shared) -> Result<Option<Vec<Value>>, Failure> {
    if !shared.is_stored {
        return Ok(None);
    }
    Ok(Some(consumers(shared)?.iter().map(row).collect()))
}

fn row(consumer: &ConsumerInfo) -> Value {
    let mut row = json!({
        "name": consumer.name,
        "last_processed": consumer.last_processed,
        "next": consumer.next,
        "done_ahead": consumer.done_ahead,
        "parked": consumer.parked,
        "moved_at": consumer.moved_at.map(crate::shared::millis),
        "life_open": consumer.life_open,
    });
    row["advice"] = json!(advice(consumer));
    row
}

/// Returns what the records prove, and no more.
fn advice(consumer: &ConsumerInfo) -> Advice {
    // A halt is over once a later life has done its job.
    let halt = consumer.last_halt.as_ref().filter(|halt| consumer.next.is_none_or(|next| next <= halt.index));
    let (reason, tone, sentence, help) = if let Some(reason) = &consumer.unreadable {
        let sentence = format!("the progress cannot be read: {reason}");
        ("damaged", Tone::Stuck, sentence, "Restore a backup, or remove the progress.")
    } else if let Some(halt) = halt {
        let sentence = format!("the consumer halted at {}: {}", halt.index, halt.error);
        ("halted", Tone::Stuck, sentence, "Remove the cause and start the consumer again.")
    } else if consumer.parked > 0 {
        let sentence = format!("{} jobs are parked, which nothing runs before somebody redrives them", consumer.parked);
        ("parked", Tone::Stuck, sentence, "Remove the cause, then redrive them, or discard them.")
    } else {
        let sentence = match consumer.life_open {
            Some(false) => "the last life of the consumer has ended",
            _ => "only its process knows what the consumer waits for",
        };
        let help = "This page reads what is saved. The page that the program serves knows more.";
        ("saved", Tone::Waits, sentence.to_owned(), help)
    };
    Advice { reason: json!(reason), tone, sentence, help: help.to_owned(), action: None }
}

/// One consumer: its row, its parked jobs, and its moves, the newest first.
pub(super) fn stored(shared: &Shared, query: &Query) -> Result<Value, Failure> {
    let name = wanted(query, "name")?;
    let consumer = consumers(shared)?.into_iter().find(|consumer| consumer.name == name);
    let found = consumer.filter(|_| shared.is_stored);
    let consumer = found.ok_or_else(|| Failure::not_found(format!("this page shows no saved consumer {name:?}")))?;
    let mut view = row(&consumer);
    view["last_halt"] = json!(consumer.last_halt);
    if consumer.unreadable.is_none() {
        let (parked, moves) = (shared.store.parked(name)?, shared.store.progress(name).history()?);
        view["jobs"] = json!(parked.iter().take(SHOWN).collect::<Vec<_>>());
        view["moves"] = json!(moves.iter().rev().take(SHOWN).collect::<Vec<_>>());
    }
    Ok(view)
}
