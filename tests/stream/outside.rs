//! Pipelines with a stage that is gated by a consumer outside of them, which may end at any time.

use common::*;
use crossbeam_channel::unbounded;
use waterline::testing::StartedJobs;
use waterline::{Consumer, Error, Index, Jobs, MemoryJobs, MemoryProgress, Pipeline, State, Store, Watermark};

/// A consumer outside all pipelines, which ends when the test says so.
struct Outside {
    consumer: Consumer,
    started: StartedJobs,
}

impl Outside {
    fn start(store: &Store) -> Self {
        let (worker, started) = manual_worker();
        let builder = Consumer::builder(numbers(100), store.progress("outside"));
        Self { consumer: builder.max_processing(1).start_worker(worker).unwrap(), started }
    }

    fn watermark(&self) -> Watermark {
        watermark_of(&self.consumer)
    }

    /// Ends it once it has processed this many jobs, at least one.
    fn end_after(self, jobs: u64) {
        (1..jobs).for_each(|_| self.started.next().succeed());
        let last = self.started.next();
        self.consumer.handle().request_stop();
        last.succeed();
        self.consumer.join().unwrap();
    }
}

fn watermark_of(consumer: &Consumer) -> Watermark {
    AsRef::<Watermark>::as_ref(&consumer.handle()).clone()
}

type Ending = fn(Pipeline) -> Result<(), Error>;

/// Ends the pipeline on another thread, while `meanwhile` runs here.
fn ended(pipeline: Pipeline, end: Ending, meanwhile: impl FnOnce()) -> Result<(), Error> {
    let (tell, told) = unbounded();
    std::thread::spawn(move || tell.send(end(pipeline)));
    meanwhile();
    told.recv_timeout(LONG).expect("an end")
}

/// Returns the failed stage, and the upstream, its watermark and the index that the error names.
fn upstream_ended(error: Error) -> (String, String, Option<Index>, Index) {
    let text = error.report();
    match error {
        Error::Stage { name, source } => match *source {
            Error::UpstreamEnded { upstream, last_processed, index } => (name, upstream, last_processed, index),
            _ => panic!("{text}"),
        },
        _ => panic!("{text}"),
    }
}

#[test]
fn a_first_stage_cut_short_by_an_outsider_is_an_error() {
    let endings: [(Option<Index>, Ending, Index); 3] =
        [(None, Pipeline::run_to_head, 9), (None, |pipeline| pipeline.run_to(8), 8), (Some(7), Pipeline::join, 7)];
    for (stop_at, end, index) in endings {
        // The outsider ends before the pipeline is awaited, or meanwhile.
        for before in [true, false] {
            let store = Store::in_memory();
            let outside = Outside::start(&store);
            let builder = stop_at.map_or_else(Pipeline::builder, |index| Pipeline::builder().stop_at(index));
            let pipeline = builder
                .stage("first", |stage| {
                    let behind = numbers(10).gated_by(outside.watermark());
                    stage.consumer(behind, store.progress("first")).start(|_| Ok(()))
                })
                .stage("second", |stage| {
                    let behind = numbers(10).gated_by(stage.after("first")?);
                    stage.consumer(behind, store.progress("second")).start(|_| Ok(()))
                })
                .start()
                .unwrap();
            let handle = pipeline.handle();
            let outcome = if before {
                outside.end_after(5);
                ended(pipeline, end, || {})
            } else {
                ended(pipeline, end, || outside.end_after(5))
            };
            let error = outcome.unwrap_err();
            let text = error.report();
            assert!(
                text.contains("job 9") == (index == 9) && text.contains("has ended with job 4 as the last"),
                "{text}"
            );
            assert_eq!(upstream_ended(error), ("first".into(), "outside".into(), Some(4), index));
            let status = handle.status();
            let states = status.stages.iter().map(|stage| (stage.status.state, stage.status.last_processed));
            // All stages have processed what the gate let through.
            assert!(states.eq([(State::Halted, Some(4)), (State::Finished, Some(4))]), "{status}");
        }
    }
}

#[test]
fn a_later_stage_cut_short_by_an_outsider_is_an_error() {
    let endings: [(Ending, bool); 3] =
        [(Pipeline::run_to_head, true), (|pipeline| pipeline.run_to(9), true), (Pipeline::stop, false)];
    for (end, fails) in endings {
        for before in [true, false] {
            for beside in [true, false] {
                let store = Store::in_memory();
                let outside = Outside::start(&store);
                let pipeline = Pipeline::builder()
                    .stage("fetch", |stage| stage.consumer(numbers(10), store.progress("fetch")).start(|_| Ok(())))
                    .stage("index", |stage| {
                        let behind = numbers(10).gated_by(outside.watermark());
                        match beside {
                            true => stage.consumer(behind, store.progress("index")).start(|_| Ok(())),
                            false => {
                                let behind = behind.gated_by(stage.after("fetch")?);
                                stage.consumer(behind, store.progress("index")).start(|_| Ok(()))
                            }
                        }
                    })
                    .start()
                    .unwrap();
                let handle = pipeline.handle();
                let fetch = handle.stage("fetch").unwrap();
                assert!(fetch.wait_for(9, LONG));
                let outcome = if before {
                    outside.end_after(3);
                    ended(pipeline, end, || {})
                } else {
                    ended(pipeline, end, || {
                        until(&fetch, "the end", |status| status.state == State::Finished);
                        outside.end_after(3);
                    })
                };
                match outcome {
                    Err(error) if fails => {
                        assert_eq!(upstream_ended(error), ("index".into(), "outside".into(), Some(2), 9));
                    }
                    outcome => assert!(outcome.is_ok() && !fails, "{outcome:?}"),
                }
                assert_eq!(handle.stage("index").unwrap().last_processed_index(), Some(2));
            }
        }
    }
}

#[test]
fn a_run_behind_a_finished_outsider_ends() {
    let store = Store::in_memory();
    let outside = Outside::start(&store);
    let behind = |upstream: Watermark| {
        Pipeline::builder()
            .stage("only", move |stage| {
                stage.consumer(numbers(10).gated_by(upstream), MemoryProgress::new()).start(|_| Ok(()))
            })
            .start()
            .unwrap()
    };
    let pipeline = behind(outside.watermark());
    outside.end_after(10);
    ended(pipeline, Pipeline::run_to_head, || {}).unwrap();

    let idle = Consumer::builder(MemoryJobs::<u64>::new(), store.progress("idle")).start(|_| Ok(())).unwrap();
    let pipeline = behind(watermark_of(&idle));
    let error = ended(pipeline, Pipeline::run_to_head, || idle.stop().unwrap()).unwrap_err();
    assert!(error.report().contains("\"idle\" has ended with nothing processed"), "{}", error.report());
    assert_eq!(upstream_ended(error), ("only".into(), "idle".into(), None, 9));

    // A stop does not need the rest of the jobs, so it is no error.
    let outside = Outside::start(&Store::in_memory());
    let pipeline = behind(outside.watermark());
    let handle = pipeline.handle();
    ended(pipeline, Pipeline::run_to_head, || handle.request_stop()).unwrap();
    outside.end_after(1);
}
