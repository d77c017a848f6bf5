//! Two things that hold jobs back: a gate, and the turn that the result of a job waits for.

use super::Window;
use crate::base::Index;

impl Window {
    /// Sets the gate: a job that was never started may start only below this index. 0 closes the
    /// gate, and [`Index::MAX`] opens it for all jobs. A started job is not taken back.
    pub fn handle_gate(&mut self, open_below: Index) {
        self.gate = open_below;
    }

    /// Reports that the result of a job in flight waits for its turn: the job is *aside*, neither
    /// in flight nor done. Returns false, and changes nothing, if the job cannot be in flight.
    pub fn handle_set_aside(&mut self, index: Index) -> bool {
        let may = self.may_be_in_flight(index);
        self.in_flight -= usize::from(may);
        may
    }

    /// Sets a [redriven](Self::handle_redriven) job aside. It stays redriven until it is [taken
    /// up](Self::handle_taken_up) and done. Changes nothing and returns false if it is not
    /// redriven.
    pub fn handle_redriven_aside(&mut self, index: Index) -> bool {
        let may = self.in_flight > 0 && self.redriven.contains(&index);
        self.in_flight -= usize::from(may);
        may
    }

    /// Reports that a job [set aside](Self::handle_set_aside) has its turn, and is in flight again.
    pub fn handle_taken_up(&mut self) {
        self.in_flight += 1;
    }
}
