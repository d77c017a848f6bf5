//! Renewals of leases: those that are asked for, and those of the thread that renews all leases in
//! one call, each third of a lease.

use super::answers::signed;
use super::leases::{Leases, OwnLease};
use super::opened::Opened;
use super::presence::said;
use super::queues::Queues;
use super::settings::whole;
use crate::connection::{Connection, in_transaction};
use postgres::types::Type;
use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use waterline_queue::engine_api::{Held, options_of};

const RENEWED: usize = 256;

impl Queues {
    /// Starts the thread that renews the leases, if there are any.
    pub(super) fn keep_leases(&self) {
        let mut state = self.leases.state.lock();
        if state.runs || state.held.is_empty() {
            return;
        }
        let (leases, connection) = (Arc::downgrade(&self.leases), self.store.connection());
        let (schema, queues) = (self.sql_of("renew", 6), self.me.clone());
        let named = std::thread::Builder::new().name("wl-pg-leases".to_owned());
        match named.spawn(move || renew(&leases, &queues, connection, &schema)) {
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
        is_held && self.renew_now(&[job], silence.map(whole), silence.is_some(), false).is_empty()
    }

    /// Lets leases end by silence, a whole lease from now on. The server knows how long that is.
    pub(super) fn give_up_all(&self, jobs: &[Held], is_stopping: bool) {
        let is_held = |job: &&Held| {
            let queue = self.of(job.queue);
            let lease = options_of(&queue.shared.options).lease;
            self.leases.prolong(job, queue.moment().now, Some(lease))
        };
        for jobs in jobs.iter().filter(is_held).collect::<Vec<_>>().chunks(RENEWED) {
            self.renew_now(jobs, None, true, is_stopping);
        }
    }

    /// Renews leases of one store at once. Returns the tokens of those that have ended, whose
    /// workers are told. If the server does not answer, each lease holds as long as it did.
    fn renew_now(&self, jobs: &[&Held], lease: Option<i64>, is_silent: bool, is_stopping: bool) -> Vec<u64> {
        let (numbers, tokens): (Vec<_>, Vec<_>) =
            jobs.iter().map(|job| (self.leases.number(job).unwrap_or(0), signed(job.token))).unzip();
        let values: [crate::sql::Value<'_>; 5] = [
            (&numbers, Type::INT8_ARRAY),
            (&tokens, Type::INT8_ARRAY),
            (&lease, Type::INT8),
            (&is_silent, Type::BOOL),
            (&is_stopping.then_some(true), Type::BOOL),
        ];
        let Some(first) = jobs.first().map(|job| self.of(job.queue)) else { return Vec::new() };
        let renewed = self.rows(&first, "renew a lease", "renew", &values);
        let queues: HashSet<_> = jobs.iter().map(|job| job.queue).collect();
        for queue in queues.into_iter().map(|queue| self.of(queue)) {
            queue.forget_peek();
            queue.wake_all();
        }
        let Ok(rows) = renewed else { return Vec::new() };
        let renewed: Vec<i64> = rows.first().map(|row| row.get(0)).unwrap_or_default();
        let over = jobs.iter().zip(&numbers).filter(|(_, number)| !renewed.contains(number));
        over.map(|(job, _)| (self.leases.mark_lost(job).tell(), job.token).1).collect()
    }
}

fn renew(leases: &Weak<Leases>, queues: &Weak<Queues>, mut connection: Connection, sql: &str) {
    loop {
        let Some(leases) = leases.upgrade() else { return };
        let Some((pause, own)) = leases.due() else { return };
        let worked = worked(queues);
        let shortest = worked.iter().map(|queue| options_of(&queue.shared.options).lease / 3).min();
        let mut pause = shortest.map_or(pause, |shortest| pause.min(shortest));
        for own in own.chunks(RENEWED) {
            let asked = Instant::now();
            let (numbers, tokens): (Vec<_>, Vec<_>) =
                own.iter().map(|((_, token), lease)| (lease.number, signed(*token))).unzip();
            let about = said(worked.iter().filter_map(|queue| queue.about(queue.moment().now, None)));
            let renewed = connection.ask(|client, statements| {
                let values: [crate::sql::Value<'_>; 6] = [
                    (&numbers, Type::INT8_ARRAY),
                    (&tokens, Type::INT8_ARRAY),
                    (&None::<i64>, Type::INT8),
                    (&None::<bool>, Type::BOOL),
                    (&None::<bool>, Type::BOOL),
                    (&about, Type::TEXT),
                ];
                if statements.is_direct() {
                    return Ok(client.query_typed(sql, &values)?);
                }
                // Behind a pooler the session may have a level in which concurrent renewals fail.
                in_transaction(client, |client| Ok(client.query_typed(sql, &values)?))
            });
            match renewed.map(|rows| rows.first().map(|row| row.try_get::<_, Vec<i64>>(0))) {
                Ok(Some(Ok(renewed))) => leases.note_renewed(asked, own, &renewed).tell(),
                Ok(other) => {
                    let (queue, jobs) = (name_of(own), own.len());
                    tracing::warn!(target: "waterline", queue, jobs, ?other, "the server answered a renewal of leases with something else; others take these jobs once their leases are over: see if the functions of its schema are those of this version");
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
fn worked(queues: &Weak<Queues>) -> Vec<Arc<Opened>> {
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
