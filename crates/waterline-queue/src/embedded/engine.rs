//! The engine of queues in a store: each call is one intent of the store's writer.

use crate::embedded::intent::{call, call_on};
use crate::embedded::keys::List;
use crate::embedded::reader::Reader;
use crate::embedded::state::QueueState;
use crate::embedded::step::Step;
use crate::embedded::txn::AT_ONCE;
use crate::engine;
use crate::engine::{
    Beside, Edit, Ending, Held, NoteRead, Opened, Peek, QueueEngine, QueueNo, StatusInputs, Steer, Traffic, Turned,
};
use crate::notify::shared::OpenQueues;
use crate::rules::notes::{Change, Noted};
use crate::rules::pushing::{Push, has_room};
use crate::types::capabilities::Capabilities;
use crate::types::config::ConfigError;
use crate::types::error::{QueueError, is_damage, is_halt};
use crate::types::info::{JobInfo, PeriodicInfo};
use crate::types::job::{Counts, JobId, JobState, Pushed};
use crate::types::meta::Meta;
use crate::types::new_job::NewJob;
use crate::types::options::QueueOptions;
use crate::types::page::Place;
use crate::types::periodic::Periodic;
use crate::types::progress::JobProgress;
use crate::types::row::Row;
use crate::types::used::{LimitUse, Related};
use crate::types::worker::WorkerInfo;
use parking_lot::Mutex;
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use waterline::seam::{Changes, Home};
use waterline::{BoxError, Store, seam};

/// The most due jobs, and the most expired rows, that a call such as a claim handles besides.
pub(super) const SOME: usize = 8;

/// The queues of a store.
pub(crate) struct Embedded {
    pub(super) store: Store,
    kept: Arc<OpenStates>,
    /// The queue opened by this value. Nearly every call is about it, and takes no lock.
    opened: OnceLock<(QueueNo, Weak<QueueState>)>,
}

/// The open queues of a store.
#[derive(Default)]
struct OpenStates {
    open: OpenQueues,
    states: Mutex<HashMap<QueueNo, Weak<QueueState>>>,
}

impl Embedded {
    pub(crate) fn new(store: &Store) -> Self {
        Self { store: store.clone(), kept: seam::extension(store), opened: OnceLock::new() }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn state(&self, queue: QueueNo) -> Arc<QueueState> {
        let opened = self.opened.get().filter(|(number, _)| *number == queue);
        let state = opened.and_then(|(_, state)| state.upgrade());
        let state = state.or_else(|| self.kept.states.lock().get(&queue)?.upgrade());
        state.unwrap_or_else(|| unreachable!("a queue is open while somebody asks for it"))
    }

    /// Returns an open queue as it is now. In a read-only store, that is what is stored; if it
    /// cannot be read, what was read last.
    fn looked(&self, queue: QueueNo) -> Arc<QueueState> {
        let state = self.state(queue);
        // A call that reads jobs reports the error.
        let _ = self.look_again(&state);
        state
    }

    /// Reads what is stored of a queue.
    pub(super) fn read<R>(
        &self,
        queue: QueueNo,
        read: impl FnOnce(Reader<'_>) -> Result<R, QueueError>,
    ) -> Result<R, QueueError> {
        let state = self.state(queue);
        self.look_again(&state)?;
        read(Reader { kv: seam::kv(&self.store), queue: &state })
    }

    pub(super) fn call<R, F>(&self, queue: QueueNo, doing: &'static str, run: F) -> Result<R, QueueError>
    where
        R: Send + 'static,
        F: Fn(&mut Step<'_, '_>) -> Result<R, BoxError> + Send + 'static,
    {
        call(&self.store, &self.state(queue), doing, run)
    }

    fn remove_periodic(&self, queue: QueueNo, name: String) -> Result<u64, QueueError> {
        let state = self.state(queue);
        let registered = state.periodics.take(&name);
        let removed =
            call(&self.store, &state, "remove a periodic job", move |step| step.remove_periodic(&name).map(u64::from));
        if let (Err(_), Some(registered)) = (&removed, registered) {
            // The name may have been registered again meanwhile.
            let _ = state.periodics.add(&registered);
        }
        // The next tick may have been one of this job. Or the removal failed, and another call
        // looked for ticks meanwhile and saw none of it.
        state.look_for_ticks();
        removed
    }
}

impl QueueEngine for Embedded {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn home(&self) -> Home {
        seam::home(&self.store)
    }

    fn open(&self, name: &str, options: &QueueOptions) -> Result<Opened, QueueError> {
        if seam::writable(&self.store).is_err() {
            let look = self.load_look(name, options)?;
            let _ = self.opened.set((look.keys.0, Arc::downgrade(&look)));
            return Ok(Opened { number: look.keys.0, shared: look.shared.clone(), keep: look });
        }
        seam::start_writer(&self.store)?;
        let mut opened = None;
        let shared = self.kept.open.open(name, options, |known| {
            let mut states = self.kept.states.lock();
            states.retain(|_, state| state.strong_count() > 0);
            let open = states.values().filter_map(Weak::upgrade).find(|state| state.name == name);
            drop(states);
            let state = open.map_or_else(|| self.load(name, options, known), Ok)?;
            self.kept.states.lock().insert(state.keys.0, Arc::downgrade(&state));
            let shared = state.shared.clone();
            opened = Some(state);
            Ok::<_, QueueError>(shared)
        })?;
        let keep = opened.unwrap_or_else(|| unreachable!("a queue that is open has a state"));
        let _ = self.opened.set((keep.keys.0, Arc::downgrade(&keep)));
        Ok(Opened { number: keep.keys.0, shared, keep })
    }

    fn prepare(&self, queue: QueueNo, jobs: Vec<NewJob>) -> Result<Vec<Push>, ConfigError> {
        let state = self.state(queue);
        let wall = state.moment().wall;
        let mut pushes = Vec::with_capacity(jobs.len());
        for job in jobs {
            pushes.push(state.prepare(job, wall)?);
        }
        Ok(pushes)
    }

    fn push(&self, pushes: Vec<(QueueNo, Vec<Push>)>) -> Result<Vec<Pushed>, QueueError> {
        let mut queues: Vec<Arc<QueueState>> = Vec::with_capacity(1);
        let mut placed = Vec::with_capacity(pushes.len());
        for (queue, pushes) in pushes {
            let known = queues.iter().position(|state| state.keys.0 == queue);
            if known.is_none() {
                queues.push(self.state(queue));
            }
            placed.push((known.unwrap_or(queues.len() - 1), pushes));
        }
        if queues.is_empty() {
            return Ok(Vec::new());
        }
        let count = queues.len();
        call_on(&self.store, queues, "push jobs", Changes::default(), move |steps| {
            (0..count).try_for_each(|at| steps.at(at, |step| step.run_maintenance(AT_ONCE)))?;
            let mut pushed = Vec::with_capacity(placed.iter().map(|(_, pushes)| pushes.len()).sum());
            placed.iter().try_for_each(|(at, pushes)| steps.at(*at, |step| step.push_bounded(pushes, &mut pushed)))?;
            Ok(pushed)
        })
    }

    fn turn(&self, ends: &[Ending], claim: Option<engine::Claim>, beside: Beside) -> Result<Turned, QueueError> {
        self.turn_with(ends, claim, beside, Changes::default())
    }

    fn edit(&self, queue: QueueNo, id: &str, token: Option<u64>, edit: Edit) -> Result<Row, QueueError> {
        let id = id.to_owned();
        self.call(queue, edit.doing(), move |step| step.txn.edit(&id, token, &edit))
    }

    fn show(&self, job: &Held, fraction: f64, note: &str) -> Result<Option<Row>, QueueError> {
        let state = self.state(job.queue);
        let at = state.moment();
        let progress = JobProgress::new(fraction, note, at.wall)?;
        let is_due = state.show(&job.id, job.token, &progress, at.now)?;
        state.shared.settle();
        if !is_due {
            return Ok(None);
        }
        let (id, token) = (job.id.clone(), job.token);
        let written = call(&self.store, &state, "write the progress of a job", move |step| {
            step.txn.put_progress(&id, token, &progress)
        });
        if written.is_err() {
            state.progress_was_not_written(job.token);
        }
        written.map(Some)
    }

    fn note_stop(&self, _queues: &[QueueNo], jobs: &[Held]) -> Result<(), QueueError> {
        let mut queues: Vec<QueueNo> = jobs.iter().map(|job| job.queue).collect();
        queues.sort_unstable();
        queues.dedup();
        let jobs = jobs.to_vec();
        let states: Vec<_> = queues.iter().map(|queue| self.state(*queue)).collect();
        if states.is_empty() {
            return Ok(());
        }
        call_on(&self.store, states, "note that a runner stops", Changes::default(), move |steps| {
            jobs.iter().try_for_each(|job| {
                let place = queues.iter().position(|queue| *queue == job.queue).unwrap_or_default();
                let noted = steps.at(place, |step| step.note_stop(&job.id, job.token));
                // It ended meanwhile, or cannot be read.
                noted.or_else(|error| if is_halt(&error) || is_damage(&error) { Ok(()) } else { Err(error) })
            })
        })
    }

    fn steer(&self, queue: QueueNo, steer: Steer) -> Result<u64, QueueError> {
        let doing = steer.doing();
        match steer {
            Steer::Remove(id) => self.call(queue, doing, move |step| step.remove(&id).map(|()| 1)),
            Steer::Requeue(id) => self.call(queue, doing, move |step| step.requeue(&id).map(u64::from)),
            Steer::RunNow(id) => self.call(queue, doing, move |step| step.run_now(&id).map(u64::from)),
            Steer::Purge(state) => self.purge(queue, state),
            Steer::RequeueDead => self.requeue_dead(queue),
            Steer::Pause(until) => self.call(queue, doing, move |step| {
                step.pause(until);
                Ok(1)
            }),
            Steer::RemovePeriodic(name) => self.remove_periodic(queue, name),
        }
    }

    fn start_periodic(&self, queue: QueueNo, periodic: Arc<Periodic>) -> Result<u64, QueueError> {
        let state = self.state(queue);
        let is_new = state.periodics.add(&periodic)?;
        let started = call(&self.store, &state, "register a periodic job", {
            let periodic = periodic.clone();
            move |step| step.start_periodic(&periodic, SOME)
        });
        if started.is_err() && is_new {
            state.periodics.take(&periodic.name);
        }
        started
    }

    fn note(&self, queue: QueueNo, of: &str, change: Change) -> Result<(Option<Noted>, Option<Noted>), QueueError> {
        let of = of.to_owned();
        self.call(queue, "change a note", move |step| {
            let notes = step.txn.change_note(&of, &change)?;
            step.run_maintenance(SOME)?;
            Ok(notes)
        })
    }

    fn run_maintenance(&self, queue: QueueNo) -> Result<(), QueueError> {
        let state = self.state(queue);
        self.take_back_silent(&state)?;
        call(&self.store, &state, "keep a queue in order", |step| step.run_maintenance(AT_ONCE))
    }

    fn renew(&self, job: &Held, silence: Option<Duration>) -> bool {
        let state = self.state(job.queue);
        let deadline = silence.and_then(|silence| state.moment().now.checked_add(silence));
        state.renew(job.token, deadline)
    }

    fn give_up(&self, jobs: &[Held], is_stopping: bool) {
        for job in jobs {
            let state = self.state(job.queue);
            if is_stopping {
                state.note_stop(job.token);
            }
            state.renew(job.token, state.moment().now.checked_add(state.options.lease));
        }
    }

    fn holds(&self, job: &Held) -> bool {
        let state = self.state(job.queue);
        state.holds(job.token, state.moment().now)
    }

    fn peek(&self, queue: QueueNo, kinds: Option<&[String]>) -> Peek {
        let state = self.looked(queue);
        let at = state.moment();
        state.look(|live| Peek {
            ready: live.ready(kinds),
            is_paused: live.head.is_paused(at.wall),
            is_full: live.gate.is_full(at.wall),
            is_limited: live.is_limited(at.wall),
            has_room: has_room(live.head.waiting(), state.options.max_waiting)
                || live.from.of(List::Expiring) <= at.wall,
            due: live.from.of(List::Scheduled),
            expires: live.from.of(List::Expiring),
            next_time: live.next_time(&at),
            next_change: live.next_change(&at),
        })
    }

    fn counts(&self, queue: QueueNo) -> Counts {
        self.looked(queue).look(|live| Counts::of(live.head.counts, live.damaged))
    }

    fn traffic(&self, queue: QueueNo) -> Option<Traffic> {
        Some(self.state(queue).look(|live| live.traffic))
    }

    fn limits(&self, queue: QueueNo) -> Result<Vec<LimitUse>, QueueError> {
        self.read(queue, |look| look.limits_used())
    }

    fn related(&self, queue: QueueNo, id: &str, most: usize) -> Result<Related, QueueError> {
        self.read(queue, |look| look.related(id, most))
    }

    fn workers(&self, queue: QueueNo, jobs: usize) -> Result<Vec<WorkerInfo>, QueueError> {
        let is_here = seam::writable(&self.store).is_ok();
        self.read(queue, |look| Ok(look.worker(is_here, jobs).into_iter().collect()))
    }

    fn status_inputs(&self, queue: QueueNo) -> Result<StatusInputs, QueueError> {
        let is_here = seam::writable(&self.store).is_ok();
        self.read(queue, |look| look.status_inputs(is_here))
    }

    fn oldest(&self, queue: QueueNo) -> u64 {
        self.oldest_of(queue, None)
    }

    fn oldest_of(&self, queue: QueueNo, kinds: Option<&[String]>) -> u64 {
        let state = self.looked(queue);
        Reader { kv: seam::kv(&self.store), queue: &state }.oldest(kinds)
    }

    fn running(&self, queue: QueueNo) -> (usize, Option<(Instant, JobId)>) {
        self.looked(queue).look(|live| {
            let oldest = live.running.values().min_by_key(|holder| holder.since);
            (live.running.len(), oldest.map(|holder| (holder.since, holder.id.clone())))
        })
    }

    fn job(&self, queue: QueueNo, id: &str) -> Result<Option<JobInfo>, QueueError> {
        self.read(queue, |look| {
            let Some(row) = look.row(id)? else { return Ok(None) };
            match look.look_at(id, row)? {
                Some((_, Some(damaged))) => Err(damaged),
                looked => Ok(looked.map(|(job, _)| job)),
            }
        })
    }

    fn list(
        &self,
        queue: QueueNo,
        state: JobState,
        behind: Option<&Place>,
        most: usize,
    ) -> Result<Vec<JobInfo>, QueueError> {
        let mut jobs = Vec::new();
        if most > 0 {
            self.read(queue, |look| {
                look.each(state, behind, |id, found| {
                    jobs.extend(look.shown(id, state, found)?);
                    Ok(jobs.len() < most)
                })
            })?;
        }
        Ok(jobs)
    }

    fn row(&self, queue: QueueNo, id: &str) -> Result<Option<Row>, QueueError> {
        self.read(queue, |look| look.row(id))
    }

    fn data(&self, queue: QueueNo, id: &str) -> Result<Option<Vec<u8>>, QueueError> {
        self.read(queue, |look| look.bytes(&look.queue.keys.data(id)))
    }

    fn meta(&self, queue: QueueNo, id: &str) -> Result<Meta, QueueError> {
        self.read(queue, |look| look.meta(id))
    }

    fn progress(&self, queue: QueueNo, id: &str) -> Result<Option<JobProgress>, QueueError> {
        self.read(queue, |look| look.row(id)?.map_or(Ok(None), |row| look.progress_of(id, &row)))
    }

    fn noted(&self, queue: QueueNo, of: &str) -> Result<Option<Noted>, QueueError> {
        self.read(queue, |look| look.noted(of))
    }

    fn notes(
        &self,
        queue: QueueNo,
        prefix: &str,
        behind: Option<&str>,
        most: usize,
    ) -> Result<Vec<NoteRead>, QueueError> {
        self.read(queue, |look| look.notes(prefix, behind, most))
    }

    fn periodics(&self, queue: QueueNo) -> Result<Vec<PeriodicInfo>, QueueError> {
        self.read(queue, |look| look.periodics())
    }
}
