//! A thread that pushes, whatever happens to its server. A push whose answer was lost is made
//! again, if nothing of it is there.

use postgres::{Client, Config, NoTls};
use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The jobs that were pushed.
#[derive(Default)]
pub struct Pushed {
    next: u64,
    /// The ids of the added jobs, and the fingerprint of each unique one.
    pub added: BTreeMap<String, Option<String>>,
    pub duplicates: u64,
    /// Each of these waits for two others.
    pub after: Vec<(String, [String; 2])>,
}

pub struct Pusher {
    tens: Sender<u64>,
    pushes: JoinHandle<Pushed>,
}

impl Pusher {
    pub fn start(config: Config, seed: u64) -> Self {
        let (tens, asked) = channel::<u64>();
        let pushes = std::thread::spawn(move || {
            let (mut pushed, mut client, mut random) = (Pushed::default(), None, fastrand::Rng::with_seed(seed));
            for tens in asked {
                // Ten after ten, so that pushes are cut short at many moments.
                (0..tens).for_each(|_| pushed.push(&config, &mut client, &mut random));
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

struct Ten {
    kinds: Vec<&'static str>,
    payloads: Vec<String>,
    settings: Vec<Option<String>>,
}

impl Ten {
    fn new(first: u64, random: &mut fastrand::Rng) -> Self {
        let mut ten = Self { kinds: Vec::new(), payloads: Vec::new(), settings: Vec::new() };
        for n in first..first + 10 {
            let (key, fingerprint) = (random.u32(..5), random.u32(..8));
            ten.kinds.push(if matches!(n % 10, 5 | 6 | 9) { "narrow" } else { "plain" });
            ten.payloads.push(n.to_string());
            ten.settings.push(match n % 10 {
                0 | 1 => Some(format!(r#"{{"id": "j{n}"}}"#)),
                2..=4 | 9 => Some(format!(r#"{{"key": "k{key}"}}"#)),
                7 => Some(format!(r#"{{"unique": {{"fingerprint": "u{fingerprint}", "until": "done"}}}}"#)),
                8 => Some(format!(r#"{{"after": ["j{first}", "j{}"]}}"#, first + 1)),
                _ => None,
            });
        }
        ten
    }

    /// Returns the id of each job that was added.
    fn push(&self, client: &mut Client) -> Result<Vec<Option<String>>, postgres::Error> {
        let push = "SELECT id, outcome FROM waterline.push_many('q', $1, $2, $3::text[]::jsonb[])";
        let answers = client.query(push, &[&self.kinds, &self.payloads, &self.settings])?;
        let id = |row: &postgres::Row| (row.get::<_, &str>(1) == "added").then(|| row.get(0));
        Ok(answers.iter().map(id).collect())
    }

    /// The same of a push whose answer was lost; `None`: nothing was pushed.
    fn look(&self, client: &mut Client) -> Result<Option<Vec<Option<String>>>, postgres::Error> {
        let look = "SELECT payload, id FROM waterline.jobs WHERE payload = ANY ($1)";
        let rows = client.query(look, &[&self.payloads])?;
        let found: BTreeMap<String, String> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        Ok((!found.is_empty()).then(|| self.payloads.iter().map(|payload| found.get(payload).cloned()).collect()))
    }
}

impl Pushed {
    fn push(&mut self, config: &Config, client: &mut Option<Client>, random: &mut fastrand::Rng) {
        let (first, mut in_doubt) = (self.next, false);
        let ten = Ten::new(first, random);
        let ids = loop {
            let tried = (|| {
                let open = match client.take() {
                    Some(open) if !open.is_closed() => open,
                    _ => config.connect(NoTls)?,
                };
                let open = client.insert(open);
                match if in_doubt { ten.look(open)? } else { None } {
                    None => ten.push(open),
                    Some(ids) => Ok(ids),
                }
            })();
            match tried {
                Ok(ids) => break ids,
                // Its server is away, or has no room.
                Err(_) => {
                    (in_doubt, *client) = (true, None);
                    std::thread::park_timeout(Duration::from_millis(20));
                }
            }
        };
        for ((n, settings), id) in (first..).zip(ten.settings).zip(ids) {
            let Some(id) = id else {
                self.duplicates += 1;
                continue;
            };
            if n % 10 == 8 {
                self.after.push((id.clone(), [format!("j{first}"), format!("j{}", first + 1)]));
            }
            self.added.insert(id, settings.filter(|_| n % 10 == 7));
        }
        self.next = first + 10;
    }
}
