//! What an earlier life left: jobs that wait for a retry, and maybe its death.

use super::{FailedJobs, Recovered};
use crate::base::time::Now;
use crate::driver::outbox::Ctx;
use crate::observe::{Event, EventKind};
use crate::progress::ParkedRecord;

/// Why a suspect waits.
const SUSPICION: &str = "the process died while this job may have run, so it runs alone";

impl FailedJobs {
    /// Makes the jobs of earlier lives wait for the rest of their back-off, or for their turn. With
    /// an order by key they wait for it once they are read.
    pub(super) fn restore_waiting(&mut self, recovered: &Recovered, by_key: bool, now: &Now) {
        let mut waiting = recovered.waiting.iter().peekable();
        for record in &recovered.jobs {
            let ParkedRecord { index, attempts, suspect, .. } = *record;
            if waiting.next_if(|waits| **waits == index).is_none() {
                continue;
            }
            let pause = (attempts > 0 && !suspect).then(|| {
                let passed = recovered.passed_since(record.last_failed, now.wall());
                self.failures.delay(attempts, now).map(|delay| delay.saturating_sub(passed))
            });
            let error = if suspect { SUSPICION.to_owned() } else { record.error.clone() };
            let first = Some(record.first_failed).filter(|first| *first > 0);
            self.failures.restore(index, attempts, error, first, pause.flatten().unwrap_or_default(), now.get());
            if !by_key {
                self.failures.arm(index, now.get());
            }
        }
    }
}

impl Recovered {
    /// Reports that the previous life died. The precautions may outlast lives that ended well.
    pub(super) fn tell_of_death(&self, at: &mut Ctx<'_>) {
        let Some((last, _)) = self.careful.filter(|_| self.died) else { return };
        let suspects = self.jobs.iter().filter(|job| job.suspect).count();
        let text = match suspects {
            0 => format!("jobs up to {last} may have been in flight"),
            _ => format!("jobs up to {last} may have been in flight; jobs that run alone: {suspects}"),
        };
        at.tell(&Event::new(EventKind::Died, at.window.lowest_undone()).error(&text));
    }
}
