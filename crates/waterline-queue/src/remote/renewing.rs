//! Renewals of leases: those that are asked for, and those of the thread that renews all leases in
//! one call, each third of a lease.

use super::answers::signed;
use super::faults::CallError;
use super::leases::{Leases, OwnLease};
use super::opened::Opened;
use super::queues::Remote;
use super::server::{Renewal, Renewer, Server};
use super::settings::whole;
use crate::engine::Held;
use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;
use waterline::seam;

const RENEWED: usize = 256;

impl<S: Server> Remote<S> {
    /// Starts the thread that renews the leases, if there are any.
    pub(super) fn keep_leases(&self) {
        let mut state = self.leases.state.lock();
        if state.runs || state.held.is_empty() {
            return;
        }
        let (leases, queues, renewer) = (Arc::downgrade(&self.leases), self.me.clone(), self.server.renewer());
        let named = std::thread::Builder::new().name(format!("{}-leases", S::THREADS));
        match named.spawn(move || renew(&leases, &queues, renewer)) {
            Ok(_) => state.runs = true,
            Err(error) => {
                tracing::error!(target: "waterline", jobs = state.held.len(), %error, "the leases of these jobs are not renewed, since a thread cannot be started; the next claim tries it again");
            }
        }
    }

    /// Renews a lease, which ends by silence if `silence` says after how long. Returns false if the
    /// lease has ended.
    pub(super) fn prolong(&self, job: &Held, silence: Option<Duration>) -> bool {
        let is_held = self.leases.prolong(job, self.of(job.queue).moment().now, silence);
        let renewal = Renewal { lease: silence.map(whole), is_silent: silence.is_some(), is_stopping: false };
        is_held && self.renew_now(&[job], renewal)
    }

    /// Lets leases end by silence, a whole lease from now on. The server knows how long that is.
    pub(super) fn give_up_all(&self, jobs: &[Held], is_stopping: bool) {
        let is_held = |job: &&Held| {
            let queue = self.of(job.queue);
            self.leases.prolong(job, queue.moment().now, Some(queue.lease()))
        };
        for jobs in jobs.iter().filter(is_held).collect::<Vec<_>>().chunks(RENEWED) {
            self.renew_now(jobs, Renewal { lease: None, is_silent: true, is_stopping });
        }
    }

    /// Renews leases of one server at once, and tells the workers of those that have ended. Returns
    /// true if there are none. If the server does not answer, each lease holds as long as it did.
    fn renew_now(&self, jobs: &[&Held], renewal: Renewal) -> bool {
        let Some(first) = jobs.first().map(|job| self.of(job.queue)) else { return true };
        let renewed = self.server.renew(first.at(), &self.leases.runs(jobs.iter().copied()), renewal);
        let queues: HashSet<_> = jobs.iter().map(|job| job.queue).collect();
        for queue in queues.into_iter().map(|queue| self.of(queue)) {
            queue.forget_peek();
            queue.wake_all();
        }
        let Ok(holds) = renewed else { return true };
        let over: Vec<_> = jobs.iter().zip(&holds).filter(|(_, holds)| !**holds).collect();
        over.iter().for_each(|(job, _)| self.leases.mark_lost(job).tell());
        over.is_empty()
    }
}

fn renew<S: Server>(leases: &Weak<Leases>, queues: &Weak<Remote<S>>, mut renewer: Renewer<S::Error>) {
    loop {
        let Some(leases) = leases.upgrade() else { return };
        let Some((pause, own)) = leases.due() else { return };
        let worked = worked(queues);
        let shortest = worked.iter().map(|queue| queue.lease() / 3).min();
        let mut pause = shortest.map_or(pause, |shortest| pause.min(shortest));
        for own in own.chunks(RENEWED) {
            let asked = seam::now();
            let runs = own.iter().map(|((queue, token), lease)| (*queue, lease.number, signed(*token))).collect();
            let about: Vec<_> = worked.iter().filter_map(|queue| queue.about(queue.moment().now, None)).collect();
            match renewer(&runs, &about) {
                Ok(holds) => leases.note_renewed(asked, own, &holds).tell(),
                Err(error) if error.is_misread() => {
                    let (queue, jobs, error) = (name_of(own), own.len(), error.in_full());
                    tracing::warn!(target: "waterline", queue, jobs, error, "the server answered a renewal of leases with something else; others take these jobs once their leases are over: see if the functions of its schema are those of this version");
                }
                Err(error) => {
                    let (queue, jobs, error) = (name_of(own), own.len(), error.in_full());
                    tracing::warn!(target: "waterline", queue, jobs, error, "the leases of these jobs are not renewed; it is tried again, and others take the jobs once their leases are over");
                    pause /= 4;
                    break;
                }
            }
        }
        wait(&leases, pause);
    }
}

/// Returns the queues that this process works on. Even one of which it has no job hears of the
/// worker: all slots of its runner may be taken by jobs of other queues.
fn worked<S: Server>(queues: &Weak<Remote<S>>) -> Vec<Arc<Opened>> {
    let Some(queues) = queues.upgrade() else { return Vec::new() };
    let open = queues.queues.read();
    open.values().filter(|queue| queue.shared.presence().is_some()).cloned().collect()
}

/// Returns the name of their first queue.
fn name_of(own: &[OwnLease]) -> String {
    let queue = own.first().and_then(|(_, lease)| lease.queue.upgrade());
    queue.map_or(String::new(), |queue| queue.name().to_owned())
}

fn wait(leases: &Leases, pause: Duration) {
    let mut state = leases.state.lock();
    leases.changed.wait_for(&mut state, pause);
}
