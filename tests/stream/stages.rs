//! Pipelines: nothing is lost or done twice between stages, they end in order and fail as one.

use common::*;
use crossbeam_channel::unbounded;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use waterline::testing::FaultyStore;
use waterline::{
    Blocked, BoxError, ConfigError, Consumer, Effects, Error, Failure, Index, Job, JobLog, Jobs, MemoryJobs,
    MemoryProgress, OnExhausted, Pipeline, Retry, State, Store, Watermark,
};

const FAN_OUT: u64 = 10;

/// The calls that end a pipeline: blocking ones, or futures.
#[derive(Clone, Copy)]
enum Way {
    Call,
    #[cfg(feature = "tokio")]
    Future,
}

/// Runs a test with the blocking calls, and with the futures.
fn in_each_way(test: impl Fn(Way)) {
    test(Way::Call);
    #[cfg(feature = "tokio")]
    test(Way::Future);
}

/// Runs this on a runtime with one thread, which a blocking call would stall.
#[cfg(feature = "tokio")]
fn block_on<R>(future: impl Future<Output = R>) -> R {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

macro_rules! way {
    ($($name:ident, $name_async:ident, ($($arg:ident: $of:ty)?);)*) => {
        impl Way {
            $(fn $name(self, pipeline: Pipeline $(, $arg: $of)?) -> Result<(), Error> {
                match self {
                    Self::Call => pipeline.$name($($arg)?),
                    #[cfg(feature = "tokio")]
                    Self::Future => block_on(pipeline.$name_async($($arg)?)),
                }
            })*
        }
    };
}

way! {
    join, join_async, ();
    stop, stop_async, ();
    stop_within, stop_within_async, (limit: Duration);
    run_to, run_to_async, (index: Index);
    run_to_head, run_to_head_async, ();
}

fn pushing(log: &JobLog<u64>) -> impl Fn(Job<u64>, &mut Effects) -> Result<(), BoxError> + Send + Sync + 'static {
    let log = log.clone();
    move |job, effects| Ok(effects.push(&log, &job.payload)?)
}

/// A pipeline that turns each block into ten chunks in a log, and counts each chunk in a table.
fn chunked(store: &Store, blocks: &MemoryJobs<u64>) -> Pipeline {
    chunked_to(store, blocks, None)
}

fn chunked_to(store: &Store, blocks: &MemoryJobs<u64>, stop_at: Option<Index>) -> Pipeline {
    let chunks: JobLog<(u64, u64)> = store.log("chunks").unwrap();
    let counts = store.table("counts").unwrap();
    let builder = stop_at.map_or_else(Pipeline::builder, |index| Pipeline::builder().stop_at(index));
    let pipeline = builder
        .stage("blocks", |stage| {
            let chunks = chunks.clone();
            stage.consumer(blocks.clone(), store.progress("blocks")).max_processing(3).start_transactional(
                move |job, effects| {
                    (0..FAN_OUT).try_for_each(|chunk| effects.push(&chunks, &(job.payload, chunk)))?;
                    Ok(())
                },
            )
        })
        .stage("chunks", |stage| {
            stage
                .consumer(chunks.clone(), store.progress("chunks"))
                .max_processing(3)
                .retry(Retry::fixed(Duration::ZERO))
                .start_transactional(move |job, effects| {
                    let (block, chunk) = job.payload;
                    effects.add(&counts, format!("{block}/{chunk}"), 1)?;
                    if job.index % 7 == 0 && job.attempt == 1 { Err("as planned".into()) } else { Ok(()) }
                })
        })
        .start()
        .unwrap();
    chunks.retain([pipeline.handle().stage("chunks").unwrap()]);
    pipeline
}

/// Returns the number of chunks, and whether each was counted once.
fn counted(store: &Store) -> (u64, bool) {
    let counts = store.table("counts").unwrap();
    let rows: Vec<_> = counts.iter().collect::<Result<_, _>>().unwrap();
    let once = rows.iter().all(|(key, _)| counts.counter(key).unwrap() == 1);
    (rows.len() as u64, once)
}

#[test]
fn promise_09_random_cuts_count_each_chunk_once() {
    const BLOCKS: u64 = 300;
    for seed in 0..6 {
        let mut random = fastrand::Rng::with_seed(seed);
        let blocks = numbers(BLOCKS);
        let mut faulty = FaultyStore::new().unwrap();
        for _ in 0..12 {
            // From a random write on, writes only seem to work: the next life finds what a crash
            // there would leave.
            faulty.freeze_at(random.u64(1..40));
            let pipeline = chunked(&faulty.store(), &blocks);
            if random.bool() {
                drop(pipeline);
            } else {
                pipeline.run_to(random.u64(0..BLOCKS)).unwrap();
            }
            let after = faulty.after_crash().unwrap();
            assert!(counted(&after.store()).1, "seed {seed}: a chunk counted twice");
            faulty = after;
        }
        let store = faulty.store();
        let log = store.log::<(u64, u64)>("chunks").unwrap();
        chunked(&store, &blocks).run_to_head().unwrap();
        assert_eq!(counted(&store), (BLOCKS * FAN_OUT, true), "seed {seed}");
        eventually("the trim", || log.first().unwrap() == BLOCKS * FAN_OUT + 1);
    }
}

#[test]
fn a_pipeline_runs_to_an_index_and_resumes() {
    in_each_way(|way| {
        let (store, blocks) = (Store::in_memory(), numbers(50));
        way.join(chunked_to(&store, &blocks, Some(19))).unwrap();
        assert_eq!(counted(&store), (20 * FAN_OUT, true));
        way.join(chunked_to(&store, &blocks, Some(10))).unwrap();
        assert_eq!(counted(&store), (20 * FAN_OUT, true), "it is there already");
        // The first stage runs from its start on, so it may be further by now.
        way.run_to(chunked(&store, &blocks), 30).unwrap();
        assert!(matches!(counted(&store), (count, true) if count >= 31 * FAN_OUT && count % FAN_OUT == 0));
        way.run_to_head(chunked(&store, &blocks)).unwrap();
        assert_eq!(counted(&store), (50 * FAN_OUT, true));
        way.run_to_head(chunked(&Store::in_memory(), &MemoryJobs::new())).unwrap();
        let error = way.run_to(chunked(&store, &blocks), Index::MAX).unwrap_err();
        assert!(matches!(error, Error::Config(ConfigError::NoJob { setting: "stop_at", .. })));
    });
}

#[test]
fn promise_06_a_stop_ends_upstream_stages_first() {
    in_each_way(|way| {
        let (store, blocks) = (Store::in_memory(), MemoryJobs::new());
        let pipeline = chunked(&store, &blocks);
        for block in 0..200 {
            blocks.push(block);
        }
        assert!(pipeline.handle().stage("blocks").unwrap().wait_for(100, LONG));
        let handle = pipeline.handle();
        way.stop(pipeline).unwrap();
        let status = handle.status();
        let processed = |name| status.stage(name).unwrap().status.last_processed.unwrap();
        assert!(status.stages.iter().all(|stage| stage.status.state == State::Finished), "{status}");
        assert_eq!(processed("chunks"), (processed("blocks") + 1) * FAN_OUT);
        let json = serde_json::json!(status);
        let (stage, first) = (&json["stages"][0], &status.stages[0]);
        assert_eq!(
            (&stage["name"], &stage["status"], &json["text"]),
            (&"blocks".into(), &serde_json::json!(first.status), &status.to_string().into())
        );
        assert_eq!(stage["time_left"], serde_json::json!(first.time_left.map(|left| left.as_millis() as u64)));
        assert_eq!(counted(&store), (processed("chunks"), true));
    });
}

#[test]
fn a_gated_stage_ends_at_its_upstreams_watermark() {
    // Fan-in: the third stage is gated by the first two, one of which is slow.
    let (jobs, seen) = (numbers(1_000), Arc::new(AtomicU64::new(0)));
    let (worker, slow) = manual_worker();
    let pipeline = Pipeline::builder()
        .stage("fast", |stage| stage.consumer(jobs.clone(), MemoryProgress::new()).start(|_| Ok(())))
        .stage("slow", |stage| {
            stage.consumer(jobs.clone(), MemoryProgress::new()).max_processing(1).start_worker(worker)
        })
        .stage("last", |stage| {
            let behind = jobs.clone().gated_by(stage.after("fast")?).gated_by(stage.after("slow")?);
            let seen = seen.clone();
            stage.consumer(behind, MemoryProgress::new()).start(move |job| {
                seen.fetch_max(job.index + 1, Ordering::SeqCst);
                Ok(())
            })
        })
        .start()
        .unwrap();
    let handle = pipeline.handle();
    let last = handle.stage("last").unwrap();
    assert!(handle.stage("fast").unwrap().wait_for(999, LONG));
    slow.next().succeed();
    slow.next().succeed();
    assert!(last.wait_for(1, LONG));
    assert_eq!(seen.load(Ordering::SeqCst), 2);
    until(&last, "the gate", |status| status.blocked == Blocked::Upstream { index: 2 });
    let running = slow.next();
    handle.stage("slow").unwrap().request_stop();
    running.succeed();
    until(&last, "the gate", |status| status.blocked == Blocked::Upstream { index: 3 });
    let says = |text: &str| handle.status().to_string().contains(text);
    assert!(says("last: running, 2 of 999 processed, lag 997"), "{}", handle.status());
    // It may see the last job of the slow stage before the end of that stage.
    eventually("the end of the slow stage", || says("has ended)"));
    pipeline.stop().unwrap();
    assert_eq!(last.last_processed_index(), Some(2));
}

#[test]
fn promise_05_join_returns_the_first_failure() {
    in_each_way(|way| {
        let (store, blocks) = (Store::in_memory(), MemoryJobs::<u64>::new());
        let log = store.log::<u64>("middle").unwrap();
        let pipeline = Pipeline::builder()
            .stage("first", |stage| {
                stage
                    .consumer(blocks.clone(), store.progress("first"))
                    .max_processing(1)
                    .start_transactional(pushing(&log))
            })
            .stage("second", |stage| {
                stage
                    .consumer(log.clone(), store.progress("second"))
                    .max_processing(1)
                    .start(|job| if job.payload == 5 { Err("broken".into()) } else { Ok(()) })
            })
            .stage("third", |stage| {
                let behind = log.clone().gated_by(stage.after("second")?);
                stage.consumer(behind, store.progress("third")).start(|_| Ok(()))
            })
            .start()
            .unwrap();
        let handle = pipeline.handle();
        for block in 0..10 {
            blocks.push(block);
        }
        let error = way.join(pipeline).unwrap_err();
        assert!(
            matches!(&error, Error::Stage { name, source } if name == "second"
        && matches!(**source, Error::Job { index: 6, .. })),
            "{}",
            error.report()
        );
        let states = handle.status().stages.into_iter().map(|stage| stage.status.state).collect::<Vec<_>>();
        assert_eq!(states, [State::Finished, State::Halted, State::Finished]);
        assert_eq!(handle.stage("third").unwrap().last_processed_index(), Some(5), "what was left to it");
    });
}

#[test]
fn stop_within_leaves_the_rest_to_the_next_life() {
    in_each_way(|way| {
        let (store, blocks) = (Store::in_memory(), numbers(20));
        let log = store.log::<u64>("middle").unwrap();
        let release = Arc::new(AtomicBool::new(false));
        let started = |retry: Retry| {
            let release = release.clone();
            Pipeline::builder()
                .stage("first", |stage| {
                    stage.consumer(blocks.clone(), store.progress("first")).start_transactional(pushing(&log))
                })
                .stage("second", |stage| {
                    stage
                        .consumer(log.clone(), store.progress("second"))
                        .retry(retry)
                        .start(move |_| if release.load(Ordering::SeqCst) { Ok(()) } else { Err("not yet".into()) })
                })
                .start()
                .unwrap()
        };
        // Half of the limit is for jobs that never end, half for the end. A stalled machine may
        // use that up, but not every time.
        let stops_in_time = |limit| {
            let pipeline = started(Retry::fixed(Duration::from_millis(1)));
            let handle = pipeline.handle();
            assert!(handle.stage("first").unwrap().wait_for(19, LONG));
            let begun = Instant::now();
            let stopped = way.stop_within(pipeline, limit);
            assert!(stopped.is_ok() || begun.elapsed() >= limit, "{stopped:?}");
            assert_eq!(handle.stage("second").unwrap().last_processed_index(), None);
            let ended = |name| handle.stage(name).unwrap().wait_end(LONG).is_some();
            assert!(["first", "second"].into_iter().all(ended), "{}", handle.status());
            stopped.is_ok()
        };
        assert!([2, 4, 60].map(Duration::from_secs).into_iter().any(stops_in_time));
        release.store(true, Ordering::SeqCst);
        let pipeline = started(Retry::none());
        let handle = pipeline.handle();
        way.run_to_head(pipeline).unwrap();
        assert_eq!(handle.stage("second").unwrap().last_processed_index(), Some(20));
    });
}

#[test]
fn a_misbuilt_pipeline_is_refused_and_stopped() {
    let jobs = numbers(3);
    let config = |error: Error| match error {
        Error::Config(config) => config,
        Error::Stage { source, .. } => match *source {
            Error::Config(config) => config,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let refused = |builder: waterline::PipelineBuilder<'_>| config(builder.start().unwrap_err());
    let stage = |fault, names: &[&str], why: &str| {
        let names = names.iter().map(|name| name.to_string()).collect();
        ConfigError::Stage { fault, names, why: why.to_owned() }
    };
    let none = stage("none", &[], "the pipeline has no stage: give it at least one");
    assert_eq!(refused(Pipeline::builder()), none);
    let fine = |stage: &waterline::Stage<'_>| stage.consumer(numbers(3), MemoryProgress::new()).start(|_| Ok(()));
    let twice = Pipeline::builder().stage("a", fine).stage("a", fine);
    let why = "two stages have the name \"a\": give each stage a name of its own";
    assert_eq!(refused(twice), stage("twice", &["a"], why));
    let progress = MemoryProgress::new();
    let unknown = Pipeline::builder()
        .stage("a", |stage| {
            stage.consumer(jobs.clone().gated_by(stage.after("b")?), MemoryProgress::new()).start(|_| Ok(()))
        })
        .stage("b", |stage| stage.consumer(jobs.clone(), progress.clone()).start(|_| Ok(())));
    let why = "no stage before \"a\" has the name \"b\": add the upstream stages first";
    assert_eq!(refused(unknown), stage("unknown", &["a", "b"], why));
    // The stage that had started was stopped, so its progress is free.
    Consumer::builder(jobs.clone(), progress).stop_at(2).start(|_| Ok(())).unwrap().join().unwrap();
    let foreign =
        Pipeline::builder().stage("a", |_| Consumer::builder(numbers(3), MemoryProgress::new()).start(|_| Ok(())));
    let why = "the stage \"a\" returned a consumer that was not made with `Stage::consumer`: call that instead of \
               `Consumer::builder`";
    assert_eq!(refused(foreign), stage("foreign", &["a"], why));
}

#[test]
fn a_stop_on_its_own_thread_only_asks() {
    in_each_way(|way| {
        let (give, given) = unbounded::<Pipeline>();
        let (tell, told) = unbounded();
        let jobs = MemoryJobs::new();
        let pipeline = Pipeline::builder()
            .stage("only", |stage| {
                stage.consumer(jobs.clone(), MemoryProgress::new()).start(move |_| {
                    let pipeline = given.recv_timeout(LONG)?;
                    tell.send(way.stop(pipeline))?;
                    Ok(())
                })
            })
            .start()
            .unwrap();
        let only = pipeline.handle().stage("only").unwrap();
        give.send(pipeline).unwrap();
        jobs.push(0);
        let outcome = told.recv_timeout(LONG).unwrap();
        assert!(matches!(outcome, Err(Error::Config(ConfigError::OwnThread))), "{outcome:?}");
        until(&only, "the end", |status| status.state == State::Finished);
    });
}

#[test]
fn a_stop_on_a_stages_thread_awaits_no_other() {
    for stop in [true, false] {
        let (give, given) = unbounded::<Pipeline>();
        let (tell, told) = unbounded();
        let (jobs, (worker, first)) = (numbers(1), manual_worker());
        let pipeline = Pipeline::builder()
            .stage("first", |stage| stage.consumer(jobs.clone(), MemoryProgress::new()).start_worker(worker))
            .stage("second", |stage| {
                stage.consumer(jobs.clone(), MemoryProgress::new()).start(move |_| {
                    let pipeline = given.recv_timeout(LONG)?;
                    if stop {
                        assert!(matches!(pipeline.stop(), Err(Error::Config(ConfigError::OwnThread))));
                    } else {
                        drop(pipeline);
                    }
                    Ok(tell.send(())?)
                })
            })
            .start()
            .unwrap();
        let handle = pipeline.handle();
        // This job finishes only after the stopping thread has returned from its call.
        let running = first.next();
        give.send(pipeline).unwrap();
        told.recv_timeout(LONG).expect("it is only asked to stop");
        running.succeed();
        for name in ["first", "second"] {
            until(&handle.stage(name).unwrap(), "the end", |status| status.state == State::Finished);
        }
    }
}

#[test]
fn a_parallel_stage_ends_where_the_first_did() {
    for stop_at in [Some(4), None] {
        let stream = || Script::up_to(Index::MAX - 1);
        let (worker, fetching) = manual_worker();
        let builder = stop_at.map_or_else(Pipeline::builder, |index| Pipeline::builder().stop_at(index));
        let pipeline = builder
            .stage("fetch", |stage| {
                stage.consumer(stream(), MemoryProgress::new()).max_processing(1).start_worker(worker)
            })
            .stage("check", |stage| stage.consumer(stream(), MemoryProgress::new()).start(|_| Ok(())))
            .stage("other", |stage| stage.consumer(numbers(100), MemoryProgress::new()).start(|_| Ok(())))
            .stage("index", |stage| {
                let behind = stream().gated_by(stage.after("fetch")?).gated_by(stage.after("check")?);
                stage.consumer(behind, MemoryProgress::new()).start(|_| Ok(()))
            })
            .start()
            .unwrap();
        let handle = pipeline.handle();
        (0..4).for_each(|_| fetching.next().succeed());
        // A stop would end this stage earlier.
        assert!(handle.stage("other").unwrap().wait_for(99, LONG));
        let (last, (tell, told)) = (fetching.next(), unbounded());
        std::thread::spawn(move || tell.send(if stop_at.is_some() { pipeline.join() } else { pipeline.stop() }));
        if stop_at.is_none() {
            until(&handle.stage("fetch").unwrap(), "the stop", |status| status.state == State::Stopping);
        }
        last.succeed();
        told.recv_timeout(LONG).expect("an end").unwrap();
        let last = |name| handle.stage(name).unwrap().last_processed_index();
        assert_eq!(["fetch", "other", "index"].map(last), [4, 99, 4].map(Some));
        assert!(last("check") >= Some(4));
    }
}

#[test]
fn the_lower_stop_at_of_pipeline_and_stage_holds() {
    let run = |pipeline: &[Index], stage: &[Index], end: &dyn Fn(Pipeline) -> Result<(), Error>| {
        let ran = Arc::new(AtomicU64::new(0));
        let count = ran.clone();
        let builder = pipeline.iter().fold(Pipeline::builder(), |builder, index| builder.stop_at(*index));
        let pipeline = builder
            .stage("only", move |only| {
                let consumer = only.consumer(numbers(100), MemoryProgress::new());
                stage.iter().fold(consumer, |consumer, index| consumer.stop_at(*index)).start(move |_| {
                    count.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                })
            })
            .start()?;
        end(pipeline).map(|()| ran.load(Ordering::SeqCst))
    };
    let join = &Pipeline::join;
    for (pipeline, stage) in [(&[10][..], &[50][..]), (&[50], &[10]), (&[10, 50], &[]), (&[], &[50, 10, 70])] {
        assert_eq!(run(pipeline, stage, join).unwrap(), 11, "{pipeline:?}, {stage:?}");
    }
    assert_eq!(run(&[10], &[50], &|pipeline| pipeline.run_to(70)).unwrap(), 11);
    assert_eq!(run(&[50], &[10], &Pipeline::run_to_head).unwrap(), 11);
    // `Index::MAX` is refused, even beside a lower index.
    for (pipeline, stage) in [(&[10][..], &[Index::MAX][..]), (&[Index::MAX], &[10])] {
        let error = run(pipeline, stage, join).unwrap_err().report();
        assert!(error.contains("leave `stop_at` out"), "{error}");
    }
}

#[test]
fn a_weight_may_ask_for_the_status_of_its_pipeline() {
    let (ask, asked) = unbounded::<waterline::PipelineHandle>();
    let pipeline = Pipeline::builder()
        .stage("only", |stage| {
            stage.weight(move |index| {
                index + asked.try_recv().map_or(0, |pipeline| pipeline.status().stages.len() as u64)
            });
            stage.consumer(numbers(10).gated_by(Watermark::new()), MemoryProgress::new()).start(|_| Ok(()))
        })
        .start()
        .unwrap();
    let handle = pipeline.handle();
    until(&handle.stage("only").unwrap(), "the head", |status| status.head == Some(9));
    ask.send(handle.clone()).unwrap();
    let (tell, told) = unbounded();
    std::thread::spawn(move || tell.send(handle.status()));
    assert_eq!(told.recv_timeout(LONG).expect("no lock is held").stages.len(), 1);
    assert!(ask.is_empty(), "the weight was asked for");
    pipeline.stop().unwrap();
}

#[test]
fn a_slow_second_stage_is_bounded_by_its_window() {
    // The log may grow. What is bounded are the jobs read from it and those done ahead.
    let (store, blocks) = (Store::in_memory(), numbers(2_000));
    let log = store.log::<u64>("middle").unwrap();
    let (worker, second) = manual_worker();
    let pipeline = Pipeline::builder()
        .stage("first", |stage| {
            stage.consumer(blocks.clone(), store.progress("first")).start_transactional(pushing(&log))
        })
        .stage("second", |stage| {
            let consumer = stage.consumer(log.clone(), store.progress("second"));
            consumer.max_processing(8).max_search_ahead(50).start_worker(worker)
        })
        .start()
        .unwrap();
    let handle = pipeline.handle();
    assert!(handle.stage("first").unwrap().wait_for(1_999, LONG));
    let second_handle = handle.stage("second").unwrap();
    let first = second.job(1);
    (1..50).for_each(|_| second.next().succeed());
    // The last look may have been before the last push.
    until(&second_handle, "the window", |status| {
        (status.processing, status.done_ahead, status.lag()) == (1, 49, 2_000)
    });
    assert_eq!((second_handle.status().next, second_handle.size()), (51, 50));
    first.succeed();
    std::thread::spawn(move || (50..2_000).for_each(|_| second.next().succeed()));
    pipeline.run_to_head().unwrap();
}

#[test]
fn a_stage_is_held_back_from_its_first_job_on() {
    for begin in [0, 50] {
        let store = Store::in_memory();
        let log = store.log::<u64>("middle").unwrap();
        let consumer = Consumer::builder(log.hold_back(numbers(1_000), 5), store.progress("first"))
            .max_search_ahead(20)
            .start_at(begin)
            .start_transactional(pushing(&log))
            .unwrap();
        let handle = consumer.handle();
        let full = Blocked::LogFull {
            index: begin + 5,
            log: "middle".to_owned(),
            items: 5,
            most: 5,
            behind: None,
            ended: false,
        };
        until(&handle, "the log", |status| status.blocked == full);
        assert_eq!((log.backlog(), handle.size()), (5, 0));
        consumer.stop().unwrap();
    }
}

#[test]
fn a_stage_is_held_back_while_its_log_is_full() {
    let (store, blocks) = (Store::in_memory(), numbers(1_000));
    let log = store.log::<u64>("middle").unwrap();
    let (worker, second) = manual_worker();
    let pipeline = Pipeline::builder()
        .stage("first", |stage| {
            stage
                .consumer(log.hold_back(blocks.clone(), 30), store.progress("first"))
                .max_search_ahead(20)
                .start_transactional(pushing(&log))
        })
        .stage("second", |stage| stage.consumer(log.clone(), store.progress("second")).start_worker(worker))
        .start()
        .unwrap();
    let handle = pipeline.handle();
    log.retain([handle.stage("second").unwrap()]);
    let first = handle.stage("first").unwrap();
    let full = Blocked::LogFull {
        index: 30,
        log: "middle".to_owned(),
        items: 30,
        most: 30,
        behind: Some("second".to_owned()),
        ended: false,
    };
    until(&first, "the log", |status| status.blocked == full);
    assert_eq!(log.backlog(), 30);
    let emptied = std::thread::spawn({
        let log = log.clone();
        move || {
            (0..1_000).for_each(|_| {
                second.next().succeed();
                assert!(log.backlog() <= 30, "{} items", log.backlog());
            });
        }
    });
    pipeline.run_to_head().unwrap();
    emptied.join().unwrap();
    assert_eq!(log.backlog(), 0);
    eventually("the trim", || log.first().unwrap() == 1_001);
}

#[test]
fn promise_04_a_parked_job_holds_back_no_earlier_stage() {
    let (store, blocks) = (Store::in_memory(), numbers(100));
    let log = store.log::<u64>("middle").unwrap();
    let pipeline = Pipeline::builder()
        .stage("first", |stage| {
            stage
                .consumer(log.hold_back(blocks.clone(), 10), store.progress("first"))
                .start_transactional(pushing(&log))
        })
        .stage("second", |stage| {
            let park = OnExhausted::Park { budget: 100 };
            let consumer = stage
                .consumer(log.clone(), store.progress("second"))
                .on_exhausted(park)
                .start(|job| if job.index % 7 == 5 { Err(Failure::permanent("poison").into()) } else { Ok(()) })?;
            log.retain([consumer.handle()]);
            Ok(consumer)
        })
        .start()
        .unwrap();
    let handle = pipeline.handle();
    assert!(handle.stage("second").unwrap().wait_for(100, LONG), "{}", handle.status());
    assert_eq!((handle.stage("second").unwrap().status().parked, log.backlog()), (14, 0));
    let info = || store.logs().unwrap().remove(0);
    eventually("the trim", || (info().first, info().parked) == (101, 14));
    pipeline.stop().unwrap();
}

#[test]
fn a_full_log_whose_reader_ended_is_named() {
    let (store, blocks) = (Store::in_memory(), numbers(100));
    let log = store.log::<u64>("middle").unwrap();
    let start = || Consumer::builder(log.clone(), store.progress("second")).start(|_| Ok(())).unwrap();
    let second = start();
    log.retain([second.handle()]);
    second.stop().unwrap();
    let first = Consumer::builder(log.hold_back(blocks, 10), store.progress("first"));
    let first = first.start_transactional(pushing(&log)).unwrap();
    let says = "job 10 is held back: the log \"middle\" is full, with 10 of 10 items not processed by \"second\", which has \
                ended; start it again";
    until(&first.handle(), "the end", |status| status.blocked.to_string() == says);
    // The next consumers that `retain` names make room.
    let second = start();
    log.retain([second.handle()]);
    assert!(first.handle().wait_for(99, LONG), "{}", first.handle().status());
    first.stop().unwrap();
    second.stop().unwrap();
}

#[test]
fn a_stage_that_needs_help_has_no_estimate() {
    let (worker, jobs) = manual_worker();
    let pipeline = Pipeline::builder()
        .stage("only", |stage| {
            stage.consumer(numbers(100), MemoryProgress::new()).max_processing(1).start_worker(worker)
        })
        .start()
        .unwrap();
    let (handle, only) = (pipeline.handle(), pipeline.handle().stage("only").unwrap());
    (0..5).for_each(|index| jobs.job(index).succeed());
    assert!(only.wait_for(4, LONG));
    let status = || handle.status().stages.remove(0);
    assert!(status().time_left.is_some_and(|left| left > Duration::ZERO), "{}", status());
    let last = jobs.job(5);
    only.pause();
    last.succeed();
    until(&only, "the pause", |status| status.blocked == Blocked::Paused);
    let paused = status();
    assert!(paused.jobs_per_second > 0.0 && paused.time_left.is_none(), "{paused}");
    pipeline.stop().unwrap();
}

#[cfg(feature = "tokio")]
#[test]
fn a_dropped_join_only_asks_all_stages_to_stop() {
    type Ends = fn(Pipeline) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Error>>>>;
    let ways: [Ends; 3] = [
        |pipeline| Box::pin(pipeline.join_async()),
        |pipeline| Box::pin(pipeline.stop_async()),
        |pipeline| Box::pin(pipeline.stop_within_async(LONG)),
    ];
    for (way, polls) in ways.into_iter().zip([0, 1, 1]) {
        let (store, blocks) = (Store::in_memory(), numbers(1));
        let log = store.log::<u64>("middle").unwrap();
        let (go, gate) = unbounded::<()>();
        let pipeline = Pipeline::builder()
            .stage("first", |stage| {
                stage.consumer(blocks.clone(), store.progress("first")).start_transactional(pushing(&log))
            })
            .stage("second", |stage| {
                stage.consumer(log.clone(), store.progress("second")).start(move |_| Ok(gate.recv_timeout(LONG)?))
            })
            .start()
            .unwrap();
        let handle = pipeline.handle();
        until(&handle.stage("second").unwrap(), "the job", |status| status.processing == 1);
        block_on(async {
            let mut future = way(pipeline);
            for _ in 0..polls {
                assert!(
                    future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_pending()
                );
            }
            // The job of the second stage still runs, and is not awaited.
            drop(future);
        });
        go.send(()).unwrap();
        for stage in ["first", "second"] {
            assert!(handle.stage(stage).unwrap().wait_end(LONG).is_some(), "{}", handle.status());
        }
    }
}
