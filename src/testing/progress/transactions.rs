//! The rules for records, and for a progress that shares a transaction with its user.

use super::{ANSWERS, ProgressSuite, Ways};
use crate::base::{BoxError, Index, sync::Arc};
use crate::progress::{CommitError, Progress, Record, SaveError, Saved, Tenure, Transactional};
use crate::testing::{Answer, Checked, ask, broken, insist, unboxed};
use std::collections::BTreeSet;

const RECORDS: &str = "the records that were put and not removed are loaded, byte by byte";
const TOGETHER: &str = "a transaction has the user's rows, the save and its records, or none of them";
const ROLLED_BACK: &str = "a write that fails is CommitError::Write, and leaves nothing";
const FENCED: &str = "a commit of a life that has lost the name is CommitError::Lost, and leaves nothing";

/// The key of a record, and its new value.
type Row<'a> = (&'a [u8], Option<&'a [u8]>);

/// Writes a row of the user.
type Write<'a, P> = dyn Fn(&mut <P as Transactional>::Tx<'_>, &str, u64) -> Result<(), BoxError> + Send + Sync + 'a;

impl<'a, P: Progress> ProgressSuite<'a, P> {
    pub(super) fn records_are_kept(&self) -> Checked {
        if !(self.open)("records").keeps_records() {
            return Ok(());
        }
        let save = |progress: &mut P, saved: &Saved| {
            ask(|| progress.save_all(saved).map_err(unboxed)).good(ANSWERS, || "save_all() with records".to_owned())
        };
        self.keep_records("records", RECORDS, save)
    }

    /// Puts, replaces and removes records, with a new life after each save.
    fn keep_records(&self, name: &str, rule: &'static str, mut save: impl FnMut(&mut P, &Saved) -> Checked) -> Checked {
        let bytes: Vec<u8> = (0..=255).cycle().take(5_000).collect();
        let saves: [&[Row<'_>]; 4] = [
            &[(b"l", Some(b"")), (b"p\0\0\0\0\0\0\0\x01", Some(&bytes)), (b"p\xff\0\xff\0\xff\0\xff\0", Some(b"a"))],
            &[(b"l", Some(b"replaced"))],
            &[(b"p\xff\0\xff\0\xff\0\xff\0", None), (b"p\0\0\0\0\0\0\0\x02", Some(b"b"))],
            &[(b"p\0\0\0\0\0\0\0\x02", None), (b"p\0\0\0\0\0\0\0\x03", None)],
        ];
        let mut wanted = std::collections::BTreeMap::new();
        for (last, records) in (3..).zip(saves) {
            let mut progress = (self.open)(name);
            self.load(&mut progress, rule)?;
            let mut saved = Saved::new(Some(last), last + 1, Vec::new());
            for (key, value) in records {
                saved.records.push(Record::new(key, *value));
                match value {
                    Some(value) => wanted.insert(key.to_vec(), value.to_vec()),
                    None => wanted.remove(*key),
                };
            }
            save(&mut progress, &saved)?;
            drop(progress);
            let loaded = self.load(&mut (self.open)(name), rule)?;
            insist(loaded.as_ref().and_then(|saved| saved.last_processed) == Some(last), rule, || {
                format!("the watermark {last} was saved with records, and is not loaded")
            })?;
            let rows = loaded.into_iter().flat_map(|saved| saved.records);
            let rows: Vec<_> = rows.map(|record| (record.key, record.value.unwrap_or_default())).collect();
            let mut sorted = rows.clone();
            sorted.sort();
            insist(sorted.iter().cloned().eq(wanted.clone()), rule, || {
                format!("{} records are loaded, and {} were kept", rows.len(), wanted.len())
            })?;
        }
        Ok(())
    }

    /// Takes the name and loads everything, as a consumer with records does.
    fn load(&self, progress: &mut P, rule: &'static str) -> Checked<Option<Saved>> {
        let loaded = ask(|| {
            progress.subscribe(Tenure::new());
            progress.acquire_all().map_err(Into::into)
        });
        loaded.good(rule, || "acquire_all()".to_owned())
    }
}

impl<'a, P: Transactional> ProgressSuite<'a, P> {
    /// Also checks the rules of [`Transactional`].
    ///
    /// The first closure writes a row of the user: this number, in a place for this name. The
    /// second reads all such numbers of the name, outside of any transaction.
    pub fn transactional(
        mut self,
        write: impl Fn(&mut P::Tx<'_>, &str, u64) -> Result<(), BoxError> + Send + Sync + 'a,
        rows: impl Fn(&str) -> BTreeSet<u64> + 'a,
    ) -> Self {
        let write: Arc<Write<'a, P>> = Arc::new(write);
        self.transactions = Some(Box::new(move |suite| suite.transactions(&*write, &rows)));
        self
    }

    fn transactions(&self, write: &Write<'a, P>, rows: &dyn Fn(&str) -> BTreeSet<u64>) -> Checked {
        const NAME: &str = "transactions";
        let shown = |rule: &'static str, wanted: &[u64], last: Option<Index>| {
            let found: Vec<u64> = rows(NAME).into_iter().collect();
            insist(found == wanted, rule, || format!("the rows are {found:?}, and {wanted:?} were committed"))?;
            let loaded = self.load(&mut (self.open)(NAME), rule)?.and_then(|saved| saved.last_processed);
            insist(loaded == last, rule, || format!("{loaded:?} is loaded, and {last:?} was committed last"))
        };
        for row in 1..=3 {
            let mut one = (self.open)(NAME);
            self.load(&mut one, TOGETHER)?;
            good(TOGETHER, &mut one, 10 * row, &mut |tx| write(tx, NAME, row))?;
            drop(one);
            shown(TOGETHER, &(1..=row).collect::<Vec<_>>(), Some(10 * row))?;
        }
        let mut one = (self.open)(NAME);
        self.load(&mut one, ROLLED_BACK)?;
        let outcome = commit(&mut one, 90, &mut |tx| {
            write(tx, NAME, 90)?;
            Err("the write fails".into())
        });
        match outcome {
            Answer::Good(Err(CommitError::Write(_))) => {}
            Answer::Good(other) => broken(ROLLED_BACK, format!("it was {other:?}"))?,
            Answer::Failed(how) | Answer::Panicked(how) => broken(ROLLED_BACK, format!("the commit {how}"))?,
        }
        // The connection is still alive.
        good(ROLLED_BACK, &mut one, 40, &mut |tx| write(tx, NAME, 4))?;
        drop(one);
        shown(ROLLED_BACK, &[1, 2, 3, 4], Some(40))?;
        self.keep_records("transactions-records", TOGETHER, |progress, saved| {
            let commit = || progress.commit(saved, &mut |_| Ok(())).map_err(|error| SaveError::from(error).into());
            ask(commit).good(TOGETHER, || "commit() with records".to_owned())
        })?;
        self.a_late_commit_changes_nothing(write, rows)
    }

    fn a_late_commit_changes_nothing(&self, write: &Write<'a, P>, rows: &dyn Fn(&str) -> BTreeSet<u64>) -> Checked {
        const NAME: &str = "transactions-late";
        let mut old = (self.open)(NAME);
        self.load(&mut old, FENCED)?;
        good(FENCED, &mut old, 3, &mut |tx| write(tx, NAME, 1))?;
        match &self.ways {
            Ways::Exclusive => return Ok(()),
            Ways::TakesOver => {}
            Ways::Lapses(lapse) => lapse(NAME),
        }
        let mut new = (self.open)(NAME);
        self.load(&mut new, FENCED)?;
        match commit(&mut old, 9, &mut |tx| write(tx, NAME, 2)) {
            Answer::Good(Err(CommitError::Lost(_))) => {}
            Answer::Good(other) => broken(FENCED, format!("it was {other:?}"))?,
            Answer::Failed(how) | Answer::Panicked(how) => broken(FENCED, format!("the commit {how}"))?,
        }
        good(FENCED, &mut new, 5, &mut |tx| write(tx, NAME, 3))?;
        drop((old, new));
        let found = rows(NAME);
        insist(found == BTreeSet::from([1, 3]), FENCED, || format!("the rows are {found:?}"))
    }
}

type InTransaction<'a, P> = &'a mut (dyn FnMut(&mut <P as Transactional>::Tx<'_>) -> Result<(), BoxError> + Send);

fn commit<P: Transactional>(
    progress: &mut P,
    last: Index,
    write: InTransaction<'_, P>,
) -> Answer<Result<(), CommitError>> {
    let saved = Saved::new(Some(last), last + 1, Vec::new());
    ask(|| Ok(progress.commit(&saved, write)))
}

fn good<P: Transactional>(rule: &'static str, progress: &mut P, last: Index, write: InTransaction<'_, P>) -> Checked {
    match commit(progress, last, write) {
        Answer::Good(Ok(())) => Ok(()),
        Answer::Good(Err(error)) => broken(rule, format!("a commit failed: {error}")),
        Answer::Failed(how) | Answer::Panicked(how) => broken(rule, format!("a commit {how}")),
    }
}
