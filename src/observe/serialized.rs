//! The status of a consumer as `serde` writes it.

use crate::base::serialized::{fields, long};
use crate::observe::status::{Attempt, SourceCalls, State, Status};
use serde::ser::{Serialize, Serializer};

// The lag is unknown without a head.
fields!(Status, of: state, head, last_processed, lag = of.head.map(|_| of.lag()), next, processing, done_ahead,
    unsaved, blocked = of.blocked.word(), source_fails_for = of.source_fails_for.map(long), ended_upstream, done,
    failed, retries, saves, absent, parked, behind, oldest, source, text = of.to_string());

fields!(Attempt, of: index, attempt, elapsed = long(of.elapsed));

fields!(SourceCalls, of: made, failed, failed_in_a_row, retry_in = of.retry_in.map(long),
    timeout = of.timeout.map(long));

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
