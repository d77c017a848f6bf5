//! How the two queues of a life differ.

use crate::panics::text_of;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A difference between the two queues, and the number of calls before it.
pub(super) struct Differs {
    pub(super) behind: usize,
    pub(super) how: String,
}

/// Runs a life, which counts its calls, and says how it ends.
pub(super) fn lived(live: impl FnOnce(&mut usize) -> Result<(), String>) -> Result<(), Differs> {
    let mut behind = 0;
    let lived = catch_unwind(AssertUnwindSafe(|| live(&mut behind)));
    lived.unwrap_or_else(|panic| Err(text_of(&*panic))).map_err(|how| Differs { behind, how })
}

/// Says the first things in which the two queues differ.
pub(super) fn same(left: &[String], right: &[String]) -> Result<(), String> {
    if left == right {
        return Ok(());
    }
    let most = left.len().max(right.len());
    let at = |side: &[String], n: usize| side.get(n).cloned().unwrap_or_else(|| "nothing".to_owned());
    let differ = (0..most).filter(|n| left.get(*n) != right.get(*n)).take(3);
    let told: Vec<_> = differ.map(|n| format!("  {}\n  {}", at(left, n), at(right, n))).collect();
    Err(format!("behind the last call, the database (first) and the model differ:\n{}", told.join("\n")))
}
