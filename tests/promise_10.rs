//! Promise 10: what was saved as done never runs again, also above the watermark, and also while there is none.

mod common;

use common::*;
use fastrand::Rng;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use waterline::testing::FaultyStore;
use waterline::{Builder, Consumer, Done, Error, Handle, Index, Jobs, Retry, State, Store, StoreProgress};

/// Jobs that are done when the test says so. A token that is dropped is a failed attempt.
#[derive(Clone, Default)]
struct Hand {
    tokens: Arc<Mutex<Vec<(Index, Done)>>>,
    started: Arc<Mutex<BTreeSet<Index>>>,
}

impl Hand {
    fn start<J: Jobs>(&self, builder: Builder<J, StoreProgress>) -> Result<Consumer, Error> {
        let hand = self.clone();
        builder.threads(1).start_deferred(move |job, done| {
            hand.started.lock().insert(job.index);
            hand.tokens.lock().push((job.index, done));
        })
    }

    /// One of the jobs in flight that may end.
    fn pick(&self, random: &mut Rng, stuck: &BTreeSet<Index>) -> Option<(Index, Done)> {
        let mut tokens = self.tokens.lock();
        let free: Vec<usize> = (0..tokens.len()).filter(|at| !stuck.contains(&tokens[*at].0)).collect();
        Some(tokens.swap_remove(random.choice(free)?))
    }

    /// The token of this job, once it runs.
    #[track_caller]
    fn token(&self, index: Index) -> Done {
        eventually("the job to start", || self.tokens.lock().iter().any(|(i, _)| *i == index));
        let mut tokens = self.tokens.lock();
        let at = tokens.iter().position(|(i, _)| *i == index).unwrap();
        tokens.swap_remove(at).1
    }

    fn started(&self) -> Vec<Index> {
        self.started.lock().iter().copied().collect()
    }

    /// Every job that runs, or will, fails.
    fn let_go(&self) {
        let tokens = std::mem::take(&mut *self.tokens.lock());
        drop(tokens);
    }
}

/// A life in which these jobs, all within the first `running`, finish, and the others do not; what it started.
#[track_caller]
fn life<J: Jobs>(builder: Builder<J, StoreProgress>, running: usize, done: &[Index]) -> Vec<Index> {
    let hand = Hand::default();
    let consumer = hand.start(builder.max_processing(running).retry(Retry::fixed(HOUR))).unwrap();
    let handle = consumer.handle();
    eventually("all of them run", || hand.tokens.lock().len() == running);
    handle.request_stop();
    let started = hand.started();
    done.iter().for_each(|index| hand.token(*index).complete());
    hand.let_go();
    consumer.stop().unwrap();
    assert_eq!(hand.started(), started, "a consumer that stops starts nothing");
    started
}

#[test]
fn promise_10_while_there_is_no_watermark_the_stream_begins_where_it_began() {
    type Plain = Builder<Script, StoreProgress>;
    let later: [(&str, fn(Plain) -> Plain); 5] = [
        ("not given", |b| b),
        ("given again", |b| b.start_at(100)),
        ("lower", |b| b.start_at(50)),
        ("among what is done", |b| b.start_after(103)),
        ("above what is done", |b| b.start_at(120)),
    ];
    for (what, set) in later {
        let store = Store::in_memory();
        let script = Script::up_to(200);
        let builder = || Consumer::builder(script.clone(), store.progress("p")).max_search_ahead(50);
        let first = life(builder().start_at(100), 6, &[102, 103, 105]);
        assert_eq!(first, [100, 101, 102, 103, 104, 105]);
        assert_eq!(store.progress("p").last_processed().unwrap(), None);
        let second = life(set(builder()), 4, &[106, 104]);
        assert_eq!(second, [100, 101, 104, 106], "start_at {what}");
        assert_eq!(store.progress("p").last_processed().unwrap(), None, "start_at {what}");
        let third = life(set(builder()), 3, &[100, 101]);
        assert_eq!(third, [100, 101, 107], "start_at {what}");
        assert_eq!(store.progress("p").last_processed().unwrap(), Some(106), "start_at {what}");
        assert_eq!(life(set(builder()), 1, &[]), [107], "start_at {what}");
    }
}
