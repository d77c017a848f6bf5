//! What holds jobs back that could go on otherwise: a gate, and the turn that their results wait for.

use super::Window;
use crate::base::index::Index;

impl Window {
    /// Of what was never started, only what is below this index may start: 0 is nothing, [`Index::MAX`] everything. What was
    /// started before is not taken back.
    pub fn handle_gate(&mut self, open_below: Index) {
        self.gate = open_below;
    }

    /// A job that is in flight has a result that waits for its turn: it is no longer in flight, and not done either. Nothing
    /// awaits it. False, and nothing changes, when it cannot be in flight.
    pub fn handle_set_aside(&mut self, index: Index) -> bool {
        let may = self.may_be_in_flight(index);
        self.in_flight -= usize::from(may);
        may
    }

    /// It is the turn of a job that was [set aside](Self::handle_set_aside): it is in flight again.
    pub fn handle_taken_up(&mut self) {
        self.in_flight += 1;
    }
}
