//! The suite of queues, on the store of this build and on the model.

use waterline::Store;
use waterline_queue::{Queue, QueueError};
use waterline_queue_suite::QueueSuite;

mod on_the_store {
    use super::*;
    use common::queues::built;

    fn suite() -> QueueSuite<'static> {
        QueueSuite::new(|| {
            let database = built();
            move |name: &str, options| database.open(name, options)
        })
    }

    waterline_queue_suite::queue_suite!(suite());
}

mod on_the_model {
    use super::*;
    use common::queues::Database;
    use waterline_queue::testing::QueueModel;

    fn suite() -> QueueSuite<'static> {
        common::watch();
        QueueSuite::on(|| Database::Model(QueueModel::new()))
    }

    waterline_queue_suite::queue_suite!(suite());
}

#[test]
#[should_panic(expected = "assertion")]
fn a_database_that_forgets_its_queues_fails() {
    let suite = QueueSuite::new(|| |name: &str, options| Queue::open(&Store::in_memory(), name, options));
    suite.case("q20_the_last_tick_is_never_forgotten");
}

#[test]
fn a_run_names_each_case_that_fails() {
    let full = || QueueError::Full { queue: "q".to_owned(), max_waiting: 0 };
    let suite = QueueSuite::new(|| move |_: &str, _| Err(full()));
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| suite.run())).unwrap_err();
    let told = told.downcast_ref::<String>().unwrap();
    let lost: Vec<_> = QueueSuite::cases().filter(|case| !told.contains(case)).collect();
    assert!(told.starts_with(&format!("{0} of {0} cases failed", QueueSuite::cases().count())), "{told}");
    assert_eq!(lost, [""; 0]);
}
