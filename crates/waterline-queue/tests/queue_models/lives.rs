//! The suite's random lives on a crashing disk, read from outside the process as well.

use common::queues::Database;
use common::{seed, size};
use std::sync::Arc;
use waterline::testing::FaultyStore;
use waterline_queue_suite::QueueSuite;

#[test]
fn the_suites_random_lives_pass_on_a_crashing_disk() {
    common::watch();
    let lives: Vec<_> = QueueSuite::cases().filter(|case| case.contains("random_lives")).collect();
    assert!(lives.len() >= 4, "{lives:?}");
    let disk = || Database::Disk(Arc::new(FaultyStore::new().unwrap()));
    for case in lives {
        QueueSuite::on(disk).random_calls(size(600, 100_000), seed()).case(case);
    }
}

#[test]
fn random_lives_pass_on_failing_disks() {
    common::watch();
    QueueSuite::lives_on_disks_at_fault(size(2_000, 200_000), seed());
}
