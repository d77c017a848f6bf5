//! A database in memory: rows and a counter of the user, and the progress of one name. Commits fail
//! on demand.

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use waterline::{
    BoxError, Checkpoint, CommitError, Error, Index, Progress, Record, SaveError, Saved, Tenure, Transactional,
};

/// What a transaction sees, and what is on the disk after it.
#[derive(Clone, Default)]
pub struct Content {
    /// How often each job has written its row.
    pub rows: BTreeMap<Index, u64>,
    pub count: u64,
    pub saved: Option<Saved>,
    pub records: BTreeMap<Vec<u8>, Vec<u8>>,
    pub token: u64,
    /// The number of jobs in each transaction that had some.
    pub batches: Vec<usize>,
}

impl Content {
    /// Asserts that exactly these jobs have their row, each once, and that the counter agrees.
    #[track_caller]
    pub fn assert_exact(&self, jobs: impl IntoIterator<Item = Index>) {
        let wanted: BTreeMap<_, _> = jobs.into_iter().map(|index| (index, 1)).collect();
        assert_eq!(self.rows, wanted);
        assert_eq!(self.count, wanted.len() as u64);
    }

    /// Returns the parked jobs with the number of their attempts.
    pub fn parked(&self) -> Vec<(Index, u32)> {
        let records = self.records.iter().map(|(key, value)| Record::new(key, Some(value)));
        records.filter_map(|record| record.parked()).map(|parked| (parked.index, parked.attempts)).collect()
    }

    fn keep(&mut self, saved: &Saved) {
        for record in &saved.records {
            match &record.value {
                Some(value) => self.records.insert(record.key.clone(), value.clone()),
                None => self.records.remove(&record.key),
            };
        }
        let rest = saved.clone();
        self.saved = Some(Saved::new(rest.last_processed, rest.next, rest.done));
    }
}

/// A transaction, which is rolled back unless it is committed.
pub struct Tx<'t>(pub &'t mut Content);

impl Tx<'_> {
    pub fn write<R>(&mut self, results: &[(Index, R)]) {
        for (index, _) in results {
            *self.0.rows.entry(*index).or_default() += 1;
            self.0.count += 1;
        }
        self.0.batches.push(results.len());
    }
}

/// How a commit with jobs fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails before anything is written.
    Retry,
    /// The connection is lost once it was sent, and the engine finds out whether it was written.
    AnswerLost {
        written: bool,
    },
    /// The same, and the engine cannot find out.
    Lost {
        written: bool,
    },
    Panic {
        written: bool,
    },
    /// It forgets to call `write`, and succeeds.
    Forgets,
    /// It ignores the error of `write`, and succeeds.
    Swallows,
    /// It calls `write` twice, in two transactions.
    Twice,
    /// The process dies: nothing is written from then on.
    Dies {
        written: bool,
    },
}

#[derive(Default)]
struct State {
    content: Content,
    faults: VecDeque<Fault>,
    /// Whether the process has died: nothing of this life reaches the disk any more.
    dead: bool,
    /// With it, commits say that they are about to be written, and wait.
    slow: Option<(Sender<()>, Receiver<()>)>,
    tenure: Option<Tenure>,
    /// Whether another process has the name.
    held: bool,
}

#[derive(Clone, Default)]
pub struct Database(Arc<Mutex<State>>);

/// The progress of one life.
pub struct Engine {
    database: Database,
    token: u64,
    done_ahead: bool,
    records: bool,
}

impl Database {
    pub fn engine(&self) -> Engine {
        self.0.lock().dead = false;
        Engine { database: self.clone(), token: 0, done_ahead: true, records: false }
    }

    /// Returns an engine that keeps only the watermark.
    pub fn in_order(&self) -> Engine {
        Engine { done_ahead: false, ..self.engine() }
    }

    pub fn content(&self) -> Content {
        self.0.lock().content.clone()
    }

    pub fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.0.lock().faults.extend(faults);
    }

    pub fn heal(&self) {
        self.0.lock().faults.clear();
    }

    /// Keeps the rows of a transaction in spite of its rollback.
    pub fn leave(&self, tx: &Tx<'_>) {
        self.0.lock().content.rows.clone_from(&tx.0.rows);
    }

    /// Makes each commit with jobs announce itself, and wait for an answer.
    pub fn slow(&self) -> (Receiver<()>, Sender<()>) {
        let ((say, said), (go, gone)) = (unbounded(), bounded(0));
        self.0.lock().slow = Some((say, gone));
        (said, go)
    }

    /// Puts a record, as a tool does while no consumer has the name.
    pub fn put_record(&self, record: &Record) {
        let value = record.value.clone().expect("it is put");
        self.0.lock().content.records.insert(record.key.clone(), value);
    }

    /// Gives the name to another process, or takes it back.
    pub fn hold(&self, held: bool) {
        self.0.lock().held = held;
    }

    pub fn tenure(&self) -> Tenure {
        self.0.lock().tenure.clone().expect("a consumer has started")
    }

    #[track_caller]
    pub fn assert_exact(&self, jobs: impl IntoIterator<Item = Index>) {
        self.content().assert_exact(jobs);
    }
}

impl Engine {
    #[must_use]
    pub fn keeping_records(self) -> Self {
        Self { records: true, ..self }
    }

    fn lost(&self, content: &Content) -> Option<BoxError> {
        (self.token != content.token || self.token == 0).then(|| format!("life {} has it", content.token).into())
    }
}

impl Progress for Engine {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        Ok(self.acquire_all()?.and_then(|saved| saved.last_processed).map(Checkpoint::new))
    }

    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
        Ok(self.save_all(&Saved::from(*checkpoint))?)
    }

    fn keeps_done_ahead(&self) -> bool {
        self.done_ahead
    }

    fn keeps_records(&self) -> bool {
        self.records
    }

    fn acquire_all(&mut self) -> Result<Option<Saved>, Error> {
        let State { content, held, .. } = &mut *self.database.0.lock();
        if *held {
            let (name, holder) = ("balances".to_owned(), "another node".to_owned());
            return Err(Error::Leased { name, holder, expires_in: Duration::ZERO });
        }
        content.token += 1;
        self.token = content.token;
        let mut saved = content.saved.clone();
        if let Some(saved) = &mut saved {
            saved.records = content.records.iter().map(|(key, value)| Record::new(key, Some(value))).collect();
        }
        Ok(saved)
    }

    fn save_all(&mut self, saved: &Saved) -> Result<(), SaveError> {
        Ok(self.commit(saved, &mut |_| Ok(()))?)
    }

    fn label(&self) -> Option<String> {
        Some("balances".to_owned())
    }

    fn fence(&self) -> u64 {
        self.token
    }

    fn subscribe(&mut self, tenure: Tenure) {
        self.database.0.lock().tenure = Some(tenure);
    }
}

impl Transactional for Engine {
    type Tx<'t> = Tx<'t>;

    fn commit(
        &mut self,
        saved: &Saved,
        write: &mut (dyn FnMut(&mut Tx<'_>) -> Result<(), BoxError> + Send),
    ) -> Result<(), CommitError> {
        let before = self.database.content();
        if let Some(lost) = self.lost(&before) {
            return Err(CommitError::Lost(lost));
        }
        let mut content = before.clone();
        let written = write(&mut Tx(&mut content));
        let has_jobs = content.batches.len() > before.batches.len();
        let fault = {
            let mut state = self.database.0.lock();
            if state.dead {
                return Err(CommitError::Retry("the process has died".into()));
            }
            if has_jobs { state.faults.pop_front() } else { None }
        };
        let slow = self.database.0.lock().slow.clone().filter(|_| has_jobs);
        if let Some((say, go)) = slow {
            let _ = say.send(());
            let _ = go.recv();
        }
        if fault == Some(Fault::Forgets) {
            content = before.clone();
        } else if let Err(error) = written
            && fault != Some(Fault::Swallows)
        {
            return Err(CommitError::Write(error));
        }
        if fault == Some(Fault::Twice) {
            content = before.clone();
            write(&mut Tx(&mut content)).map_err(CommitError::Write)?;
        }
        content.keep(saved);
        let mut state = self.database.0.lock();
        if let Some(lost) = self.lost(&state.content) {
            return Err(CommitError::Lost(lost));
        }
        let mut keep = |written: bool| {
            if written {
                state.content = content.clone();
            }
        };
        match fault {
            None | Some(Fault::Forgets | Fault::Swallows | Fault::Twice) => keep(true),
            Some(Fault::Retry) => return Err(CommitError::Retry("the disk is full".into())),
            Some(Fault::AnswerLost { written }) => {
                keep(written);
                if !written {
                    return Err(CommitError::Retry("the connection was lost before the commit".into()));
                }
            }
            Some(Fault::Lost { written }) => {
                keep(written);
                return Err(CommitError::Lost("the connection was lost, and nobody answers".into()));
            }
            Some(Fault::Panic { written }) => {
                keep(written);
                drop(state);
                panic!("the engine is broken");
            }
            Some(Fault::Dies { written }) => {
                keep(written);
                state.dead = true;
                return Err(CommitError::Retry("the process has died".into()));
            }
        }
        Ok(())
    }
}
