//! The consumers of a store as they are saved, for a page that runs none of them.

use super::query::{Query, wanted};
use crate::advice;
use crate::failure::Failure;
use crate::shared::Shared;
use serde_json::{Value, json};
use waterline::ConsumerInfo;

/// How many parked jobs and moves a view shows at most.
const SHOWN: usize = 100;

/// Returns the consumers of the store that are not watched.
fn consumers(shared: &Shared) -> Result<Vec<ConsumerInfo>, Failure> {
    let is_watched = |name: &str| shared.streams.iter().any(|stream| stream.handle.name().as_deref() == Some(name));
    let all = shared.saved()?;
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
        "owns": consumer.owns,
    });
    advice::of_saved(&mut row, consumer);
    row
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
        let (parked, moves) = (shared.store()?.parked(name)?, shared.store()?.progress(name).history()?);
        view["jobs"] = json!(parked.iter().take(SHOWN).collect::<Vec<_>>());
        view["moves"] = json!(moves.iter().rev().take(SHOWN).collect::<Vec<_>>());
    }
    Ok(view)
}
