//! A thread that pushes, whatever happens to its server. A push that failed is made again for those
//! jobs that are not there.

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use waterline_queue::{NewJob, PushOutcome, Queue, Unique};

/// The jobs that were pushed.
#[derive(Default)]
pub struct Pushed {
    next: u64,
    /// The ids of the added jobs, and what is the same in all twins of a unique one.
    pub added: BTreeMap<String, Option<String>>,
    /// Each of these waits for two others.
    pub after: Vec<(String, [String; 2])>,
}

pub struct Pusher {
    tens: Sender<u64>,
    pushes: JoinHandle<Pushed>,
}

impl Pusher {
    pub fn start(queue: Queue, seed: u64) -> Self {
        let (tens, asked) = channel::<u64>();
        let pushes = std::thread::spawn(move || {
            let (mut pushed, mut random) = (Pushed::default(), fastrand::Rng::with_seed(seed));
            for tens in asked {
                // Ten after ten, so that pushes are cut short at many moments.
                (0..tens).for_each(|_| pushed.push(&queue, &mut random));
            }
            pushed
        });
        Self { tens, pushes }
    }

    /// Begins to push this many times ten jobs.
    pub fn push(&self, tens: u64) {
        self.tens.send(tens).expect("it pushes");
    }

    /// Returns what was pushed, once all is.
    pub fn end(self) -> Pushed {
        drop(self.tens);
        self.pushes.join().expect("it pushes")
    }
}

/// What a job carries. The twins of a unique job differ in `n` alone.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct Payload {
    pub n: u64,
    pub key: Option<String>,
    twin: Option<String>,
}

fn job(n: u64, first: u64, random: &mut fastrand::Rng) -> (String, NewJob, Option<String>) {
    let (id, kind) = (format!("j{n}"), if matches!(n % 10, 5 | 6 | 9) { "narrow" } else { "plain" });
    let key = matches!(n % 10, 2..=4 | 9).then(|| format!("k{}", random.u32(..5)));
    let twin = (n % 10 == 7).then(|| format!("u{}", random.u32(..8)));
    let mut job = NewJob::new(kind, &Payload { n, key: key.clone(), twin: twin.clone() }).unwrap().id(&*id);
    if let Some(key) = key {
        job = job.key(key);
    }
    if twin.is_some() {
        job = job.unique(Unique::until_done().ignoring(["n"]));
    }
    if n % 10 == 8 {
        job = job.after([format!("j{first}"), format!("j{}", first + 1)]);
    }
    (id, job, twin)
}

impl Pushed {
    fn push(&mut self, queue: &Queue, random: &mut fastrand::Rng) {
        let first = self.next;
        self.next += 10;
        let ten: Vec<_> = (first..self.next).map(|n| job(n, first, random)).collect();
        // Each alone or all in one call.
        let pieces = if random.bool() { vec![ten] } else { ten.into_iter().map(|job| vec![job]).collect() };
        for piece in pieces {
            let mut in_doubt = false;
            let added = loop {
                let made = (|| {
                    // All of them are there, or none. (The first may be the twin of another.)
                    let mut there = Vec::new();
                    for (id, ..) in piece.iter().filter(|_| in_doubt) {
                        there.push(queue.get(id)?.is_some());
                    }
                    if there.contains(&true) {
                        return Ok(there);
                    }
                    let outcomes = queue.push_all(piece.iter().map(|(_, job, _)| job.clone()))?;
                    Ok::<_, waterline_queue::QueueError>(
                        outcomes.iter().map(|pushed| pushed.outcome == PushOutcome::Added).collect(),
                    )
                })();
                match made {
                    Ok(added) => break added,
                    // Its server is away.
                    Err(_) => {
                        in_doubt = true;
                        std::thread::park_timeout(Duration::from_millis(20));
                    }
                }
            };
            for ((id, _, twin), _) in piece.into_iter().zip(added).filter(|(_, is_added)| *is_added) {
                if id.ends_with('8') {
                    self.after.push((id.clone(), [format!("j{first}"), format!("j{}", first + 1)]));
                }
                self.added.insert(id, twin);
            }
        }
    }
}
