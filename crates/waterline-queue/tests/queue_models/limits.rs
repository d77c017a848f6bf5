//! Random lives with limits: none is exceeded, and every job runs in the end.

use common::queues::{MILLI, SECOND, noon, open_anew};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;
use waterline::{Retry, Store};
use waterline_queue::{Accept, Clock, JobState, Lease, Limit, NewJob, Queue, QueueError, QueueOptions, Rate};

#[derive(Clone, Debug)]
enum Op {
    Push(u8, u8, u8, u8),
    Accept,
    Finish(usize),
    Retry(usize),
    Remove(u8),
    Move(u8, u16),
    Pass(u16),
    SetWall(i32),
    Reopen(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (0..30u8, 0..3u8, 0..3u8, 0..4u8).prop_map(|(id, kind, key, cost)| Op::Push(id, kind, key, cost)),
        6 => Just(Op::Accept),
        4 => any::<usize>().prop_map(Op::Finish),
        1 => any::<usize>().prop_map(Op::Retry),
        1 => (0..30u8).prop_map(Op::Remove),
        1 => (0..30u8, 0..3000u16).prop_map(|(id, delay)| Op::Move(id, delay)),
        2 => (0..2000u16).prop_map(Op::Pass),
        1 => (-5_000..5_000i32).prop_map(Op::SetWall),
        1 => (0..4usize).prop_map(Op::Reopen),
    ];
    prop::collection::vec(op, 1..120)
}

fn options(limits: usize) -> QueueOptions {
    let rate = Rate::new(5, SECOND).burst(3);
    let limits = match limits {
        0 => vec![Limit::each_key().at_once(1), Limit::kind("k0").at_once(2), Limit::queue().at_once(4)],
        1 => vec![Limit::each_key().rate(rate), Limit::kind("k0").at_once(1), Limit::kind("k1").rate(rate)],
        2 => vec![Limit::key("key0").at_once(2).rate(rate), Limit::queue().rate(rate)],
        _ => Vec::new(),
    };
    let options = QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(3));
    limits.into_iter().fold(options, QueueOptions::limit)
}

/// Asserts that no more jobs run than the limits allow.
fn check_running(limits: usize, running: &[Lease]) {
    let count = |is: &dyn Fn(&Lease) -> bool| running.iter().filter(|lease| is(lease)).count();
    if limits == 0 {
        assert!(running.len() <= 4);
        assert!(count(&|lease| lease.kind() == "k0") <= 2);
        for key in ["key0", "key1"] {
            assert!(count(&|lease| lease.key() == Some(key)) <= 1);
        }
    }
    assert!(limits != 1 || count(&|lease| lease.kind() == "k0") <= 1);
    assert!(limits != 2 || count(&|lease| lease.key() == Some("key0")) <= 2);
}

fn random_life(ops: &[Op]) {
    let store = Store::in_memory();
    let clock = Clock::manual(noon());
    let open = |limits: usize| open_anew(&store, &options(limits).clock(clock.clone()));
    let mut limits = 0;
    let mut queue = Some(open(limits));
    let mut running: Vec<Lease> = Vec::new();
    for op in ops {
        let now = queue.as_ref().unwrap();
        let pick = |n: usize| n % running.len().max(1);
        match *op {
            Op::Push(id, kind, key, cost) => {
                let job = NewJob::new(format!("k{kind}"), &()).unwrap().id(format!("j{id}"));
                let job = if key < 2 { job.key(format!("key{key}")) } else { job };
                drop(now.push(job.cost(1 + u32::from(cost))).unwrap());
            }
            Op::Accept => running.extend(now.accept(Accept::new()).unwrap()),
            Op::Finish(n) if !running.is_empty() => {
                let mut lease = running.remove(pick(n));
                assert!(matches!(lease.finish(None), Ok(_) | Err(QueueError::Halt { .. })));
            }
            Op::Retry(n) if !running.is_empty() => {
                let mut lease = running.remove(pick(n));
                assert!(matches!(lease.retry("it fails"), Ok(_) | Err(QueueError::Halt { .. })));
            }
            Op::Finish(_) | Op::Retry(_) => {}
            Op::Remove(id) => {
                let id = format!("j{id}");
                running.retain(|lease| lease.id() != id);
                assert!(matches!(now.remove(id), Ok(()) | Err(QueueError::NotFound { .. })));
            }
            Op::Move(id, delay) => {
                let job = NewJob::new("k0", &()).unwrap().id(format!("j{id}")).key("key0");
                drop(now.push(job.delay(u32::from(delay) * MILLI)).unwrap());
            }
            Op::Pass(millis) => clock.advance(u32::from(millis) * MILLI),
            Op::SetWall(by) => {
                let by = Duration::from_millis(u64::from(by.unsigned_abs()));
                clock.set_wall(if op_is_back(op) { noon() - by } else { noon() + by });
            }
            Op::Reopen(next) => {
                // A dropped lease gives its job back.
                running.clear();
                drop(queue.take());
                limits = next;
                queue = Some(open(limits));
            }
        }
        check_running(limits, &running);
        check_lists(queue.as_ref().unwrap());
    }
    running.clear();
    let queue = queue.unwrap();
    let left = || {
        let counts = queue.counts();
        counts.ready + counts.scheduled + counts.running
    };
    for _ in 0..300 {
        while let Some(mut lease) = queue.accept(Accept::new()).unwrap() {
            lease.finish(None).unwrap();
        }
        if left() == 0 {
            break;
        }
        clock.advance(SECOND);
    }
    assert_eq!(left(), 0, "{:?}", queue.status().unwrap());
    assert!(queue.list(JobState::Ready, None, 9).unwrap().is_empty());
}

fn op_is_back(op: &Op) -> bool {
    matches!(op, Op::SetWall(by) if *by < 0)
}

/// Asserts that each ready job is in one place, and counted once.
fn check_lists(queue: &Queue) {
    let listed = queue.list(JobState::Ready, None, usize::MAX).unwrap();
    let ids: BTreeSet<_> = listed.iter().map(|job| &job.id).collect();
    assert_eq!((ids.len(), queue.counts().ready), (listed.len(), listed.len() as u64));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: common::cases(200), max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn random_lives_keep_every_limit_and_run_every_job(ops in ops()) {
        random_life(&ops);
    }
}
