//! The opening of a queue: its number, its stored state, and the jobs of a process that died.

use crate::embedded::codec::head::{Head, decode_number, encode_number};
use crate::embedded::engine::Embedded;
use crate::embedded::intent::call;
use crate::embedded::keys;
use crate::embedded::keys::{Fronts, Keys};
use crate::embedded::kind_lines::KindLines;
use crate::embedded::reader::Reader;
use crate::embedded::state::loading::load_durations;
use crate::embedded::state::{Holder, QueueState, loading};
use crate::notify::shared::Shared;
use crate::types::error::QueueError;
use crate::types::options::QueueOptions;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use waterline::seam::{ClockExt, Family, Records};
use waterline::{Error, seam};

impl Embedded {
    pub(super) fn load(
        &self,
        name: &str,
        options: &QueueOptions,
        known: Option<&Arc<Shared>>,
    ) -> Result<Arc<QueueState>, QueueError> {
        let store = &self.store;
        let families = seam::queue_families(store)?;
        let number = self.number(name, &families[0], !options.admin)?;
        let stored = loading::load(seam::kv(store), name, number, &families)?;
        let wall = options.clock.moment().wall;
        let durations = load_durations(seam::kv(store), name, Keys(number), &families[0], wall)?;
        let old = durations.old;
        let shared = known.map_or_else(|| Shared::new(name, options, durations.by_kind, false), Arc::clone);
        let head = (stored.head, stored.from, stored.kinds, stored.damaged);
        let state = Arc::new(QueueState::new(shared, number, families, head));
        if options.admin {
            state.keep_running();
            return Ok(state);
        }
        let running = stored.running;
        let crashed = call(store, &state, "open a queue", move |step| {
            for key in &old {
                step.txn.batch.delete(step.txn.queue.rows.id, &[key])?;
            }
            step.recover(&running)
        })?;
        if crashed > 0 {
            tracing::warn!(target: "waterline", queue = name, jobs = crashed, "the process died while jobs ran; each counts a crash");
        }
        Ok(state)
    }

    /// Opens a queue of a read-only store, apart from any that is open elsewhere in this process.
    pub(super) fn load_look(&self, name: &str, options: &QueueOptions) -> Result<Arc<QueueState>, QueueError> {
        let store = &self.store;
        let families = seam::queue_families(store)?;
        let number = self.number(name, &families[0], false)?;
        let wall = options.clock.moment().wall;
        let durations = load_durations(seam::kv(store), name, Keys(number), &families[0], wall)?;
        let shared = Shared::new(name, options, durations.by_kind, false);
        let look = QueueState::new(shared, number, families, (Head::default(), Fronts::EMPTY, KindLines::default(), 0));
        self.show_stored(&look)?;
        Ok(Arc::new(look))
    }

    /// Updates the state of a queue of a read-only store to what is stored.
    pub(super) fn look_again(&self, state: &QueueState) -> Result<(), QueueError> {
        if seam::writable(&self.store).is_ok() { Ok(()) } else { self.show_stored(state) }
    }

    fn show_stored(&self, look: &QueueState) -> Result<(), QueueError> {
        let (kv, families) = (seam::kv(&self.store), [look.rows.clone(), look.entries.clone()]);
        let stored = loading::load(kv, &look.name, look.keys.0, &families)?;
        let at = look.moment();
        let mut running = HashMap::new();
        for (token, id) in stored.running.iter().filter_map(|(token, id)| Some((*token, id.as_ref().ok()?))) {
            let row = Reader { kv, queue: look }.row(id);
            let since = row.ok().flatten().map_or(at.wall, |row| row.since);
            let ran = Duration::from_millis(at.wall.saturating_sub(since));
            running.insert(token, Holder::new(id, at.now.checked_sub(ran).unwrap_or(at.now), None));
        }
        look.change(|live| live.show(stored, running));
        Ok(())
    }

    /// Returns the number of the queue with this name. A new queue is made unless `makes` is false
    /// or the store is read-only.
    pub(super) fn number(&self, name: &str, rows: &Family, makes: bool) -> Result<u32, QueueError> {
        let (store, key) = (&self.store, keys::name(name));
        if let Some(bytes) = seam::kv(store).get(rows, &key)? {
            let corrupt = |reason| Error::Corrupt { name: name.to_owned(), reason };
            return Ok(decode_number(name, &bytes).map_err(corrupt)?);
        }
        let number = seam::new_number(store, "queue", name, makes)?;
        let mut records = Records::default();
        records.put(rows.id, &[&key], &[&encode_number(name, number)])?;
        seam::write_records(store, &records)?;
        Ok(number)
    }
}
