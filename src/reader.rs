//! The thread that calls the source: reads runs in index order, ahead of the workers.
//!
//! If the last read took less than 20 µs and this thread only supervises the workers, the worker
//! that runs dry reads the next run itself, and no thread is woken. One thread at a time calls the
//! source, and it holds no other lock meanwhile. Only [`Reads`] make several calls at once.

use crate::base::guard::drop_guarded;
use crate::base::sync::Arc;
use crate::base::time::{self, Now, Sleep};
use crate::source::wakeup::{Bell, Rung};
use std::time::{Duration, Instant};

mod ask;
mod keys;
mod looks;
mod payloads;
mod plan;
mod port;
mod reads;
mod shared;
mod weights;

pub(crate) use self::ask::{Ask, Fetched, Outcome, Then};
pub(crate) use self::keys::{Key, KeyOf, hashed};
pub(crate) use self::looks::Due;
use self::looks::Looks;
pub(crate) use self::payloads::Payloads;
use self::port::Reply;
pub(crate) use self::port::{Beyond, Look, Order, ReadPort, ReadRuns, Source};
pub(crate) use self::reads::Reads;
pub(crate) use self::shared::SharedSource;
pub(crate) use self::weights::Weights;

/// The reader thread, which carries out orders until the end.
pub(crate) struct Reader {
    source: Arc<dyn Source>,
    port: Arc<dyn ReadPort>,
    bell: Arc<Bell>,
    /// The time between two looks when the bell does not ring; `None`: no limit.
    poll_every: Option<Duration>,
    looks: Looks,
    /// The result of the last order, if that was to read.
    fetched: Option<Fetched>,
    /// Set while there is no order.
    wait: Option<Wait>,
    /// Several reads at once, if that is set.
    reads: Option<Arc<Reads>>,
}

/// The wait for an order.
struct Wait {
    until: Option<Instant>,
    /// True while it supervises the workers.
    supervises: bool,
}

impl Reader {
    pub(crate) fn new(
        source: Arc<dyn Source>,
        port: Arc<dyn ReadPort>,
        bell: Arc<Bell>,
        poll_every: Option<Duration>,
    ) -> Self {
        let looks = Looks::new(source.clock().now());
        Self { source, port, bell, poll_every, looks, fetched: None, wait: None, reads: None }
    }

    pub(crate) fn with_reads(self, reads: Option<Arc<Reads>>) -> Self {
        Self { reads, ..self }
    }

    pub(crate) fn run(mut self) {
        loop {
            // A clock that is set after this moment rings the bell.
            let now = self.source.clock().when_asked();
            // A call that is given up rings the bell, too.
            let overdue = self.reads.as_ref().and_then(|reads| reads.expire(time::now()));
            match self.step(&now) {
                Sleep::No => {}
                Sleep::Spin => self.bell.spin(),
                Sleep::Until(until) => {
                    let until = self.source.clock().deadline(until);
                    self.bell.sleep(until.into_iter().chain(overdue).min());
                }
                Sleep::Awhile(pause) => self.bell.sleep(time::now().checked_add(pause)),
                Sleep::End => break,
            }
        }
        drop_guarded(self.fetched);
        if let Some(reads) = &self.reads {
            reads.close();
        }
        drop_guarded(self.source);
    }

    /// Takes an order and carries it out, or supervises the workers while there is none.
    pub(crate) fn step(&mut self, now: &Now) -> Sleep {
        let Some(wait) = &mut self.wait else { return self.obey(now) };
        let is_over = wait.until.is_some_and(|until| now.get() >= until);
        if !is_over && !self.bell.has_rung() {
            if wait.supervises {
                if let Some(pause) = self.port.supervise(now) {
                    let left = wait.until.map(|until| until.saturating_duration_since(now.get()));
                    return Sleep::Awhile(left.map_or(pause, |left| left.min(pause)));
                }
                wait.supervises = false;
            }
            return Sleep::Until(wait.until);
        }
        self.wait = None;
        let rung = self.bell.take_all();
        if rung.closed {
            return Sleep::End;
        }
        if self.hear(rung, now.get()) { Sleep::No } else { self.obey(now) }
    }

    fn obey(&mut self, now: &Now) -> Sleep {
        let due = self.looks.due(now.get(), self.poll_every);
        match self.port.order(self.fetched.take(), now, due) {
            Order::Look => self.look(now),
            Order::Read(run) => {
                let read = self.source.read_run(run);
                // Reading goes on while there is something to read. Looks must not wait for that.
                let rung = self.bell.take();
                if rung.look && read.is_empty() {
                    self.looks.echo(read.ended);
                }
                self.hear(Rung { look: rung.look && !read.is_empty(), ..rung }, read.ended);
                self.fetched = Some(read);
            }
            Order::Note => self.looks.read_in_vain(),
            Order::Start(dropped) => {
                dropped.into_iter().for_each(drop_guarded);
                self.start_reads(now);
            }
            Order::Wait(deadline) => {
                self.start_reads(now);
                let until = deadline.into_iter().chain(self.looks.next(now.get(), self.poll_every)).min();
                self.wait = Some(Wait { until, supervises: true });
                return Sleep::Spin;
            }
            Order::End => return Sleep::End,
        }
        Sleep::No
    }

    fn start_reads(&self, now: &Now) {
        if let Some(reads) = &self.reads {
            reads.start(&self.source, &self.port, now);
        }
    }

    /// Takes in what the bell rang for. Returns true if that called the source, which may take
    /// long.
    fn hear(&mut self, rung: Rung, at: Instant) -> bool {
        if rung.look {
            self.looks.ring();
        }
        // Asking for the head may be slow, and the head need not have moved.
        if rung.gate {
            self.ask_gate(at);
        }
        rung.gate
    }

    fn look(&mut self, now: &Now) {
        self.looks.begin(now.get());
        let Reply { answer, took, ended } = self.source.look();
        let showed_new = match answer {
            Ok(look) => self.port.looked(look),
            Err(error) => {
                self.looks.failed(self.port.look_failed(error.into()));
                false
            }
        };
        let rung = self.bell.take();
        self.looks.end(ended, took, showed_new, rung.look);
        self.hear(Rung { look: false, ..rung }, ended);
    }

    /// Asks for the gate alone.
    fn ask_gate(&mut self, at: Instant) {
        self.port.asking(at);
        let Reply { answer, ended, .. } = self.source.gate();
        match answer.map(|gate| self.port.gated(gate)) {
            Ok(Beyond::No) => {}
            Ok(Beyond::Newly) => self.looks.ring(),
            // The source may have more, or its gate may always be ahead of it. So the look is
            // paced.
            Ok(Beyond::Still) => self.looks.echo(ended),
            Err(error) => self.looks.failed(self.port.look_failed(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::caught::Caught;
    use crate::base::clock::Clock;
    use crate::base::sync::Mutex;
    use crate::source::Gate;
    use crate::source::MemoryJobs;
    use std::collections::VecDeque;

    const PAUSE: Duration = Duration::from_micros(100);

    /// Gives these orders, and has something to supervise this many times.
    struct ScriptedPort {
        orders: Mutex<VecDeque<Order>>,
        sights: Mutex<u32>,
    }

    impl ReadPort for ScriptedPort {
        fn order(&self, _: Option<Fetched>, _: &Now, _: Due) -> Order {
            self.orders.lock().pop_front().unwrap_or(Order::End)
        }
        fn supervise(&self, _: &Now) -> Option<Duration> {
            let mut left = self.sights.lock();
            *left = left.checked_sub(1)?;
            Some(PAUSE)
        }
        fn looked(&self, _: Look) -> bool {
            true
        }
        fn asking(&self, _: Instant) {}
        fn gated(&self, _: Gate) -> Beyond {
            Beyond::No
        }
        fn look_failed(&self, _: Caught) -> Option<Instant> {
            None
        }
    }

    fn reader(orders: impl IntoIterator<Item = Order>, sights: u32, now: Instant) -> Reader {
        let port = ScriptedPort { orders: Mutex::new(orders.into_iter().collect()), sights: Mutex::new(sights) };
        let source = Arc::new(SharedSource::new(MemoryJobs::<()>::new(), Clock::default()));
        let mut reader = Reader::new(source, Arc::new(port), Arc::default(), None);
        reader.looks.begin(now);
        reader
    }

    #[test]
    fn an_idle_reader_supervises_until_its_deadline() {
        let now = Instant::now();
        let mut reader = reader([Order::Wait(Some(now + PAUSE * 5 / 2))], 9, now);
        let steps: Vec<_> = [0, 0, 2, 4, 5].map(|halves| reader.step(&Now::at(now + PAUSE * halves / 2))).into();
        let awhile = |halves| Sleep::Awhile(PAUSE * halves / 2);
        assert_eq!(steps, [Sleep::Spin, awhile(2), awhile(2), awhile(1), Sleep::End]);
    }

    #[test]
    fn an_idle_reader_sleeps_until_the_bell_rings() {
        let now = Instant::now();
        let mut reader = reader([Order::Wait(None)], 1, now);
        let steps: Vec<_> = [0, 0, 1, 2].map(|pauses| reader.step(&Now::at(now + PAUSE * pauses))).into();
        assert_eq!(steps, [Sleep::Spin, Sleep::Awhile(PAUSE), Sleep::Until(None), Sleep::Until(None)]);
        reader.bell.work();
        assert_eq!(reader.step(&Now::at(now)), Sleep::End, "it asks for an order again");
    }
}
