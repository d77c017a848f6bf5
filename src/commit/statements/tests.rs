//! Jobs whose statements break a deferred constraint, in a database of parents and children.

use super::*;
use crate::base::Index;
use crate::base::sync::{AtomicU64, Mutex, Ordering, RwLock};
use crate::commit::{changes::Changes, draft::Draft, sql::Statements};
use crate::kv::statement::{SqlValue, Value};
use crate::kv::{double::Double, memory::MemoryKv};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A row, by its id. A parent has no parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    id: i64,
    parent: Option<i64>,
}

fn parent(id: i64) -> Row {
    Row { id, parent: None }
}

fn child(id: i64, parent: i64) -> Row {
    Row { id, parent: Some(parent) }
}

/// True if this child has its parent, as checked at the end.
fn is_kept(rows: &[Row], row: &Row) -> bool {
    row.parent.is_none_or(|parent| rows.iter().any(|row| *row == self::parent(parent)))
}

/// True if another parent, or another child, has the same id.
fn is_twin(rows: &[Row], row: &Row) -> bool {
    rows.iter().any(|other| (other.id, other.parent.is_some()) == (row.id, row.parent.is_some()))
}

#[derive(Default)]
struct Family {
    memory: MemoryKv,
    rows: Mutex<Vec<Row>>,
    looks: AtomicU64,
}

impl Double for Family {
    fn memory(&self) -> &MemoryKv {
        &self.memory
    }

    fn begin(&self, _synced: bool, _careful: bool) -> Result<Box<dyn Transaction + '_>, StoreError> {
        Ok(Box::new(Begun { of: self, rows: self.rows.lock().clone() }))
    }
}

struct Begun<'a> {
    of: &'a Family,
    rows: Vec<Row>,
}

impl Transaction for Begun<'_> {
    fn execute(&mut self, statement: &[u8]) -> Result<(), NotRun> {
        let read = Statement::decode(statement).unwrap();
        let number = |value: &Value<'_>| if let Value::Integer(number) = value { *number } else { panic!("{value:?}") };
        let row = Row { id: number(&read.values[0]), parent: read.values.get(1).map(number) };
        if is_twin(&self.rows, &row) {
            return Err(NotRun::Refused("it is there".into()));
        }
        self.rows.push(row);
        Ok(())
    }

    fn mark(&mut self) -> usize {
        self.rows.len()
    }

    fn go_back(&mut self, mark: usize) {
        self.rows.truncate(mark);
    }

    fn has_late_rules(&mut self) -> Result<bool, StoreError> {
        Ok(true)
    }

    fn keeps_the_rules(&mut self) -> Result<bool, StoreError> {
        self.of.looks.fetch_add(1, Ordering::Relaxed);
        Ok(self.rows.iter().all(|row| is_kept(&self.rows, row)))
    }

    fn commit(self: Box<Self>, _batch: &Batch) -> Result<(), NotCommitted> {
        *self.of.rows.lock() = self.rows;
        Ok(())
    }
}

/// A job that inserts all of these rows, or none.
fn job(rows: &[Row]) -> Changes {
    let mut changes = Changes::default();
    for Row { id, parent } in rows {
        let values: Vec<_> = [*id].into_iter().chain(*parent).map(SqlValue::Integer).collect();
        changes.refusable_op(Statements::participant(), Statement::encode("a row", &values, None));
    }
    changes
}

/// Appends a job per list of rows in the careful manner, and writes what is not refused. Returns
/// the refused jobs, how many checks of all rows it took to find them, and the rows.
fn appended(jobs: impl IntoIterator<Item = Vec<Row>>) -> (Vec<Index>, u64, Vec<Row>) {
    let (family, rows) = (Family::default(), RwLock::default());
    let mut draft = Draft::new(&family, &rows, Manner { synced: false, careful: true });
    let mut all = Changes::default();
    (0..).zip(jobs).for_each(|(index, rows)| all.append(&mut job(&rows), index, 1));
    let (mut refused, mut looks) = (Vec::new(), 0);
    loop {
        let more: Vec<_> = draft.append(std::slice::from_ref(&all)).unwrap().iter().map(|job| job.index).collect();
        if refused.is_empty() {
            looks = family.looks.load(Ordering::Relaxed);
        }
        if more.is_empty() {
            break;
        }
        all.take_out(&more);
        refused.extend(more);
    }
    draft.write(false).unwrap();
    drop(draft);
    refused.sort_unstable();
    let rows = std::mem::take(&mut *family.rows.lock());
    (refused, looks, rows)
}

#[test]
fn few_checks_find_the_job_that_breaks_a_rule() {
    const JOBS: i64 = 1_000;
    for bad in [vec![], vec![0], vec![499], vec![999], vec![3, 4, 500, 998], (0..20).map(|n| 50 * n).collect()] {
        let jobs = (0..JOBS).map(|id| vec![child(id, if bad.contains(&id) { -1 } else { -2 })]);
        let (refused, looks, rows) = appended([vec![parent(-2)]].into_iter().chain(jobs));
        assert!(refused.iter().map(|index| *index as i64 - 1).eq(bad.iter().copied()));
        assert_eq!(rows.len(), 1 + JOBS as usize - bad.len());
        // Among a thousand jobs, ten bisections lead to each. All are retried once.
        assert!(looks <= 2 + 20 * bad.len() as u64, "{looks} looks for {bad:?}");
    }
}

fn row() -> impl Strategy<Value = Row> {
    (0..8i64, prop::option::weighted(0.7, 0..8i64)).prop_map(|(id, parent)| Row { id, parent })
}

proptest! {
    /// The written rows keep the constraints, and no refused job could be written after them.
    #[test]
    fn only_jobs_that_break_a_rule_are_refused(
        jobs in prop::collection::vec(prop::collection::vec(row(), 1..4), 0..30),
    ) {
        let (refused, _, rows) = appended(jobs.clone());
        prop_assert!(rows.iter().all(|row| is_kept(&rows, row)));
        let refused: BTreeSet<_> = refused.into_iter().collect();
        for (index, job) in (0..).zip(&jobs) {
            if refused.contains(&index) {
                let all = [&rows[..], job].concat();
                let can_be = job.iter().enumerate().all(|(at, row)| !is_twin(&all[..rows.len() + at], row))
                    && job.iter().all(|row| is_kept(&all, row));
                prop_assert!(!can_be, "job {index} is refused, and could be written");
            } else {
                prop_assert!(job.iter().all(|row| rows.contains(row)), "job {index} is there whole");
            }
        }
        let written = jobs.len() - refused.len();
        prop_assert!(rows.len() >= written);
    }
}
