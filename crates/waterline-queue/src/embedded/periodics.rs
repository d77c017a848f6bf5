//! The periodic jobs that are registered.

use crate::types::config::ConfigError;
use crate::types::periodic::Periodic;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The periodic jobs of a queue that are registered, until it is closed.
#[derive(Default)]
pub(crate) struct Periodics {
    all: Mutex<Vec<Arc<Periodic>>>,
    /// The names whose records are damaged, as the log has told.
    damaged: Mutex<BTreeSet<String>>,
}

impl Periodics {
    pub(crate) fn all(&self) -> Vec<Arc<Periodic>> {
        self.all.lock().clone()
    }

    /// Registers one. Returns false if it was registered already.
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

    /// Notes that the record of this name is damaged. Returns true the first time.
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
