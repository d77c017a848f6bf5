//! What the driver and the programs say to each other, and what must be the same in all programs.
//!
//! The shared parts are the work of a job, the progress that a user would add by hand, and the
//! record of the jobs that ran. The driver starts a program with words like `question=stream`, and
//! the program answers with one line of such words: `wall=… cpu=…` in nanoseconds for the whole
//! run, `p50=… p99=…` for latencies, or `none=` and the reason. With the word `about` it prints a
//! line for each of its columns: the name, and its version with its settings.

use cpu_time::ProcessTime;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The width of the window where a program has one: the default of waterline.
pub const WINDOW: u64 = 10_000;

/// The time between two saves of the progress: that of waterline.
pub const PACE: Duration = Duration::from_millis(1);

/// The question, as the driver asks it.
#[derive(Debug)]
pub struct Question(BTreeMap<String, String>);

/// The answer of a program.
#[derive(Debug)]
pub enum Answer {
    /// The time and the CPU time of all jobs: that of the program, or that of its server.
    Time { wall: Duration, cpu: Duration },
    /// The time of each job, which waited for no other one, and the CPU time of all.
    Latencies { each: Vec<Duration>, cpu: Duration },
    /// There is no answer, for this reason.
    None(&'static str),
}

/// The work of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Nothing,
    /// This many iterations of [`spin`].
    Spin(u64),
    /// A wait of a millisecond.
    Sleep,
}

/// The end of a run of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Plain,
    /// The first job ends after all others.
    Stuck,
    /// The results of the jobs come out in order.
    Ordered,
}

/// Answers the question of the driver. `about` has the columns, and what each is.
pub fn answer(about: &[(&str, String)], answer: impl FnOnce(&Question) -> Answer) -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if words == ["about"] {
        about.iter().for_each(|(column, text)| println!("{column}\t{text}"));
        return ExitCode::SUCCESS;
    }
    let words = words.iter().filter_map(|word| word.split_once('='));
    let question = Question(words.map(|(key, value)| (key.to_owned(), value.to_owned())).collect());
    match answer(&question) {
        Answer::Time { wall, cpu } => println!("wall={} cpu={}", wall.as_nanos(), cpu.as_nanos()),
        Answer::Latencies { mut each, cpu } => {
            each.sort_unstable();
            let at = |percent: usize| each[(each.len() - 1) * percent / 100].as_nanos();
            let wall: Duration = each.iter().sum();
            println!("wall={} cpu={} p50={} p99={}", wall.as_nanos(), cpu.as_nanos(), at(50), at(99));
        }
        Answer::None(reason) => println!("none={reason}"),
    }
    ExitCode::SUCCESS
}

impl Question {
    /// Returns the word with this key, or nothing.
    pub fn word(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    /// Returns the number with this key, or 0.
    pub fn number(&self, key: &str) -> u64 {
        self.word(key).parse().unwrap_or_default()
    }

    pub fn jobs(&self) -> u64 {
        self.number("jobs")
    }

    pub fn in_flight(&self) -> usize {
        self.number("in_flight") as usize
    }

    /// Returns the port of the Redis server of this run, on the loopback.
    pub fn port(&self) -> u16 {
        self.word("port").parse().unwrap_or_default()
    }

    /// Returns the address of this server.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// Returns the empty directory of this run. A second life gets that of the first.
    pub fn directory(&self) -> PathBuf {
        PathBuf::from(self.word("directory"))
    }

    pub fn shape(&self) -> Shape {
        match self.word("shape") {
            "stuck" => Shape::Stuck,
            "ordered" => Shape::Ordered,
            _ => Shape::Plain,
        }
    }

    pub fn work(&self) -> Work {
        match self.word("work") {
            "spin" => Work::Spin(self.number("iterations")),
            "sleep" => Work::Sleep,
            _ => Work::Nothing,
        }
    }
}

/// Measures the elapsed time and the CPU time of this call.
pub fn timed(run: impl FnOnce()) -> Answer {
    let (wall, cpu) = (Instant::now(), ProcessTime::now());
    run();
    Answer::Time { wall: wall.elapsed(), cpu: cpu.elapsed() }
}

/// Measures the elapsed time of this call, and the CPU time of the Redis server on this port.
pub fn served(port: u16, run: impl FnOnce()) -> Answer {
    let (cpu, wall) = (used(port), Instant::now());
    run();
    let wall = wall.elapsed();
    Answer::Time { wall, cpu: used(port).saturating_sub(cpu) }
}

/// Returns the CPU time that the Redis server on this port has used: that of all its threads.
fn used(port: u16) -> Duration {
    let mut said = String::new();
    let mut ask = || {
        let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        server.write_all(b"INFO cpu\r\nQUIT\r\n")?;
        server.read_to_string(&mut said)
    };
    ask().expect("the server runs");
    let seconds = |name: &str| -> Option<f64> { said.split_once(name)?.1.split_whitespace().next()?.parse().ok() };
    let both = seconds("used_cpu_sys:").zip(seconds("used_cpu_user:"));
    both.map(|(sys, user)| Duration::from_secs_f64(sys + user)).expect("INFO has the CPU time")
}

/// Measures this many calls, each of which ends once its effect is seen.
pub fn each_timed(times: u64, mut call: impl FnMut(u64)) -> Answer {
    each_prepared(times, |_| (), |number, ()| call(number))
}

/// Does the same with a value for each call that is made before the clock starts.
pub fn each_prepared<T>(times: u64, mut make: impl FnMut(u64) -> T, mut call: impl FnMut(u64, T)) -> Answer {
    let cpu = ProcessTime::now();
    let each = (0..times).map(|number| {
        let made = make(number);
        // Without a rest the threads would still be awake.
        rest(Duration::from_micros(500));
        let begun = Instant::now();
        call(number, made);
        begun.elapsed()
    });
    let each = each.collect();
    Answer::Latencies { each, cpu: cpu.elapsed() }
}

/// Computes this many iterations, each of which needs the result of the one before.
#[inline(never)]
pub fn spin(iterations: u64) -> u64 {
    let mut state = black_box(iterations);
    for _ in 0..iterations {
        state = black_box(state).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    }
    state
}

/// Waits this long.
pub fn rest(time: Duration) {
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        std::thread::park_timeout(left);
    }
}

/// All that a job does, for programs whose jobs have a thread.
#[derive(Debug)]
pub struct Task {
    pub work: Work,
    /// The job that waits for all others, if one does.
    stuck: bool,
    /// The job that never ends, if there is one.
    hangs: Option<u64>,
    jobs: u64,
    done: AtomicU64,
    marks: Option<File>,
}

impl Task {
    pub fn of(question: &Question) -> Arc<Self> {
        let marks = (!question.word("marks").is_empty())
            .then(|| File::create(question.word("marks")).expect("the driver made the directory"));
        Arc::new(Self {
            work: question.work(),
            stuck: question.shape() == Shape::Stuck,
            hangs: question.word("hangs").parse().ok(),
            jobs: question.jobs(),
            done: AtomicU64::new(0),
            marks,
        })
    }

    /// Runs this job.
    pub fn run(&self, index: u64) {
        while self.is_held(index) {
            rest(Duration::from_micros(100));
        }
        match self.work {
            Work::Nothing => _ = black_box(index),
            Work::Spin(iterations) => _ = black_box(spin(iterations)),
            Work::Sleep => rest(Duration::from_millis(1)),
        }
        self.ran(index);
    }

    /// True if this job may not end yet.
    pub fn is_held(&self, index: u64) -> bool {
        self.stuck && index == 0 && self.done.load(Ordering::Relaxed) < self.jobs - 1 || self.hangs == Some(index)
    }

    /// Records that this job did its work.
    pub fn ran(&self, index: u64) {
        if self.stuck {
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(marks) = &self.marks {
            marks.write_all_at(&[1], index).expect("the disk takes it");
        }
    }
}

/// The finished jobs: the lowest one that is missing, and a set of those above it.
#[derive(Debug, Default)]
pub struct Finished {
    watermark: u64,
    above: BTreeSet<u64>,
}

impl Finished {
    pub fn from(watermark: u64) -> Self {
        Self { watermark, above: BTreeSet::new() }
    }

    /// Records a job, and returns the lowest index that is not done.
    pub fn note(&mut self, index: u64) -> u64 {
        if index == self.watermark {
            self.watermark += 1;
            while self.above.remove(&self.watermark) {
                self.watermark += 1;
            }
        } else {
            self.above.insert(index);
        }
        self.watermark
    }

    pub fn watermark(&self) -> u64 {
        self.watermark
    }
}

/// Results that come out in order, and the check that they do.
#[derive(Debug, Default)]
pub struct InOrder {
    next: u64,
    waiting: BTreeMap<u64, u64>,
    sum: u64,
}

/// The result of a job.
pub fn result(index: u64) -> u64 {
    index.wrapping_mul(3)
}

impl InOrder {
    pub fn from(next: u64) -> Self {
        Self { next, ..Self::default() }
    }

    /// Takes the next result.
    pub fn take(&mut self, index: u64, result: u64) {
        assert_eq!(index, self.next, "results are in order");
        self.sum = black_box(self.sum.wrapping_add(result));
        self.next += 1;
    }

    /// Takes a result once its turn has come. Returns the lowest index without one.
    pub fn put(&mut self, index: u64, result: u64) -> u64 {
        if index == self.next {
            self.take(index, result);
            while let Some(result) = self.waiting.remove(&self.next) {
                self.take(self.next, result);
            }
        } else {
            self.waiting.insert(index, result);
        }
        self.next
    }
}

/// The durable progress that a user adds by hand: a file with the watermark, written by a thread
/// every millisecond. It is the least that outlives the process: nothing is flushed.
#[derive(Debug)]
pub struct Saved {
    watermark: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Saved {
    /// Resumes the progress in this directory, and returns the first index that is not done.
    pub fn open(directory: &Path) -> (Self, u64) {
        let mut options = File::options();
        options.create(true).truncate(false).read(true).write(true);
        let file = options.open(directory.join("watermark")).expect("the driver made the directory");
        let mut bytes = [0; 8];
        let first = file.read_exact_at(&mut bytes, 0).map_or(0, |()| u64::from_le_bytes(bytes));
        let (watermark, over) = (Arc::new(AtomicU64::new(first)), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (watermark, over) = (watermark.clone(), over.clone());
            std::thread::spawn(move || {
                let mut saved = first;
                loop {
                    let last = over.load(Ordering::Acquire);
                    let now = watermark.load(Ordering::Acquire);
                    if now > saved {
                        file.write_all_at(&now.to_le_bytes(), 0).expect("the disk takes it");
                        saved = now;
                    }
                    if last {
                        break;
                    }
                    std::thread::park_timeout(PACE);
                }
            })
        };
        (Self { watermark, over, thread: Some(thread) }, first)
    }

    /// Records that all jobs below this index are done.
    pub fn set(&self, watermark: u64) {
        self.watermark.store(watermark, Ordering::Release);
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            thread.join().expect("it does not panic");
        }
    }
}
