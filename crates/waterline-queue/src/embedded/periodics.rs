//! The periodic jobs that are registered with an open queue.

use crate::types::config::ConfigError;
use crate::types::periodic::Periodic;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct Periodics {
    all: Mutex<Vec<Arc<Periodic>>>,
    /// The names whose damaged records were logged.
    damaged: Mutex<BTreeSet<String>>,
}

impl Periodics {
    pub(crate) fn all(&self) -> Vec<Arc<Periodic>> {
        self.all.lock().clone()
    }

    /// Registers a periodic job. Returns false if it was registered already.
    pub(crate) fn add(&self, periodic: &Arc<Periodic>) -> Result<bool, ConfigError> {
        let mut all = self.all.lock();
        match all.iter().find(|other| other.name == periodic.name) {
            Some(other) if **other == **periodic => Ok(false),
            Some(_) => Err(periodic.registered_otherwise()),
            None => {
                all.push(periodic.clone());
                Ok(true)
            }
        }
    }

    /// Notes that the record of a name is damaged. Returns true the first time.
    pub(crate) fn is_damage_new(&self, name: &str) -> bool {
        self.damaged.lock().insert(name.to_owned())
    }

    pub(crate) fn take(&self, name: &str) -> Option<Arc<Periodic>> {
        self.damaged.lock().remove(name);
        let mut all = self.all.lock();
        let at = all.iter().position(|periodic| periodic.name == name)?;
        Some(all.swap_remove(at))
    }
}
