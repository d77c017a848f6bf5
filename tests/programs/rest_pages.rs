//! The example `rest_pages`: its source and its process, at an API whose pages come twice, overlap,
//! change their size and grow.

#[path = "../../examples/rest_pages/pages.rs"]
mod pages;

use crate::server::{Answer, Server};
use common::{LONG, Place, ends, until};
use pages::{Item, Pages};
use parking_lot::Mutex;
use serde_json::json;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use waterline::testing::JobsSuite;
use waterline::{Blocked, Consumer, Index, Jobs, Retry, Store, Table};

/// What the API does with a request in place of what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// The page before it comes once more.
    Twice,
    /// The page begins with two items of the one before.
    Overlaps,
    /// The page has one item, or three times as many.
    Small,
    Large,
    /// The page has no item, and a next one.
    Empty,
    /// The newest items are missing.
    Lags,
    /// The items come from the last to the first.
    Backwards,
    Fails,
    Garbage,
    HangsUp,
}

use Fault::*;

/// The API: how many items it has on pages of which size, and what it does with the next requests.
struct Api {
    items: AtomicU64,
    size: AtomicU64,
    faults: Mutex<VecDeque<Option<Fault>>>,
    /// How often each fault was met.
    met: Mutex<BTreeMap<Fault, u64>>,
    /// The first item of each page that was asked for.
    asked: Mutex<Vec<u64>>,
}

impl Api {
    fn start(items: u64, size: u64) -> (Arc<Self>, Server) {
        let (items, size) = (items.into(), size.into());
        let api = Self { items, size, faults: Mutex::default(), met: Mutex::default(), asked: Mutex::default() };
        let api = Arc::new(api);
        let answers = Arc::clone(&api);
        let server = Server::start(move |request| {
            assert_eq!(request.body, "");
            answers.answer(&request.path)
        });
        (api, server)
    }

    /// A cursor is the number of the first item, and of the request that told it.
    fn answer(&self, path: &str) -> Answer {
        let cursor = path.strip_prefix("/items").unwrap().strip_prefix("?cursor=");
        let from = cursor.map_or(0, |cursor| cursor.split('-').next().unwrap().parse().unwrap());
        let number = {
            let mut asked = self.asked.lock();
            asked.push(from);
            asked.len()
        };
        let fault = self.faults.lock().pop_front().flatten();
        fault.into_iter().for_each(|fault| *self.met.lock().entry(fault).or_default() += 1);
        let (all, size) = (self.items.load(Ordering::Acquire), self.size.load(Ordering::Acquire));
        let (begin, end) = match fault {
            Some(Fails) => return Answer::Http(503, String::new(), "the database is away".to_owned()),
            Some(Garbage) => return Answer::ok("<html>hello</html>"),
            Some(HangsUp) => return Answer::HangUp,
            Some(Twice) => (from.saturating_sub(size), from),
            Some(Overlaps) => (from.saturating_sub(2), from.saturating_sub(2) + size),
            Some(Small) => (from, from + 1),
            Some(Large) => (from, from + 3 * size),
            Some(Empty) => (from, from),
            Some(Lags | Backwards) | None => (from, from + size),
        };
        let shown = if fault == Some(Lags) { all.saturating_sub(3) } else { all };
        let mut items: Vec<_> = (begin..end.min(shown)).map(|at| json!({"id": id(at), "text": text(at)})).collect();
        if fault == Some(Backwards) {
            items.reverse();
        }
        let next = (end < shown).then(|| format!("{end}-{number}"));
        Answer::ok(json!({"items": items, "next": next}))
    }

    fn met_all(&self, faults: &[Fault]) {
        let met = self.met.lock();
        assert!(faults.iter().all(|fault| met.contains_key(fault)), "{met:?}");
    }
}

/// The ids ascend, and have gaps.
fn id(at: u64) -> u64 {
    3 * at + 5
}

fn text(at: u64) -> String {
    format!("item {at}")
}

fn item(at: u64) -> Item {
    Item { id: id(at), text: text(at) }
}

fn source(server: &Server, marks: Table) -> Pages {
    Pages::new(&format!("{}/items", server.url()), marks)
}

/// Reads all that the source has, as a consumer does: the head, and a run up to it.
fn all(source: &Pages, wanted: u64) -> Vec<Item> {
    let (mut items, mut before) = (Vec::new(), 0);
    for _ in 0..10 * wanted {
        let Some(head) = source.head().unwrap() else { continue };
        let next = items.len() as Index;
        assert!(head >= before, "the head went back from {before} to {head}");
        before = head;
        if next <= head {
            source.read(next..=head, &mut items).unwrap();
        }
        if items.len() as u64 >= wanted {
            break;
        }
    }
    items
}

#[test]
fn pages_that_come_twice_overlap_or_change_bring_each_item_once() {
    for fault in [Twice, Overlaps, Small, Large, Empty, Lags] {
        for at in 0..6 {
            let (api, server) = Api::start(47, 10);
            let marks = Store::in_memory().table("marks").unwrap();
            let source = source(&server, marks.clone());
            api.faults.lock().extend((0..6).map(|n| (n == at).then_some(fault)));
            let wanted: Vec<Item> = (0..47).map(item).collect();
            assert_eq!(all(&source, 47), wanted, "{fault:?} at request {at}");
            // A restart finds each by the marks, on pages of another size.
            for size in [7, 10, 100] {
                api.size.store(size, Ordering::Release);
                let restarted = self::source(&server, marks.clone());
                // It goes on page by page, though nobody reads.
                assert!((0..20).any(|_| restarted.head().unwrap() == Some(46)), "{fault:?} at {at}, {size} a page");
                assert_eq!(all(&restarted, 47), wanted, "{fault:?} at request {at}, then {size} a page");
            }
        }
    }
}

#[test]
fn each_fault_of_an_api_is_an_error_that_quotes_it() {
    let (api, server) = Api::start(47, 10);
    let source = source(&server, Store::in_memory().table("marks").unwrap());
    for (fault, says) in [
        (Fails, "the API answered 503 Service Unavailable: the database is away"),
        (Garbage, "the API sent no page (expected value at line 1 column 1): <html>hello</html>"),
        (Backwards, "the ids on the page None do not ascend: {\"items\":[{\"id\":32,"),
    ] {
        api.faults.lock().push_back(Some(fault));
        let error = source.head().unwrap_err().to_string();
        assert!(error.contains(says), "{fault:?}: {error}");
    }
    api.faults.lock().push_back(Some(HangsUp));
    assert!(source.head().is_err());
    assert_eq!(source.head().unwrap(), Some(9));
    api.faults.lock().extend([Some(Empty); 100]);
    let error = source.head().unwrap_err().to_string();
    assert!(error.contains("16 pages in a row") && error.contains("have no item after the id Some(32)"), "{error}");
}

#[test]
fn each_page_is_asked_for_once_and_when_it_is_needed() {
    let (api, server) = Api::start(47, 10);
    let source = source(&server, Store::in_memory().table("marks").unwrap());
    let mut items = Vec::new();
    let mut steps = |run, head, asked: &[u64]| {
        assert_eq!(source.head().unwrap(), Some(head));
        source.read(run, &mut items).unwrap();
        assert_eq!(*api.asked.lock(), asked);
    };
    steps(0..=4, 9, &[0]);
    steps(5..=9, 9, &[0]);
    steps(10..=19, 19, &[0, 10]);
    steps(20..=20, 29, &[0, 10, 20]);
    steps(21..=29, 29, &[0, 10, 20]);
    steps(30..=39, 39, &[0, 10, 20, 30]);
    steps(40..=46, 46, &[0, 10, 20, 30, 40]);
    assert_eq!(items, (0..47).map(item).collect::<Vec<_>>());
    // The head stays where it was if another server of the API has less.
    api.faults.lock().push_back(Some(Lags));
    assert_eq!(source.head().unwrap(), Some(46));
}

#[test]
fn a_last_page_that_grows_is_awaited() {
    let (api, server) = Api::start(13, 10);
    let store = Store::in_memory();
    let (seen, table) = (store.table("seen").unwrap(), store.table("seen").unwrap());
    let consumer = Consumer::builder(source(&server, store.table("marks").unwrap()), store.progress("items"))
        .poll_every(Duration::from_millis(5))
        .stop_at(31)
        .start_transactional(move |job, effects| Ok(effects.add(&table, job.payload.text, 1)?))
        .unwrap();
    let handle = consumer.handle();
    for (items, more) in [(13, 18), (18, 19), (19, 32)] {
        let status = until(&handle, "the last page to be processed", |status| {
            status.last_processed == Some(items - 1) && status.blocked == Blocked::CaughtUp
        });
        assert_eq!(status.head, Some(items - 1));
        api.items.store(more, Ordering::Release);
    }
    ends("the consumer", move || consumer.join()).unwrap();
    assert!((0..32).all(|at| seen.counter(text(at)).unwrap() == 1));
}

#[test]
fn the_source_passes_the_suite() {
    let (_api, server) = Api::start(4, 10);
    JobsSuite::fixed(|| source(&server, Store::in_memory().table("marks").unwrap())).run();
}

#[test]
fn promise_09_ten_lives_count_each_item_of_bad_pages_once() {
    const LIVES: u64 = 10;
    const EACH: u64 = 103;
    let (api, server) = Api::start(0, 10);
    let faults = [Twice, Overlaps, Small, Large, Empty, Lags, Backwards, Fails, Garbage, HangsUp];
    api.faults.lock().extend((0..3_000).map(|n| (n % 3 == 2).then(|| faults[n / 3 % faults.len()])));
    let place = Place::default();
    for life in 1..=LIVES {
        // It ends in the middle of what is there, and the pages have another size each time.
        api.items.store(EACH * life + 7, Ordering::Release);
        api.size.store(5 + life * 7 % 11, Ordering::Release);
        let store = place.open();
        let (counts, texts) = (store.table("counts").unwrap(), store.table("texts").unwrap());
        let begun = api.asked.lock().len();
        let consumer = Consumer::builder(source(&server, store.table("marks").unwrap()), store.progress("items"))
            .max_processing(4)
            .max_reading(3)
            .poll_every(Duration::from_millis(5))
            .source_retry(Retry::fixed(Duration::from_millis(1)))
            .stop_at(EACH * LIVES - 1)
            .start_transactional(move |job, effects| {
                effects.add(&counts, job.index.to_be_bytes(), 1)?;
                Ok(effects.put(&texts, job.index.to_be_bytes(), job.payload.text)?)
            })
            .unwrap();
        let handle = consumer.handle();
        assert!(handle.wait_for(EACH * life - 1, LONG), "{}", handle.status());
        ends("the consumer", move || consumer.stop()).unwrap();
        // The pages before the one with the next item are not asked for again.
        let lowest = api.asked.lock()[begun..].iter().min().copied().unwrap();
        assert!(lowest + 50 >= EACH * (life - 1), "life {life} has asked for item {lowest}");
    }
    let store = place.open();
    let (counts, texts) = (store.table("counts").unwrap(), store.table("texts").unwrap());
    for index in 0..EACH * LIVES {
        assert_eq!(counts.counter(index.to_be_bytes()).unwrap(), 1, "item {index}");
        assert_eq!(texts.get(index.to_be_bytes()).unwrap(), Some(text(index).into_bytes()));
    }
    assert_eq!(counts.iter().count() as u64, EACH * LIVES);
    api.met_all(&faults);
}

#[cfg(feature = "_disk")]
#[test]
fn the_process_goes_on_where_it_was() {
    let (api, server) = Api::start(100, 10);
    let dir = tempfile::tempdir().unwrap();
    common::make_in(dir.path().join("store"));
    for (last, says) in [(49, "50 items have 340 letters\n"), (99, "100 items have 690 letters\n")] {
        api.asked.lock().clear();
        let mut command = std::process::Command::new(crate::example("rest_pages"));
        command.args([&format!("{}/items", server.url()), "--last", &last.to_string(), "--store"]);
        let output = command.arg(dir.path().join("store")).output().unwrap();
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).ends_with(says), "{output:#?}");
        assert!(api.asked.lock()[0] + 60 > last, "{:?}", api.asked);
    }
}
