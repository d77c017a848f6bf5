//! The builder of a page.

use crate::error::{NotAnOrigin, ServeError};
use crate::guard::{Address, Guard};
use crate::parts::{Part, Watched};
use crate::serve::Served;
use crate::session::Token;
use crate::shared::Shared;
use axum::Router;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use waterline::Store;
use waterline_queue::{Group, Queue, RunnerHandle};

/// A web page that shows consumers and queues, and lets operators change them.
///
/// Mount it in the web server of your program, behind its own login, with [`router`](Self::router).
/// Or let it serve itself, with [`serve`](Self::serve).
///
/// ```
/// use waterline::{Consumer, MemoryJobs, Store};
/// use waterline_queue::{Queue, QueueOptions};
/// use waterline_ui::Page;
///
/// let store = Store::in_memory();
/// let jobs: MemoryJobs<_> = (0..3).collect();
/// let consumer = Consumer::builder(jobs, store.progress("blocks")).start(|_| Ok(()))?;
/// let mails = Queue::open(&store, "mail", QueueOptions::default())?;
///
/// let page = Page::new(&store).watch(consumer.handle()).queue(&mails).title("indexer");
/// let app: axum::Router = axum::Router::new().nest("/admin/waterline", page.router());
/// let served = page.serve("127.0.0.1:0")?;        // gone when it is dropped
/// println!("look at http://{}/", served.addr());
/// # drop(app);
/// # consumer.stop()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The page is read-only unless it has [`allow_writes`](Self::allow_writes).
#[derive(Clone)]
#[must_use = "a page shows nothing before it is mounted or served"]
pub struct Page {
    parts: Vec<Part>,
    /// The store of parked jobs and history; `None` if there are none to show.
    store: Option<Store>,
    title: String,
    is_stored: bool,
    writes: bool,
    token: Option<Token>,
    origin: Result<Option<Address>, NotAnOrigin>,
    /// Shared by all routers and servers of this page, so that one thread samples for all.
    shared: Arc<OnceLock<Arc<Shared>>>,
}

impl Page {
    /// Makes an empty page for the consumers and queues of a store.
    ///
    /// Parked jobs and history are looked up in this store by the name of their consumer. So a
    /// consumer of another store needs a page of its own.
    pub fn new(store: &Store) -> Self {
        Self::on(Some(store.clone()))
    }

    /// Makes a page of these queues and consumers, without a store.
    ///
    /// It is for those whose state is in a database that many processes share. It shows no parked
    /// jobs and no history, which are in the store of a consumer.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{Queue, QueueOptions};
    /// use waterline_ui::Page;
    ///
    /// # let store = Store::in_memory();
    /// // Mostly a queue of `waterline-postgres`: store.queue("mail", QueueOptions::default())?
    /// let mails = Queue::open(&store, "mail", QueueOptions::default())?;
    /// let served = Page::of([&mails]).title("mails").serve("127.0.0.1:0")?;
    /// # drop(served);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of<W: Into<Watched>>(watched: impl IntoIterator<Item = W>) -> Self {
        watched.into_iter().fold(Self::on(None), Self::watch)
    }

    fn on(store: Option<Store>) -> Self {
        Self {
            parts: Vec::new(),
            store,
            title: "waterline".to_owned(),
            is_stored: false,
            writes: false,
            token: None,
            origin: Ok(None),
            shared: Arc::default(),
        }
    }

    /// Shows a consumer, the stages of a pipeline, a queue, or a group.
    ///
    /// A consumer that has ended is shown in its last state. One that is started again is another
    /// consumer, and needs a page of its own.
    pub fn watch(self, watched: impl Into<Watched>) -> Self {
        self.with(Part::Watched(watched.into()))
    }

    /// Shows a queue.
    pub fn queue(self, queue: &Queue) -> Self {
        self.watch(queue)
    }

    /// Shows all queues of a group.
    pub fn group(self, group: &Group) -> Self {
        self.watch(group)
    }

    /// Shows the saved state of consumers that are not [watched](Self::watch), too.
    ///
    /// That is their progress, their parked jobs, their last halt, and their moves. It is for a
    /// program that looks at the store of another one, opened
    /// [read-only](waterline::StoreOptions::read_only). Of such a store each queue is shown as it
    /// is saved, also one that is made later. Only its process knows whether a runner runs.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, Store};
    /// use waterline_ui::Page;
    ///
    /// let store = Store::in_memory();
    /// let jobs: MemoryJobs<_> = (0..3).collect();
    /// Consumer::builder(jobs, store.progress("blocks")).stop_at(2).start(|_| Ok(()))?.join()?;
    /// let served = Page::new(&store).stored().title("from beside").serve("127.0.0.1:0")?;
    /// # drop(served);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stored(self) -> Self {
        Self { is_stored: true, ..self.anew() }
    }

    /// Lets operators change how many jobs this runner runs at once.
    pub fn runner(self, runner: &RunnerHandle) -> Self {
        self.with(Part::Runner(runner.clone()))
    }

    /// Sets the title: the name of your program, to tell several pages apart.
    pub fn title(self, title: impl Into<String>) -> Self {
        Self { title: title.into(), ..self.anew() }
    }

    /// Lets operators pause, resume, redrive, requeue and remove. The default is read-only.
    ///
    /// Your server decides who may reach a page that you mount. A page that
    /// [serves](Self::serve) itself takes changes only with a [`token`](Self::token). Without one
    /// it stays read-only, and says so.
    ///
    /// A mounted page with neither a token nor a login before it takes changes from every caller
    /// that reaches it. It cannot see a login, so it logs a warning if it has no token.
    ///
    /// A mounted page trusts the `Host` of a request. So set [`origin`](Self::origin), unless a
    /// login by cookie or header stands before it: otherwise a foreign name that points at your
    /// server (*DNS rebinding*) may change things.
    pub fn allow_writes(self, writes: bool) -> Self {
        Self { writes, ..self.anew() }
    }

    /// Sets the token that is needed to open the page: 16 random bytes or more.
    ///
    /// A program sends it as `Authorization: Bearer …`, and a person types it into a form, which
    /// sets a cookie for a session of 12 hours. Then the page asks for it again. The token is never
    /// logged.
    pub fn token(self, token: impl Into<String>) -> Self {
        Self { token: Some(Token::new(token.into())), ..self.anew() }
    }

    /// Sets the address that browsers use, such as `https://ops.example.org`, if the page is behind
    /// a proxy.
    ///
    /// A `Host` and an `Origin` of any other name are then refused. Its path is that of the page,
    /// if the proxy changes the path.
    pub fn origin(self, url: impl AsRef<str>) -> Self {
        Self { origin: Address::parse(url.as_ref()).map(Some), ..self.anew() }
    }

    fn with(mut self, part: Part) -> Self {
        self.parts.push(part);
        self.anew()
    }

    /// Forgets what an earlier router or server of this page shows.
    fn anew(self) -> Self {
        Self { shared: Arc::default(), ..self }
    }

    fn shared(&self) -> Arc<Shared> {
        self.shared.get_or_init(|| Shared::start(self.store.as_ref(), &self.parts, &self.title, self.is_stored)).clone()
    }

    /// Returns the page as routes for your own server.
    ///
    /// Mount them under any path, also under the root, behind your own login:
    /// `app.nest("/admin/waterline", page.router())`. An `app` with a state takes them by
    /// `nest_service`.
    ///
    /// They take changes only from the page itself: see [the crate](crate) for the checks. A thread
    /// samples each name once a second as long as the routes live.
    ///
    /// # Panics
    /// If [`origin`](Self::origin) is no address, or if [`token`](Self::token) has fewer than 16
    /// bytes.
    pub fn router(&self) -> Router {
        let origin = self.origin.clone().unwrap_or_else(|error| panic!("{error}"));
        if let Some(Err(error)) = self.token.as_ref().map(Token::check) {
            panic!("{error}");
        }
        if self.writes && self.token.is_none() {
            let any_host = matches!(self.origin, Ok(None));
            tracing::warn!(target: "waterline", any_host, "a mounted page takes changes from any caller that reaches it, since it has no token: put a login before it, or set Page::token; with any_host also under a name that another person points here: set Page::origin");
        }
        crate::web::router(self.shared(), Guard::mounted(origin, self.token.clone(), self.writes))
    }

    /// Returns the page as routes below this path: `app.merge(page.at("/admin/waterline"))`.
    ///
    /// They answer with and without a trailing slash, while `nest` of [`axum`] leads to a
    /// [`router`](Self::router) only by the exact path that it was given.
    ///
    /// # Panics
    /// As [`router`](Self::router), and if the path does not begin with a slash.
    pub fn at(&self, path: &str) -> Router {
        match path.trim_end_matches('/') {
            "" => self.router(),
            path => Router::new().nest_service(path, self.router()),
        }
    }

    /// Serves the page on a thread of its own, until the returned value is dropped.
    ///
    /// With port 0 the system picks a port: see [`Served::addr`]. It speaks HTTP without TLS, so an
    /// address that is no loopback belongs behind a proxy that encrypts, and needs a
    /// [`token`](Self::token).
    ///
    /// # Errors
    /// [`ServeError`] says what to do: the address is in use, is not valid, or needs a token.
    pub fn serve(&self, addr: impl ToSocketAddrs) -> Result<Served, ServeError> {
        let origin = self.origin.clone()?;
        self.token.as_ref().map_or(Ok(()), Token::check)?;
        let listener = crate::serve::listen(addr, self.token.is_some())?;
        let own: SocketAddr = listener.local_addr().map_err(ServeError::Listen)?;
        let guard = Guard::served(own, origin, self.token.clone(), self.writes);
        Served::start(listener, own, self.shared(), guard)
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").field("title", &self.title).field("writes", &self.writes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::lines_of;

    #[test]
    fn a_writable_mounted_page_without_a_token_warns() {
        let page = || Page::new(&Store::in_memory());
        let says = |page: Page| lines_of(|| drop(page.router()));
        let open = says(page().allow_writes(true));
        assert!(open.len() == 1 && open[0].contains("takes changes from any caller that reaches it"), "{open:?}");
        assert!(open[0].contains("any_host=true"), "{open:?}");
        let named = says(page().allow_writes(true).origin("https://ops.example.org"));
        assert!(named.len() == 1 && named[0].contains("any_host=false"), "{named:?}");
        for quiet in [page(), page().allow_writes(true).token("0123456789abcdef")] {
            assert_eq!(says(quiet), [""; 0]);
        }
    }
}
