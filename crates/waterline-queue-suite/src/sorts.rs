//! Runners with a handler of each sort: a function, a deferred one, and a future; and those that
//! write, as a function and as a future.
#![allow(missing_docs, clippy::missing_panics_doc, reason = "only tests use it")]

use crate::bench::Bench;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use waterline::{BoxError, Effects};
use waterline_queue::{Finisher, Outcome, Runner, RunnerBuilder, Running};

/// Returns a runner with a handler of each sort, all of which answer by this function.
pub fn handlers(
    bench: &Bench,
    answer: impl Fn(&Running) -> Result<Outcome, BoxError> + Send + Sync + 'static,
) -> RunnerBuilder {
    let answer = Arc::new(move |job: &Running| {
        job.update(&7)?;
        job.progress(0.5, "half")?;
        answer(job)
    });
    let [deferred, function, future, awaited] = [(); 4].map(|()| answer.clone());
    let builder = Runner::builder(&bench.queue)
        .on("direct", move |job, ()| answer(job))
        .on_deferred("deferred", move |job, (), done: Finisher| {
            let answer = deferred.clone();
            std::thread::spawn(move || done.end(answer(&job)));
        })
        .on_transactional("transactional", move |job, (), _| function(job));
    let builder = awaiting(builder, "transactional future", move |job, (), _| future(job));
    #[cfg(feature = "tokio")]
    return builder.on_async("future", move |job, ()| {
        let answer = awaited.clone();
        async move { answer(&job) }
    });
    #[cfg(not(feature = "tokio"))]
    {
        drop(awaited);
        builder
    }
}

/// Runs jobs of this kind with a function that may also write. With the feature `tokio` it is
/// called by a future, which has the effects, and yields first.
pub fn awaiting<P: DeserializeOwned + Send + 'static>(
    builder: RunnerBuilder,
    kind: &str,
    handler: impl Fn(&Running, P, &mut Effects) -> Result<Outcome, BoxError> + Send + Sync + 'static,
) -> RunnerBuilder {
    #[cfg(feature = "tokio")]
    {
        let handler = Arc::new(handler);
        builder.on_transactional_async(kind, move |job, payload, mut effects| {
            let handler = handler.clone();
            async move {
                tokio::task::yield_now().await;
                let outcome = handler(&job, payload, &mut effects)?;
                Ok((outcome, effects))
            }
        })
    }
    #[cfg(not(feature = "tokio"))]
    builder.on_transactional(kind, handler)
}

/// Calls this in the context of a runtime, with the feature `tokio`.
pub fn in_a_runtime<R>(call: impl FnOnce() -> R) -> R {
    #[cfg(feature = "tokio")]
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    #[cfg(feature = "tokio")]
    let _context = runtime.enter();
    call()
}

pub fn for_each_sort(test: impl Fn(&str)) {
    let sorts = ["direct", "deferred", "transactional", "transactional future", "future"];
    in_a_runtime(|| sorts[..4 + usize::from(cfg!(feature = "tokio"))].iter().for_each(|sort| test(sort)));
}
