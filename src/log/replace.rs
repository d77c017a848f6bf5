//! A log that takes the name of another one. Its number stays, and with it the keys of its items.

use super::bounds::bounds_key;
use super::{JobLog, OpenLog, OpenLogs, kept, state::LogState};
use crate::base::{Error, sync::Arc};
use crate::commit::changes::Changes;
use crate::kv::{LOGS, PARKED};
use crate::store::{Gone, Owned, Store, WriteMoves};

impl<T, C> From<&JobLog<T, C>> for Owned {
    fn from(log: &JobLog<T, C>) -> Self {
        Self::log(log.name(), log.store())
    }
}

impl Store {
    /// Adds the changes that give each second log the items of the first, and calls `write` with
    /// what is gone by that, and with what to call once it is written. No log is opened meanwhile.
    ///
    /// # Errors
    /// Returns the name of a log that is open, or the error of `write`.
    pub(crate) fn replace_logs(
        &self,
        logs: &[(String, String)],
        changes: &mut Changes,
        write: WriteMoves<'_>,
    ) -> Result<Option<String>, Error> {
        let open_logs = self.extension::<OpenLogs>();
        let mut open = open_logs.0.lock();
        let is_named = |log: &LogState| logs.iter().any(|(from, to)| log.name == *from || log.name == *to);
        let states = open.iter().filter_map(|log| Some((log.state.upgrade().filter(|state| is_named(state))?, log)));
        let (states, handles): (Vec<_>, Vec<_>) = states.map(|(state, log)| (state, log.is_open())).unzip();
        if let Some(place) = handles.iter().position(|is_open| *is_open) {
            return Ok(Some(states[place].name.clone()));
        }
        let (system, mut gone) = (self.system().id, Vec::new());
        for (from, to) in logs {
            if let Some((bounds, _)) = self.stored_log(to)? {
                gone.push(Gone { family: LOGS, prefix: bounds.id.to_be_bytes().to_vec() });
                gone.push(Gone { family: PARKED, prefix: kept::prefix(bounds.id).to_vec() });
                changes.delete(system, &[&bounds_key(to)])?;
            }
            if let Some((bounds, end)) = self.stored_log(from)? {
                let bounds = super::bounds::Bounds { end, ..bounds };
                changes.put(system, &[&bounds_key(to)], &bounds.encode(to))?;
                changes.delete(system, &[&bounds_key(from)])?;
            }
        }
        // A trim that is still pending would write the bounds of before.
        write(changes.records(), gone, &|| states.iter().for_each(|state| state.set_replaced()))?;
        open.retain(|log| log.state.upgrade().is_none_or(|state| !is_named(&state)));
        Ok(None)
    }

    /// Returns the state of a log, open or not, to clear it; `None` if there is none.
    pub(crate) fn log_state(&self, name: &str) -> Result<Option<Arc<LogState>>, Error> {
        let open_logs = self.extension::<OpenLogs>();
        let mut open = open_logs.0.lock();
        let known = open.iter().find_map(|log| log.state.upgrade().filter(|log| log.name == name));
        if known.is_some() {
            return Ok(known);
        }
        let Some((bounds, end)) = self.stored_log(name)? else { return Ok(None) };
        let state = Arc::new(LogState::new(name, self.log_families()?, bounds, end));
        open.push(OpenLog::of_no_type(&state));
        Ok(Some(state))
    }
}
