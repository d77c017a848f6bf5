//! An API with pages as a source. Each page names the cursor of the next one, and the index of an
//! item is its number since the first. Copy this file, and change the item, the page and the
//! request.
//!
//! It asks two things of the API: items are only added at the end, and their ids ascend. The pages
//! themselves may come twice, overlap, and have any size.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use waterline::{BoxError, Index, Jobs, Table, Wakeup};

/// The longest page that is read, in bytes.
const LONGEST_PAGE: u64 = 64 << 20;
/// How many pages in a row may bring nothing new. With more, their cursors lead in a circle.
const MOST_WITHOUT_NEW: usize = 16;
/// How much of an answer an error quotes, in characters.
const QUOTED: usize = 200;

/// An item of the API.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Item {
    pub id: u64,
    pub text: String,
}

/// A page, as the API sends it.
#[derive(Deserialize)]
struct Sent {
    items: Vec<Item>,
    /// The cursor of the next page. The last page has none.
    next: Option<String>,
}

/// Where a page begins. The table has one for each page, by the index of its first new item.
#[derive(Clone, Default, Deserialize, Serialize)]
struct Mark {
    /// The first page has none.
    cursor: Option<String>,
    /// The id of the last item before the page. What is not above it came before.
    after: Option<u64>,
}

/// What is new on a page.
struct Page {
    first: Index,
    mark: Mark,
    items: Vec<Item>,
    next: Option<String>,
}

impl Page {
    /// The index after the last item.
    fn end(&self) -> Index {
        self.first + self.items.len() as Index
    }
}

/// The items of an API with pages.
pub struct Pages {
    address: String,
    http: ureq::Agent,
    timeout: Mutex<Duration>,
    marks: Table,
    /// The furthest page so far. It is read from here, so the API sends it once.
    furthest: Mutex<Option<Arc<Page>>>,
    /// The number of items that the API has shown.
    seen: AtomicU64,
    /// The index after the highest one that was read.
    taken: AtomicU64,
    /// True if there was a read since the last look at the head.
    reads: AtomicBool,
    wakeups: Mutex<Vec<Wakeup>>,
}

impl Jobs for Pages {
    type Job = Item;

    /// Asks for the next page once the furthest one was read, or while the consumer reads none:
    /// then a life before this one may have read it.
    fn head(&self) -> Result<Option<Index>, BoxError> {
        let furthest = self.furthest.lock().clone();
        let is_reading = self.reads.swap(false, Ordering::AcqRel);
        let page = match furthest {
            Some(page) if is_reading && page.end() > self.taken.load(Ordering::Acquire) => page,
            Some(page) => Arc::new(self.with_news(match self.after(&page)? {
                Some(next) => next,
                // It may have grown.
                None => self.fetch(page.first, page.mark.clone())?,
            })?),
            None => Arc::new(self.with_news(self.fetch_marked(Index::MAX)?)?),
        };
        self.seen.fetch_max(page.end(), Ordering::AcqRel);
        *self.furthest.lock() = Some(page);
        Ok(self.seen.load(Ordering::Acquire).checked_sub(1))
    }

    fn at_index(&self, index: Index) -> Result<Option<Item>, BoxError> {
        let mut items = Vec::new();
        self.read(index..=index, &mut items)?;
        Ok(items.pop())
    }

    /// Reads the rest of the page that has the first index.
    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Item>) -> Result<(), BoxError> {
        self.reads.store(true, Ordering::Release);
        let start = *run.start();
        if start >= self.seen.load(Ordering::Acquire) {
            return Ok(());
        }
        let furthest = self.furthest.lock().clone().filter(|page| (page.first..page.end()).contains(&start));
        let page = furthest.map_or_else(|| self.find(start).map(Arc::new), Ok)?;
        let before = usize::try_from(start - page.first)?;
        let items = run.zip(page.items.iter().skip(before));
        for (index, item) in items {
            into.push(item.clone());
            self.taken.fetch_max(index + 1, Ordering::AcqRel);
        }
        // The consumer has all that was shown, and asks for the head at once.
        if self.taken.load(Ordering::Acquire) >= self.seen.load(Ordering::Acquire) && page.next.is_some() {
            self.wakeups.lock().retain(Wakeup::ring);
        }
        Ok(())
    }

    /// It is rung after each page but the last one, which the consumer looks at each second.
    fn subscribe(&self, wakeup: Wakeup) -> bool {
        self.wakeups.lock().push(wakeup);
        false
    }

    fn call_timeout(&self, after: Option<Duration>) -> Option<Duration> {
        let mut timeout = self.timeout.lock();
        *timeout = after.unwrap_or(*timeout);
        Some(*timeout)
    }
}

impl Pages {
    /// The address is that of the first page. The table keeps where each page begins, so that a
    /// restart asks for the page that it needs: take one in the store that has the progress.
    pub fn new(address: &str, marks: Table) -> Self {
        // An answer with an error says more than its status. For `https`, enable the feature
        // `rustls` of `ureq`.
        let http = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        Self {
            address: address.to_owned(),
            http,
            timeout: Mutex::new(Duration::from_secs(30)),
            marks,
            furthest: Mutex::default(),
            seen: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            reads: AtomicBool::new(false),
            wakeups: Mutex::default(),
        }
    }

    /// Returns the page that has this index, or the last one.
    fn find(&self, index: Index) -> Result<Page, BoxError> {
        let mut page = self.fetch_marked(index)?;
        // Pages may have become smaller since then.
        while page.end() <= index {
            let Some(next) = self.after(&page)? else { break };
            page = self.with_news(next)?;
        }
        Ok(page)
    }

    /// Returns this page, or the first one after it that has something new. The last one may have
    /// nothing.
    fn with_news(&self, mut page: Page) -> Result<Page, BoxError> {
        for _ in 0..MOST_WITHOUT_NEW {
            if !page.items.is_empty() {
                return Ok(page);
            }
            let Some(next) = self.after(&page)? else { return Ok(page) };
            page = next;
        }
        let (after, cursor) = (page.mark.after, page.mark.cursor);
        Err(format!(
            "{MOST_WITHOUT_NEW} pages in a row, up to the cursor {cursor:?}, have no item after the id {after:?}"
        )
        .into())
    }

    /// Returns the page after this one, and notes where it begins.
    fn after(&self, page: &Page) -> Result<Option<Page>, BoxError> {
        let Some(next) = page.next.clone() else { return Ok(None) };
        let after = page.items.last().map(|item| item.id).or(page.mark.after);
        let mark = Mark { cursor: Some(next), after };
        let next = self.fetch(page.end(), mark.clone())?;
        self.marks.put(page.end().to_be_bytes(), serde_json::to_vec(&mark)?)?;
        Ok(Some(next))
    }

    /// Asks for the page with the highest mark up to this index.
    fn fetch_marked(&self, index: Index) -> Result<Page, BoxError> {
        match self.marks.range_rev(..=index.to_be_bytes()).next().transpose()? {
            Some((first, mark)) => {
                let first = first.as_slice().try_into().map_err(|_| "the table of marks has another key")?;
                self.fetch(Index::from_be_bytes(first), serde_json::from_slice(&mark)?)
            }
            None => self.fetch(0, Mark::default()),
        }
    }

    /// Asks for a page.
    fn fetch(&self, first: Index, mark: Mark) -> Result<Page, BoxError> {
        let mut request = self.http.get(&self.address);
        if let Some(cursor) = &mark.cursor {
            request = request.query("cursor", cursor);
        }
        let timeout = *self.timeout.lock();
        let mut answer = request.config().timeout_global(Some(timeout)).build().call()?;
        let text = answer.body_mut().with_config().limit(LONGEST_PAGE).read_to_string()?;
        let quoted: String = text.chars().take(QUOTED).collect();
        if !answer.status().is_success() {
            return Err(format!("the API answered {}: {quoted}", answer.status()).into());
        }
        let Sent { mut items, next } =
            serde_json::from_str(&text).map_err(|error| format!("the API sent no page ({error}): {quoted}"))?;
        if !items.is_sorted_by(|one, other| one.id < other.id) {
            return Err(format!("the ids on the page {:?} do not ascend: {quoted}", mark.cursor).into());
        }
        items.retain(|item| Some(item.id) > mark.after);
        Ok(Page { first, mark, items, next })
    }
}
