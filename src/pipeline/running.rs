//! The stages of a pipeline while they run, and how they end one after the other.

use super::rate::{Rate, Weight};
use super::status::{PipelineStatus, StageStatus};
use crate::base::config::{ConfigError, check_index};
use crate::base::sync::{Arc, Condvar, Mutex, wait_until};
use crate::base::{Error, Index, error::describe};
use crate::consumer::Handle;
use crate::driver::end_condition::OutOfReach;
use crate::observe::status::State;
use crate::source::watermark::{Listener, Watermark};
use std::time::Instant;

/// Where the first stage ends.
#[derive(Clone, Copy)]
pub(super) enum End {
    Itself,
    Now,
    At(Index),
    Head,
}

impl End {
    /// Refuses [`Index::MAX`], which no stream has.
    pub(super) fn check(self) -> Result<(), ConfigError> {
        if let Self::At(index) = self { check_index("stop_at", index) } else { Ok(()) }
    }
}

/// The state that a pipeline and its handles share. It hears of the end of each stage.
pub(super) struct Stages {
    pub(super) stages: Vec<RunningStage>,
    ends: Mutex<Ends>,
    changed: Condvar,
    /// The tasks that wait for the end of a stage.
    #[cfg(feature = "tokio")]
    awaited: crate::base::wakers::Wakers,
}

pub(super) struct RunningStage {
    pub(super) name: String,
    pub(super) handle: Handle,
    pub(super) weight: Option<Weight>,
    pub(super) rate: Mutex<Rate>,
}

struct Ends {
    ended: Vec<bool>,
    /// The stage that failed first.
    failed: Option<usize>,
}

impl Listener for Stages {
    fn changed(&self) {
        for (nth, stage) in self.stages.iter().enumerate() {
            if !stage.watermark().has_ended() {
                continue;
            }
            let failed = stage.handle.status().state == State::Halted;
            let mut ends = self.ends.lock();
            if std::mem::replace(&mut ends.ended[nth], true) {
                continue;
            }
            if failed {
                ends.failed.get_or_insert(nth);
            }
            drop(ends);
            self.changed.notify_all();
            #[cfg(feature = "tokio")]
            self.awaited.wake_all();
            if failed {
                self.request_stop_of(nth);
            }
        }
    }
}

impl Stages {
    pub(super) fn new(stages: Vec<RunningStage>) -> Arc<Self> {
        let ends = Mutex::new(Ends { ended: vec![false; stages.len()], failed: None });
        let shared = Arc::new(Self {
            stages,
            ends,
            changed: Condvar::new(),
            #[cfg(feature = "tokio")]
            awaited: Default::default(),
        });
        let listener: Arc<dyn Listener> = shared.clone();
        shared.stages.iter().for_each(|stage| stage.watermark().listen(Arc::downgrade(&listener)));
        // Some stages may have ended before this listened.
        shared.changed();
        shared
    }

    /// True on a thread of one of the stages, which must wait for none of them.
    pub(super) fn is_own_thread(&self) -> bool {
        self.stages.iter().any(|stage| stage.handle.control.is_own_thread())
    }

    pub(super) fn request_stop_of(&self, stages: usize) {
        self.stages[..stages].iter().for_each(|stage| stage.handle.request_stop());
    }

    /// Ends a stage once it has processed what the stages before it, all ended, left to it.
    ///
    /// It is an error if the first stage has reached the index of `run_to`, but an upstream of this
    /// stage keeps it below that index.
    pub(super) fn leave_rest_to(&self, nth: usize, end: End) {
        let (before, stage) = (&self.stages[..nth], &self.stages[nth]);
        let control = &stage.handle.control;
        let has_reached_its_end = self.stages[0].handle.control.has_reached_its_end();
        match stage.handle.status().state {
            State::Paused => return control.request_stop(),
            // The holder of the name, or the next life, processes what is left.
            State::Waiting if !has_reached_its_end => return control.request_stop(),
            State::Waiting => control.wait_for_name(),
            _ => {}
        }
        let strict = matches!(end, End::At(_) | End::Head) && has_reached_its_end;
        control.heed_ended_upstreams(if strict { OutOfReach::Fail } else { OutOfReach::End });
        let mut upstreams = control.upstreams();
        if upstreams.is_empty() && self.is_beside_the_first(nth) {
            upstreams.push(self.stages[0].watermark().clone());
        }
        upstreams.retain(|upstream| {
            let within = before.iter().any(|stage| stage.watermark().is_same(upstream));
            within || upstream.has_ended() && !strict
        });
        match upstreams.iter().map(Watermark::last_processed).min() {
            None => control.stop_at_head(),
            Some(Some(last)) => control.stop_at(last),
            Some(None) => control.request_stop(),
        }
    }

    /// True if the stage goes through the stream of the first stage, not behind it, and a later
    /// stage is behind both.
    fn is_beside_the_first(&self, nth: usize) -> bool {
        let both = [self.stages[0].watermark(), self.stages[nth].watermark()];
        self.stages[nth + 1..].iter().any(|stage| both.iter().all(|upstream| stage.watermark().is_above(upstream)))
    }

    /// Ends a stage: the first one by itself, each other one behind those before it.
    pub(super) fn lead_to(&self, nth: usize, end: End) {
        if nth == 0 {
            self.stages[0].end(end);
        } else {
            self.leave_rest_to(nth, end);
        }
    }

    #[cfg(feature = "tokio")]
    pub(super) async fn ended(&self, nth: usize) {
        self.awaited.wait(|| self.ends.lock().ended[nth].then_some(())).await;
    }

    /// Waits for the end of a stage. Returns false if it has not ended by the deadline.
    pub(super) fn wait_ended(&self, nth: usize, deadline: Option<Instant>) -> bool {
        let mut timed_out = false;
        let mut ends = self.ends.lock();
        while !ends.ended[nth] && !timed_out {
            timed_out = wait_until(&self.changed, &mut ends, deadline);
        }
        ends.ended[nth]
    }

    /// Returns the failure that came first, and logs the others.
    pub(super) fn first_of(&self, errors: Vec<(usize, Error)>) -> Option<Error> {
        let failed = self.ends.lock().failed;
        let first = errors.iter().position(|(nth, _)| Some(*nth) == failed).unwrap_or(0);
        let mut found = None;
        for (at, (nth, error)) in errors.into_iter().enumerate() {
            let name = self.stages[nth].name.clone();
            if at == first {
                found = Some(Error::Stage { name, source: error.into() });
            } else {
                tracing::error!(stage = name, error = describe(&error), "a stage of the pipeline failed too");
            }
        }
        found
    }

    pub(super) fn status(&self) -> PipelineStatus {
        PipelineStatus { stages: self.stages.iter().map(RunningStage::status).collect() }
    }
}

impl RunningStage {
    fn watermark(&self) -> &Watermark {
        self.handle.as_ref()
    }

    pub(super) fn end(&self, end: End) {
        let control = &self.handle.control;
        match end {
            End::Itself => {}
            End::Now => return control.request_stop(),
            End::At(index) => control.stop_at(index),
            End::Head => control.stop_at_head(),
        }
        // The caller waits for this end, and an ended upstream would make it wait for ever.
        control.heed_ended_upstreams(OutOfReach::Fail);
    }

    fn status(&self) -> StageStatus {
        let status = self.handle.status();
        let todo = status.unprocessed..status.unprocessed.saturating_add(status.lag());
        let past = self.rate.lock().look_at(self.handle.control.now(), &status);
        let estimate = past.map(|past| past.estimate(todo, self.weight.as_ref())).unwrap_or_default();
        StageStatus {
            name: self.name.clone(),
            jobs_per_second: estimate.jobs_per_second,
            // If it needs help, its last minute says nothing about when it goes on.
            time_left: estimate.time_left.filter(|_| !status.blocked.needs_help()),
            status,
        }
    }
}
